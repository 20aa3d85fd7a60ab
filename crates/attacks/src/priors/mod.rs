//! What makes a candidate plausible, whatever was seen.

mod pixel_range;
mod smoothness;

pub use pixel_range::PixelRange;
pub use smoothness::Smoothness;
