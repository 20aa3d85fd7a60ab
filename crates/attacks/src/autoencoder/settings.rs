//! What can be set, its defaults, and what a user should know before.

use serde::{Deserialize, Serialize};

use super::damage::Damage;
use crate::attack::{all_positive, none_negative};
use crate::{AttackError, Card, DegradedSeen, Parameter};

/// Recovery of an autoencoder's training samples from damaged ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Autoencoder {
    /// How a sample is found once something is known of its damage.
    pub method: Method,
    /// What happened to the samples.
    pub damage: Damage,
    /// Height and width of a square that is lost as a whole, with `damage = "blocks"`.
    pub block: usize,
    /// What of a sample is taken for kept at first, if the mask is not known.
    pub start: MaskStart,
    /// γ; 0 chooses it by the network, as the paper does.
    pub gamma: f64,
    /// Steps of ADMM for one estimate of the mask, or before the first step towards the fixed point.
    pub inner: usize,
    /// Steps of ADMM where the damage is known, rounded up to passes of `inner`.
    pub known: usize,
    /// Most estimates of the mask, or most steps towards the fixed point.
    pub passes: usize,
    /// Mean squared change between passes that is taken for none.
    pub tolerance: f64,
    /// Passes in a row without a change after which a sample is done.
    pub settled: usize,
    /// Over-relaxation of ADMM; 1 for none.
    pub relaxation: f64,
    /// Most steps of conjugate gradients for one step towards the fixed point.
    pub conjugate: usize,
}

/// How a sample is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// The fixed point of the autoencoder that has the pixels that are seen, by Levenberg–Marquardt.
    FixedPoint,
    /// As published: the autoencoder in place of a proximal step of ADMM, the mask estimated in turn.
    Admm,
}

/// What is taken for kept at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MaskStart {
    /// What is seen, for the fixed point; as published, for ADMM: nothing where the network convolves, else at random.
    Best,
    /// What is more than noise.
    Visible,
    /// Nothing.
    Nothing,
    /// Every pixel by a coin.
    Random,
}

impl Default for Autoencoder {
    fn default() -> Self {
        Self {
            method: Method::FixedPoint,
            damage: Damage::Erasure,
            block: 4,
            start: MaskStart::Best,
            gamma: 0.0,
            inner: 40,
            known: 400,
            passes: 100,
            tolerance: 1e-9,
            settled: 3,
            relaxation: 1.0,
            conjugate: 100,
        }
    }
}

pub(super) const NAME: &str = "autoencoder";

pub(super) const CARD: Card = Card {
    name: NAME,
    summary: "Rebuilds training samples of an autoencoder from damaged copies.",
    attacker: "Anybody who has the published autoencoder and damaged copies of samples it may have been trained on. \
               Which of them it was trained on need not be known: the search tells.",
    method: "An autoencoder that fits its training samples gives them back unchanged. Of all samples with the pixels \
             that are left, the one that comes back unchanged is looked for; what was lost need not be known.",
    needs: "A network that gives back what it takes, and damaged samples.",
    limits: "A blur must be known by its kernel. An autoencoder that was not trained far enough to store its samples gives nothing away. Lost pixels are \
             told by being zero: where the samples have zeros of their own, less of them counts as seen.",
    citation: "Recovery of training data from overparameterized autoencoders: an inverse problem perspective \
               (anonymous, under review).",
    defences: &[
        "Stop training before the loss reaches numerical zero, or train on more samples than the network can store.",
        "Do not publish an autoencoder together with damaged copies of its training samples.",
    ],
    parameters: &[
        Parameter {
            name: "method",
            default: "\"fixed-point\"",
            purpose: "how a sample is found; admm is the published way",
            range: "fixed-point, admm",
        },
        Parameter {
            name: "damage",
            default: "\"erasure\"",
            purpose: "what happened to the samples",
            range: "erasure, blocks, noise",
        },
        Parameter { name: "block", default: "4", purpose: "side of a lost square, with blocks", range: "1 or more" },
        Parameter {
            name: "start",
            default: "\"best\"",
            purpose: "what is taken for kept at first, if the mask is not known",
            range: "best, visible, nothing, random",
        },
        Parameter {
            name: "gamma",
            default: "0",
            purpose: "weight of the autoencoder against the data, with admm; 0 chooses by the network",
            range: "0 or more",
        },
        Parameter {
            name: "inner",
            default: "40",
            purpose: "steps of admm for one estimate of the mask, or before those towards the fixed point",
            range: "1 or more",
        },
        Parameter {
            name: "known",
            default: "400",
            purpose: "steps of admm where the damage is known, rounded up to passes of inner",
            range: "1 or more",
        },
        Parameter {
            name: "passes",
            default: "100",
            purpose: "most estimates of the mask, or steps towards the fixed point",
            range: "1 or more",
        },
        Parameter {
            name: "tolerance",
            default: "1e-9",
            purpose: "mean squared change between passes that is taken for none",
            range: "0 or more",
        },
        Parameter {
            name: "settled",
            default: "3",
            purpose: "passes in a row without a change after which a sample is done",
            range: "1 or more",
        },
        Parameter {
            name: "relaxation",
            default: "1",
            purpose: "over-relaxation of admm; 1 for none",
            range: "positive, below 2",
        },
        Parameter {
            name: "conjugate",
            default: "100",
            purpose: "most steps of conjugate gradients for one towards the fixed point",
            range: "1 or more",
        },
    ],
};

impl Autoencoder {
    /// Fails, naming it, if a setting or what was seen makes no sense.
    pub(super) fn check(&self, seen: &DegradedSeen) -> Result<(), AttackError> {
        let no = |reason: String, hint: &str| AttackError::NotApplicable { attack: NAME, reason, hint: hint.into() };
        none_negative([("gamma", self.gamma), ("tolerance", self.tolerance)])?;
        all_positive([("relaxation", self.relaxation)])?;
        if self.relaxation >= 2.0 {
            return Err(AttackError::setting("relaxation", self.relaxation, "must be below 2"));
        }
        let counts = [
            ("block", self.block),
            ("inner", self.inner),
            ("known", self.known),
            ("passes", self.passes),
            ("settled", self.settled),
            ("conjugate", self.conjugate),
        ];
        if let Some((name, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(AttackError::setting(name, 0, "must be 1 or more"));
        }
        let network = &seen.model.network;
        let (inputs, outputs) = (network.input_shape(), network.output_shape());
        if inputs.iter().product::<usize>() != outputs.iter().product::<usize>() {
            let reason = format!("the network takes {inputs:?} and gives {outputs:?}");
            return Err(no(reason, "an autoencoder gives back what it takes"));
        }
        if seen.blur.is_some() && (seen.mask.is_some() || self.damage != Damage::Erasure) {
            let reason = "the samples come with the kernel of a blur, and something else is said to have happened";
            return Err(no(reason.into(), "leave attack.damage and the mask out"));
        }
        seen.degraded.check_finite("damaged samples")?;
        let values = seen.degraded.to_f64_vec()?;
        // Where the damage is known, nothing is told from values.
        let known = seen.blur.is_some() || seen.mask.is_some();
        let clean = !known && seen.noise.unwrap_or(0.0) == 0.0 && self.damage != Damage::Noise;
        if let Some(value) = values.iter().find(|value| clean && !(0.0..=1.0).contains(*value)) {
            return Err(no(
                format!("a damaged sample without noise has the value {value}"),
                "which pixels were lost is told from values between 0 and 1: scale them so, or share the noise",
            ));
        }
        Ok(())
    }
}
