//! What a published method is compared with.

mod ae_iterations;
mod inpaint;
mod model_inversion;
mod weight_rows;

pub use ae_iterations::AeIterations;
pub use inpaint::Inpaint;
pub use model_inversion::ModelInversion;
pub use weight_rows::WeightRows;
