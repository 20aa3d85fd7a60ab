//! Training records from the first layer of a classifier that started near zero.
//!
//! *Threat model.* The final weights are public. The method is this project's own;
//! it starts from the conditions of Haim et al. (2022), which `kkt` uses as they are.
//!
//! | symbol | here | shape |
//! | --- | --- | --- |
//! | W, b | the first layer | h x d, h |
//! | u_i | a record with a 1 for the bias, (x_i, 1) | d + 1 |
//! | A | what training added up: ∫ λ_i(t) y_i ∂Φ/∂z_j(x_i) dt | h x n |
//! | k_ij | ∂Φ/∂z_j at x_i, in the trained network | h x m |
//!
//! Gradient descent adds multiples of records to the first layer and nothing else,
//! so that (W, b) = A U + what is left of the start, *exactly and at any time*. The
//! conditions of a largest margin say more, A_ji = λ_i y_i k_ij, but they are met in
//! the limit alone: in networks trained to a loss of 1e-5, W differs from the
//! conditions' W by two fifths of its length, because sums over the whole of
//! training are compared with gradients at its end. A search that wants equality
//! follows that difference away from the records.
//!
//! Here the conditions are what A is *about*: A_ji = λ_i y_i k_ij + τ_i ε with
//! τ_i = κ λ_i √ρ, and the start is σ ε. Rows of the layer are then normal, with mean
//! Σ_i λ_i y_i k_ij u_i and covariance Σ = σ² I + Σ_i τ_i² u_i u_iᵀ, and
//!
//! ```text
//! minimise −(2/h) log p = tr(R Σ⁻¹ Rᵀ)/h + log det Σ,   R = (W, b) − Σ_i λ_i y_i k_i u_iᵀ
//!          + w Σ (what of x lies outside the pixel range)²
//! ```
//!
//! over the records and log λ, by Adam. What A may do lies within the records'
//! span, so that errors there count little and errors outside it count fully, and
//! log det Σ wants the records small: of all ways to span the rows, the tightest.
//! Records are searched in the row space of W, of as many dimensions as stand out
//! of the noise; σ and κ fall from loose values to their last ones.

mod likelihood;

use afterimage_nn::optim::UpdateRule;
use afterimage_nn::train::Schedule;
use afterimage_nn::{Seed, Tensor, Want};
use serde::{Deserialize, Serialize};

use crate::attack::{all_positive, none_negative};
use crate::descent::{Descent, Variable};
use crate::margin::{self, Labels, Merge, Reduced, Through, outputs_of, pixel_range, smoothed};
use crate::{Attack, AttackError, Card, Parameter, Reconstruction, Session, WeightedSum, WeightsSeen};
use likelihood::{Annealing, Likelihood};

/// The attack.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Unmix {
    /// m, candidates; twice the dimensions of the search space if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub candidates: Option<usize>,
    /// Steps.
    pub iterations: usize,
    /// Learning rate of the candidates.
    pub lr: f64,
    /// Learning rate of log λ.
    pub lr_lambda: f64,
    /// Scale of the candidates at the start.
    pub sigma: f64,
    /// α of the derivative that stands for ReLU's; 0 leaves ReLU as it is.
    pub alpha: f64,
    /// κ at the start and later: how far multiples stray from what the conditions say.
    pub spread: [f64; 2],
    /// σ, if it is not to be told from the smallest singular values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noise: Option<f64>,
    /// σ at the start, beside its last value.
    pub loose: f64,
    /// Part of the run over which σ and κ fall.
    pub annealed: f64,
    /// Dimensions of the search space, if they are not to be told from the singular values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dimensions: Option<usize>,
    /// w, weight of the pixel range; 0 is no prior at all.
    pub range_weight: f64,
    /// The range of network inputs, if it is not what the known preprocessing says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<[f64; 2]>,
    /// Candidates whose multiplier is below this part of the largest are dropped; 0 keeps all.
    pub keep_above: f64,
    /// Candidates nearer than this to one with a larger multiplier are dropped; 0 keeps all.
    pub merge_within: f64,
}

impl Default for Unmix {
    fn default() -> Self {
        Self {
            candidates: None,
            iterations: 1200,
            lr: 0.03,
            lr_lambda: 0.02,
            sigma: 1e-2,
            alpha: 30.0,
            spread: [0.5, 0.2],
            noise: None,
            loose: 1000.0,
            annealed: 0.7,
            dimensions: None,
            range_weight: 1.0,
            range: None,
            keep_above: 0.0,
            merge_within: 0.0,
        }
    }
}

const NAME: &str = "unmix";
/// Beside the entries of the first layer: noise below this is too little to count on.
const LEAST_NOISE: f64 = 1e-3;

impl Attack for Unmix {
    const CARD: Card = Card {
        name: NAME,
        summary: "Unmixes training records from the first layer of a classifier, from its final weights alone.",
        attacker: "Anybody who can download the weights. Seconds to minutes of computing, no data.",
        method: "Training adds multiples of records to the first layer. The conditions of a largest margin say what \
                 the multiples are about; candidates are moved until the layer is most likely, inside its row space.",
        needs: "A perceptron with ReLU whose first layer started near zero, trained well past zero error by \
                (full-batch) gradient descent.",
        limits: "Records that differ by less than the random start are not told apart; with far more records than \
                 dimensions above that noise, most stay mixed. Convolutions are not read.",
        citation: "This project; the conditions: Haim, Vardi, Yehudai, Shamir & Irani (2022).",
        defences: &[
            "Start the first layer at the usual scale: its row space is then that of noise.",
            "Train with differential privacy, or stop early.",
            "Share outputs, not weights.",
        ],
        parameters: &[
            Parameter {
                name: "candidates",
                default: "none",
                purpose: "candidates; twice the dimensions of the search space if not given",
                range: "1 or more",
            },
            Parameter { name: "iterations", default: "1200", purpose: "steps", range: "1 or more" },
            Parameter { name: "lr", default: "0.03", purpose: "learning rate of the candidates", range: "positive" },
            Parameter {
                name: "lr_lambda",
                default: "0.02",
                purpose: "learning rate of the logarithms of the multipliers",
                range: "positive",
            },
            Parameter { name: "sigma", default: "0.01", purpose: "scale of the random start", range: "positive" },
            Parameter {
                name: "alpha",
                default: "30",
                purpose: "sharpness of the derivative that stands for ReLU's; 0 leaves ReLU as it is",
                range: "0 or more",
            },
            Parameter {
                name: "spread",
                default: "[0.5, 0.2]",
                purpose: "how far multiples stray from what the conditions say, at the start and later",
                range: "[positive, positive]",
            },
            Parameter {
                name: "noise",
                default: "none",
                purpose: "standard deviation of what is left of the first layer's start",
                range: "positive; told from the smallest singular values if not given",
            },
            Parameter {
                name: "loose",
                default: "1000",
                purpose: "noise at the start beside later",
                range: "1 or more",
            },
            Parameter {
                name: "annealed",
                default: "0.7",
                purpose: "part of the run over which noise and spread fall",
                range: "0 to 1",
            },
            Parameter {
                name: "dimensions",
                default: "none",
                purpose: "dimensions of the search space",
                range: "1 or more; as many as stand out of noise if not given",
            },
            margin::RANGE_WEIGHT,
            margin::RANGE,
            margin::KEEP_ABOVE,
            margin::MERGE_WITHIN,
        ],
    };

    type Sees = WeightsSeen;

    fn applies(&self, seen: &WeightsSeen) -> Result<(), AttackError> {
        self.check()?;
        outputs_of(&seen.model, NAME)?;
        margin::first_of_perceptron(&seen.model.network, NAME).map(drop)
    }

    fn reconstruct(&self, seen: &WeightsSeen, session: &mut Session<'_>) -> Result<Reconstruction, AttackError> {
        self.check()?;
        let model = &seen.model;
        let outputs = outputs_of(model, NAME)?;
        let (network, theta) = smoothed(model, self.alpha)?;
        let space = Reduced::of(&network, &theta, self.dimensions, NAME)?;
        let (dtype, device) = (theta.dtype(), theta.device());
        let m = self.candidates.unwrap_or(2 * space.rank);
        let labels = Labels::new(m, outputs, false);
        let start = session.stream("start", 0).normal_tensor(self.sigma, &[m, space.rank], dtype)?;
        let weight = space.theta.get(&format!("{}.weight", space.layer))?;
        let size = weight.dot(weight)?;
        // ‖(W, b)‖² = Σ λ_i |Φ(x_i)| at the largest margin, and a margin of ten is a loss of 5e-5.
        let lambda = size / (10.0 * m as f64);
        let log_lambda = Tensor::full(lambda.max(f64::MIN_POSITIVE).ln(), &[m], dtype, device)?;
        let variables = [
            Variable { name: "x".into(), start: start.to_device(device)?, update: UpdateRule::adam(self.lr) },
            Variable { name: "lambda".into(), start: log_lambda, update: UpdateRule::adam(self.lr_lambda) },
        ];
        let entry = (size / weight.count() as f64).sqrt();
        let noise = self.noise.unwrap_or(space.noise).max(LEAST_NOISE * entry);
        let plan = Annealing {
            iterations: self.annealed * self.iterations as f64,
            noise: [self.loose * noise, noise],
            spread: self.spread,
        };
        let gain = gain(&space, &variables[0].start, outputs)?;
        let likelihood = Likelihood { space: &space, labels: &labels, gain, plan };
        let mut objective = WeightedSum::new().with(1.0, likelihood);
        if let Some(range) = pixel_range(self.range, model)? {
            objective = objective.with(self.range_weight, Through { span: &space.span, term: range });
        }
        let schedule = Schedule::Cosine { warmup: 0 };
        let descent = Descent { iterations: self.iterations, schedule, ..Descent::default() };
        let mut found = descent.run(&variables, &mut objective, session)?;
        found.values[0] = space.span.records(&found.values[0])?;
        let lambda: Vec<f64> = found.values[1].to_f64_vec()?.iter().map(|log| log.exp()).collect();
        let mut all = Reconstruction::descended(found, 0)?;
        all.notes.push(format!(
            "searched {} dimensions of the first layer's row space, above noise of {noise:.1e} an entry",
            space.rank
        ));
        Merge { keep_above: self.keep_above, within: self.merge_within }.of(all, &lambda, &labels)
    }
}

/// ρ: the mean square of ∂Φ/∂z_j over units, at a few candidates.
fn gain(space: &Reduced, start: &Tensor, outputs: usize) -> Result<f64, AttackError> {
    const LOOKED_AT: usize = 8;
    let name = format!("{}.weight", space.layer);
    let count = LOOKED_AT.min(start.rows());
    let mut sum = 0.0;
    for place in 0..count {
        let one = start.slice_rows(place..place + 1)?;
        // The gradient of the first weight is k cᵀ: its size over that of c is that of k.
        let mut pass = space.network.pass(&space.theta, &one)?;
        let c = Tensor::full(1.0 / outputs.max(1) as f64, pass.outputs().shape(), one.dtype(), one.device())?;
        let Some(gradient) = pass.backward(Seed::Fixed(c), Want::Weights)?.weights else { continue };
        let gradient = gradient.get(&name)?;
        sum += gradient.dot(gradient)? / (gradient.rows() as f64 * one.dot(&one)?.max(f64::MIN_POSITIVE));
    }
    Ok((sum / count.max(1) as f64).max(f64::MIN_POSITIVE))
}

impl Unmix {
    fn check(&self) -> Result<(), AttackError> {
        if self.candidates == Some(0) {
            return Err(AttackError::setting("candidates", 0, "must be 1 or more"));
        }
        let positive = [
            ("lr", self.lr),
            ("lr_lambda", self.lr_lambda),
            ("sigma", self.sigma),
            ("spread", self.spread[0]),
            ("spread", self.spread[1]),
            ("loose", self.loose),
            ("noise", self.noise.unwrap_or(1.0)),
        ];
        all_positive(positive)?;
        let at_least_zero = [
            ("alpha", self.alpha),
            ("annealed", self.annealed),
            ("range_weight", self.range_weight),
            ("keep_above", self.keep_above),
            ("merge_within", self.merge_within),
        ];
        none_negative(at_least_zero)?;
        Ok(())
    }
}
