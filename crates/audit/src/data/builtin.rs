//! Data inside the binary; `assets/NOTICE.md` says whose it is.

use flate2::read::GzDecoder;

use super::{Records, cifar, idx};
use crate::Result;

static DIGIT_IMAGES: &[u8] = include_bytes!("../../assets/digits-images.idx.gz");
static DIGIT_LABELS: &[u8] = include_bytes!("../../assets/digits-labels.idx.gz");
static PHOTOS: &[u8] = include_bytes!("../../assets/photos.bin.gz");

/// The first 600 training records of MNIST.
pub(super) fn digits() -> Result<Records> {
    idx::parse_pair(GzDecoder::new(DIGIT_IMAGES), GzDecoder::new(DIGIT_LABELS), "builtin:digits")
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
        let photos = photos().unwrap();
        let vehicles = photos.labels.iter().filter(|label| [0, 1, 8, 9].contains(*label)).count();
        assert_eq!((photos.len(), photos.shape.as_slice()), (600, &[3, 32, 32][..]));
        assert!(vehicles >= 200 && photos.len() - vehicles >= 200, "{vehicles} vehicles");
        assert_eq!(photos.labels[..5], [6, 9, 9, 4, 1]);
    }
}
