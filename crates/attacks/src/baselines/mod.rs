//! What a published method is compared with.

mod ae_iterations;
mod model_inversion;

pub use ae_iterations::AeIterations;
pub use model_inversion::ModelInversion;
