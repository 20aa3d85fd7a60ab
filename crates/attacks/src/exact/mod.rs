//! Whole batches, exactly, from the gradient of a ReLU layer.
//!
//! *Threat model.* A client of federated learning shares the gradient of a
//! batch. Compare Dimitrov et al. (2024), "SPEAR: exact gradient inversion of
//! batches in federated learning", whose sampling is exponential in the batch
//! size; here columns are found by reweighted least squares, and wrong ones are
//! exchanged by checks that the attacker can make.
//!
//! | symbol | here | shape |
//! | --- | --- | --- |
//! | X | the samples | k x d |
//! | Δ | ∂L/∂(XWᵀ + b), zero where a unit is off | k x h |
//! | ∇W, ∇b | ΔᵀX, Δᵀ1: the observation | h x d, h |
//! | L, r, V | ∇W = L diag(r) V | h x k, k, k x d |
//! | q_i | Lq_i ∝ column i of Δᵀ | k |
//!
//! 1. Factor ∇W; its rank is the number of samples ([`crate::factors`]).
//! 2. Search sparse directions of L ([`search`], [`hunt`]).
//! 3. Put k of them together, check every sample against the layer itself, and
//!    exchange what does not agree ([`assembly`]).
//! 4. Prove samples with the rest of the network ([`certificate`]); take what
//!    they contribute out of the gradient, and go on with the rest ([`harvest`]).

mod assembly;
mod certificate;
mod harvest;
mod hunt;
mod search;
mod settle;
mod states;

use afterimage_nn::{Activation, DType, Device};
use faer::Mat;
use serde::{Deserialize, Serialize};

use crate::dense::{DenseLayer, dense_layers, perceptron};
use crate::factors::{Factors, matrix};
use crate::{Attack, AttackError, Card, GradientSeen, Parameter, Reconstruction, Session, Stop};
use assembly::consistent_share;
pub(crate) use assembly::outside;
use certificate::Witness;
use harvest::{Found, Harvest};
pub(crate) use hunt::{Hunt, Outcome};
pub(crate) use search::{dot, normalised};
use settle::Perceptron;

/// Exact recovery of batches through a ReLU layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Exact {
    /// The layer; the first fully connected ReLU layer if empty.
    pub layer: String,
    /// Most searches, for each sample of the batch.
    pub searches: usize,
    /// Misfit up to which a sample counts as proven.
    pub tolerance: f64,
    /// Most steps of polishing.
    pub polish: usize,
    /// Misfit of the whole gradient above which there is something to polish.
    pub polish_above: f64,
}

impl Default for Exact {
    fn default() -> Self {
        Self { layer: String::new(), searches: 200, tolerance: 1e-3, polish: 200, polish_above: 1e-3 }
    }
}

const NAME: &str = "exact";

/// How much more misfit is allowed where every sample agrees with the layer.
const BORDERLINE: f64 = 20.0;

fn no(reason: impl Into<String>, hint: impl Into<String>) -> AttackError {
    AttackError::NotApplicable { attack: NAME, reason: reason.into(), hint: hint.into() }
}

impl Attack for Exact {
    const CARD: Card = Card {
        name: NAME,
        summary: "Rebuilds whole batches exactly from the gradient of a ReLU layer.",
        attacker: "Anybody who sees the gradient that a client computed on a batch: the server, or someone on the way \
                   to it. Seconds to minutes on a laptop.",
        method: "The gradient of a fully connected layer is a product of two small matrices, one of which is the batch \
                 itself. The other has zeros where units were off, and only the right factorisation has as many of \
                 them. It is found by a sparse search, checked unit by unit against the layer, and proven by \
                 recomputing the gradient.",
        needs: "A fully connected layer with a bias, followed by ReLU or leaky ReLU, that reads the input; more units \
                than a few times the batch size, and fewer samples than the input has elements.",
        limits: "Samples whose units are on and off together (raw pixels without a mean subtracted, near duplicates) \
                 cannot be told apart. Leaky ReLU is as exact up to a slope of about 0.1, in networks of such layers \
                 alone. Noise on the gradient makes samples as noisy. Of a layer inside the network the inputs of that \
                 layer come back, not the samples.",
        citation: "D. I. Dimitrov, M. Baader, M. N. Müller, M. Vechev. SPEAR: exact gradient inversion of batches in \
                   federated learning. NeurIPS 2024. The search and its checks are our own.",
        defences: &[
            "Aggregate securely over many clients, so that no single gradient is seen.",
            "Clip and add noise at the client (differential privacy): the zeros the search looks for are gone.",
            "Share updates after several local steps over larger batches than the first layer has units.",
        ],
        parameters: &[
            Parameter {
                name: "layer",
                default: "\"\"",
                purpose: "name of the layer whose gradient is used; empty is the first that fits",
                range: "a fully connected layer with a bias and ReLU",
            },
            Parameter {
                name: "searches",
                default: "200",
                purpose: "most sparse searches for each sample of the batch",
                range: "1 or more",
            },
            Parameter {
                name: "tolerance",
                default: "1e-3",
                purpose: "relative misfit up to which a sample is proven by the rest of the network",
                range: "between 0 and 1",
            },
            Parameter { name: "polish", default: "200", purpose: "most steps of polishing", range: "0 or more" },
            Parameter {
                name: "polish_above",
                default: "1e-3",
                purpose: "misfit of the whole gradient above which samples are polished",
                range: "0 or more",
            },
        ],
    };

    type Sees = GradientSeen;

    fn applies(&self, seen: &GradientSeen) -> Result<(), AttackError> {
        self.check()?;
        self.target(seen).map(drop)
    }

    fn reconstruct(&self, seen: &GradientSeen, session: &mut Session<'_>) -> Result<Reconstruction, AttackError> {
        self.check()?;
        let (layer, slope) = self.target(seen)?;
        let weight_name = format!("{}.weight", layer.name);
        let gradient = seen.gradient.to_dtype(DType::F64)?.to_device(Device::Cpu)?;
        let witness = Witness::new(&seen.model)?;
        let weight = matrix(witness.theta().get(&weight_name)?)?;
        let offset = witness.theta().get(&format!("{}.bias", layer.name))?.to_f64_vec()?;
        let mut rest = gradient.clone();
        let mut harvest = Harvest::default();
        let whole = gradient.norm_squared()?.sqrt();
        // What is left below this is the client's own rounding.
        let floor = if seen.gradient.dtype() == DType::F32 { 1e-6 } else { 1e-12 };
        let mut gap = 0.0;
        let stop = loop {
            let of_layer = matrix(rest.get(&weight_name)?)?;
            let bias = rest.get(&format!("{}.bias", layer.name))?.to_f64_vec()?;
            let expected = seen.batch_size.map(|batch| batch.saturating_sub(harvest.proven.len()));
            let factors = match self.factors(&of_layer, expected, harvest.proven.is_empty(), session) {
                Ok(factors) => factors,
                // What is left is noise: the harvest is in.
                Err(_) if !harvest.proven.is_empty() => break Stop::Finished,
                Err(error) => return Err(error),
            };
            if harvest.proven.is_empty() {
                gap = factors.gap;
            }
            let total = harvest.proven.len() + factors.rank();
            let budget = self.searches.saturating_mul(total);
            let leaky = match (slope != 0.0 && layer.reads_input, perceptron(&seen.model.network)) {
                (true, Some(layers)) => Perceptron::of(&layers, witness.theta(), &rest)?,
                _ => None,
            };
            let mut hunt = Hunt::new(&factors, &weight, &offset, &bias, slope);
            let before = harvest.proven.len();
            let outcome = loop {
                let known = total - factors.rank();
                let outcome = hunt.run(budget, known, &mut harvest.searches, &mut harvest.trace, session);
                let (mut samples, mut columns, mut agreement) = hunt.samples();
                if let Some(leaky) = &leaky
                    && let Some(settled) = leaky.settled(&factors, &bias, samples.clone())
                {
                    // States were read off the gradient: all of them agree.
                    (samples, columns) = (settled.samples, settled.columns);
                    agreement.fill(1.0);
                }
                let found = |(sample, agreement)| Found { sample, residues: Vec::new(), misfit: 1.0, agreement };
                harvest.open = samples.into_iter().zip(agreement).map(found).collect();
                if layer.reads_input {
                    // A unit so near its threshold that rounding decides its state costs a sample some of its
                    // fit; where the layer agrees with every sample, that is the only explanation left.
                    let slack = if hunt.all_consistent() { BORDERLINE } else { 1.0 };
                    harvest.prove(&columns, &weight, &witness, slack * self.tolerance)?;
                }
                let taken = harvest.proven.len() > before;
                // Stuck, and nothing to take away: only more searches help.
                if outcome != Outcome::Advanced || taken || hunt.all_consistent() || !layer.reads_input {
                    break outcome;
                }
            };
            let stop = match outcome {
                Outcome::Advanced => Stop::Finished,
                Outcome::Exhausted => Stop::IterationsUsed,
                Outcome::Stopped => Stop::Interrupted,
            };
            if outcome != Outcome::Advanced || harvest.proven.len() == before {
                break stop;
            }
            // Samples that were answered well leave gradients that only show once the others are gone.
            rest = gradient.sub(&harvest.explained(&witness)?)?;
            if rest.norm_squared()?.sqrt() <= floor * whole || seen.batch_size == Some(harvest.proven.len()) {
                break stop;
            }
        };
        let consistent = harvest.open.iter().all(|open| open.agreement > consistent_share(slope));
        if stop != Stop::Interrupted && layer.reads_input && consistent {
            // Of plain ReLU what is proven is exact already.
            let rough = slope != 0.0 || !harvest.open.is_empty();
            harvest.proven.append(&mut harvest.open);
            let misfit = harvest.misfit(&witness, &gradient)?;
            if rough && misfit > self.polish_above && !harvest.proven.is_empty() {
                harvest.polish(self.polish, &witness, &gradient)?;
            }
            let whole = harvest.misfit(&witness, &gradient)? <= self.tolerance;
            let polished = std::mem::take(&mut harvest.proven);
            harvest.sort(polished, if whole { f64::INFINITY } else { BORDERLINE * self.tolerance });
        }
        harvest.report(seen, &layer, &witness, &gradient, gap, stop)
    }
}

impl Exact {
    fn check(&self) -> Result<(), AttackError> {
        if !(self.tolerance > 0.0 && self.tolerance < 1.0) {
            return Err(AttackError::setting("tolerance", self.tolerance, "must lie between 0 and 1"));
        }
        if self.searches == 0 {
            return Err(AttackError::setting("searches", 0, "must be 1 or more"));
        }
        Ok(())
    }

    /// The layer to work on, and what its activation lets through where it is off.
    fn target(&self, seen: &GradientSeen) -> Result<(DenseLayer, f64), AttackError> {
        let slope = |layer: &DenseLayer| match layer.activation {
            Some(Activation::Relu) => Some(0.0),
            Some(Activation::LeakyRelu { slope }) => Some(slope),
            _ => None,
        };
        let layers = dense_layers(&seen.model.network);
        let hint = "attacks by optimisation, such as `gradinversion`, need no such layer";
        let found = if self.layer.is_empty() {
            let usable = || layers.iter().filter(|layer| layer.bias && slope(layer).is_some());
            usable().find(|layer| layer.reads_input).or_else(|| usable().next())
        } else {
            layers.iter().find(|layer| layer.name == self.layer)
        };
        let Some(layer) = found else {
            let first = layers.iter().find(|layer| layer.reads_input);
            let reason = match first {
                _ if !self.layer.is_empty() => format!("there is no fully connected layer `{}`", self.layer),
                Some(DenseLayer { activation: Some(other), bias: true, .. }) => {
                    format!("the layer that reads the input is followed by {other}, which is never off")
                }
                Some(DenseLayer { bias: false, .. }) => "the layer that reads the input has no bias".to_owned(),
                _ => "no fully connected layer with a bias is followed by ReLU".to_owned(),
            };
            return Err(no(reason, hint));
        };
        match slope(layer) {
            Some(slope) if layer.bias => Ok((layer.clone(), slope)),
            _ => Err(no(format!("layer `{}` has no bias, or is not followed by ReLU", layer.name), hint)),
        }
    }

    /// The factors of the gradient that is left.
    fn factors(
        &self,
        gradient: &Mat<f64>,
        expected: Option<usize>,
        first: bool,
        session: &Session<'_>,
    ) -> Result<Factors, AttackError> {
        let smaller = gradient.nrows().min(gradient.ncols());
        if gradient.norm_max() == 0.0 {
            let hint = "no unit of the layer was on, or the loss is flat there: nothing was shared";
            return Err(no("the gradient of the layer is zero", hint));
        }
        let mut stream = session.stream("sketch", u64::from(!first));
        let by_gap = Factors::of(gradient, None, &mut stream);
        match (by_gap, expected) {
            // Fewer directions than samples: duplicates, or samples on a line with others.
            (Some(factors), Some(expected)) if factors.rank() <= expected => Ok(factors),
            (Some(factors), None) => Ok(factors),
            (_, Some(expected)) if expected < smaller => Factors::of(gradient, Some(expected), &mut stream)
                .ok_or_else(|| no("it cannot be factored", "report this")),
            _ => {
                let reason = format!(
                    "the gradient of the layer ({} x {}) has full rank: the batch is larger than the layer can tell \
                     apart, or noise covers it",
                    gradient.nrows(),
                    gradient.ncols()
                );
                Err(no(reason, "a batch smaller than the number of units and of inputs can be separated"))
            }
        }
    }
}
