//! Samples of a piecewise linear layer, exactly, from which units are on.
//!
//! σ' takes two values, 1 where a unit is on and `slope` where it is off, so
//! that ĝ = Φ A with Φ of those two values and A the rows r_i p_i. Given the
//! states A follows by least squares, and given A the states: from a rough
//! guess this settles. Where it does not, the states are the common solutions of
//! quadratic equations, one for each unit.
//!
//! Only r_i p_i is in ĝ. Offsets tell r_i through g; without them the length of p
//! is not in the gradient.

use afterimage_nn::Stream;
use faer::linalg::solvers::Solve;
use faer::{Mat, Side};

use super::estimate::{Guess, dot};
use super::moments::{Units, product};
use super::polish::Fit;

/// Rounds of states and rows.
const ROUNDS: usize = 40;
/// The part of the units, those farthest from their thresholds, that is used at first.
const CLEAREST: f64 = 0.2;

/// A layer of two slopes.
pub(super) struct Pieces<'a> {
    pub(super) units: &'a Units,
    /// σ' where a unit is off.
    pub(super) slope: f64,
    /// ‖p‖, where the gradient does not tell it.
    pub(super) norm: f64,
}

impl Pieces<'_> {
    /// Settles states and rows from a guess.
    pub(super) fn settled(&self, start: &[Guess]) -> Fit {
        let mut guesses = start.to_vec();
        let mut best: Option<Fit> = None;
        for round in 0..ROUNDS {
            let at = self.at(&guesses);
            // Units near a threshold may be in the wrong state: the clearest first, more and more of them.
            let clear: Vec<f64> = (0..self.units.count()).map(|j| clearness(&at, j)).collect();
            let mut used: Vec<usize> = (0..self.units.count()).collect();
            used.sort_by(|&a, &b| clear[b].total_cmp(&clear[a]));
            let share = (CLEAREST + 2.0 * round as f64 / ROUNDS as f64).min(1.0);
            used.truncate(((share * used.len() as f64) as usize).max(8 * guesses.len()));
            let states: Vec<Vec<bool>> = at.iter().map(|at| at.iter().map(|z| *z > 0.0).collect()).collect();
            // Units that tell two samples apart may be among those that are not clear yet.
            let Some(rows) = self.rows(&states, &used) else { continue };
            // Rows are r p: the side of p that is already known tells the sign of r.
            let signs: Vec<f64> = guesses.iter().zip(&rows).map(|(guess, row)| dot(row, &guess.p).signum()).collect();
            guesses = self.guesses(&states, &rows, &signs);
            let misfit = self.misfit(&states, &rows);
            if best.as_ref().is_none_or(|best| misfit < best.misfit) {
                best = Some(Fit { guesses: guesses.clone(), misfit });
            }
            if misfit < 1e-12 {
                break;
            }
        }
        best.unwrap_or(Fit { guesses, misfit: 1.0 })
    }

    /// The states of as many samples as there are dimensions, by algebra alone.
    ///
    /// A column v = ĝq of Φ has two values, so that every unit's v_j is a root of
    /// (v − 1)(v − slope) = 0: linear in (q qᵀ, q, 1). The solutions of all units'
    /// equations are the combinations of those of the samples, and two of them
    /// share the q as eigenvectors of one over the other.
    pub(super) fn solved(&self, stream: &mut Stream) -> Option<Fit> {
        let (count, k) = (self.units.count(), self.units.dimension());
        if count < k * (k + 3) / 2 + 1 {
            return None;
        }
        let columns = self.units.inner.qr().compute_thin_Q() * faer::Scale((count as f64).sqrt());
        let pairs: Vec<(usize, usize)> = (0..k).flat_map(|a| (a..k).map(move |b| (a, b))).collect();
        // Of ReLU the constant has the factor 0: it would solve everything.
        let constant = usize::from(self.slope != 0.0);
        let equations = Mat::from_fn(count, pairs.len() + k + constant, |j, c| match c {
            c if c < pairs.len() => columns[(j, pairs[c].0)] * columns[(j, pairs[c].1)],
            c if c < pairs.len() + k => columns[(j, c - pairs.len())],
            _ => 1.0,
        });
        let eigen = (equations.transpose() * &equations).self_adjoint_eigen(Side::Lower).ok()?;
        // A random combination of the solutions, its quadratic part as a matrix.
        let mut combination = || {
            let mut m = Mat::<f64>::zeros(k, k);
            for solution in 0..k {
                let share = stream.normal();
                for (c, &(a, b)) in pairs.iter().enumerate() {
                    // x_a x_b stands for both (a, b) and (b, a).
                    let entry = share * eigen.U()[(c, solution)] * if a == b { 1.0 } else { 0.5 };
                    m[(a, b)] += entry;
                    m[(b, a)] = m[(a, b)];
                }
            }
            m
        };
        let (one, other) = (combination(), combination());
        let ratio = other.partial_piv_lu().solve(&one);
        // one = Q C Qᵀ and other = Q D Qᵀ: other⁻¹ one has Q⁻ᵀ as eigenvectors.
        let vectors = ratio.transpose().to_owned().eigen().ok()?;
        let states: Vec<Vec<bool>> = (0..k)
            .map(|sample| {
                let q: Vec<f64> = (0..k).map(|i| vectors.U()[(i, sample)].re).collect();
                let v = product(&columns, &q);
                let largest = v.iter().fold(0.0_f64, |largest, v| largest.max(v.abs()));
                v.iter().map(|v| v.abs() > 0.5 * (1.0 + self.slope) * largest).collect()
            })
            .collect();
        self.of_states(&states)
    }

    /// Samples from states.
    fn of_states(&self, states: &[Vec<bool>]) -> Option<Fit> {
        let all: Vec<usize> = (0..self.units.count()).collect();
        let rows = self.rows(states, &all)?;
        let sign = |(states, row): (&Vec<bool>, &Vec<f64>)| {
            let at = product(&self.units.z, row);
            let agreeing: i64 = at.iter().zip(states).map(|(z, on)| if (*z > 0.0) == *on { 1 } else { -1 }).sum();
            if agreeing >= 0 { 1.0 } else { -1.0 }
        };
        let signs: Vec<f64> = states.iter().zip(&rows).map(sign).collect();
        Some(Fit { guesses: self.guesses(states, &rows, &signs), misfit: self.misfit(states, &rows) })
    }

    /// Samples and residues from rows r p: by the offsets if there are any, else by the norm.
    fn guesses(&self, states: &[Vec<bool>], rows: &[Vec<f64>], signs: &[f64]) -> Vec<Guess> {
        let residues = self.residues(states, rows);
        let of = |(i, row): (usize, &Vec<f64>)| {
            let size = dot(row, row).sqrt().max(f64::MIN_POSITIVE);
            let by_norm = signs[i] * size / self.norm;
            // Rows without a trace of the offsets would give a residue of any size.
            let told = residues.as_ref().map(|residues| residues[i]).filter(|r| (1e-3..1e3).contains(&(r / by_norm)));
            let residue = told.unwrap_or(by_norm);
            Guess { p: row.iter().map(|x| x / residue).collect(), residue }
        };
        rows.iter().enumerate().map(of).collect()
    }

    /// The residues that g tells where units have offsets: g_j = Σ_i Φ_ji (y_j · r_i p_i + r_i b_j).
    fn residues(&self, states: &[Vec<bool>], rows: &[Vec<f64>]) -> Option<Vec<f64>> {
        let units = self.units;
        if units.offset.iter().all(|b| *b == 0.0) {
            return None;
        }
        let at: Vec<Vec<f64>> = rows.iter().map(|row| product(&units.z, row)).collect();
        let phi = |j: usize, i: usize| self.entry(states[i][j]);
        let a = Mat::from_fn(units.count(), states.len(), |j, i| phi(j, i) * units.offset[j]);
        let right = Mat::from_fn(units.count(), 1, |j, _| {
            units.outer[j] - (0..states.len()).map(|i| phi(j, i) * at[i][j]).sum::<f64>()
        });
        let solved = (a.transpose() * &a).llt(Side::Lower).ok()?.solve(a.transpose() * right);
        Some(solved.col(0).iter().copied().collect())
    }

    fn at(&self, guesses: &[Guess]) -> Vec<Vec<f64>> {
        let of = |guess: &Guess| {
            product(&self.units.z, &guess.p).iter().zip(&self.units.offset).map(|(z, b)| z + b).collect()
        };
        guesses.iter().map(of).collect()
    }

    fn entry(&self, on: bool) -> f64 {
        if on { 1.0 } else { self.slope }
    }

    /// A, one row a sample, from these units; `None` if they do not tell samples apart.
    fn rows(&self, states: &[Vec<bool>], used: &[usize]) -> Option<Vec<Vec<f64>>> {
        let k = self.units.dimension();
        let phi = Mat::from_fn(used.len(), states.len(), |row, i| self.entry(states[i][used[row]]));
        let right = Mat::from_fn(used.len(), k, |row, c| self.units.inner[(used[row], c)]);
        let solved = (phi.transpose() * &phi).llt(Side::Lower).ok()?.solve(phi.transpose() * right);
        Some((0..states.len()).map(|i| (0..k).map(|c| solved[(i, c)]).collect()).collect())
    }

    fn misfit(&self, states: &[Vec<bool>], rows: &[Vec<f64>]) -> f64 {
        let k = self.units.dimension();
        let phi = Mat::from_fn(self.units.count(), states.len(), |j, i| self.entry(states[i][j]));
        let a = Mat::from_fn(states.len(), k, |i, c| rows[i][c]);
        (phi * a - &self.units.inner).norm_l2() / self.units.inner.norm_l2().max(f64::MIN_POSITIVE)
    }
}

/// How far a unit is from its threshold for the sample for which it is nearest.
fn clearness(at: &[Vec<f64>], unit: usize) -> f64 {
    at.iter().map(|at| at[unit].abs()).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::simulated::{unit_vectors, units};
    use afterimage_nn::Activation;

    #[test]
    fn states_settle_from_a_rough_guess_and_are_found_without_one() {
        let truth: Vec<_> = unit_vectors(5, 5, 1).into_iter().zip([1.0, -0.5, 0.8, 1.2, -0.9]).collect();
        for slope in [0.0, 0.1] {
            let sigma = Activation::LeakyRelu { slope };
            let units = units(sigma, &truth, 600, 2);
            let pieces = Pieces { units: &units, slope, norm: 1.0 };
            let rough = |(index, (p, r)): (usize, &(Vec<f64>, f64))| Guess {
                p: p.iter().enumerate().map(|(c, p)| p + if c == index { 0.15 } else { -0.05 }).collect(),
                residue: *r,
            };
            let start: Vec<Guess> = truth.iter().enumerate().map(rough).collect();
            let fits = [pieces.settled(&start), pieces.solved(&mut Stream::new(1, "states", 0)).unwrap()];
            for (index, fit) in fits.iter().enumerate() {
                assert!(fit.misfit < 1e-10, "{slope}, {index}: {}", fit.misfit);
                for (p, r) in &truth {
                    let near = |guess: &Guess| {
                        (guess.residue - r).abs() < 1e-8 && guess.p.iter().zip(p).all(|(a, b)| (a - b).abs() < 1e-8)
                    };
                    assert!(fit.guesses.iter().any(near), "{slope}");
                }
            }
        }
    }
}
