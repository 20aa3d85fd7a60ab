//! The hunt for all columns of one gradient: searches, and what they add up to.

use faer::Mat;
use rayon::prelude::*;

use super::assembly::{Assembly, Layer, basis, consistent_share, outside};
use super::certificate::Rows;
use super::search::{Candidate, Search, Start, dot};
use crate::factors::Factors;
use crate::{Session, Tick, TracePoint};

/// How a hunt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Every sample is consistent, or enough of them to go on without these.
    Advanced,
    /// The budget is used.
    Exhausted,
    /// Somebody asked it to stop.
    Stopped,
}

/// Searches made at once; independent of the number of threads, so that results are too.
const TOGETHER: usize = 8;
/// Share of zeros of a column that is one sample's: half, but for units that change their state.
const SPARSE: f64 = 0.3;
/// Mixtures of like samples may have more zeros than that, but not so great a part of what is usual.
const USUAL: f64 = 0.88;
/// Searches outside of all columns that may pass without another: there are too few units for more.
const PATIENCE: usize = 128;
/// Candidates this alike are the same.
const SAME: f64 = 1.0 - 1e-6;

/// The state of a hunt.
pub(crate) struct Hunt<'a> {
    factors: &'a Factors,
    /// Units that were on for some sample.
    live: Vec<usize>,
    search: Search,
    layer: Layer,
    candidates: Vec<Candidate>,
    best: Option<Assembly>,
}

impl<'a> Hunt<'a> {
    pub(crate) fn new(factors: &'a Factors, weight: &Mat<f64>, offset: &[f64], bias: &[f64], slope: f64) -> Self {
        let (left, k) = (&factors.left, factors.rank());
        let norms: Vec<f64> = (0..left.nrows()).map(|i| left.row(i).norm_l2()).collect();
        let largest = norms.iter().copied().fold(0.0, f64::max);
        // A unit that was off for every sample says nothing about any.
        let live: Vec<usize> = (0..norms.len()).filter(|&i| norms[i] > 1e-4 * largest).collect();
        let rows = Mat::from_fn(live.len(), k, |i, j| left[(live[i], j)]);
        let seen = weight * factors.right.transpose();
        // Columns of L have length √h and are orthogonal: L⁺ = Lᵀ / h.
        let bias = left.transpose() * Mat::from_fn(bias.len(), 1, |i, _| bias[i] / left.nrows() as f64);
        Self {
            factors,
            search: Search::new(rows, (1.5 * slope.abs()).max(2e-3)),
            layer: Layer {
                scale: factors.scale.clone(),
                bias: bias.col(0).iter().copied().collect(),
                weight: Mat::from_fn(live.len(), k, |i, j| seen[(live[i], j)]),
                offset: live.iter().map(|&unit| offset[unit]).collect(),
                consistent: consistent_share(slope),
            },
            live,
            candidates: Vec::new(),
            best: None,
        }
    }

    /// With another share of units that must agree with a sample.
    pub(crate) fn with_consistent(mut self, share: f64) -> Self {
        self.layer.consistent = share;
        self
    }

    /// Takes the directions that vanish where samples are off: for each sample, one flag for every
    /// unit of the layer. Gives the column that each leads to, if it is as sparse as those of samples are.
    pub(crate) fn offer(&mut self, off: Vec<Vec<bool>>) -> Vec<Option<Vec<f64>>> {
        let offered = off.into_par_iter().map(|off| {
            let off: Vec<usize> = (0..self.live.len()).filter(|&place| off[self.live[place]]).collect();
            // Some units are told off that were on for a while: the search leaves them out again.
            self.search.vanishing(&off).and_then(|q| self.search.run_from(q))
        });
        let offered: Vec<Option<Candidate>> = offered.collect();
        offered.iter().flatten().for_each(|candidate| self.take(candidate.clone()));
        let enough = self.enough();
        let zeros = self.candidates.iter().map(|candidate| candidate.zeros);
        let mut zeros: Vec<usize> = zeros.filter(|zeros| *zeros >= enough).collect();
        zeros.sort_unstable();
        let usual = zeros.get(zeros.len() / 2).copied().unwrap_or(0);
        let enough = enough.max((USUAL * usual as f64) as usize);
        let column = |candidate: &Candidate| {
            let column = &self.factors.left * Mat::from_fn(candidate.q.len(), 1, |i, _| candidate.q[i]);
            column.col(0).iter().copied().collect()
        };
        offered.iter().map(|one| one.as_ref().filter(|one| one.zeros >= enough).map(column)).collect()
    }

    /// Takes what another hunt in the same gradient found.
    pub(crate) fn adopt(&mut self, other: &Self) {
        other.candidates.iter().for_each(|candidate| self.take(candidate.clone()));
    }

    /// Samples for which there is no column yet.
    pub(crate) fn missing(&self) -> usize {
        let k = self.search.dimension();
        k - basis(&self.sparse(), k).0.len()
    }

    /// One more candidate, if it is not known yet.
    fn take(&mut self, candidate: Candidate) {
        if self.candidates.iter().all(|other| dot(&other.q, &candidate.q).abs() < SAME) {
            self.candidates.push(candidate);
        }
    }

    /// Searches outside of everything sparse until there is a column for every sample: what `run`
    /// does where consistency of single samples is not to be had before all columns are there.
    pub(crate) fn gather(&mut self, budget: usize, searches: &mut usize, session: &mut Session<'_>) -> Outcome {
        let k = self.search.dimension();
        // Columns at hand, and the searches it took to have so many.
        let mut last = (0, *searches);
        while *searches < budget {
            let sparse = self.sparse();
            let (chosen, spanned) = basis(&sparse, k);
            if chosen.len() > last.0 {
                last = (chosen.len(), *searches);
            } else if *searches - last.1 > PATIENCE {
                break;
            }
            if chosen.len() == k {
                let places = chosen.iter().map(|&place| self.place(&sparse[place])).collect();
                let whole = Assembly::of(&self.layer, &self.candidates, places);
                self.best = Some(whole.improved(&self.layer, &self.candidates));
                self.sharpen();
                return Outcome::Advanced;
            }
            let mut stream = session.stream("gather", *searches as u64);
            let starts: Vec<Start> = (0..TOGETHER)
                .map(|index| {
                    let random: Vec<f64> = (0..k).map(|_| stream.normal()).collect();
                    if spanned.is_empty() {
                        return Start::Anywhere(random);
                    }
                    if index % 2 == 0 {
                        return Start::Outside(outside(random, &spanned));
                    }
                    // A mixture among them would hide what it is made of: leave some out.
                    let some = chosen.iter().filter(|_| stream.below(5) > 0).map(|&place| sparse[place].clone());
                    Start::Outside(outside(random, &basis(&some.collect::<Vec<_>>(), k).1))
                })
                .collect();
            self.search_from(starts, Search::run_on);
            *searches += TOGETHER;
            let open = 1.0 - chosen.len() as f64 / k as f64;
            if session.tick(Tick { iteration: *searches, total: budget, loss: Some(open) }).is_break() {
                return Outcome::Stopped;
            }
        }
        Outcome::Exhausted
    }

    /// Candidates that no mixture of unlike samples is as sparse as.
    fn sparse(&self) -> Vec<Candidate> {
        let enough = self.enough();
        self.candidates.iter().filter(|candidate| candidate.zeros >= enough).cloned().collect()
    }

    /// Zeros of such a candidate, at least.
    fn enough(&self) -> usize {
        (SPARSE * self.search.rows() as f64) as usize
    }

    /// The place of a candidate among all.
    fn place(&self, candidate: &Candidate) -> usize {
        self.candidates.iter().position(|other| other.q == candidate.q).unwrap_or(0)
    }

    /// Searches at once; what is new is kept.
    fn search_from(&mut self, starts: Vec<Start>, search: impl Fn(&Search, Start) -> Option<Candidate> + Sync) {
        let found: Vec<Option<Candidate>> = starts.into_par_iter().map(|start| search(&self.search, start)).collect();
        found.into_iter().flatten().for_each(|candidate| self.take(candidate));
    }

    /// Searches until every sample is consistent; or until no more become so
    /// for a while, and what there is may be proven and taken away. `known` are
    /// samples found before.
    pub(crate) fn run(
        &mut self,
        budget: usize,
        known: usize,
        searches: &mut usize,
        trace: &mut Vec<TracePoint>,
        session: &mut Session<'_>,
    ) -> Outcome {
        let k = self.search.dimension();
        let patience = (k / 2).max(6);
        let mut waited = 0;
        while *searches < budget {
            let before = self.best.as_ref().map_or(0, |best| best.consistent(&self.layer));
            self.round(*searches, known, session);
            *searches += TOGETHER;
            let consistent = self.best.as_ref().map_or(0, |best| best.consistent(&self.layer));
            let open = 1.0 - (known + consistent) as f64 / (known + k) as f64;
            trace.push(TracePoint { iteration: *searches, loss: open });
            let tick = Tick { iteration: *searches, total: budget, loss: Some(open) };
            if session.tick(tick).is_break() {
                return Outcome::Stopped;
            }
            if consistent == k {
                self.sharpen();
                return Outcome::Advanced;
            }
            waited = if consistent > before { 0 } else { waited + 1 };
            if waited > patience && consistent > 0 {
                self.sharpen();
                return Outcome::Advanced;
            }
        }
        Outcome::Exhausted
    }

    /// A few searches at once, and the best choice among all candidates so far.
    fn round(&mut self, number: usize, known: usize, session: &Session<'_>) {
        let k = self.search.dimension();
        let (chosen, spanned) = match &self.best {
            // With a whole choice at hand, look outside of what is consistent in it.
            Some(best) => {
                let good: Vec<Candidate> = (best.chosen.iter().zip(&best.agreement))
                    .filter(|(_, agreement)| **agreement > self.layer.consistent)
                    .map(|(index, _)| self.candidates[*index].clone())
                    .collect();
                (k, basis(&good, k).1)
            }
            None => {
                let (chosen, spanned) = basis(&self.candidates, k);
                (chosen.len(), spanned)
            }
        };
        let mut stream = session.stream("search", ((known as u64) << 32) + number as u64);
        let starts: Vec<Start> = (0..TOGETHER)
            .map(|index| {
                let random: Vec<f64> = (0..k).map(|_| stream.normal()).collect();
                let row = stream.below(self.search.rows());
                match index {
                    0 => Start::Anywhere(self.search.row(row)),
                    1 => Start::Anywhere(random),
                    _ if spanned.is_empty() => Start::Anywhere(random),
                    // Half of the others start from rows, too, once a choice is at hand.
                    2..4 if chosen == k => Start::Anywhere(self.search.row(row)),
                    _ => Start::Outside(outside(random, &spanned)),
                }
            })
            .collect();
        self.search_from(starts, Search::run);
        let (sparsest, _) = basis(&self.candidates, k);
        if sparsest.len() < k {
            return;
        }
        let fresh = Assembly::of(&self.layer, &self.candidates, sparsest).improved(&self.layer, &self.candidates);
        let kept = self.best.take().map(|best| best.improved(&self.layer, &self.candidates));
        self.best = Some(match kept {
            Some(kept) if kept.consistent(&self.layer) >= fresh.consistent(&self.layer) => kept,
            _ => fresh,
        });
    }

    /// Whether the layer agrees with every sample of the best choice.
    pub(crate) fn all_consistent(&self) -> bool {
        self.best.as_ref().is_some_and(|best| best.consistent(&self.layer) == best.chosen.len())
    }

    /// Takes the directions of the best choice again, each from all units that
    /// are off in it, where that keeps what is consistent.
    fn sharpen(&mut self) {
        let Some(best) = &self.best else { return };
        let sharper: Vec<Option<Candidate>> = (0..best.chosen.len())
            .into_par_iter()
            .map(|sample| {
                let consistent = best.agreement[sample] > self.layer.consistent;
                consistent
                    .then(|| self.search.sharpened(&self.candidates[best.chosen[sample]], &best.states[sample]))?
            })
            .collect();
        let mut places = best.chosen.clone();
        for (place, candidate) in places.iter_mut().zip(sharper) {
            if let Some(candidate) = candidate {
                *place = self.candidates.len();
                self.candidates.push(candidate);
            }
        }
        let again = Assembly::of(&self.layer, &self.candidates, places);
        if again.consistent(&self.layer) >= best.consistent(&self.layer) {
            self.best = Some(again);
        }
    }

    /// The samples of the best choice, the columns of Δᵀ that belong to them
    /// (over all units), and the share of units that agree; nothing if there
    /// never was a whole choice.
    pub(crate) fn samples(&self) -> (Rows, Mat<f64>, Vec<f64>) {
        let Some(best) = &self.best else { return (Vec::new(), Mat::zeros(self.factors.left.nrows(), 0), Vec::new()) };
        let k = best.chosen.len();
        let coordinates: Rows = (0..k).map(|sample| best.coordinates(&self.layer, sample)).collect();
        let samples = Mat::from_fn(k, k, |i, j| coordinates[i][j]) * &self.factors.right;
        let q = Mat::from_fn(k, k, |i, j| best.scales[j] * self.candidates[best.chosen[j]].q[i]);
        (super::harvest::rows(&samples), &self.factors.left * q, best.agreement.clone())
    }
}
