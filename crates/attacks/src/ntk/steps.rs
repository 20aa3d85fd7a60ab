//! The changes of weights between checkpoints, and where gradients are taken.

use afterimage_nn::Params;
use serde::{Deserialize, Serialize};

use crate::{AttackError, PairSeen};

/// Where the gradients are taken that a change of weights is explained by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gradients {
    /// At the earlier and the later checkpoint, each with multipliers of its own: the hybrid loss.
    #[default]
    Both,
    /// At the later one: L_f.
    Final,
    /// At the earlier one: L_0, exact for linearised training.
    Initial,
}

/// One change of weights, Δθ, and the parameter vectors its gradients are taken at.
pub(super) struct Step {
    pub(super) change: Params,
    pub(super) at: Vec<Params>,
    /// ‖Δθ‖².
    pub(super) size: f64,
}

impl Step {
    /// The changes between the checkpoints that are seen, in order.
    pub(super) fn all(seen: &PairSeen, gradients: Gradients, attack: &'static str) -> Result<Vec<Self>, AttackError> {
        let checkpoints: Vec<&Params> =
            std::iter::once(&seen.before).chain(&seen.between).chain([&seen.model.theta]).collect();
        let mut steps = Vec::new();
        for pair in checkpoints.windows(2) {
            let [before, after] = [pair[0], pair[1]];
            let change = after.sub(before)?;
            let size = change.norm_squared()?;
            // Checkpoints that are equal say nothing; others may.
            if size > 0.0 {
                let at = match gradients {
                    Gradients::Both => vec![before.clone(), after.clone()],
                    Gradients::Final => vec![after.clone()],
                    Gradients::Initial => vec![before.clone()],
                };
                steps.push(Self { change, at, size });
            }
        }
        if steps.is_empty() {
            return Err(AttackError::NotApplicable {
                attack,
                reason: "the checkpoints are equal: nothing was learnt between them".into(),
                hint: "give one from before the records were trained on, and one from after".into(),
            });
        }
        Ok(steps)
    }

    /// The same step of another network, by a linear map of its parameters.
    pub(super) fn map(&self, f: &impl Fn(&Params) -> Result<Params, AttackError>) -> Result<Self, AttackError> {
        let change = f(&self.change)?;
        let size = change.norm_squared()?;
        Ok(Self { change, at: self.at.iter().map(f).collect::<Result<_, _>>()?, size })
    }
}

/// How many parameter vectors all steps take gradients at.
pub(super) fn places(steps: &[Step]) -> usize {
    steps.iter().map(|step| step.at.len()).sum()
}
