//! Labels of a batch that were read off its gradient, beside what chance has right.

use afterimage_nn::Stream;
use serde::{Deserialize, Serialize};

use crate::Truth;
use crate::findings::label_accuracy;

/// Batches that are drawn to know what chance gives.
const DRAWS: usize = 9999;

/// How many labels are right, and how many would be without the gradient.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LabelsRead {
    /// Samples of the batch.
    pub members: usize,
    /// Labels that are right.
    pub right: usize,
    /// Labels that a batch drawn from the controls' labels has in common with those read off, on average.
    pub by_chance: f64,
    /// The share of batches drawn from the controls' labels that have as many in common with those read off.
    pub p_value: f64,
}

impl LabelsRead {
    /// Compares labels, in any order, with those of the members.
    pub fn of(found: &[usize], truth: &Truth) -> Self {
        let labels = &truth.members.labels;
        let in_common =
            |found: &[usize], with: &[usize]| (label_accuracy(found, with) * with.len() as f64).round() as usize;
        let (right, others) = (in_common(found, labels), &truth.controls.labels);
        let mut stream = Stream::new(1, "labels by chance", 0);
        let mut drawn = || labels.iter().map(|_| others[stream.below(others.len())]).collect::<Vec<usize>>();
        // Without labels of others, anything may be chance.
        let draws = if others.is_empty() { 0 } else { DRAWS };
        let by_chance: Vec<usize> = (0..draws).map(|_| in_common(found, &drawn())).collect();
        let as_good = by_chance.iter().filter(|common| **common >= right).count();
        Self {
            members: labels.len(),
            right,
            by_chance: by_chance.iter().sum::<usize>() as f64 / draws.max(1) as f64,
            p_value: (as_good + 1) as f64 / (draws + 1) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sample;
    use afterimage_nn::{DType, Device, Tensor};

    /// Members with these labels; of controls, as many of each of ten.
    fn truth(labels: &[usize]) -> Truth {
        let sample = |labels: Vec<usize>| Sample {
            pixels: Tensor::zeros(&[labels.len(), 1], DType::F32, Device::Cpu).unwrap(),
            labels,
        };
        let controls = sample((0..100).map(|place| place % 10).collect());
        let ids = labels.iter().map(usize::to_string).collect();
        let (preprocess, driven, damaged) = (Default::default(), None, None);
        Truth { members: sample(labels.to_vec()), controls, preprocess, ids, driven, damaged }
    }

    #[test]
    fn a_batch_unlike_the_controls_is_told_from_chance_and_a_wrong_reading_is_not() {
        // Eight of one class: of a hundred million batches one is like it.
        let same = LabelsRead::of(&[3; 8], &truth(&[3; 8]));
        assert_eq!((same.right, same.members), (8, 8));
        assert!((same.by_chance - 0.8).abs() < 0.05 && same.p_value <= 1e-3, "{same:?}");
        let wrong = LabelsRead::of(&[4; 8], &truth(&[3; 8]));
        assert!(wrong.right == 0 && wrong.p_value == 1.0, "{wrong:?}");
        // Two labels in any order, of ten that are as common: 2 draws of 100.
        let pair = LabelsRead::of(&[1, 2], &truth(&[1, 2]));
        assert!((pair.p_value - 0.02).abs() < 0.005, "{pair:?}");
    }
}
