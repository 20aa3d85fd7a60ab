//! Which candidates are worth showing: those with weight, each once.

use afterimage_nn::{DType, Tensor};

use super::Labels;
use crate::{AttackError, Reconstruction};

/// Drops candidates by their multipliers and by what lies near them; never by the truth.
pub(crate) struct Merge {
    /// Part of the largest multiplier below which a candidate is dropped.
    pub(crate) keep_above: f64,
    /// Distance within which the weaker of two candidates is dropped.
    pub(crate) within: f64,
}

impl Merge {
    /// The reconstruction with what is left, strongest first where something was dropped.
    /// Confidence is a candidate's multiplier, with those of its neighbours, beside the largest.
    pub(crate) fn of(
        &self,
        all: Reconstruction,
        lambda: &[f64],
        labels: &Labels,
    ) -> Result<Reconstruction, AttackError> {
        let sizes: Vec<f64> = lambda.iter().map(|lambda| lambda.abs()).collect();
        let largest = sizes.iter().copied().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
        let row = all.samples.row_len().max(1);
        let x = all.samples.to_f64_vec()?;
        let near = |a: usize, b: usize| {
            let pairs = x[a * row..(a + 1) * row].iter().zip(&x[b * row..(b + 1) * row]);
            pairs.map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt() < self.within
        };
        let mut order: Vec<usize> = (0..lambda.len()).collect();
        if self.keep_above > 0.0 || self.within > 0.0 {
            order.sort_by(|&a, &b| sizes[b].total_cmp(&sizes[a]));
        }
        let mut kept: Vec<(usize, f64)> = Vec::new();
        for index in order.into_iter().filter(|&index| sizes[index] >= self.keep_above * largest) {
            // A record may have pulled several candidates to itself: their weights add up.
            match kept.iter_mut().find(|(other, _)| self.within > 0.0 && near(index, *other)) {
                Some((_, weight)) => *weight += sizes[index],
                None => kept.push((index, sizes[index])),
            }
        }
        let strongest = kept.iter().map(|(_, weight)| *weight).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
        let places: Vec<usize> = kept.iter().map(|(index, _)| *index).collect();
        let weights: Vec<f64> = places.iter().map(|&index| lambda[index]).collect();
        let given_up: Vec<usize> = (0..lambda.len()).filter(|index| !places.contains(index)).collect();
        let dropped = given_up.len();
        let mut notes = all.notes.clone();
        if dropped > 0 {
            notes.push(format!(
                "{dropped} of {} candidates had little weight or lay beside stronger ones",
                lambda.len()
            ));
        }
        Ok(Reconstruction {
            dropped: if dropped > 0 { Some(all.samples.select_rows(&given_up)?) } else { None },
            samples: all.samples.select_rows(&places)?,
            labels: Some(places.iter().map(|&index| labels.class(index, lambda[index])).collect()),
            coefficients: Some(Tensor::from_f64(&weights, &[weights.len()], DType::F64)?),
            confidence: kept.iter().map(|(_, weight)| weight / strongest).collect(),
            certified: vec![false; places.len()],
            notes,
            ..all
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weak_and_repeated_candidates_are_dropped() {
        let samples = Tensor::from_vec(vec![0.0, 5.0, 0.01, 9.0, 5.02], &[5, 1]).unwrap();
        let lambda = [1.0, 2.0, 0.5, 0.01, 1.5];
        let labels = Labels::Signs(vec![-1.0, 1.0, -1.0, 1.0, 1.0]);
        let all = Reconstruction::finished(samples.clone(), 0.0, false);
        let found = Merge { keep_above: 0.05, within: 0.05 }.of(all.clone(), &lambda, &labels).unwrap();
        assert_eq!(found.samples.to_f64_vec().unwrap(), [5.0, 0.0]);
        assert_eq!(found.labels, Some(vec![1, 0]));
        assert_eq!(found.dropped.unwrap().to_f64_vec().unwrap(), [0.01, 9.0, 5.02]);
        assert_eq!(found.confidence, [1.0, 1.5 / 3.5]);
        let found = Merge { keep_above: 0.0, within: 0.0 }.of(all, &lambda, &labels).unwrap();
        assert_eq!(found.samples.to_f64_vec().unwrap(), samples.to_f64_vec().unwrap());
    }
}
