//! What happens to records before an attacker finds them: lost pixels, noise.

use afterimage_nn::{Stream, Tensor};

use crate::plan::{Degrade, Mask};
use crate::{AuditError, Result};

/// Damaged samples, and what survived (1) and what did not (0), in the shape of one.
pub(super) struct Damaged {
    pub(super) samples: Tensor,
    pub(super) mask: Tensor,
}

/// Fails if the noise is no strength.
pub(super) fn check(degrade: Degrade) -> Result<()> {
    if degrade.noise >= 0.0 && degrade.noise.is_finite() {
        return Ok(());
    }
    let problem = format!("is {}", degrade.noise);
    Err(AuditError::plan("victim.degrade.noise", problem, "give a number of at least 0"))
}

/// Damages samples of records of this shape: every one by the same mask, each by noise of its own.
pub(super) fn damage(degrade: Degrade, samples: &Tensor, shape: &[usize], seed: u64) -> Result<Damaged> {
    let kept = survivors(degrade.mask, shape, seed);
    let mut noise = Stream::new(seed, "victim/noise", 0);
    let mut values = samples.to_f64_vec()?;
    for (index, value) in values.iter_mut().enumerate() {
        // Drawn for lost elements too: the noise of the others does not depend on the mask.
        let noise = if degrade.noise > 0.0 { degrade.noise * noise.normal() } else { 0.0 };
        *value = if kept[index % kept.len()] { *value + noise } else { 0.0 };
    }
    let mask: Vec<f64> = kept.iter().map(|kept| f64::from(u8::from(*kept))).collect();
    Ok(Damaged {
        samples: Tensor::from_f64(&values, samples.shape(), samples.dtype())?,
        mask: Tensor::from_f64(&mask, &samples.shape()[1..], samples.dtype())?,
    })
}

/// Which elements of a record of this shape survive.
fn survivors(mask: Mask, shape: &[usize], seed: u64) -> Vec<bool> {
    // A record that is no image is one row of pixels.
    let (channels, height, width) = match *shape {
        [channels, height, width] => (channels, height, width),
        _ => (1, 1, shape.iter().product()),
    };
    let inside = |place: usize, length: usize, low: f64, high: f64| {
        let middle = (place as f64 + 0.5) / length as f64;
        low <= middle && middle < high
    };
    let random = |share: f64| {
        let pixels = height * width;
        let mut lost = vec![false; pixels];
        let count = (share * pixels as f64).round() as usize;
        let order = Stream::new(seed, "victim/mask", 0).permutation(pixels);
        order.into_iter().take(count).for_each(|pixel| lost[pixel] = true);
        lost
    };
    let each = |lost: &dyn Fn(usize, usize) -> bool| -> Vec<bool> {
        (0..height).flat_map(|y| (0..width).map(move |x| (y, x))).map(|(y, x)| lost(y, x)).collect()
    };
    let lost = match mask {
        Mask::None => vec![false; height * width],
        Mask::Random25 => random(0.25),
        Mask::Random50 => random(0.5),
        Mask::Random75 => random(0.75),
        Mask::Half => each(&|_, x| inside(x, width, 0.5, 1.0)),
        // Of a single row every other element.
        Mask::Stripes => each(&|y, x| if height == 1 { x % 2 == 1 } else { y % 2 == 1 }),
        Mask::Center => each(&|y, x| (height == 1 || inside(y, height, 0.25, 0.75)) && inside(x, width, 0.25, 0.75)),
        Mask::Border => each(&|y, x| {
            let inner = |place, length| length == 1 || inside(place, length, 0.125, 0.875);
            !(inner(y, height) && inner(x, width))
        }),
        Mask::Scribble => each(&|y, x| {
            let across = (x as f64 + 0.5) / width as f64;
            let down = (y as f64 + 0.5) / height as f64;
            (0..3).any(|line| {
                let phase = f64::from(line);
                let wave = 0.07 * (2.0 * std::f64::consts::PI * (3.0 * across + 0.3 * phase)).sin();
                (down - (phase + 0.5) / 3.0 - wave).abs() < 0.05
            })
        }),
    };
    (0..channels).flat_map(|_| lost.iter().map(|lost| !lost)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASKS: [(Mask, f64); 9] = [
        (Mask::None, 0.0),
        (Mask::Random25, 0.25),
        (Mask::Random50, 0.5),
        (Mask::Random75, 0.75),
        (Mask::Half, 0.5),
        (Mask::Stripes, 0.5),
        (Mask::Center, 0.25),
        (Mask::Border, 0.4375),
        (Mask::Scribble, 0.3),
    ];

    #[test]
    fn masks_lose_what_they_say_and_pixels_in_all_channels() {
        for (mask, share) in MASKS {
            let kept = survivors(mask, &[3, 32, 32], 1);
            let lost = kept.iter().filter(|kept| !**kept).count() as f64 / kept.len() as f64;
            assert!((lost - share).abs() < 0.05, "{mask:?} loses {lost}");
            assert!(kept[..1024] == kept[1024..2048] && kept[..1024] == kept[2048..]);
            // Rows of numbers have masks too.
            let row = survivors(mask, &[40], 1);
            assert_eq!(row.len(), 40);
            assert_eq!(row.iter().all(|kept| *kept), mask == Mask::None);
        }
    }

    #[test]
    fn noise_falls_on_what_is_left_and_has_its_strength() {
        let samples = Tensor::from_vec(vec![0.5; 2 * 3 * 32 * 32], &[2, 3, 32, 32]).unwrap();
        let degrade = Degrade { mask: Mask::Random25, noise: 0.02 };
        let damaged = damage(degrade, &samples, &[3, 32, 32], 7).unwrap();
        let (values, mask) = (damaged.samples.to_f64_vec().unwrap(), damaged.mask.to_f64_vec().unwrap());
        let (mut squares, mut count) = (0.0, 0.0);
        for (index, value) in values.iter().enumerate() {
            match mask[index % mask.len()] {
                0.0 => assert_eq!(*value, 0.0),
                _ => {
                    squares += (value - 0.5) * (value - 0.5);
                    count += 1.0;
                }
            }
        }
        let sigma: f64 = (squares / count).sqrt();
        assert!((sigma - 0.02).abs() < 0.001, "{sigma}");
        assert_ne!(values[..3072], values[3072..]);
        assert!(check(Degrade { noise: f64::NAN, ..degrade }).is_err() && check(degrade).is_ok());
    }
}
