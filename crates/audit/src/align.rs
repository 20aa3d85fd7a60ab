//! Which candidate a record is compared with.
//!
//! Verdicts use the nearest candidate, for members and controls alike. The
//! papers pair differently, and their figures are made with their pairings.

use std::cmp::Ordering;

use afterimage_attacks::registration::Size;
use pathfinding::kuhn_munkres::kuhn_munkres_min;
use pathfinding::matrix::Matrix;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::metrics::{Direction, Lpips, Metric};

/// A pairing of records with candidates, for figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Alignment {
    /// One to one, best in total by the criterion's metric (the Hungarian method): batches.
    Optimal,
    /// One to one, again and again the closest pair that is left, by l2: the NTK
    /// paper's reconstruction curve.
    Greedy,
    /// The mean of all candidates almost as near as the nearest by correlation (of colour
    /// pictures at half their size), stretched to [0, 1]: the KKT paper's figures.
    Voting,
}

impl Alignment {
    /// The metric a pairing is made for, measured whether or not it is asked for.
    pub fn own_metric(self) -> Option<Metric> {
        match self {
            Alignment::Optimal => None,
            Alignment::Greedy => Some(Metric::L2),
            Alignment::Voting => Some(Metric::Ssim3),
        }
    }
}

/// Candidates within this factor of the nearest one's distance vote.
const VOTES: f64 = 1.1;

/// Candidates that records are compared with.
pub(crate) struct Pool<'a> {
    candidates: Vec<Vec<f64>>,
    shape: &'a [usize],
    lpips: Option<&'a Lpips>,
}

impl<'a> Pool<'a> {
    pub(crate) fn new(candidates: Vec<Vec<f64>>, shape: &'a [usize]) -> Self {
        Self { candidates, shape, lpips: None }
    }

    /// The same with a network for the metric that needs one.
    pub(crate) fn with_lpips(self, lpips: Option<&'a Lpips>) -> Self {
        Self { lpips, ..self }
    }

    /// How alike two records are.
    pub(crate) fn compare(&self, metric: Metric, record: &[f64], other: &[f64]) -> Option<f64> {
        match (metric, self.lpips) {
            (Metric::Lpips, Some(lpips)) => lpips.distance(record, other),
            _ => metric.measure(record, other, self.shape),
        }
    }

    /// How alike a record and the candidate at `index` are.
    pub(crate) fn measure(&self, metric: Metric, record: &[f64], index: usize) -> Option<f64> {
        self.compare(metric, record, self.candidates.get(index)?)
    }

    /// The candidate nearest to a record, and how near. Of a metric that is
    /// slow to compute, only the best few by a quick one are tried.
    pub(crate) fn nearest(&self, record: &[f64], metric: Metric) -> Option<(usize, f64)> {
        let Some((quick, few)) = metric.screen() else {
            return self.ranked(record, metric, 0..self.candidates.len()).into_iter().next();
        };
        let screened = self.ranked(record, quick, 0..self.candidates.len());
        self.ranked(record, metric, screened.into_iter().take(few).map(|(index, _)| index)).into_iter().next()
    }

    /// Candidates with their scores, best first; those without a score are left out.
    fn ranked(&self, record: &[f64], metric: Metric, among: impl Iterator<Item = usize>) -> Vec<(usize, f64)> {
        let mut scored: Vec<(usize, f64)> = among
            .filter_map(|index| Some((index, self.measure(metric, record, index).filter(|value| value.is_finite())?)))
            .collect();
        scored.sort_by(|a, b| order(metric.better(), a.1, b.1));
        scored
    }

    /// The image each record is compared with in a pairing.
    pub(crate) fn align(&self, alignment: Alignment, records: &[Vec<f64>], metric: Metric) -> Vec<Option<Vec<f64>>> {
        let chosen = |pairs: Vec<Option<usize>>| -> Vec<Option<Vec<f64>>> {
            pairs.into_iter().map(|pair| self.candidates.get(pair?).cloned()).collect()
        };
        match alignment {
            Alignment::Optimal => chosen(optimal(&self.costs(records, metric))),
            Alignment::Greedy => chosen(greedy(&self.costs(records, Metric::L2))),
            Alignment::Voting => {
                let standard: Vec<Vec<f64>> =
                    self.candidates.par_iter().map(|candidate| searched(candidate, self.shape)).collect();
                records.par_iter().map(|record| self.vote(record, &standard)).collect()
            }
        }
    }

    /// How far apart each record and candidate are; infinite where there is no score.
    fn costs(&self, records: &[Vec<f64>], metric: Metric) -> Vec<Vec<f64>> {
        let cost = |record: &[f64], index: usize| match (self.measure(metric, record, index), metric.better()) {
            (Some(value), Direction::Below) => value,
            (Some(value), Direction::Above) => -value,
            (None, _) => f64::INFINITY,
        };
        let row = |record: &Vec<f64>| (0..self.candidates.len()).map(|index| cost(record, index)).collect();
        records.par_iter().map(row).collect()
    }

    /// The mean of the candidates that vote for a record, stretched to [0, 1];
    /// `standard` are the candidates, standardised.
    fn vote(&self, record: &[f64], standard: &[Vec<f64>]) -> Option<Vec<f64>> {
        let length = record.len();
        let record = searched(record, self.shape);
        let distance = |candidate: &Vec<f64>| record.iter().zip(candidate).map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
        let distances: Vec<f64> = standard.iter().map(distance).collect();
        let nearest = distances.iter().copied().filter(|distance| distance.is_finite()).min_by(f64::total_cmp)?;
        let voters: Vec<&Vec<f64>> =
            self.candidates.iter().zip(&distances).filter(|(_, d)| **d <= VOTES * nearest).map(|(c, _)| c).collect();
        let mean = |place: usize| voters.iter().map(|voter| voter[place]).sum::<f64>() / voters.len() as f64;
        Some(stretched((0..length).map(mean).collect()))
    }
}

fn order(better: Direction, a: f64, b: f64) -> Ordering {
    match better {
        Direction::Below => a.total_cmp(&b),
        Direction::Above => b.total_cmp(&a),
    }
}

/// What votes are counted by: the standardised image, at half its size if it is in colour.
fn searched(image: &[f64], shape: &[usize]) -> Vec<f64> {
    let values = standardised(image, shape);
    match *shape {
        [3, height, width] if height > 1 && width > 1 => {
            let (small_height, small_width) = (height / 2, width / 2);
            let half = |channel: &[f64]| -> Vec<f64> {
                let mean = |row: usize, column: usize| {
                    let at = |down: usize, right: usize| channel[(2 * row + down) * width + 2 * column + right];
                    0.25 * (at(0, 0) + at(0, 1) + at(1, 0) + at(1, 1))
                };
                (0..small_height * small_width).map(|at| mean(at / small_width, at % small_width)).collect()
            };
            values.chunks_exact(height * width).flat_map(half).collect()
        }
        _ => values,
    }
}

/// Every channel with mean 0 and (unbiased) standard deviation 1.
fn standardised(image: &[f64], shape: &[usize]) -> Vec<f64> {
    let plane = match *shape {
        [_, height, width] => height * width,
        _ => image.len(),
    };
    let mut values = image.to_vec();
    for channel in values.chunks_mut(plane.max(1)) {
        let mean = channel.iter().sum::<f64>() / channel.len() as f64;
        let squares: f64 = channel.iter().map(|x| (x - mean) * (x - mean)).sum();
        let deviation = (squares / (channel.len().max(2) - 1) as f64).sqrt().max(f64::MIN_POSITIVE);
        channel.iter_mut().for_each(|x| *x = (*x - mean) / deviation);
    }
    values
}

/// Values stretched from their own range to [0, 1].
fn stretched(mut values: Vec<f64>) -> Vec<f64> {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let span = high - low;
    values.iter_mut().for_each(|x| *x = if span > 0.0 { (*x - low) / span } else { 0.0 });
    values
}

/// For each row the column it is paired with, at the smallest total cost. With
/// fewer columns than rows some rows go without.
pub fn optimal(costs: &[Vec<f64>]) -> Vec<Option<usize>> {
    let (rows, columns) = (costs.len(), costs.first().map_or(0, Vec::len));
    if rows == 0 || columns == 0 {
        return vec![None; rows];
    }
    // The library wants whole numbers: 40 bits of the range, and what has no cost beyond it.
    let finite = || costs.iter().flatten().copied().filter(|cost| cost.is_finite());
    let (low, high) = (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max));
    let scale = if high > low { (1_i64 << 40) as f64 / (high - low) } else { 0.0 };
    let whole = |cost: f64| if cost.is_finite() { ((cost - low) * scale).round() as i64 } else { 1_i64 << 42 };
    let turned = rows > columns;
    let (height, width) = if turned { (columns, rows) } else { (rows, columns) };
    let cell = |(row, column): (usize, usize)| whole(if turned { costs[column][row] } else { costs[row][column] });
    let (_, pairs) = kuhn_munkres_min(&Matrix::from_fn(height, width, cell));
    let mut found = vec![None; rows];
    for (short, long) in pairs.into_iter().enumerate() {
        let (row, column) = if turned { (long, short) } else { (short, long) };
        found[row] = costs[row][column].is_finite().then_some(column);
    }
    found
}

/// For each row the column it is paired with, taking again and again the
/// cheapest pair whose row and column are both free.
pub fn greedy(costs: &[Vec<f64>]) -> Vec<Option<usize>> {
    let mut pairs: Vec<(usize, usize)> = (0..costs.len())
        .flat_map(|row| (0..costs[row].len()).map(move |column| (row, column)))
        .filter(|&(row, column)| costs[row][column].is_finite())
        .collect();
    pairs.sort_by(|a, b| costs[a.0][a.1].total_cmp(&costs[b.0][b.1]));
    let mut found = vec![None; costs.len()];
    let mut taken = vec![false; costs.first().map_or(0, Vec::len)];
    for (row, column) in pairs {
        if found[row].is_none() && !taken[column] {
            found[row] = Some(column);
            taken[column] = true;
        }
    }
    found
}

/// Channels, height and width of a record, if it is an image.
pub(crate) fn image_size(shape: &[usize]) -> Option<Size> {
    shape.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterimage_nn::Stream;

    fn costs(rows: usize, columns: usize, seed: u64) -> Vec<Vec<f64>> {
        let mut stream = Stream::new(seed, "costs", 0);
        (0..rows).map(|_| (0..columns).map(|_| stream.uniform(0.0, 1.0)).collect()).collect()
    }

    fn total(costs: &[Vec<f64>], pairs: &[Option<usize>]) -> f64 {
        pairs.iter().enumerate().filter_map(|(row, column)| Some(costs[row][(*column)?])).sum()
    }

    /// The smallest total over all ways, by trying them.
    fn by_force(costs: &[Vec<f64>], row: usize, taken: &mut Vec<bool>) -> f64 {
        if row == costs.len() {
            return 0.0;
        }
        let mut best = f64::INFINITY;
        for column in 0..taken.len() {
            if !taken[column] {
                taken[column] = true;
                best = best.min(costs[row][column] + by_force(costs, row + 1, taken));
                taken[column] = false;
            }
        }
        best
    }

    #[test]
    fn the_optimal_pairing_is_the_best_there_is() {
        for seed in 0..20 {
            let costs = costs(5, 7, seed);
            let pairs = optimal(&costs);
            let best = by_force(&costs, 0, &mut vec![false; 7]);
            assert!((total(&costs, &pairs) - best).abs() < 1e-9);
            assert!(total(&costs, &greedy(&costs)) >= best - 1e-12);
        }
    }

    #[test]
    fn rows_without_a_column_go_without() {
        let costs = costs(5, 3, 1);
        for pairs in [optimal(&costs), greedy(&costs)] {
            let mut columns: Vec<usize> = pairs.iter().flatten().copied().collect();
            columns.sort_unstable();
            assert_eq!(columns, [0, 1, 2]);
        }
        assert_eq!(optimal(&[vec![f64::INFINITY], vec![1.0]]), [None, Some(0)]);
        assert_eq!(greedy(&[vec![f64::INFINITY], vec![1.0]]), [None, Some(0)]);
        assert_eq!((optimal(&[]), optimal(&[vec![], vec![]])), (vec![], vec![None, None]));
    }

    #[test]
    fn candidates_that_agree_vote_and_others_do_not() {
        let record = vec![0.0, 0.2, 0.6, 1.0];
        // Scale and offset do not matter; the third candidate looks elsewhere.
        let candidates = vec![vec![1.0, 1.2, 1.6, 2.0], vec![0.0, 0.4, 1.2, 2.0], vec![1.0, 0.0, 0.5, 0.2]];
        let pool = Pool::new(candidates, &[4]);
        let voted = pool.align(Alignment::Voting, std::slice::from_ref(&record), Metric::Mse).remove(0).unwrap();
        assert!(voted.iter().zip(&record).all(|(a, b)| (a - b).abs() < 1e-12), "{voted:?}");
        let nothing = Pool::new(vec![vec![f64::NAN; 4]], &[4]);
        assert_eq!(nothing.align(Alignment::Voting, &[record], Metric::Mse), [None]);
    }
}
