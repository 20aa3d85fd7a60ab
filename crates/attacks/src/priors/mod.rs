//! What makes a candidate plausible, whatever was seen.

mod pixel_range;
mod smoothness;
mod total_variation;

pub use pixel_range::PixelRange;
pub use smoothness::Smoothness;
pub use total_variation::{TotalVariation, Variation};
