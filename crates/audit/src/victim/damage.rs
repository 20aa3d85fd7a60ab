//! What happens to records before an attacker finds them: blur, lost pixels, noise.

use afterimage_attacks::autoencoder::blurred;
use afterimage_nn::{Stream, Tensor};

use crate::plan::{Degrade, Mask};
use crate::{AuditError, Result};

/// Damaged samples, with what happened to them: y = Hx + ε.
pub(super) struct Damaged {
    pub(super) samples: Tensor,
    /// What survived (1) and what did not (0), in the shape of a record.
    pub(super) mask: Tensor,
    /// The kernel of the blur, if there is one.
    pub(super) kernel: Option<Tensor>,
}

/// A blur beyond this many pixels leaves nothing to be told.
const WIDEST: f64 = 50.0;

/// Fails if the noise is no strength, or the blur no width.
pub(super) fn check(degrade: Degrade) -> Result<()> {
    if !(degrade.noise >= 0.0 && degrade.noise.is_finite()) {
        let problem = format!("is {}", degrade.noise);
        return Err(AuditError::plan("victim.degrade.noise", problem, "give a number of at least 0"));
    }
    if !(0.0..=WIDEST).contains(&degrade.blur) {
        let problem = format!("is {}", degrade.blur);
        return Err(AuditError::plan("victim.degrade.blur", problem, format!("give pixels, from 0 to {WIDEST}")));
    }
    if degrade.blur > 0.0 && degrade.mask != Mask::None {
        let hint = "add mask = \"none\", or leave the blur out";
        return Err(AuditError::plan("victim.degrade.blur", "comes with a mask", hint));
    }
    Ok(())
}

/// Damages samples of records of this shape: every one by the same blur or mask, each by noise of its own.
pub(super) fn damage(degrade: Degrade, samples: &Tensor, shape: &[usize], seed: u64) -> Result<Damaged> {
    let kept = kept_by(degrade.mask, shape, seed);
    let kernel = (degrade.blur > 0.0).then(|| gaussian(degrade.blur, shape, samples)).transpose()?;
    let clean = match &kernel {
        Some(kernel) => blurred(samples, kernel, shape)?,
        None => samples.clone(),
    };
    let mut noise = Stream::new(seed, "victim/noise", 0);
    let mut values = clean.to_f64_vec()?;
    for (index, value) in values.iter_mut().enumerate() {
        let noise = if degrade.noise > 0.0 { degrade.noise * noise.normal() } else { 0.0 };
        *value = *value * kept[index % kept.len()] + noise;
    }
    Ok(Damaged {
        samples: Tensor::from_f64(&values, samples.shape(), samples.dtype())?,
        mask: Tensor::from_f64(&kept, &samples.shape()[1..], samples.dtype())?,
        kernel,
    })
}

/// A Gaussian of this width that sums to one, cut off at three times it; of rows of numbers a single row.
fn gaussian(width: f64, shape: &[usize], like: &Tensor) -> Result<Tensor> {
    let reach = (3.0 * width).ceil().max(1.0) as i32;
    let down = if shape.len() == 3 { reach } else { 0 };
    let weight = |far: i32| (-0.5 * (f64::from(far) / width).powi(2)).exp();
    let weights: Vec<f64> = (-down..=down)
        .flat_map(|y| (-reach..=reach).map(move |x| (y, x)))
        .map(|(y, x)| weight(y) * weight(x))
        .collect();
    let sum: f64 = weights.iter().sum();
    let weights: Vec<f64> = weights.iter().map(|weight| weight / sum).collect();
    let side = |reach: i32| (2 * reach + 1) as usize;
    Ok(Tensor::from_f64(&weights, &[side(down), side(reach)], like.dtype())?)
}

/// 1 for every element of a record of this shape that survives, 0 for the others.
pub(super) fn kept_by(mask: Mask, shape: &[usize], seed: u64) -> Vec<f64> {
    survivors(mask, shape, seed).into_iter().map(|kept| if kept { 1.0 } else { 0.0 }).collect()
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
    fn noise_falls_on_everything_and_has_its_strength() {
        let samples = Tensor::from_vec(vec![0.5; 2 * 3 * 32 * 32], &[2, 3, 32, 32]).unwrap();
        let degrade = Degrade { mask: Mask::Random25, noise: 0.02, ..Degrade::default() };
        let damaged = damage(degrade, &samples, &[3, 32, 32], 7).unwrap();
        let (values, mask) = (damaged.samples.to_f64_vec().unwrap(), damaged.mask.to_f64_vec().unwrap());
        let off = values.iter().enumerate().map(|(index, value)| value - 0.5 * mask[index % mask.len()]);
        let (squares, count) = (off.map(|off| off * off).sum::<f64>(), values.len() as f64);
        let sigma: f64 = (squares / count).sqrt();
        assert!((sigma - 0.02).abs() < 0.001, "{sigma}");
        assert_ne!(values[..3072], values[3072..]);
        assert!(check(Degrade { noise: f64::NAN, ..degrade }).is_err() && check(degrade).is_ok());
    }
    #[test]
    fn a_blur_spreads_what_is_there() {
        let mut values = vec![0.0; 81];
        values[40] = 1.0;
        let samples = Tensor::from_vec(values, &[1, 1, 9, 9]).unwrap();
        let degrade = Degrade { mask: Mask::None, blur: 1.0, noise: 0.0 };
        let damaged = damage(degrade, &samples, &[1, 9, 9], 7).unwrap();
        let values = damaged.samples.to_f64_vec().unwrap();
        assert!((values.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        // e^(−1/2) from one place to the next.
        assert!((values[41] / values[40] - (-0.5_f64).exp()).abs() < 1e-12 && (values[49] - values[41]).abs() < 1e-15);
        assert_eq!(damaged.kernel.unwrap().shape(), [7, 7]);
        let row = Tensor::from_vec(vec![0.0, 1.0, 0.0, 0.0], &[1, 4]).unwrap();
        assert_eq!(damage(degrade, &row, &[4], 7).unwrap().kernel.unwrap().shape(), [1, 7]);
        assert!(check(Degrade { mask: Mask::Half, ..degrade }).unwrap_err().to_string().contains("mask"));
        assert!(check(Degrade { blur: -1.0, ..degrade }).is_err() && check(Degrade { blur: 1e9, ..degrade }).is_err());
    }
}
