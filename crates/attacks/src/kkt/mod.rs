//! Training records from the final weights of a classifier alone.
//!
//! *Threat model.* The final weights are public. Haim, Vardi, Yehudai, Shamir &
//! Irani (2022), "Reconstructing training data from trained neural networks";
//! several classes and other losses: Buzaglo et al. (2023).
//!
//! | symbol | here | shape |
//! | --- | --- | --- |
//! | θ, Φ | the weights and the network | |
//! | x_i, λ_i | candidates and their multipliers | m x d, m |
//! | y_i | ±1: half of the candidates each; with several outputs, classes in turn | m |
//!
//! A homogeneous network trained long past zero error points where the margin is
//! largest, and there θ = Σ_i λ_i y_i ∇Φ(x_i) over the records on the margin,
//! with λ_i ≥ 0 (the KKT conditions). So, as released,
//!
//! ```text
//! minimise Σ_p w_p ‖θ_p − (1/m) Σ_i λ_i y_i ∂Φ(x_i)/∂θ_p‖²
//!          + w Σ (what of x lies outside the pixel range)² + 5 Σ relu(λ_min − λ_i)²
//! ```
//!
//! by gradient descent with momentum over x and λ. As published there is no 1/m,
//! and both penalties are linear. ReLU's derivative is replaced by σ(αz), which
//! has a slope of its own to follow.
//!
//! Beyond the paper: Adam and L-BFGS; λ by variable projection (the best λ ≥ 0 for
//! the candidates, from their Gram matrix, at every step); the search in the row
//! space of the first layer; m from the rank of that layer; weights of layers.

mod duals;
mod stationarity;

use afterimage_nn::Params;
use afterimage_nn::optim::UpdateRule;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::attack::{all_positive, none_negative};
use crate::descent::{Descent, Variable};
use crate::margin::{self, Labels, Merge, Reduced, Through, outputs_of, pixel_range, smoothed};
use crate::{Attack, AttackError, Card, Parameter, Reconstruction, Session, WeightedSum, WeightsSeen};
use duals::Duals;
use stationarity::Stationarity;

/// Reconstruction from the KKT conditions of the max-margin problem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Kkt {
    /// m, candidates; twice the rank of the first layer if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub candidates: Option<usize>,
    /// Steps.
    pub iterations: usize,
    /// The loss as the authors' program has it, or as their paper does.
    pub form: Form,
    /// How candidates move; gradient descent has momentum 0.9.
    pub optimizer: Rule,
    /// Learning rate of the candidates.
    pub lr: f64,
    /// Learning rate of the multipliers.
    pub lr_lambda: f64,
    /// σ, scale of the candidates at the start.
    pub sigma: f64,
    /// λ_min, below which a multiplier is penalised.
    pub lambda_min: f64,
    /// Weight of that penalty.
    pub lambda_weight: f64,
    /// α of the derivative that stands for ReLU's; 0 leaves ReLU as it is.
    pub alpha: f64,
    /// w, weight of the pixel range; 0 is no prior at all.
    pub range_weight: f64,
    /// The range of network inputs, if it is not what the known preprocessing says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<[f64; 2]>,
    /// Whether multipliers move with the candidates, or are the best ones for them at every step.
    pub duals: DualRule,
    /// Whether candidates are searched in the row space of the first layer.
    pub row_space: bool,
    /// Multipliers of any sign, from N(0, 1): victims trained with weight decay by any loss.
    pub free_signs: bool,
    /// w_p by parameter or layer; 1 where none is given.
    pub layer_weights: BTreeMap<String, f64>,
    /// Candidates whose multiplier is below this part of the largest are dropped; 0 keeps all.
    pub keep_above: f64,
    /// Candidates nearer than this to one with a larger multiplier are dropped; 0 keeps all.
    pub merge_within: f64,
}

/// Which form of the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// As the authors' program has it: 1/m before the sum, squared penalties.
    #[default]
    Released,
    /// As their paper has it: no 1/m, linear penalties.
    Published,
}

/// Which steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Gradient descent with momentum 0.9.
    #[default]
    Sgd,
    /// Adam.
    Adam,
    /// L-BFGS with a line search; it has no learning rates.
    Lbfgs,
}

/// How multipliers are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DualRule {
    /// They move with the candidates.
    #[default]
    Descent,
    /// They are the best ones, λ ≥ 0, for the candidates at every step.
    Projected,
}

impl Rule {
    fn update(self, lr: f64) -> UpdateRule {
        match self {
            Rule::Sgd | Rule::Lbfgs => UpdateRule::Sgd { lr, momentum: 0.9 },
            Rule::Adam => UpdateRule::adam(lr),
        }
    }
}

impl Default for Kkt {
    fn default() -> Self {
        Self {
            candidates: None,
            iterations: 50_000,
            form: Form::Released,
            optimizer: Rule::Sgd,
            lr: 0.1,
            lr_lambda: 1e-4,
            sigma: 1e-2,
            lambda_min: 0.1,
            lambda_weight: 5.0,
            alpha: 100.0,
            range_weight: 1.0,
            range: None,
            duals: DualRule::Descent,
            row_space: false,
            free_signs: false,
            layer_weights: BTreeMap::new(),
            keep_above: 0.0,
            merge_within: 0.0,
        }
    }
}

const NAME: &str = "kkt";
/// Steps that L-BFGS remembers.
const HISTORY: usize = 10;

impl Attack for Kkt {
    const CARD: Card = Card {
        name: NAME,
        summary: "Rebuilds training records from the final weights of a classifier alone.",
        attacker: "Anybody who has the published weights: no data, no gradients, no queries. Seconds of gradient \
                   descent for tens of records and a small network, hours for hundreds and a wide one.",
        method: "Long after it answers everything right, training moves the weights towards the direction with the \
                 largest margin, and there they are a weighted sum of the network's gradients at the records on the \
                 margin. The attack searches inputs and weights for which that sum is the published weights.",
        needs: "A classifier of few records trained to near-zero loss, without normalisation layers; best a \
                homogeneous one (no biases but in the first layer) that started from small weights.",
        limits: "Shown to work on networks trained on at most about a thousand records. Records away from the margin \
                 leave no trace it could follow. Of a linear model only the sum of the records is in the weights.",
        citation: "N. Haim, G. Vardi, G. Yehudai, O. Shamir, M. Irani. Reconstructing training data from trained \
                   neural networks. NeurIPS 2022. G. Buzaglo et al. Deconstructing data reconstruction. NeurIPS 2023.",
        defences: &[
            "Stop training early: at a loss of 0.01 the weights are far from where the margin is largest.",
            "Train on more records: those on the margin are then a smaller part.",
            "Train with differential privacy, which bounds what any single record can leave in the weights.",
        ],
        parameters: &[
            Parameter {
                name: "candidates",
                default: "none",
                purpose: "inputs searched at once; twice the rank of the first layer if not given",
                range: "1 or more; twice the records, if their number is known",
            },
            Parameter { name: "iterations", default: "50000", purpose: "steps", range: "0 or more" },
            Parameter {
                name: "form",
                default: "\"released\"",
                purpose: "the loss as the authors' program or as their paper has it",
                range: "\"released\" or \"published\"",
            },
            Parameter {
                name: "optimizer",
                default: "\"sgd\"",
                purpose: "gradient descent with momentum 0.9, Adam, or L-BFGS",
                range: "\"sgd\", \"adam\" or \"lbfgs\"",
            },
            Parameter {
                name: "lr",
                default: "0.1",
                purpose: "learning rate of the candidates",
                range: "positive; the paper searches 1e-5 to 1",
            },
            Parameter {
                name: "lr_lambda",
                default: "1e-4",
                purpose: "learning rate of the multipliers",
                range: "positive",
            },
            Parameter {
                name: "sigma",
                default: "0.01",
                purpose: "scale of the random start",
                range: "positive; the paper searches 1e-6 to 1",
            },
            Parameter {
                name: "lambda_min",
                default: "0.1",
                purpose: "below which a multiplier is penalised",
                range: "0 or more; the paper searches 1e-4 to 1",
            },
            Parameter { name: "lambda_weight", default: "5", purpose: "weight of that penalty", range: "0 or more" },
            Parameter {
                name: "alpha",
                default: "100",
                purpose: "sharpness of the derivative that stands for ReLU's; 0 leaves ReLU as it is",
                range: "0 or more; the paper searches 10 to 500",
            },
            margin::RANGE_WEIGHT,
            margin::RANGE,
            Parameter {
                name: "duals",
                default: "descent",
                purpose: "multipliers move with the candidates, or are the best ones for them at every step",
                range: "descent or projected",
            },
            Parameter {
                name: "row_space",
                default: "false",
                purpose: "search in the row space of the first layer",
                range: "true or false; perceptrons only",
            },
            Parameter {
                name: "free_signs",
                default: "false",
                purpose: "multipliers of any sign: victims trained with weight decay",
                range: "true or false",
            },
            Parameter {
                name: "layer_weights",
                default: "{}",
                purpose: "weights of layers or parameters in the loss",
                range: "0 or more, by name",
            },
            margin::KEEP_ABOVE,
            margin::MERGE_WITHIN,
        ],
    };

    type Sees = WeightsSeen;

    fn applies(&self, seen: &WeightsSeen) -> Result<(), AttackError> {
        self.check()?;
        outputs_of(&seen.model, NAME)?;
        // Without a number of candidates it is told from the row space of the first layer.
        match (self.row_space, self.candidates) {
            (false, Some(_)) => Ok(()),
            _ => margin::first_of_perceptron(&seen.model.network, NAME).map(drop),
        }
    }

    fn reconstruct(&self, seen: &WeightsSeen, session: &mut Session<'_>) -> Result<Reconstruction, AttackError> {
        self.check()?;
        let model = &seen.model;
        let outputs = outputs_of(model, NAME)?;
        let (network, theta) = smoothed(model, self.alpha)?;
        let weights = self.weights(&theta)?;
        let space = match (self.row_space, self.candidates) {
            (false, Some(_)) => None,
            _ => Some(Reduced::of(&network, &theta, None, NAME)?),
        };
        let m = self.candidates.or(space.as_ref().map(|space| 2 * space.rank)).unwrap_or(1);
        let space = space.filter(|_| self.row_space);
        let (network, theta) = space.as_ref().map_or((&network, &theta), |space| (&space.network, &space.theta));
        let labels = Labels::new(m, outputs, self.free_signs);
        let (dtype, device) = (theta.dtype(), theta.device());
        let start = session.stream("start", 0).normal_tensor(self.sigma, &network.batch_shape(m), dtype)?;
        let mut draws = session.stream("lambda", 0);
        let lambda = draws.tensor(&[m], dtype, |stream| match self.free_signs {
            true => stream.normal(),
            false => stream.uniform(0.0, 1.0),
        })?;
        let variables = [
            Variable { name: "x".into(), start: start.to_device(device)?, update: self.optimizer.update(self.lr) },
            Variable {
                name: "lambda".into(),
                start: lambda.to_device(device)?,
                update: self.optimizer.update(self.lr_lambda),
            },
        ];
        let share = if self.form == Form::Released { 1.0 / m as f64 } else { 1.0 };
        let projected = self.duals == DualRule::Projected;
        let stationarity = Stationarity::new(network, theta, &labels, share, &weights)?.projected(projected);
        let mut objective = WeightedSum::new().with(1.0, stationarity);
        if !self.free_signs && !projected {
            let squared = self.form == Form::Released;
            objective = objective.with(self.lambda_weight, Duals { least: self.lambda_min, squared });
        }
        if let Some(range) = pixel_range(self.range, model)? {
            let range = if self.form == Form::Published { range.linear() } else { range };
            objective = match &space {
                Some(space) => objective.with(self.range_weight, Through { span: &space.span, term: range }),
                None => objective.with(self.range_weight, range),
            };
        }
        let descent = Descent { iterations: self.iterations, ..Descent::default() };
        let mut found = match self.optimizer {
            Rule::Lbfgs => descent.quasi_newton(&variables, &mut objective, HISTORY, session)?,
            Rule::Sgd | Rule::Adam => descent.run(&variables, &mut objective, session)?,
        };
        let lambda = match projected {
            true => Stationarity::new(network, theta, &labels, share, &weights)?.best_duals(&found.values[0])?,
            false => found.values[1].to_f64_vec()?,
        };
        if let Some(space) = &space {
            found.values[0] = space.span.records(&found.values[0])?;
        }
        let all = Reconstruction::descended(found, 0)?;
        Merge { keep_above: self.keep_above, within: self.merge_within }.of(all, &lambda, &labels)
    }
}

impl Kkt {
    fn check(&self) -> Result<(), AttackError> {
        if self.candidates == Some(0) {
            return Err(AttackError::setting("candidates", 0, "must be 1 or more"));
        }
        if self.free_signs && self.duals == DualRule::Projected {
            let expected = "with `free_signs` multipliers must move: set it to \"descent\"";
            return Err(AttackError::setting("duals", "projected", expected));
        }
        all_positive([("sigma", self.sigma), ("lr", self.lr), ("lr_lambda", self.lr_lambda)])?;
        let at_least_zero = [
            ("alpha", self.alpha),
            ("lambda_min", self.lambda_min),
            ("lambda_weight", self.lambda_weight),
            ("range_weight", self.range_weight),
            ("keep_above", self.keep_above),
            ("merge_within", self.merge_within),
        ];
        none_negative(at_least_zero)?;
        Ok(())
    }

    /// w_p, in the order of the parameters.
    fn weights(&self, theta: &Params) -> Result<Vec<f64>, AttackError> {
        let layer = |name: &str| name.rsplit_once('.').map_or(name.to_owned(), |(layer, _)| layer.to_owned());
        let known = |key: &String| theta.names().any(|name| name == key || layer(name) == *key);
        if let Some(unknown) = self.layer_weights.keys().find(|key| !known(key)) {
            let expected = format!("must name a layer or parameter: {}", theta.names().collect::<Vec<_>>().join(", "));
            return Err(AttackError::setting("layer_weights", unknown, &expected));
        }
        if let Some((_, weight)) =
            self.layer_weights.iter().find(|(_, weight)| !(**weight >= 0.0 && weight.is_finite()))
        {
            return Err(AttackError::setting("layer_weights", weight, "must be 0 or more"));
        }
        let weight = |name: &str| {
            let own = self.layer_weights.get(name).or_else(|| self.layer_weights.get(&layer(name)));
            own.copied().unwrap_or(1.0)
        };
        Ok(theta.names().map(weight).collect())
    }
}
