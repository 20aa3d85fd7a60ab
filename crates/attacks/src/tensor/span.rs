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

/// An orthonormal basis, one vector a column; `batch` of them, or as many as
/// there are before the singular values fall off. `None` if they never do.
pub(super) fn of_gradient(units: &Units, batch: Option<usize>, stream: &mut Stream) -> Option<Mat<f64>> {
    let by_gap = Factors::of(&units.inner, None, stream);
    let factors = match (by_gap, batch) {
        (Some(factors), None) => factors,
        // Fewer than there are samples: duplicates.
        (Some(factors), Some(batch)) if factors.rank() <= batch => factors,
        (_, Some(batch)) if batch < units.dimension().min(units.count()) => {
            Factors::of(&units.inner, Some(batch), stream)?
        }
        _ => return None,
    };
    Some(factors.right.transpose().to_owned())
}

/// The eigenvectors of the second moment P with the largest eigenvalues, of
/// either sign (Zhong et al. 2017, algorithm 3).
pub(super) fn of_moment(p: &Mat<f64>, batch: Option<usize>, stream: &mut Stream) -> Option<Mat<f64>> {
    let n = p.nrows();
    let width = (batch.unwrap_or(BLOCK) + SPARE).min(n);
    let mut v = Mat::from_fn(n, width, |_, _| stream.normal()).qr().compute_thin_Q();
    let mut last = 0.0;
    for _ in 0..ITERATIONS {
        let next = p * &v;
        let captured = next.norm_l2();
        v = next.qr().compute_thin_Q();
        if (captured - last).abs() <= 1e-12 * captured {
            break;
        }
        last = captured;
    }
    // Within the space found, the directions themselves.
    let eigen = (v.transpose() * p * &v).self_adjoint_eigen(Side::Lower).ok()?;
    let values: Vec<f64> = eigen.S().column_vector().iter().copied().collect();
    let mut order: Vec<usize> = (0..width).collect();
    order.sort_by(|&a, &b| values[b].abs().total_cmp(&values[a].abs()));
    // Noise has eigenvalues down to zero, and ratios near zero say nothing: the first third is enough.
    let first = order.iter().take(n.div_ceil(3));
    let sizes: Vec<f64> = first.map(|&index| values[index].abs()).collect();
    let ratio = |rank: usize| sizes[rank] / sizes[rank - 1].max(f64::MIN_POSITIVE);
    let steepest = || (1..sizes.len()).min_by(|&a, &b| ratio(a).total_cmp(&ratio(b))).unwrap_or(1);
    let count = batch.map_or_else(steepest, |batch| batch.min(width));
    let chosen = Mat::from_fn(width, count, |i, j| eigen.U()[(i, order[j])]);
    (count > 0).then(|| v * chosen)
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
        let v = of_moment(&p, None, &mut Stream::new(1, "span", 0)).unwrap();
        assert_eq!(v.ncols(), 3);
        assert!(samples.iter().all(|(x, _)| outside(&v, x) < 0.35));
    }
}
