//! All samples and residues together, fitted to the gradient itself by Levenberg
//! and Marquardt's method, inside the span of the samples.
//!
//! ```text
//! ĝ_j = Σ_i r_i σ'(y_j · p_i + b_j) p_i,   g_j = Σ_i r_i σ(y_j · p_i + b_j)
//! ```
//!
//! The normal equations have a closed form: with M, N, S' and S the values of
//! σ'' y, σ' y, σ' and σ for every unit and sample, JᵀJ is made of MᵀM, NᵀN, MᵀS',
//! NᵀS, S'ᵀS' and SᵀS. That is k times less work than through J, which has k + 1
//! rows a unit and is never made.

use std::ops::ControlFlow;

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

/// Is asked at every step whether to go on.
pub(super) type Watch<'a> = dyn FnMut(f64) -> ControlFlow<()> + 'a;

/// Units in a block.
const BLOCK: usize = 1024;
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

/// What a point says: cost, and where asked JᵀJ and Jᵀe.
struct Normal {
    cost: f64,
    gram: Mat<f64>,
    slope: Mat<f64>,
}

/// Sums over units that the normal equations are made of; B samples, k dimensions.
struct Sums {
    /// MᵀM and NᵀN, Bk x Bk.
    bends: Mat<f64>,
    slopes: Mat<f64>,
    /// MᵀS' and NᵀS, Bk x B.
    bend_slope: Mat<f64>,
    slope_value: Mat<f64>,
    /// S'ᵀS' and SᵀS, B x B.
    slope_slope: Mat<f64>,
    value_value: Mat<f64>,
    /// Σ_j σ'' y (e · p), Σ_j σ' e and Σ_j σ' y e₀, each Bk x 1; e of ĝ, e₀ of g.
    bend_left: Mat<f64>,
    slope_left: Mat<f64>,
    slope_outer: Mat<f64>,
    /// Σ_j σ' (e · p) and Σ_j σ e₀, each B x 1.
    residue_inner: Mat<f64>,
    residue_outer: Mat<f64>,
}

impl Problem<'_> {
    /// Improves a guess until nothing is gained, `steps` times at most, or until told to stop.
    pub(super) fn fitted(&self, start: &[Guess], steps: usize, watch: &mut Watch<'_>) -> Fit {
        let total = self.total();
        let mut point = start.to_vec();
        let mut normal = self.normal(&point, true);
        let mut damping = 1e-3;
        for _ in 0..steps {
            let misfit = (normal.cost / total).sqrt();
            if misfit <= EXACT || !misfit.is_finite() || watch(misfit).is_break() {
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
                damping = (damping * 0.2).max(1e-15);
                if gained < 1e-10 || cost <= EXACT * EXACT * total {
                    normal.cost = cost;
                    break;
                }
                normal = self.normal(&point, true);
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
        let mut damped = normal.gram.clone();
        for i in 0..damped.nrows() {
            damped[(i, i)] = damped[(i, i)] * (1.0 + damping) + f64::MIN_POSITIVE;
        }
        let step = damped.llt(Side::Lower).ok()?.solve(&normal.slope);
        let (k, first_residue) = (self.units.dimension(), point.len() * self.units.dimension());
        let moved = |(i, guess): (usize, &Guess)| Guess {
            p: guess.p.iter().enumerate().map(|(l, p)| p - step[(i * k + l, 0)]).collect(),
            residue: guess.residue - step[(first_residue + i, 0)],
        };
        let next: Vec<Guess> = point.iter().enumerate().map(moved).collect();
        next.iter().all(|guess| guess.residue.is_finite() && guess.p.iter().all(|p| p.is_finite())).then_some(next)
    }

    /// Cost at a point and, if wanted, the normal equations there: first all samples, then all residues.
    fn normal(&self, point: &[Guess], derivatives: bool) -> Normal {
        let (k, count) = (self.units.dimension(), point.len());
        let samples = Mat::from_fn(k, count, |l, i| point[i].p[l]);
        let rows = Mat::from_fn(count, k, |i, l| point[i].residue * point[i].p[l]);
        let mut sums = Sums::zeros(if derivatives { count } else { 0 }, k);
        let (mut inner_cost, mut outer_cost) = (0.0, 0.0);
        for block in self.used.chunks(BLOCK) {
            let y = Mat::from_fn(block.len(), k, |row, l| self.units.z[(block[row], l)]);
            let at = &y * &samples;
            let triple = Mat::from_fn(block.len(), count, |row, i| {
                self.sigma.triple(at[(row, i)] + self.units.offset[block[row]])
            });
            let part = |order: usize| Mat::from_fn(block.len(), count, |row, i| triple[(row, i)][order]);
            let (value, slope) = (part(0), part(1));
            let fitted = &slope * &rows;
            let left = Mat::from_fn(block.len(), k, |row, l| fitted[(row, l)] - self.units.inner[(block[row], l)]);
            let outer = Mat::from_fn(block.len(), 1, |row, _| {
                let fit: f64 = (0..count).map(|i| point[i].residue * value[(row, i)]).sum();
                fit - self.units.outer[block[row]]
            });
            inner_cost += left.squared_norm_l2();
            outer_cost += outer.squared_norm_l2();
            if derivatives {
                sums.add(&y, [&value, &slope, &part(2)], &left, &outer, &(&left * &samples));
            }
        }
        let Weights { inner, outer } = self.weights;
        let cost = inner * inner * inner_cost + outer * outer * outer_cost;
        if derivatives {
            sums.normal(point, k, cost, [inner * inner, outer * outer])
        } else {
            Normal { cost, gram: Mat::zeros(0, 0), slope: Mat::zeros(0, 1) }
        }
    }
}

impl Sums {
    fn zeros(count: usize, k: usize) -> Self {
        let (wide, narrow) = (count * k, count);
        let zeros = Mat::<f64>::zeros;
        Self {
            bends: zeros(wide, wide),
            slopes: zeros(wide, wide),
            bend_slope: zeros(wide, narrow),
            slope_value: zeros(wide, narrow),
            slope_slope: zeros(narrow, narrow),
            value_value: zeros(narrow, narrow),
            bend_left: zeros(wide, 1),
            slope_left: zeros(wide, 1),
            slope_outer: zeros(wide, 1),
            residue_inner: zeros(narrow, 1),
            residue_outer: zeros(narrow, 1),
        }
    }

    /// Adds a block of units: y, [σ, σ', σ''], e, e₀ and e · p.
    fn add(
        &mut self,
        y: &Mat<f64>,
        [value, slope, bend]: [&Mat<f64>; 3],
        left: &Mat<f64>,
        outer: &Mat<f64>,
        along: &Mat<f64>,
    ) {
        let (k, count) = (y.ncols(), slope.ncols());
        let times_y = |factor: &Mat<f64>| Mat::from_fn(y.nrows(), count * k, |j, c| factor[(j, c / k)] * y[(j, c % k)]);
        let (m, n) = (times_y(bend), times_y(slope));
        self.bends += m.transpose() * &m;
        self.slopes += n.transpose() * &n;
        self.bend_slope += m.transpose() * slope;
        self.slope_value += n.transpose() * value;
        self.slope_slope += slope.transpose() * slope;
        self.value_value += value.transpose() * value;
        self.slope_outer += n.transpose() * outer;
        self.residue_outer += value.transpose() * outer;
        let pulled = slope.transpose() * left;
        for i in 0..count {
            for j in 0..y.nrows() {
                let bent = bend[(j, i)] * along[(j, i)];
                (0..k).for_each(|l| self.bend_left[(i * k + l, 0)] += bent * y[(j, l)]);
                self.residue_inner[(i, 0)] += slope[(j, i)] * along[(j, i)];
            }
            (0..k).for_each(|l| self.slope_left[(i * k + l, 0)] += pulled[(i, l)]);
        }
    }

    fn normal(&self, point: &[Guess], k: usize, cost: f64, [inner, outer]: [f64; 2]) -> Normal {
        let (count, first) = (point.len(), point.len() * k);
        let close = Mat::from_fn(count, count, |i, j| dot(&point[i].p, &point[j].p));
        let entry = |row: usize, column: usize| match (row < first, column < first) {
            (true, true) => {
                let ((i, l), (j, m)) = ((row / k, row % k), (column / k, column % k));
                let same = if l == m { self.slope_slope[(i, j)] } else { 0.0 };
                let bent = close[(i, j)] * self.bends[(row, column)]
                    + self.bend_slope[(row, j)] * point[i].p[m]
                    + self.bend_slope[(column, i)] * point[j].p[l];
                point[i].residue * point[j].residue * (inner * (bent + same) + outer * self.slopes[(row, column)])
            }
            (true, false) | (false, true) => {
                let (sample, j) = if row < first { (row, column - first) } else { (column, row - first) };
                let (i, l) = (sample / k, sample % k);
                let bent = self.bend_slope[(sample, j)] * close[(i, j)] + self.slope_slope[(i, j)] * point[j].p[l];
                point[i].residue * (inner * bent + outer * self.slope_value[(sample, j)])
            }
            (false, false) => {
                let (i, j) = (row - first, column - first);
                inner * self.slope_slope[(i, j)] * close[(i, j)] + outer * self.value_value[(i, j)]
            }
        };
        let slope = |row: usize| match row.checked_sub(first) {
            None => {
                let bent = self.bend_left[(row, 0)] + self.slope_left[(row, 0)];
                point[row / k].residue * (inner * bent + outer * self.slope_outer[(row, 0)])
            }
            Some(i) => inner * self.residue_inner[(i, 0)] + outer * self.residue_outer[(i, 0)],
        };
        let size = first + count;
        Normal { cost, gram: Mat::from_fn(size, size, entry), slope: Mat::from_fn(size, 1, |row, _| slope(row)) }
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

    fn guesses(samples: &[(Vec<f64>, f64)]) -> Vec<Guess> {
        samples.iter().map(|(p, residue)| Guess { p: p.clone(), residue: *residue }).collect()
    }

    /// The point moved along one of its twelve numbers.
    fn moved(point: &[Guess], at: usize, step: f64) -> Vec<Guess> {
        let mut point = point.to_vec();
        if at < 9 {
            point[at / 3].p[at % 3] += step
        } else {
            point[at - 9].residue += step
        }
        point
    }

    #[test]
    fn derivatives_are_those_of_the_cost() {
        let truth: Vec<_> = unit_vectors(3, 3, 1).into_iter().zip([1.0, -0.5, 0.8]).collect();
        for sigma in [Activation::Tanh, Activation::SquareCube, Activation::Softplus { beta: 1.0 }] {
            let units = units(sigma, &truth, 200, 2);
            let problem = problem(&units, sigma);
            let point = guesses(&unit_vectors(3, 3, 5).into_iter().zip([0.9, -0.4, 0.5]).collect::<Vec<_>>());
            let normal = problem.normal(&point, true);
            let step = 1e-5;
            for at in 0..12 {
                let cost = |step: f64| problem.normal(&moved(&point, at, step), false).cost;
                let numeric = (cost(step) - cost(-step)) / (2.0 * step);
                let exact = 2.0 * normal.slope[(at, 0)];
                assert!((numeric - exact).abs() < 1e-5 * (1.0 + exact.abs()), "{sigma} {at}: {numeric} {exact}");
            }
            // Where nothing is left, JᵀJ is the derivative of Jᵀe.
            let point = guesses(&truth);
            let normal = problem.normal(&point, true);
            for at in 0..12 {
                let slope = |step: f64| problem.normal(&moved(&point, at, step), true).slope;
                let numeric = (slope(step) - slope(-step)) * faer::Scale(1.0 / (2.0 * step));
                let off = (0..12).map(|row| (numeric[(row, 0)] - normal.gram[(row, at)]).abs()).fold(0.0, f64::max);
                assert!(off < 1e-5 * (1.0 + normal.gram.norm_max()), "{sigma} {at}: {off}");
            }
        }
    }

    #[test]
    fn a_rough_guess_becomes_exact() {
        let truth: Vec<_> = unit_vectors(4, 4, 1).into_iter().zip([1.0, -0.5, 0.8, 1.2]).collect();
        let units = units(Activation::Sigmoid, &truth, 400, 2);
        let rough: Vec<(Vec<f64>, f64)> =
            truth.iter().map(|(p, r)| (p.iter().map(|p| p + 0.1).collect(), 0.9 * r)).collect();
        let problem = problem(&units, Activation::Sigmoid);
        let fit = problem.fitted(&guesses(&rough), 100, &mut |_| ControlFlow::Continue(()));
        assert!(fit.misfit < 1e-12, "{}", fit.misfit);
        for (guess, (p, r)) in fit.guesses.iter().zip(&truth) {
            assert!((guess.residue - r).abs() < 1e-9 && guess.p.iter().zip(p).all(|(a, b)| (a - b).abs() < 1e-9));
        }
        let stopped = problem.fitted(&guesses(&rough), 100, &mut |_| ControlFlow::Break(()));
        assert_eq!(stopped.guesses[0].p, rough[0].0);
    }
}
