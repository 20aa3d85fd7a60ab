//! What a published method is compared with.

mod model_inversion;

pub use model_inversion::ModelInversion;
