//! The space the samples lie in, and how many there are.

use afterimage_nn::Stream;
use faer::{Mat, Side};
use serde::{Deserialize, Serialize};

use super::moments::Units;
use crate::factors::Factors;

/// Where the span comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Span {
    /// The row space of the hidden layer's gradient: exact.
    #[default]
    Gradient,
    /// The second moment's largest eigenvectors, by orthogonal iteration: as published.
    Moments,
}

/// Directions looked at where the number of samples is not known.
const BLOCK: usize = 24;
/// Directions beyond those wanted: they make the iteration converge sooner.
const SPARE: usize = 6;
const ITERATIONS: usize = 500;
/// A direction this small beside the largest is the rounding of single precision.
const ROUNDING: f64 = 1e-6;

/// An orthonormal basis, one vector a column; `batch` of them, or as many as
/// there are before the singular values fall off. `None` if they never do.
pub(super) fn of_gradient(units: &Units, batch: Option<usize>, stream: &mut Stream) -> Option<Mat<f64>> {
    let smaller = units.dimension().min(units.count());
    let factors = Factors::of(&units.inner, batch.map(|batch| batch.min(smaller)), stream)?;
    // Fewer than there are samples: duplicates.
    let largest = factors.scale.first().copied().unwrap_or(0.0);
    let real = factors.scale.iter().take_while(|scale| **scale > ROUNDING * largest).count();
    Some(factors.right.subrows(0, real).transpose().to_owned())
}

/// The eigenvectors of the second moment P with the largest eigenvalues (Zhong
/// et al. 2017, algorithm 3): of either sign, or of the one that all samples
/// are known to have, so that noise of the other is passed over.
pub(super) fn of_moment(
    p: &Mat<f64>,
    batch: Option<usize>,
    sign: Option<f64>,
    stream: &mut Stream,
) -> Option<Mat<f64>> {
    let n = p.nrows();
    let width = (batch.unwrap_or(BLOCK) + SPARE).min(n);
    let start = Mat::from_fn(n, width, |_, _| stream.normal()).qr().compute_thin_Q();
    let mut found = Ritz::of(p, iterated(p, start, 0.0))?;
    if let Some(sign) = sign {
        // Shifted by the largest, the iteration orders eigenvalues by their signed size.
        let shift = found.values.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
        let start = Mat::from_fn(n, width, |_, _| stream.normal()).qr().compute_thin_Q();
        found = Ritz::of(p, iterated(p, start, sign * shift))?;
    }
    let size = |value: f64| sign.map_or(value.abs(), |sign| sign * value);
    let mut order: Vec<usize> = (0..width).collect();
    order.sort_by(|&a, &b| size(found.values[b]).total_cmp(&size(found.values[a])));
    // Noise has eigenvalues down to zero, and ratios near zero say nothing: the first third is enough.
    let first = order.iter().take(n.div_ceil(3));
    let sizes: Vec<f64> = first.map(|&index| size(found.values[index]).max(0.0)).collect();
    let ratio = |rank: usize| sizes[rank] / sizes[rank - 1].max(f64::MIN_POSITIVE);
    let steepest = || (1..sizes.len()).min_by(|&a, &b| ratio(a).total_cmp(&ratio(b))).unwrap_or(1);
    let count = batch.map_or_else(steepest, |batch| batch.min(width));
    let column = |i: usize, j: usize| found.vectors[(i, order[j])];
    (count > 0).then(|| Mat::from_fn(n, count, column))
}

/// Orthogonal iteration with P + shift I.
fn iterated(p: &Mat<f64>, mut v: Mat<f64>, shift: f64) -> Mat<f64> {
    let mut last = 0.0;
    for _ in 0..ITERATIONS {
        let next = p * &v + &v * faer::Scale(shift);
        let captured = next.norm_l2();
        v = next.qr().compute_thin_Q();
        if (captured - last).abs() <= 1e-12 * captured {
            break;
        }
        last = captured;
    }
    v
}

/// Within a space, the directions that P stretches.
struct Ritz {
    values: Vec<f64>,
    /// One a column.
    vectors: Mat<f64>,
}

impl Ritz {
    fn of(p: &Mat<f64>, v: Mat<f64>) -> Option<Self> {
        let eigen = (v.transpose() * p * &v).self_adjoint_eigen(Side::Lower).ok()?;
        Some(Self { values: eigen.S().column_vector().iter().copied().collect(), vectors: v * eigen.U() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::moments::Source;
    use crate::tensor::simulated::{unit_vectors, units};
    use afterimage_nn::Activation;

    fn outside(v: &Mat<f64>, x: &[f64]) -> f64 {
        let inside: f64 = (0..v.ncols()).map(|k| v.col(k).iter().zip(x).map(|(v, x)| v * x).sum::<f64>().powi(2)).sum();
        (1.0 - inside).max(0.0).sqrt()
    }

    #[test]
    fn the_gradient_spans_the_samples() {
        let samples: Vec<_> = unit_vectors(5, 40, 1).into_iter().map(|x| (x, 1.0)).collect();
        let units = units(Activation::Tanh, &samples, 300, 2);
        let v = of_gradient(&units, None, &mut Stream::new(1, "span", 0)).unwrap();
        assert_eq!(v.ncols(), 5);
        assert!(samples.iter().all(|(x, _)| outside(&v, x) < 1e-6));
    }

    #[test]
    fn the_moment_spans_them_roughly_and_counts_them() {
        let samples: Vec<_> = unit_vectors(3, 30, 1).into_iter().zip([30.0, 31.0, -29.0]).collect();
        let units = units(Activation::SquareCube, &samples, 40_000, 2);
        let p = units.second(Source::Output, 2, &[]);
        let v = of_moment(&p, None, None, &mut Stream::new(1, "span", 0)).unwrap();
        assert_eq!(v.ncols(), 3);
        assert!(samples.iter().all(|(x, _)| outside(&v, x) < 0.35));
    }

    #[test]
    fn a_known_sign_passes_over_noise_of_the_other() {
        let entry = |i: usize, j: usize| if i == j { [-5.0, -4.0, 9.0, 8.0, 1.0, 0.5, 0.2, 0.1][i] } else { 0.0 };
        let p = Mat::from_fn(8, 8, entry);
        let v = |sign| of_moment(&p, Some(2), sign, &mut Stream::new(1, "span", 0)).unwrap();
        let part = |v: &Mat<f64>, axis: usize| v.row(axis).norm_l2();
        let (either, negative) = (v(None), v(Some(-1.0)));
        assert!(part(&either, 2) > 0.999 && part(&either, 3) > 0.999);
        assert!(part(&negative, 0) > 0.999 && part(&negative, 1) > 0.999);
    }
}
