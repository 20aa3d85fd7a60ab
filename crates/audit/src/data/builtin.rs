//! Data inside the binary; `assets/NOTICE.md` says whose it is.

use flate2::read::GzDecoder;

use super::{Records, cifar, idx};
use crate::Result;

static DIGIT_IMAGES: &[u8] = include_bytes!("../../assets/digits-images.idx.gz");
static DIGIT_LABELS: &[u8] = include_bytes!("../../assets/digits-labels.idx.gz");
static SMALL_DIGIT_IMAGES: &[u8] = include_bytes!("../../assets/digits-8x8-images.idx.gz");
static SMALL_DIGIT_LABELS: &[u8] = include_bytes!("../../assets/digits-8x8-labels.idx.gz");
static PHOTOS: &[u8] = include_bytes!("../../assets/photos.bin.gz");

/// The first 600 training records of MNIST.
pub(super) fn digits() -> Result<Records> {
    idx::parse_pair(GzDecoder::new(DIGIT_IMAGES), GzDecoder::new(DIGIT_LABELS), "builtin:digits")
}

/// The 1797 digits of 8 x 8 pixels of the UCI repository.
pub(super) fn small_digits() -> Result<Records> {
    let (images, labels) = (GzDecoder::new(SMALL_DIGIT_IMAGES), GzDecoder::new(SMALL_DIGIT_LABELS));
    let mut records = idx::parse_pair(images, labels, "builtin:digits-8x8")?;
    // Bytes, read as parts of 255, count to 16.
    records.values.iter_mut().for_each(|value| *value = (*value * 255.0).round() / 16.0);
    Ok(records)
}

/// The first 600 training records of CIFAR-10.
pub(super) fn photos() -> Result<Records> {
    cifar::parse(GzDecoder::new(PHOTOS), "builtin:photos")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_at_least_two_hundred_of_each_binary_class() {
        let digits = digits().unwrap();
        let odd = digits.labels.iter().filter(|label| *label % 2 == 1).count();
        assert_eq!((digits.len(), digits.shape.as_slice()), (600, &[1, 28, 28][..]));
        assert!(odd >= 200 && digits.len() - odd >= 200, "{odd} odd");
        // The first digits of MNIST, as everybody knows them.
        assert_eq!(digits.labels[..10], [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]);
        let small = small_digits().unwrap();
        assert_eq!((small.len(), small.shape.as_slice()), (1797, &[1, 8, 8][..]));
        assert_eq!(small.labels[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        // The first line of the table.
        assert_eq!(small.values[..8], [0.0_f32, 0.0, 5.0, 13.0, 9.0, 1.0, 0.0, 0.0].map(|value| value / 16.0));
        let photos = photos().unwrap();
        let vehicles = photos.labels.iter().filter(|label| [0, 1, 8, 9].contains(*label)).count();
        assert_eq!((photos.len(), photos.shape.as_slice()), (600, &[3, 32, 32][..]));
        assert!(vehicles >= 200 && photos.len() - vehicles >= 200, "{vehicles} vehicles");
        assert_eq!(photos.labels[..5], [6, 9, 9, 4, 1]);
    }
}
