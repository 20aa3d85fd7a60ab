//! Labels of a batch that were read off its gradient, beside what a guess has right.

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
    /// Labels that are right if the batch is thought to be divided as the controls are, without its gradient.
    pub guessed: usize,
    /// The share of batches drawn from the controls' labels that have as many in common with those read off.
    pub p_value: f64,
}

impl LabelsRead {
    /// Compares labels, in any order, with those of the members.
    pub fn of(found: &[usize], truth: &Truth) -> Self {
        let labels = &truth.members.labels;
        let in_common =
            |found: &[usize], with: &[usize]| (label_accuracy(found, with) * with.len() as f64).round() as usize;
        // As many labels as there are samples, evenly from those of the controls in rising order.
        let mut others = truth.controls.labels.clone();
        others.sort_unstable();
        let even = |index: usize| others.get((2 * index + 1) * others.len() / (2 * labels.len()));
        let guess: Vec<usize> = (0..labels.len()).filter_map(even).copied().collect();
        let right = in_common(found, labels);
        let p_value = match others.len() {
            0 => 1.0,
            all => {
                let mut stream = Stream::new(1, "labels by chance", 0);
                let mut drawn = || labels.iter().map(|_| others[stream.below(all)]).collect::<Vec<usize>>();
                let as_good = (0..DRAWS).filter(|_| in_common(found, &drawn()) >= right).count();
                (as_good + 1) as f64 / (DRAWS + 1) as f64
            }
        };
        Self { members: labels.len(), right, guessed: in_common(&guess, labels), p_value }
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
        assert!(same.guessed <= 1 && same.p_value <= 1e-3, "{same:?}");
        let wrong = LabelsRead::of(&[4; 8], &truth(&[3; 8]));
        assert!(wrong.right == 0 && wrong.p_value == 1.0, "{wrong:?}");
        // Two classes of two: 1 of 16 draws of two labels from two would do; of ten classes, 2 in 100.
        let pair = LabelsRead::of(&[1, 2], &truth(&[1, 2]));
        assert!((pair.p_value - 0.02).abs() < 0.005, "{pair:?}");
    }
}
