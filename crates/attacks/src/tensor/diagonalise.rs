//! The components of Σ_i λ_i u_i ⊗ u_i ⊗ u_i, by simultaneous diagonalisation.
//!
//! Kuleshov, Chaganty & Liang (2015), "Tensor factorization via matrix
//! factorization": T(·, ·, θ) has the same eigenvectors for every θ when the u_i
//! are orthogonal. Many random θ first, then θ along what was found.
//!
//! Samples that are not orthogonal are made so by Σ_i ν_i u_i u_iᵀ where its ν_i
//! share a sign (whitening).

use afterimage_nn::Stream;
use faer::{Mat, Side};
use serde::{Deserialize, Serialize};

use super::moments::{Cube, product};

/// How components that are not orthogonal are dealt with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Diagonalise {
    /// Whitened where that is possible.
    #[default]
    Auto,
    /// Taken as orthogonal, as published.
    Orthogonal,
    /// Whitened.
    Whitened,
}

/// Rotations smaller than this are none.
const SMALL: f64 = 1e-9;
const SWEEPS: usize = 100;
/// The smallest ν beside the largest with which whitening is trusted.
const CONDITION: f64 = 0.02;

/// The u_i, of length 1 and of either sign, one a column; `None` if they must be whitened and cannot.
pub(super) fn components(
    cube: &Cube,
    second: &Mat<f64>,
    how: Diagonalise,
    projections: usize,
    stream: &mut Stream,
) -> Option<Mat<f64>> {
    let whitening = match how {
        Diagonalise::Orthogonal => None,
        Diagonalise::Auto => Whitening::of(second),
        Diagonalise::Whitened => Some(Whitening::of(second)?),
    };
    let found = match &whitening {
        None => two_stages(cube, projections, stream),
        Some(whitening) => &whitening.back * two_stages(&cube.within(&whitening.forth), projections, stream),
    };
    Some(normalised_columns(found))
}

/// M with Mᵀ P M = ±I, and what undoes it.
struct Whitening {
    forth: Mat<f64>,
    back: Mat<f64>,
}

impl Whitening {
    /// `None` if the eigenvalues do not share a sign, or are too different in size.
    fn of(second: &Mat<f64>) -> Option<Self> {
        let n = second.nrows();
        let eigen = second.self_adjoint_eigen(Side::Lower).ok()?;
        let values: Vec<f64> = eigen.S().column_vector().iter().copied().collect();
        let (low, high) = (values.first()?, values.last()?);
        let least = low.abs().min(high.abs());
        if !(low * high > 0.0 && least > CONDITION * low.abs().max(high.abs())) {
            return None;
        }
        let scaled = |power: f64| Mat::from_fn(n, n, |i, j| eigen.U()[(i, j)] * values[j].abs().powf(power));
        Some(Self { forth: scaled(-0.5), back: scaled(0.5) })
    }
}

/// Random projections, then projections along what they gave.
fn two_stages(cube: &Cube, projections: usize, stream: &mut Stream) -> Mat<f64> {
    let n = cube.dimension();
    let random = |_| {
        let theta: Vec<f64> = (0..n).map(|_| stream.normal()).collect();
        let norm = theta.iter().map(|x| x * x).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
        cube.along(&theta.iter().map(|x| x / norm).collect::<Vec<_>>())
    };
    let first = jointly((0..projections).map(random).collect());
    let column = |k: usize| cube.along(&first.col(k).iter().copied().collect::<Vec<_>>());
    jointly((0..n).map(column).collect())
}

/// The rotation that makes matrices as diagonal as one can (Cardoso & Souloumiac, 1996).
fn jointly(mut matrices: Vec<Mat<f64>>) -> Mat<f64> {
    let n = matrices.first().map_or(0, Mat::nrows);
    let mut rotation = Mat::<f64>::identity(n, n);
    for _ in 0..SWEEPS {
        let mut moved = false;
        for p in 0..n {
            for q in p + 1..n {
                let (mut on, mut off) = (0.0, 0.0);
                for m in &matrices {
                    let (difference, sum) = (m[(p, p)] - m[(q, q)], m[(p, q)] + m[(q, p)]);
                    on += difference * difference - sum * sum;
                    off += 2.0 * difference * sum;
                }
                let angle = 0.5 * f64::atan2(off, on + on.hypot(off));
                let (sin, cos) = angle.sin_cos();
                if sin.abs() <= SMALL {
                    continue;
                }
                moved = true;
                for m in &mut matrices {
                    turn_columns(m, p, q, cos, sin);
                    for k in 0..n {
                        let (a, b) = (m[(p, k)], m[(q, k)]);
                        (m[(p, k)], m[(q, k)]) = (cos * a + sin * b, cos * b - sin * a);
                    }
                }
                turn_columns(&mut rotation, p, q, cos, sin);
            }
        }
        if !moved {
            break;
        }
    }
    rotation
}

fn turn_columns(m: &mut Mat<f64>, p: usize, q: usize, cos: f64, sin: f64) {
    for k in 0..m.nrows() {
        let (a, b) = (m[(k, p)], m[(k, q)]);
        (m[(k, p)], m[(k, q)]) = (cos * a + sin * b, cos * b - sin * a);
    }
}

fn normalised_columns(mut m: Mat<f64>) -> Mat<f64> {
    for column in m.col_iter_mut() {
        let norm = column.norm_l2().max(f64::MIN_POSITIVE);
        column.iter_mut().for_each(|x| *x /= norm);
    }
    m
}

/// The weights of a sum Σ_i c_i u_i^⊗k that fit it best, from its values at the u_i:
/// Σ_j (u_i · u_j)^k c_j = value_i.
pub(super) fn weights(directions: &Mat<f64>, values: &[f64], k: i32) -> Vec<f64> {
    let gram = directions.transpose() * directions;
    let powered = Mat::from_fn(gram.nrows(), gram.ncols(), |i, j| gram[(i, j)].powi(k));
    let right = Mat::from_fn(values.len(), 1, |i, _| values[i]);
    use faer::linalg::solvers::Solve;
    match powered.llt(Side::Lower) {
        Ok(factor) => factor.solve(&right).col(0).iter().copied().collect(),
        // Directions that coincide: each on its own.
        Err(_) => values.to_vec(),
    }
}

/// u_iᵀ P u_i.
pub(super) fn forms(second: &Mat<f64>, directions: &Mat<f64>) -> Vec<f64> {
    let form = |k: usize| {
        let u: Vec<f64> = directions.col(k).iter().copied().collect();
        product(second, &u).iter().zip(&u).map(|(x, u)| x * u).sum()
    };
    (0..directions.ncols()).map(form).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(components: &[Vec<f64>], weights: &[f64]) -> (Cube, Mat<f64>) {
        let all = || components.iter().zip(weights);
        let n = components[0].len();
        let cube = Cube::from_fn(n, |i, j, k| all().map(|(u, w)| w * u[i] * u[j] * u[k]).sum());
        (cube, Mat::from_fn(n, n, |i, j| all().map(|(u, w)| w * u[i] * u[j]).sum()))
    }

    fn error(found: &Mat<f64>, truth: &[Vec<f64>]) -> f64 {
        let far = |u: &Vec<f64>| {
            let cosine = |k: usize| found.col(k).iter().zip(u).map(|(a, b)| a * b).sum::<f64>().abs();
            let best = (0..found.ncols()).map(cosine).fold(0.0, f64::max);
            2.0 - 2.0 * best.min(1.0)
        };
        (truth.iter().map(far).sum::<f64>() / truth.len() as f64).sqrt()
    }

    /// Three unit vectors whose pairs all have this cosine.
    fn leaning(cosine: f64) -> Vec<Vec<f64>> {
        let along = ((1.0 + 2.0 * cosine) / 3.0_f64).sqrt();
        let across = ((1.0 - cosine) * 2.0 / 3.0).sqrt();
        (0..3)
            .map(|k| {
                let angle = 2.0 * std::f64::consts::PI * f64::from(k) / 3.0;
                vec![along, across * angle.cos(), across * angle.sin()]
            })
            .collect()
    }

    #[test]
    fn orthogonal_components_are_exact() {
        let axes = leaning(0.0);
        let (cube, second) = sum(&axes, &[1.0, -0.5, 2.0]);
        for how in [Diagonalise::Auto, Diagonalise::Orthogonal] {
            // The weights do not share a sign: `Auto` falls back.
            let found = components(&cube, &second, how, 20, &mut Stream::new(1, "t", 0)).unwrap();
            assert!(error(&found, &axes) < 1e-7, "{how:?}: {}", error(&found, &axes));
        }
        assert!(components(&cube, &second, Diagonalise::Whitened, 20, &mut Stream::new(1, "t", 0)).is_none());
    }

    #[test]
    fn leaning_components_need_whitening() {
        for cosine in [0.2, 0.4, 0.6] {
            let axes = leaning(cosine);
            let (cube, second) = sum(&axes, &[1.0, 0.8, 1.2]);
            let run = |how| components(&cube, &second, how, 50, &mut Stream::new(1, "t", 0)).unwrap();
            assert!(error(&run(Diagonalise::Whitened), &axes) < 1e-6);
            assert!(error(&run(Diagonalise::Orthogonal), &axes) > 0.05);
        }
    }

    #[test]
    fn weights_are_found_again() {
        let axes = leaning(0.4);
        let (cube, second) = sum(&axes, &[1.0, -0.8, 1.2]);
        let directions = Mat::from_fn(3, 3, |i, k| axes[k][i]);
        let values: Vec<f64> = axes.iter().map(|u| cube.value(u)).collect();
        for (found, expected) in
            [weights(&directions, &values, 3), weights(&directions, &forms(&second, &directions), 2)]
                .iter()
                .flat_map(|w| w.iter().zip([1.0, -0.8, 1.2]))
        {
            assert!((found - expected).abs() < 1e-12);
        }
    }
}
