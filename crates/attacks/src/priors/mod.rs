//! What makes a candidate plausible, whatever was seen.

mod pixel_range;
mod smoothness;
mod total_variation;

use crate::AttackError;

pub use pixel_range::PixelRange;
pub use smoothness::Smoothness;
pub use total_variation::{TotalVariation, Variation};

/// Height and width of images of this shape, channels first; fails, naming the setting, for what is no image.
fn image_size(shape: &[usize], setting: &'static str) -> Result<[usize; 2], AttackError> {
    match *shape {
        [_, height, width] => Ok([height, width]),
        _ => {
            let expected = "is for images; records here have no height and width: set it to 0";
            Err(AttackError::setting(setting, format!("{shape:?}"), expected))
        }
    }
}
