//! What makes a candidate plausible, whatever was seen.

mod pixel_range;

pub use pixel_range::PixelRange;
