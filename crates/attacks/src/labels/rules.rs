//! Labels of a batch from the gradient of a classifier's last layer, in closed form.
//!
//! | symbol | here | |
//! | --- | --- | --- |
//! | W_c, b_c | weights and bias of class c in the last layer | C classes |
//! | φ_i | what the last layer reads of sample i | |
//! | p_i, y_i | softmax of the outputs, and the label as a unit vector | |
//! | n_c | samples of class c | Σ n_c = K |
//!
//! Cross-entropy has ∂b_c = mean_i (p_ic − y_ic) and ∂W_c = mean_i (p_ic − y_ic) φ_i: of a class that no
//! sample has, nothing is negative where φ ≥ 0. What each rule makes of that is in [`Rule`].

use faer::prelude::*;
use faer::{Col, Mat};
use serde::{Deserialize, Serialize};

/// How labels are read off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// [`Ilrg`](Self::Ilrg) where the layer has a bias, else [`Yin`](Self::Yin).
    #[default]
    Best,
    /// The K smallest of Σ_j ∂W_cj: iDLG's rule for one sample, extended.
    Idlg,
    /// The K smallest of ∂b_c: below zero for a class that is there.
    Analytic,
    /// The K smallest of min_j ∂W_cj: equation 8 of GradInversion.
    Yin,
    /// As many of each class as Σ_j ∂W_cj is multiples of one sample's share: LLG.
    Llg,
    /// The n_c that explain ∂b, each class's softmax taken at its mean feature ∂W_c / ∂b_c: iLRG.
    Ilrg,
}

/// The last layer of a classifier and its gradient, as plain numbers.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    /// C x features.
    pub(crate) weight: Mat<f64>,
    pub(crate) bias: Option<Vec<f64>>,
    /// ∂W and ∂b of the mean over the batch.
    pub(crate) weight_gradient: Mat<f64>,
    pub(crate) bias_gradient: Option<Vec<f64>>,
}

impl Head {
    fn classes(&self) -> usize {
        self.weight_gradient.nrows()
    }

    /// One number for each class, from its row of ∂W.
    fn rows(&self, put_together: impl Fn(&mut dyn Iterator<Item = f64>) -> f64) -> Vec<f64> {
        let row = |class: usize| {
            let row = self.weight_gradient.row(class);
            put_together(&mut (0..row.ncols()).map(|feature| row[feature]))
        };
        (0..self.classes()).map(row).collect()
    }

    fn sums(&self) -> Vec<f64> {
        self.rows(|row| row.sum())
    }

    /// How many samples of each class there are among so many, by a rule; none where the layer lacks
    /// what the rule needs.
    pub(crate) fn counts(&self, rule: Rule, samples: usize) -> Option<Vec<usize>> {
        match rule {
            Rule::Best => self.counts(Rule::Ilrg, samples).or_else(|| self.counts(Rule::Yin, samples)),
            Rule::Idlg => Some(smallest(&self.sums(), samples)),
            Rule::Yin => Some(smallest(&self.rows(|row| row.fold(f64::INFINITY, f64::min)), samples)),
            Rule::Analytic => Some(smallest(self.bias_gradient.as_ref()?, samples)),
            Rule::Llg => Some(self.by_shares(samples)),
            Rule::Ilrg => Some(self.by_mean_features(samples)?.0),
        }
    }

    /// Classes with a sum below zero are there once at least. One sample adds about
    /// m = (1 + 1/C) Σ_{s_c < 0} s_c / K to its class's sum: the rest go to whoever is left lowest.
    fn by_shares(&self, samples: usize) -> Vec<usize> {
        let mut sums = self.sums();
        let negative: f64 = sums.iter().filter(|sum| **sum < 0.0).sum();
        let share = (1.0 + 1.0 / self.classes().max(1) as f64) * negative / samples.max(1) as f64;
        let mut counts = vec![0; sums.len()];
        let mut left = samples;
        for class in order(&sums) {
            if left > 0 && sums[class] < 0.0 {
                counts[class] += 1;
                sums[class] -= share;
                left -= 1;
            }
        }
        while left > 0 {
            let Some(&class) = order(&sums).first() else { break };
            counts[class] += 1;
            sums[class] -= share;
            left -= 1;
        }
        counts
    }

    /// Solves Σ_j n_j (p_j[c] − δ_jc) = K ∂b_c for all c, with Σ n_c = K, by least squares over the classes
    /// that may be there, p_j the softmax at the mean feature of class j; rounded, with what that leaves of K ∂b.
    fn by_mean_features(&self, samples: usize) -> Option<(Vec<usize>, f64)> {
        let gradient = self.bias_gradient.as_ref()?;
        let (classes, k) = (self.classes(), samples as f64);
        let no_bias = vec![0.0; classes];
        let bias = self.bias.as_ref().unwrap_or(&no_bias);
        let largest = gradient.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
        // The feature of a class is a quotient of what its samples and all others leave. Where the two cancel there
        // is nothing to divide by, and the mean over the classes that are surely there stands in.
        let clear: Vec<usize> = (0..classes).filter(|&class| gradient[class] < -0.5 * CANCELS / k).collect();
        let divisor: f64 = clear.iter().map(|&class| gradient[class]).sum();
        let softmax_at = |rows: &[usize], divisor: f64| -> Vec<f64> {
            let feature = Col::from_fn(self.weight_gradient.ncols(), |feature| {
                let sum = rows.iter().map(|&row| self.weight_gradient[(row, feature)]).sum::<f64>();
                if divisor == 0.0 { 0.0 } else { sum / divisor }
            });
            let logits = &self.weight * &feature;
            let largest = (0..classes).map(|c| logits[c] + bias[c]).fold(f64::NEG_INFINITY, f64::max);
            let exponentials: Vec<f64> = (0..classes).map(|c| (logits[c] + bias[c] - largest).exp()).collect();
            let sum: f64 = exponentials.iter().sum();
            exponentials.iter().map(|e| e / sum).collect()
        };
        let everybody = softmax_at(&clear, divisor);
        // Who has a gradient above zero is there only if the network holds that class for likely.
        let may_be = |&class: &usize| gradient[class] < 0.0 || everybody[class] >= CANCELS / k;
        let mut present: Vec<usize> = (0..classes).filter(may_be).collect();
        let mut columns: Vec<Vec<f64>> = vec![Vec::new(); classes];
        for &class in &present {
            let cancels = gradient[class].abs() < CANCELS / k && divisor < 0.0;
            columns[class] = if cancels { everybody.clone() } else { softmax_at(&[class], gradient[class]) };
        }
        // Classes that a solution makes negative are not there: solved again without them.
        let mut counts = vec![0.0; classes];
        while !present.is_empty() {
            let system = Mat::from_fn(classes + 1, present.len(), |row, place| match row {
                row if row == classes => 1.0,
                row => columns[present[place]][row] - f64::from(u8::from(row == present[place])),
            });
            let right = Mat::from_fn(classes + 1, 1, |row, _| if row == classes { k } else { k * gradient[row] });
            let solved = system.qr().solve_lstsq(&right);
            if (0..present.len()).any(|place| !solved[(place, 0)].is_finite()) {
                return None;
            }
            counts = vec![0.0; classes];
            // A nearly singular system may say anything.
            present.iter().enumerate().for_each(|(place, &class)| counts[class] = solved[(place, 0)].clamp(-k, k));
            let before = present.len();
            present.retain(|&class| counts[class] > 0.0 || gradient[class] < 0.0);
            if present.len() == before {
                break;
            }
        }
        // Below zero, ∂b_c is a proof: somebody has that label.
        let least: Vec<usize> = gradient.iter().map(|&slope| usize::from(slope < -1e-9 * largest)).collect();
        let counts = rounded(&counts, &least, samples);
        let off = (0..classes).map(|class| {
            let there = counts.iter().zip(&columns).filter(|(count, column)| **count > 0 && !column.is_empty());
            let answered: f64 = there.map(|(count, column)| *count as f64 * column[class]).sum();
            answered - counts[class] as f64 - k * gradient[class]
        });
        let off = off.map(|off| off * off).sum::<f64>().sqrt();
        Some((counts, off))
    }

    /// The number of samples, if it follows from the gradient: the one for which whole numbers of samples
    /// explain ∂b best, in units of one sample's share. Multiples of it do half as well, a third, and so on.
    pub(crate) fn samples(&self, most: usize) -> Option<usize> {
        let off = |&samples: &usize| Some((samples, self.by_mean_features(samples)?.1));
        let all: Vec<(usize, f64)> = (1..=most).collect::<Vec<_>>().iter().filter_map(off).collect();
        all.into_iter().min_by(|a, b| a.1.total_cmp(&b.1)).map(|(samples, _)| samples)
    }
}

/// Below so much of one sample's share, a class's samples and all others cancel in its gradient.
const CANCELS: f64 = 0.5;

/// The places of a list from its smallest value to its largest.
fn order(values: &[f64]) -> Vec<usize> {
    let mut places: Vec<usize> = (0..values.len()).collect();
    places.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    places
}

/// Once each, the classes with the smallest values.
fn smallest(values: &[f64], samples: usize) -> Vec<usize> {
    let mut counts = vec![0; values.len()];
    order(values).into_iter().take(samples).for_each(|class| counts[class] = 1);
    counts
}

/// Whole numbers near `counts`, none below `least`, that add up to `total` as far as `least` allows.
fn rounded(counts: &[f64], least: &[usize], total: usize) -> Vec<usize> {
    let mut whole: Vec<usize> =
        counts.iter().zip(least).map(|(count, least)| (count.max(0.0).floor() as usize).max(*least)).collect();
    let rest = |whole: &[usize]| -> Vec<f64> { counts.iter().zip(whole).map(|(c, w)| *w as f64 - c).collect() };
    while whole.iter().sum::<usize>() < total {
        let Some(&class) = order(&rest(&whole)).first() else { break };
        whole[class] += 1;
    }
    while whole.iter().sum::<usize>() > total {
        let over = order(&rest(&whole)).into_iter().rev().find(|&class| whole[class] > least[class]);
        let over = over.or_else(|| order(counts).into_iter().find(|&class| whole[class] > 0));
        let Some(class) = over else { break };
        whole[class] -= 1;
    }
    whole
}
