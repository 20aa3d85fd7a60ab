//! What training is made of, and whether it fits together.

use serde::{Deserialize, Serialize};

use super::{GaussNewton, Schedule};
use crate::optim::UpdateRule;
use crate::{Error, Result};

/// What is being trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dynamics {
    /// The network f(θ; x).
    #[default]
    Standard,
    /// Its first-order expansion f(θ₀; x) + ⟨∇f(θ₀; x), θ − θ₀⟩ about the start.
    Linearised,
}

/// How a network is trained.
///
/// | setting | default | purpose |
/// | --- | --- | --- |
/// | `update` | gradient descent, lr 0.01 | the optimiser |
/// | `epochs` | 1000 | passes over the data at most |
/// | `stop_loss` | none | stop once an epoch's loss is at or below it |
/// | `batch` | none | samples a step; none is the full batch |
/// | `schedule` | constant | learning rate over the epochs |
/// | `weight_decay` | 0 | added to the gradient as `weight_decay · θ` |
/// | `dynamics` | standard | or linearised about the start |
/// | `normalised` | false | full-batch gradient descent with steps ∝ 1/loss |
/// | `frozen_statistics` | false | batch normalisation by the running statistics, which stay as they are |
/// | `gauss_newton` | none | steps of second order after the epochs, for squared losses |
/// | `keep_losses`, `keep_epochs` | none | checkpoints when the loss first reaches a value, or after so many epochs (full-batch steps) |
///
/// **Normalised steps.** Gradient descent on a separable classification problem
/// slows down as its loss falls: the step is proportional to it. Dividing the
/// gradient by the loss follows the same curve in a time that grows with
/// ln(1/loss) instead of 1/loss. The rate rises by a tenth after every step
/// that lowers the loss; a step that raises it is taken back and the rate
/// halved (compare Lyu & Li, 2020, appendix L). With momentum the loss need not
/// fall at every step, which carries the weights over plateaus and across kinks:
/// the rate rises by a hundredth a step, up to `lr`; a step to a loss more than 30 %
/// above its level of late is taken back, the velocity dropped and the rate halved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Recipe {
    /// The optimiser.
    pub update: UpdateRule,
    /// Most passes over the data.
    pub epochs: usize,
    /// Loss at which to stop.
    pub stop_loss: Option<f64>,
    /// Samples a step.
    pub batch: Option<usize>,
    /// Learning rate over the epochs.
    pub schedule: Schedule,
    /// Factor of θ in the gradient.
    pub weight_decay: f64,
    /// What is being trained.
    pub dynamics: Dynamics,
    /// Whether steps are divided by the loss.
    pub normalised: bool,
    /// Whether batch normalisation uses the running statistics and leaves them alone:
    /// how a pretrained network is fine-tuned on little data.
    pub frozen_statistics: bool,
    /// Steps of second order after the epochs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gauss_newton: Option<GaussNewton>,
    /// Losses at which to keep the parameters.
    pub keep_losses: Vec<f64>,
    /// Epochs after which to keep the parameters.
    pub keep_epochs: Vec<usize>,
}

impl Default for Recipe {
    fn default() -> Self {
        Self {
            update: UpdateRule::sgd(0.01),
            epochs: 1000,
            stop_loss: None,
            batch: None,
            schedule: Schedule::Constant,
            weight_decay: 0.0,
            dynamics: Dynamics::Standard,
            normalised: false,
            frozen_statistics: false,
            gauss_newton: None,
            keep_losses: Vec::new(),
            keep_epochs: Vec::new(),
        }
    }
}

impl Recipe {
    /// Fails, naming the setting, if the settings contradict each other.
    pub fn check(&self) -> Result<()> {
        self.update.check()?;
        let wrong =
            |setting, value: String, expected: &str| Err(Error::Setting { setting, value, expected: expected.into() });
        if self.batch == Some(0) {
            return wrong("batch", "0".into(), "must be at least 1, or absent for the full batch");
        }
        if !(self.weight_decay >= 0.0 && self.weight_decay.is_finite()) {
            return wrong("weight_decay", self.weight_decay.to_string(), "must not be negative");
        }
        if let Some(loss) = self.keep_losses.iter().find(|loss| loss.is_nan()) {
            return wrong("keep_losses", loss.to_string(), "must be numbers");
        }
        if let Schedule::Decay { to } = self.schedule
            && !(to > 0.0 && to.is_finite())
        {
            return wrong("schedule.to", to.to_string(), "must be above 0");
        }
        if self.normalised && self.schedule != Schedule::Constant {
            return wrong("schedule", format!("{:?}", self.schedule), "normalised steps choose their own length");
        }
        let descent = matches!(self.update, UpdateRule::Sgd { .. });
        if self.gauss_newton.is_some() && (self.dynamics == Dynamics::Linearised || self.weight_decay > 0.0) {
            let expected = "is for the network itself, without weight decay";
            return wrong("gauss_newton", "given".into(), expected);
        }
        if self.normalised && (!descent || self.batch.is_some() || self.weight_decay > 0.0) {
            let expected = "needs full-batch gradient descent, without weight decay";
            return wrong("normalised", "true".into(), expected);
        }
        Ok(())
    }
}
