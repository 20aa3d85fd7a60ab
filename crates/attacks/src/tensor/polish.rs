//! All samples and residues together, fitted to the gradient itself by Levenberg
//! and Marquardt's method, inside the span of the samples.
//!
//! ```text
//! ĝ_j = Σ_i r_i σ'(y_j · p_i + b_j) p_i,   g_j = Σ_i r_i σ(y_j · p_i + b_j)
//! ```
//!
//! The derivatives of one unit's k + 1 equations fill k + 1 rows of J; JᵀJ is
//! gathered over blocks of units, so that J itself is never whole.

use afterimage_nn::Activation;
use faer::linalg::solvers::Solve;
use faer::{Mat, Side};

use super::estimate::{Guess, dot};
use super::moments::Units;

/// How much each of the two gradients counts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weights {
    pub(super) inner: f64,
    pub(super) outer: f64,
}

/// A fit.
#[derive(Debug, Clone)]
pub(super) struct Fit {
    pub(super) guesses: Vec<Guess>,
    /// The part of the gradient it leaves unexplained: ‖residual‖ / ‖gradient‖.
    pub(super) misfit: f64,
}

/// Units in a block.
const BLOCK: usize = 128;
/// Below this there is only rounding left to fit.
const EXACT: f64 = 1e-14;

/// The least-squares problem on some of the units.
pub(super) struct Problem<'a> {
    pub(super) units: &'a Units,
    pub(super) sigma: Activation,
    pub(super) weights: Weights,
    /// Units that are used.
    pub(super) used: Vec<usize>,
}

/// What a point says: cost, and where asked JᵀJ and Jᵀr.
struct Normal {
    cost: f64,
    gram: Mat<f64>,
    slope: Mat<f64>,
}

impl Problem<'_> {
    /// Improves a guess until nothing is gained, `steps` times at most.
    pub(super) fn fitted(&self, start: &[Guess], steps: usize) -> Fit {
        let total = self.total();
        let mut point = start.to_vec();
        let mut normal = self.normal(&point, true);
        let mut damping = 1e-3;
        for _ in 0..steps {
            if normal.cost <= (EXACT * EXACT) * total || !normal.cost.is_finite() {
                break;
            }
            let Some(next) = self.step(&point, &normal, damping) else {
                damping *= 10.0;
                if damping > 1e12 {
                    break;
                }
                continue;
            };
            let cost = self.normal(&next, false).cost;
            if cost < normal.cost {
                let gained = 1.0 - cost / normal.cost;
                point = next;
                normal = self.normal(&point, true);
                damping = (damping * 0.2).max(1e-15);
                if gained < 1e-10 {
                    break;
                }
            } else {
                damping *= 8.0;
                if damping > 1e10 {
                    break;
                }
            }
        }
        Fit { guesses: point, misfit: (normal.cost / total).sqrt() }
    }

    /// The misfit of a guess as it is.
    pub(super) fn misfit(&self, guesses: &[Guess]) -> f64 {
        (self.normal(guesses, false).cost / self.total()).sqrt()
    }

    /// What each part of the gradient is left with, per number: for new weights.
    pub(super) fn left(&self, guesses: &[Guess]) -> Weights {
        let part = |inner: f64, outer: f64| {
            let alone = Problem { weights: Weights { inner, outer }, used: self.used.clone(), ..*self };
            let count = self.used.len().max(1) as f64 * if inner > 0.0 { self.units.dimension() as f64 } else { 1.0 };
            (alone.normal(guesses, false).cost / count).sqrt()
        };
        Weights { inner: part(1.0, 0.0), outer: part(0.0, 1.0) }
    }

    fn total(&self) -> f64 {
        let Weights { inner, outer } = self.weights;
        let of = |&j: &usize| {
            let row: f64 = self.units.inner.row(j).iter().map(|g| g * g).sum();
            inner * inner * row + outer * outer * self.units.outer[j].powi(2)
        };
        self.used.iter().map(of).sum::<f64>().max(f64::MIN_POSITIVE)
    }

    fn step(&self, point: &[Guess], normal: &Normal, damping: f64) -> Option<Vec<Guess>> {
        let n = normal.gram.nrows();
        let damped = Mat::from_fn(n, n, |i, j| {
            let own = normal.gram[(i, j)];
            if i == j { own * (1.0 + damping) + f64::MIN_POSITIVE } else { own }
        });
        let step = damped.llt(Side::Lower).ok()?.solve(&normal.slope);
        let k = self.units.dimension();
        let moved = |(i, guess): (usize, &Guess)| Guess {
            p: guess.p.iter().enumerate().map(|(c, p)| p - step[(i * (k + 1) + c, 0)]).collect(),
            residue: guess.residue - step[(i * (k + 1) + k, 0)],
        };
        let next: Vec<Guess> = point.iter().enumerate().map(moved).collect();
        next.iter().all(|guess| guess.residue.is_finite() && guess.p.iter().all(|p| p.is_finite())).then_some(next)
    }

    /// Cost at a point and, if wanted, the normal equations there.
    fn normal(&self, point: &[Guess], derivatives: bool) -> Normal {
        let (k, columns) = (self.units.dimension(), point.len() * (self.units.dimension() + 1));
        let size = if derivatives { columns } else { 0 };
        let mut normal = Normal { cost: 0.0, gram: Mat::zeros(size, size), slope: Mat::zeros(size, 1) };
        let Weights { inner, outer } = self.weights;
        let samples = Mat::from_fn(k, point.len(), |c, i| point[i].p[c]);
        for block in self.used.chunks(BLOCK) {
            let y = Mat::from_fn(block.len(), k, |row, c| self.units.z[(block[row], c)]);
            let at = &y * &samples;
            let mut left = Mat::zeros(block.len() * (k + 1), 1);
            let mut jacobian = Mat::zeros(if derivatives { left.nrows() } else { 0 }, columns);
            for (row, &j) in block.iter().enumerate() {
                let base = row * (k + 1);
                let mut sums = vec![0.0; k + 1];
                for (i, Guess { p, residue }) in point.iter().enumerate() {
                    let [value, slope, bend] = self.sigma.triple(at[(row, i)] + self.units.offset[j]);
                    sums.iter_mut().zip(p).for_each(|(sum, p)| *sum += residue * slope * p);
                    sums[k] += residue * value;
                    if !derivatives {
                        continue;
                    }
                    let first = i * (k + 1);
                    for l in 0..k {
                        let turned = inner * residue * bend * y[(row, l)];
                        for (c, p) in p.iter().enumerate() {
                            jacobian[(base + c, first + l)] = turned * p;
                        }
                        jacobian[(base + l, first + l)] += inner * residue * slope;
                        jacobian[(base + k, first + l)] = outer * residue * slope * y[(row, l)];
                        jacobian[(base + l, first + k)] = inner * slope * p[l];
                    }
                    jacobian[(base + k, first + k)] = outer * value;
                }
                for c in 0..k {
                    left[(base + c, 0)] = inner * (sums[c] - self.units.inner[(j, c)]);
                }
                left[(base + k, 0)] = outer * (sums[k] - self.units.outer[j]);
            }
            let column: Vec<f64> = left.col(0).iter().copied().collect();
            normal.cost += dot(&column, &column);
            if derivatives {
                normal.gram += jacobian.transpose() * &jacobian;
                normal.slope += jacobian.transpose() * &left;
            }
        }
        normal
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::simulated::{unit_vectors, units};

    fn problem(units: &Units, sigma: Activation) -> Problem<'_> {
        let weights = Weights { inner: 0.7, outer: 0.3 };
        Problem { units, sigma, weights, used: (0..units.count()).collect() }
    }

    #[test]
    fn derivatives_are_those_of_the_cost() {
        let truth: Vec<_> = unit_vectors(3, 3, 1).into_iter().zip([1.0, -0.5, 0.8]).collect();
        for sigma in [Activation::Tanh, Activation::SquareCube, Activation::Softplus { beta: 1.0 }] {
            let units = units(sigma, &truth, 200, 2);
            let problem = problem(&units, sigma);
            let point: Vec<Guess> = (unit_vectors(3, 3, 5).into_iter().zip([0.9, -0.4, 0.5]))
                .map(|(p, residue)| Guess { p, residue })
                .collect();
            let normal = problem.normal(&point, true);
            for at in 0..12 {
                let moved = |step: f64| {
                    let mut point = point.clone();
                    let guess = &mut point[at / 4];
                    if at % 4 == 3 {
                        guess.residue += step
                    } else {
                        guess.p[at % 4] += step
                    }
                    problem.normal(&point, false).cost
                };
                let step = 1e-5;
                let numeric = (moved(step) - moved(-step)) / (2.0 * step);
                let exact = 2.0 * normal.slope[(at, 0)];
                assert!((numeric - exact).abs() < 1e-5 * (1.0 + exact.abs()), "{sigma} {at}: {numeric} {exact}");
            }
        }
    }

    #[test]
    fn a_rough_guess_becomes_exact() {
        let truth: Vec<_> = unit_vectors(4, 4, 1).into_iter().zip([1.0, -0.5, 0.8, 1.2]).collect();
        let units = units(Activation::Sigmoid, &truth, 400, 2);
        let start: Vec<Guess> =
            truth.iter().map(|(p, r)| Guess { p: p.iter().map(|p| p + 0.1).collect(), residue: 0.9 * r }).collect();
        let fit = problem(&units, Activation::Sigmoid).fitted(&start, 100);
        assert!(fit.misfit < 1e-12, "{}", fit.misfit);
        for (guess, (p, r)) in fit.guesses.iter().zip(&truth) {
            assert!((guess.residue - r).abs() < 1e-9 && guess.p.iter().zip(p).all(|(a, b)| (a - b).abs() < 1e-9));
        }
    }
}
