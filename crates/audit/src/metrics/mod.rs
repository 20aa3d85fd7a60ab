//! How alike a record and a candidate are.
//!
//! All on pixels in [0, 1], one record against one candidate; PEERS differ in
//! their definitions, so each states its own.

mod lpips;
mod ssim;

pub use lpips::Lpips;

use std::cmp::Ordering;
use std::fmt;

use afterimage_attacks::registration::{Registration, Size, magnitudes};
use serde::{Deserialize, Serialize};

use crate::align::image_size;

/// Which way is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Larger is more alike.
    Above,
    /// Smaller is more alike.
    Below,
}

impl Direction {
    /// Better scores first; what has none last.
    pub fn compare(self, a: Option<f64>, b: Option<f64>) -> Ordering {
        match (a, b, self) {
            (Some(a), Some(b), Direction::Below) => a.total_cmp(&b),
            (Some(a), Some(b), Direction::Above) => b.total_cmp(&a),
            (Some(_), None, _) => Ordering::Less,
            (None, Some(_), _) => Ordering::Greater,
            (None, None, _) => Ordering::Equal,
        }
    }

    /// Whether `a` is better than `b`.
    pub fn better(self, a: f64, b: f64) -> bool {
        match self {
            Direction::Above => a > b,
            Direction::Below => a < b,
        }
    }
}

/// A measure of likeness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Metric {
    /// Mean squared difference.
    Mse,
    /// Euclidean distance of the flattened records.
    L2,
    /// Euclidean distance to the candidate or to its negative, whichever is nearer: for
    /// attacks on what determines samples up to their sign.
    L2Sign,
    /// 10 log10(1 / mse) in dB, capped at 160.
    Psnr,
    /// Structural similarity, 11x11 Gaussian window of σ 1.5, data range 1,
    /// mean over the interior and the channels (scikit-image's definition).
    Ssim,
    /// The KKT paper's: 3x3 Gaussian window of σ 1.5, mirrored borders, mean
    /// over the whole map and the channels.
    Ssim3,
    /// Normalised cross-correlation: cosine of the two after their means are removed.
    Ncc,
    /// 1 − cosine of the magnitudes of the two-dimensional Fourier transforms,
    /// all channels together, each without its mean (GradInversion's measure;
    /// with it, brightness alone would decide).
    Fft2d,
    /// PSNR after the candidate was registered to the record: a shift, then a smooth flow.
    RegisteredPsnr,
    /// LPIPS 0.1: distance in the features of an AlexNet, whose weights `score.lpips` names.
    Lpips,
}

/// PSNR of identical records: finite, so that it can be averaged and stored.
const PSNR_CAP: f64 = 160.0;

impl Metric {
    /// Every metric.
    pub const ALL: [Metric; 10] = [
        Metric::Mse,
        Metric::L2,
        Metric::L2Sign,
        Metric::Psnr,
        Metric::Ssim,
        Metric::Ssim3,
        Metric::Ncc,
        Metric::Fft2d,
        Metric::RegisteredPsnr,
        Metric::Lpips,
    ];

    /// What follows a number of it in a text: a space and its unit, or nothing.
    pub fn unit(self) -> &'static str {
        match self {
            Metric::Psnr | Metric::RegisteredPsnr => " dB",
            _ => "",
        }
    }

    /// Its name in plans and findings.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Mse => "mse",
            Metric::L2 => "l2",
            Metric::L2Sign => "l2-sign",
            Metric::Psnr => "psnr",
            Metric::Ssim => "ssim",
            Metric::Ssim3 => "ssim3",
            Metric::Ncc => "ncc",
            Metric::Fft2d => "fft2d",
            Metric::RegisteredPsnr => "registered-psnr",
            Metric::Lpips => "lpips",
        }
    }

    /// What it measures, for somebody who reads a report.
    pub fn meaning(self) -> &'static str {
        match self {
            Metric::Mse => "mean squared difference of the values; those of pictures lie between 0 and 1",
            Metric::L2 => "Euclidean distance over all values",
            Metric::L2Sign => "Euclidean distance to the candidate or to its negative, whichever is nearer",
            Metric::Psnr => "peak signal-to-noise ratio, 10 log10(1 / mse), at most 160",
            Metric::Ssim => "structural similarity in windows of 11 x 11 pixels, at most 1",
            Metric::Ssim3 => "structural similarity in windows of 3 x 3 pixels, at most 1",
            Metric::Ncc => "correlation of the values, at most 1: brightness and contrast do not count",
            Metric::Fft2d => "1 − cosine of the magnitudes of the Fourier transforms: where things are does not count",
            Metric::RegisteredPsnr => "peak signal-to-noise ratio after the candidate was shifted and bent to fit",
            Metric::Lpips => "distance in the features of a network that was trained on photographs (LPIPS 0.1)",
        }
    }

    /// Which way is better.
    pub fn better(self) -> Direction {
        match self {
            Metric::Mse | Metric::L2 | Metric::L2Sign | Metric::Fft2d | Metric::Lpips => Direction::Below,
            Metric::Psnr | Metric::Ssim | Metric::Ssim3 | Metric::Ncc | Metric::RegisteredPsnr => Direction::Above,
        }
    }

    /// A quick metric that picks the few candidates worth the time of a slow one.
    pub(crate) fn screen(self) -> Option<(Metric, usize)> {
        match self {
            Metric::RegisteredPsnr => Some((Metric::Fft2d, 4)),
            Metric::Lpips => Some((Metric::Ncc, 4)),
            Metric::Ssim | Metric::Ssim3 => Some((Metric::Ncc, 16)),
            _ => None,
        }
    }

    /// The likeness of two records of one shape; `None` where the metric has
    /// no meaning for that shape (structure of a table row, a 5x5 image), needs a
    /// network ([`Lpips`]), or the candidate is not made of numbers.
    pub fn measure(self, record: &[f64], candidate: &[f64], shape: &[usize]) -> Option<f64> {
        let pairs = || record.iter().zip(candidate);
        let squares: f64 = pairs().map(|(a, b)| (a - b) * (a - b)).sum();
        if !squares.is_finite() {
            return None;
        }
        let mse = squares / record.len().max(1) as f64;
        match self {
            Metric::Mse => Some(mse),
            Metric::L2 => Some(squares.sqrt()),
            Metric::L2Sign => {
                let turned: f64 = pairs().map(|(a, b)| (a + b) * (a + b)).sum();
                Some(squares.min(turned).sqrt())
            }
            Metric::Psnr => Some(psnr(mse)),
            Metric::Ncc => {
                let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len().max(1) as f64;
                let (a, b) = (mean(record), mean(candidate));
                let sum = |f: &dyn Fn(f64, f64) -> f64| pairs().map(|(x, y)| f(x - a, y - b)).sum::<f64>();
                let norm = (sum(&|x, _| x * x) * sum(&|_, y| y * y)).sqrt();
                Some(if norm > 0.0 { sum(&|x, y| x * y) / norm } else { 0.0 })
            }
            Metric::Ssim => ssim::interior(record, candidate, shape),
            Metric::Ssim3 => ssim::mirrored(record, candidate, shape),
            Metric::Fft2d => fft2d(record, candidate, image_size(shape)?),
            Metric::RegisteredPsnr => {
                let moved = Registration::default().register(candidate, record, image_size(shape)?).image;
                Metric::Psnr.measure(record, &moved, shape)
            }
            Metric::Lpips => None,
        }
    }
}

fn psnr(mse: f64) -> f64 {
    if mse > 0.0 { (-10.0 * mse.log10()).min(PSNR_CAP) } else { PSNR_CAP }
}

/// The cosine distance of two images' frequency responses.
fn fft2d(record: &[f64], candidate: &[f64], [_, height, width]: Size) -> Option<f64> {
    let response = |image: &[f64]| -> Vec<f64> {
        let channel = |plane: &[f64]| {
            let mean = plane.iter().sum::<f64>() / plane.len() as f64;
            let plane: Vec<f64> = plane.iter().map(|x| x - mean).collect();
            magnitudes(&plane, height, width)
        };
        image.chunks_exact((height * width).max(1)).flat_map(channel).collect()
    };
    let (a, b) = (response(record), response(candidate));
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let norm = (dot(&a, &a) * dot(&b, &b)).sqrt();
    Some(if norm > 0.0 { 1.0 - dot(&a, &b) / norm } else { 1.0 })
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_forms() {
        let (a, b) = ([0.0, 0.5, 1.0, 0.5], [0.1, 0.4, 1.0, 0.7]);
        let measure = |metric: Metric| metric.measure(&a, &b, &[4]).unwrap();
        assert!((measure(Metric::Mse) - 0.015).abs() < 1e-15);
        assert!((measure(Metric::L2) - 0.06_f64.sqrt()).abs() < 1e-15);
        assert_eq!(Metric::L2Sign.measure(&a, &b.map(|x| -x), &[4]), Some(measure(Metric::L2)));
        assert!((measure(Metric::Psnr) - 18.239_087_409_443_2).abs() < 1e-9);
        // A shift and a scale leave the correlation at 1; a sign turns it over.
        let shifted: Vec<f64> = a.iter().map(|x| 0.3 * x + 0.2).collect();
        let turned: Vec<f64> = a.iter().map(|x| -x).collect();
        assert!((Metric::Ncc.measure(&a, &shifted, &[4]).unwrap() - 1.0).abs() < 1e-12);
        assert!((Metric::Ncc.measure(&a, &turned, &[4]).unwrap() + 1.0).abs() < 1e-12);
        assert_eq!(Metric::Psnr.measure(&a, &a, &[4]), Some(160.0));
        assert_eq!(Metric::Ncc.measure(&[0.5; 4], &a, &[4]), Some(0.0));
        assert_eq!(Metric::Ssim.measure(&a, &b, &[4]), None);
    }

    #[test]
    fn what_is_no_number_has_no_score() {
        for metric in Metric::ALL {
            assert_eq!(metric.measure(&[0.5; 4], &[f64::NAN; 4], &[4]), None);
        }
    }
}
