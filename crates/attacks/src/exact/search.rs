//! Sparse directions in the column space of a gradient.
//!
//! A unit of a ReLU layer is off for about half of the samples, so that the
//! column of Δᵀ that belongs to one sample has zeros where combinations of
//! columns have none: v = Lq is sparsest where q picks one sample. Such q are
//! found by reweighted least squares on the sphere,
//!
//! ```text
//! w_k = (v_k² + ε²)^(−3/4),   q ← (Lᵀ diag(w) L)⁻¹ q / ‖·‖,   ε ↘ 0,
//! ```
//!
//! or, to find what is not yet known, with the right-hand side held at a vector
//! u orthogonal to all q found: their solutions then cannot come back.

use faer::linalg::solvers::Solve;
use faer::{Mat, Side};

use super::states::States;

/// Where a search starts from.
pub(super) enum Start {
    /// Anywhere: from q, on the sphere.
    Anywhere(Vec<f64>),
    /// Outside of what is known: ⟨u, q⟩ = 1.
    Outside(Vec<f64>),
}

/// A direction with many zeros.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    /// q, of length 1.
    pub(super) q: Vec<f64>,
    /// Zeros of Lq among the units that are ever on.
    pub(super) zeros: usize,
    /// Which units are on.
    pub(super) support: States,
}

/// The search space.
pub(super) struct Search {
    /// Rows of L of units that are on for some sample.
    live: Mat<f64>,
    /// v_k counts as zero below this part of three times their root mean square.
    small: f64,
    /// Fewest zeros that do not come for free: k − 1 always can be had.
    needed: usize,
}

const SWEEPS: usize = 150;
/// Sweeps from near the end, and ε at the first and at the last.
const STEADY_SWEEPS: usize = 60;
const STEADY: [f64; 2] = [0.3, 1e-6];

impl Search {
    /// Over these rows of L; `small` is the size of what an off unit lets through.
    pub(super) fn new(live: Mat<f64>, small: f64) -> Self {
        let (rows, k) = (live.nrows(), live.ncols());
        // A single sample is off in no unit that is ever on.
        let needed = if k == 1 { 0 } else { k - 1 + (rows / 33).max(8) };
        Self { live, small, needed }
    }

    pub(super) fn dimension(&self) -> usize {
        self.live.ncols()
    }

    /// A row of L as a start: it leans towards the samples its unit is on for.
    pub(super) fn row(&self, index: usize) -> Vec<f64> {
        self.live.row(index % self.live.nrows().max(1)).iter().copied().collect()
    }

    pub(super) fn rows(&self) -> usize {
        self.live.nrows()
    }

    /// Runs one search to its end; `None` if it ended at nothing sparse.
    pub(super) fn run(&self, start: Start) -> Option<Candidate> {
        let mut q = self.from(start)?;
        for _ in 0..2 {
            q = self.null_vector(&q)?;
        }
        self.candidate(q)
    }

    /// As [`run`](Self::run), and then on from where it ended, with nothing held: an anchor keeps
    /// some of a mixture.
    pub(super) fn run_on(&self, start: Start) -> Option<Candidate> {
        let mut q = self.descend(self.from(start)?, None, 0.3)?;
        for _ in 0..2 {
            q = self.null_vector(&q)?;
        }
        self.candidate(q)
    }

    /// A search from near its end: ε falls steadily, whatever q does. Waiting for q to settle at
    /// each ε, as a search from anywhere must, leads away from where it started.
    pub(super) fn run_from(&self, mut q: Vec<f64>) -> Option<Candidate> {
        for sweep in 0..STEADY_SWEEPS {
            let progress = sweep as f64 / (STEADY_SWEEPS - 1) as f64;
            q = self.reweighted(&q, &q, STEADY[0] * (STEADY[1] / STEADY[0]).powf(progress))?;
        }
        let Candidate { support, .. } = self.candidate(q)?;
        let off: Vec<usize> = (0..self.live.nrows()).filter(|&unit| !support.on(unit)).collect();
        self.candidate(self.vanishing(&off)?)
    }

    /// Where a start leads.
    fn from(&self, start: Start) -> Option<Vec<f64>> {
        match start {
            Start::Anywhere(q) => self.descend(normalised(q)?, None, 1.0),
            Start::Outside(u) => self.descend(normalised(u.clone())?, Some(&u), 1.0),
        }
    }

    /// Reweighted least squares from q, ε falling from its first value.
    fn descend(&self, mut q: Vec<f64>, anchor: Option<&Vec<f64>>, mut epsilon: f64) -> Option<Vec<f64>> {
        for _ in 0..SWEEPS {
            let next = self.reweighted(&q, anchor.unwrap_or(&q), epsilon)?;
            let change = distance(&next, &q).min(distance(&next.iter().map(|x| -x).collect::<Vec<_>>(), &q));
            q = next;
            if change < 1e-2 {
                epsilon *= 0.5;
            }
            if epsilon < 1e-4 {
                break;
            }
        }
        Some(q)
    }

    /// One sweep: the weights of q, and what they make of the right-hand side.
    fn reweighted(&self, q: &[f64], right: &[f64], epsilon: f64) -> Option<Vec<f64>> {
        let v = self.values(q);
        let weights: Vec<f64> = v.iter().map(|v| (v * v + epsilon * epsilon).powf(-0.75)).collect();
        normalised(self.solve(&weights, right)?)
    }

    /// Lq.
    pub(super) fn values(&self, q: &[f64]) -> Vec<f64> {
        let v = &self.live * Mat::from_fn(q.len(), 1, |i, _| q[i]);
        v.col(0).iter().copied().collect()
    }

    /// (Lᵀ diag(w) L)⁻¹ b.
    fn solve(&self, weights: &[f64], b: &[f64]) -> Option<Vec<f64>> {
        let mut weighted = self.live.clone();
        for column in weighted.col_iter_mut() {
            column.iter_mut().zip(weights).for_each(|(x, w)| *x *= w);
        }
        let gram = self.live.transpose() * weighted;
        let solved = gram.llt(Side::Lower).ok()?.solve(Mat::from_fn(b.len(), 1, |i, _| b[i]));
        Some(solved.col(0).iter().copied().collect())
    }

    /// The direction that vanishes on the units where Lq is smallest: a few
    /// more of them than any direction can vanish on.
    fn null_vector(&self, q: &[f64]) -> Option<Vec<f64>> {
        let v = self.values(q);
        let mut order: Vec<usize> = (0..v.len()).collect();
        order.sort_by(|&a, &b| v[a].abs().total_cmp(&v[b].abs()));
        order.truncate(self.needed + 2);
        self.vanishing(&order)
    }

    /// The direction again, from all units that are off in it and in the states of its sample.
    pub(super) fn sharpened(&self, candidate: &Candidate, states: &States) -> Option<Candidate> {
        let off = |unit: &usize| !candidate.support.on(*unit) && !states.on(*unit);
        let off: Vec<usize> = (0..self.live.nrows()).filter(off).collect();
        self.candidate(self.vanishing(&off)?)
    }

    /// The direction that vanishes most on these units.
    pub(super) fn vanishing(&self, units: &[usize]) -> Option<Vec<f64>> {
        let part = Mat::from_fn(units.len(), self.live.ncols(), |i, j| self.live[(units[i], j)]);
        let eigen = (part.transpose() * &part).self_adjoint_eigen(Side::Lower).ok()?;
        normalised(eigen.U().col(0).iter().copied().collect())
    }

    /// The direction with its zeros counted, if they are more than chance.
    pub(super) fn candidate(&self, q: Vec<f64>) -> Option<Candidate> {
        let v = self.values(&q);
        // Beside the usual size of what is on, not the largest: a vector of few spikes is not sparse.
        let usual = 3.0 * (dot(&v, &v) / v.len().max(1) as f64).sqrt();
        let support = States::new(v.iter().map(|v| v.abs() > self.small * usual));
        let zeros = support.off();
        (zeros >= self.needed && usual > 0.0).then_some(Candidate { q, zeros, support })
    }
}

pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt()
}

pub(crate) fn normalised(mut q: Vec<f64>) -> Option<Vec<f64>> {
    let norm = dot(&q, &q).sqrt();
    if !(norm > 0.0 && norm.is_finite()) {
        return None;
    }
    q.iter_mut().for_each(|x| *x /= norm);
    Some(q)
}
