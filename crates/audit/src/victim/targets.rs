//! Labels as a loss takes them.

use afterimage_nn::{Loss, Targets, Tensor};

use super::Victim;
use crate::{AuditError, Result};

impl Victim<'_> {
    /// The members' labels for this loss.
    pub(super) fn targets(&self, loss: Loss) -> Result<Targets> {
        self.targets_of(&self.truth.members.labels, loss)
    }

    /// Labels as numbers between −1 and 1, for a network with one output.
    pub(super) fn numbers_of(&self, labels: &[usize], classes: usize, loss: Loss) -> Result<Targets> {
        let key = "victim.classes_as_numbers";
        if self.network.output_shape().iter().product::<usize>() != 1
            || matches!(loss, Loss::CrossEntropy | Loss::Logistic)
        {
            let problem = format!("makes a regression, and {loss} or the network's outputs do not");
            return Err(AuditError::plan(key, problem, "use loss = \"half-squared\" or \"mse\" and one output"));
        }
        if let Some(label) = labels.iter().find(|label| **label >= classes) {
            let problem = format!("is {classes}, and there is a class {label}");
            return Err(AuditError::plan(key, problem, "give the number of classes"));
        }
        let number = |&label: &usize| 2.0 * label as f64 / (classes.max(2) - 1) as f64 - 1.0;
        let values: Vec<f64> = labels.iter().map(number).collect();
        Ok(Targets::Values(Tensor::from_f64(&values, &[labels.len(), 1], self.plan.compute.dtype)?))
    }

    /// Labels for this loss: classes for cross-entropy; for the
    /// others ±1 with one output, and with k of them 1 − 1/k for the class and
    /// −1/k elsewhere (0.9 and −0.1 of ten).
    pub(super) fn targets_of(&self, labels: &[usize], loss: Loss) -> Result<Targets> {
        let outputs = self.network.output_shape();
        let &[outputs] = outputs else {
            let problem = format!("gives {outputs:?}, and a classifier gives one row of numbers");
            return Err(AuditError::plan("network", problem, "end it with a linear layer"));
        };
        let classes = if outputs == 1 && loss != Loss::CrossEntropy { 2 } else { outputs };
        if let Some(label) = labels.iter().find(|label| **label >= classes) {
            let problem =
                format!("class {label} is out of range: the network and its loss tell {classes} classes apart");
            let hint = "give the network more outputs, or relabel: \"odd-even\", \"vehicles-animals\" or a map";
            return Err(AuditError::plan("data.relabel", problem, hint));
        }
        if loss == Loss::CrossEntropy {
            return Ok(Targets::Classes(labels.to_vec()));
        }
        if loss == Loss::Logistic && outputs > 1 {
            let problem = format!("{loss} needs one output, the network has {outputs}");
            return Err(AuditError::plan(
                "victim.loss",
                problem,
                "use \"cross-entropy\", or a network with one output",
            ));
        }
        let values = values_of(labels, outputs);
        Ok(Targets::Values(Tensor::from_f64(&values, &[labels.len(), outputs], self.plan.compute.dtype)?))
    }
}

/// The values that outputs should have, one row a label: ±1 with one output, and with k of them
/// 1 − 1/k for the class and −1/k elsewhere.
pub(crate) fn values_of(labels: &[usize], outputs: usize) -> Vec<f64> {
    let value = |label: usize, output: usize| match outputs {
        1 => 2.0 * label as f64 - 1.0,
        _ => f64::from(u8::from(label == output)) - 1.0 / outputs as f64,
    };
    labels.iter().flat_map(|&label| (0..outputs).map(move |output| value(label, output))).collect()
}
