//! What can be set, its defaults, and what a user should know before.

use serde::{Deserialize, Serialize};

use super::fidelity::BatchStatistics;
use super::group::Consensus;
use super::matching::Distance;
use crate::attack::{all_positive, none_negative};
use crate::labels::Rule;
use crate::{AttackError, Card, GradientSeen, Parameter, Variation};

/// The search for candidates with the gradient that was seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GradInversion {
    /// Where labels come from if the client does not share them.
    pub labels: LabelSource,
    /// K, samples of the batch, where the client does not say; 0 for what the labels say.
    pub batch: usize,
    /// How gradients are compared.
    pub distance: Distance,
    /// w_m; 0 leaves the gradient out, which is DeepInversion.
    pub match_weight: f64,
    /// Weight of the client's loss at the candidates.
    pub class_weight: f64,
    /// w_tv.
    pub tv_weight: f64,
    /// Which total variation.
    pub variation: Variation,
    /// w_2.
    pub l2_weight: f64,
    /// w_bn.
    pub statistics_weight: f64,
    /// Where the statistics of the batch come from.
    pub statistics: BatchStatistics,
    /// G, searches from different starts.
    pub starts: usize,
    /// w_g.
    pub group_weight: f64,
    /// What starts are held to.
    pub consensus: Consensus,
    /// Part of the run before they are.
    pub group_from: f64,
    /// Part of the run between two registrations.
    pub group_every: f64,
    /// Standard deviation of the noise after a step, in units of the learning rate.
    pub noise: f64,
    /// Which steps are taken.
    pub optimiser: Steps,
    /// Steps that L-BFGS remembers.
    pub history: usize,
    /// Learning rate, of Adam.
    pub lr: f64,
    /// How it changes.
    pub decay: Decay,
    /// Steps of its linear rise.
    pub warmup: usize,
    /// Steps.
    pub iterations: usize,
    /// Only signs of the gradient are used.
    pub signed: bool,
    /// Candidates never leave the range of pixels, where that is known; with L-BFGS, at its end.
    pub clamp: bool,
    /// Standard deviation of a random start.
    pub sigma: f64,
    /// What is done about several steps at the client.
    pub local: LocalSteps,
    /// Loss at or below which nothing is left to gain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_loss: Option<f64>,
}

/// Where labels come from if the client does not share them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LabelSource {
    /// Read off by the best rule there is.
    Best,
    /// Searched for together with the samples.
    Joint,
    /// Read off by iDLG's rule.
    Idlg,
    /// By the sign of the bias.
    Analytic,
    /// By GradInversion's rule.
    Yin,
    /// By LLG.
    Llg,
    /// By iLRG.
    Ilrg,
}

impl LabelSource {
    /// The rule, if labels are read off.
    pub(super) fn rule(self) -> Option<Rule> {
        match self {
            LabelSource::Joint => None,
            LabelSource::Best => Some(Rule::Best),
            LabelSource::Idlg => Some(Rule::Idlg),
            LabelSource::Analytic => Some(Rule::Analytic),
            LabelSource::Yin => Some(Rule::Yin),
            LabelSource::Llg => Some(Rule::Llg),
            LabelSource::Ilrg => Some(Rule::Ilrg),
        }
    }
}

/// Which steps are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Steps {
    /// Adam's, all starts at once.
    Adam,
    /// L-BFGS with a line search, one start after the other.
    LBfgs,
}

/// How the learning rate changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decay {
    /// Not at all.
    None,
    /// Down to zero along a half cosine.
    Cosine,
    /// To a tenth after 3/8, 5/8 and 7/8 of the run.
    Stairs,
}

/// What is done about several steps at the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LocalSteps {
    /// They are taken with the candidates, and differentiated through.
    Unrolled,
    /// What they did is taken for one gradient.
    PseudoGradient,
}

impl Default for GradInversion {
    fn default() -> Self {
        Self {
            labels: LabelSource::Best,
            batch: 0,
            distance: Distance::Cosine,
            match_weight: 1.0,
            class_weight: 0.0,
            tv_weight: 0.1,
            variation: Variation::Anisotropic,
            l2_weight: 1e-4,
            statistics_weight: 0.001,
            statistics: BatchStatistics::Best,
            starts: 4,
            group_weight: 3e-4,
            consensus: Consensus::Registered,
            group_from: 0.25,
            group_every: 0.005,
            noise: 0.2,
            optimiser: Steps::Adam,
            history: 100,
            lr: 0.1,
            decay: Decay::Cosine,
            warmup: 50,
            iterations: 3000,
            signed: false,
            clamp: true,
            sigma: 1.0,
            local: LocalSteps::Unrolled,
            stop_loss: None,
        }
    }
}

pub(super) const NAME: &str = "gradinversion";

pub(super) const CARD: Card = Card {
    name: NAME,
    summary: "Searches samples whose gradient is the one that a client shared.",
    attacker: "Anybody who sees the gradient of a batch and has the model: the server, or someone on the way to \
               it. Small pictures take minutes, large ones hours.",
    method: "Labels are read off the last layer. Then candidates are changed until their gradient is the one \
             that was shared, their pixels vary like those of pictures, and batch normalisation sees in them \
             what it saw in the batch. Several searches from different starts are held to what they have in \
             common.",
    needs: "A gradient, the model it was taken of, and the number of samples or a last layer that tells it.",
    limits: "Large batches and deep networks come back in part or not at all. What comes back may look right \
             and be wrong: look at the controls. `exact` and `analytic` are better where a fully connected \
             layer reads the input.",
    citation: "H. Yin, A. Mallya, A. Vahdat, J. M. Alvarez, J. Kautz, P. Molchanov. See through gradients: image \
               batch recovery via GradInversion. CVPR 2021.",
    defences: &[
        "Aggregate securely over many clients, so that no single gradient is seen.",
        "Use larger batches, and more steps at the client before anything is shared.",
        "Clip and add noise (differential privacy) at the client; pruning and rounding alone do little.",
        "Do not share the statistics of batch normalisation.",
    ],
    parameters: &[
        Parameter {
            name: "labels",
            default: "\"best\"",
            purpose: "where labels come from if the client does not share them; joint searches for them",
            range: "best, joint, idlg, analytic, yin, llg, ilrg",
        },
        Parameter {
            name: "batch",
            default: "0",
            purpose: "samples of the batch, where the client does not say; 0 finds out",
            range: "0 or more",
        },
        Parameter {
            name: "distance",
            default: "\"cosine\"",
            purpose: "how gradients are compared",
            range: "layers, squared, cosine",
        },
        Parameter {
            name: "match_weight",
            default: "1",
            purpose: "weight of that distance; 0 is DeepInversion",
            range: "0 or more",
        },
        Parameter {
            name: "class_weight",
            default: "0",
            purpose: "weight of the client's loss at the candidates",
            range: "0 or more",
        },
        Parameter {
            name: "tv_weight",
            default: "0.1",
            purpose: "weight of the total variation, for images",
            range: "0 or more",
        },
        Parameter {
            name: "variation",
            default: "\"anisotropic\"",
            purpose: "which total variation",
            range: "anisotropic, isotropic",
        },
        Parameter {
            name: "l2_weight",
            default: "1e-4",
            purpose: "weight of the candidates' mean length",
            range: "0 or more",
        },
        Parameter {
            name: "statistics_weight",
            default: "0.001",
            purpose: "weight of what batch normalisation sees",
            range: "0 or more",
        },
        Parameter {
            name: "statistics",
            default: "\"best\"",
            purpose: "where the batch's statistics come from",
            range: "best, exact, derived, approximate",
        },
        Parameter { name: "starts", default: "4", purpose: "searches from different starts", range: "1 or more" },
        Parameter {
            name: "group_weight",
            default: "3e-4",
            purpose: "weight of what they have in common",
            range: "0 or more",
        },
        Parameter {
            name: "consensus",
            default: "\"registered\"",
            purpose: "their mean as it is, or after registration",
            range: "lazy, registered",
        },
        Parameter {
            name: "group_from",
            default: "0.25",
            purpose: "part of the run before they are held to it",
            range: "from 0 to 1",
        },
        Parameter {
            name: "group_every",
            default: "0.005",
            purpose: "part of the run between two registrations",
            range: "from 0 to 1",
        },
        Parameter {
            name: "noise",
            default: "0.2",
            purpose: "noise after a step, in units of the learning rate",
            range: "0 or more",
        },
        Parameter {
            name: "optimiser",
            default: "\"adam\"",
            purpose: "which steps; l-bfgs tries one start after the other",
            range: "adam, l-bfgs",
        },
        Parameter { name: "history", default: "100", purpose: "steps that l-bfgs remembers", range: "1 or more" },
        Parameter { name: "lr", default: "0.1", purpose: "learning rate of Adam", range: "positive" },
        Parameter {
            name: "decay",
            default: "\"cosine\"",
            purpose: "how it changes; stairs: a tenth after 3/8, 5/8, 7/8",
            range: "none, cosine, stairs",
        },
        Parameter { name: "warmup", default: "50", purpose: "steps of its rise, with cosine", range: "0 or more" },
        Parameter { name: "iterations", default: "3000", purpose: "steps", range: "0 or more" },
        Parameter {
            name: "signed",
            default: "false",
            purpose: "only signs of the gradient are used",
            range: "true, false",
        },
        Parameter {
            name: "clamp",
            default: "true",
            purpose: "candidates stay in the range of pixels, where it is known",
            range: "true, false",
        },
        Parameter { name: "sigma", default: "1", purpose: "scale of a random start", range: "positive" },
        Parameter {
            name: "local",
            default: "\"unrolled\"",
            purpose: "several steps at the client: taken with the candidates, or taken for one gradient",
            range: "unrolled, pseudo-gradient",
        },
        Parameter {
            name: "stop_loss",
            default: "none",
            purpose: "loss at or below which a start is done, and l-bfgs tries no other",
            range: "a number",
        },
    ],
};

impl GradInversion {
    /// Fails, naming it, if a setting or what was seen makes no sense.
    pub(super) fn check(&self, seen: &GradientSeen) -> Result<(), AttackError> {
        let no = |reason: String, hint: &str| AttackError::NotApplicable { attack: NAME, reason, hint: hint.into() };
        let weights = [
            ("match_weight", self.match_weight),
            ("class_weight", self.class_weight),
            ("tv_weight", self.tv_weight),
            ("l2_weight", self.l2_weight),
            ("statistics_weight", self.statistics_weight),
            ("group_weight", self.group_weight),
            ("noise", self.noise),
            ("group_from", self.group_from),
            ("group_every", self.group_every),
        ];
        none_negative(weights)?;
        all_positive([("lr", self.lr), ("sigma", self.sigma)])?;
        if self.starts == 0 {
            return Err(AttackError::setting("starts", 0, "must be 1 or more"));
        }
        if self.joint(seen) && (self.match_weight == 0.0 || self.class_weight > 0.0) {
            return Err(AttackError::setting("labels", "joint", "is for the gradient alone: set class_weight to 0"));
        }
        if self.optimiser == Steps::LBfgs && (self.signed || self.history == 0) {
            let expected = "a line search needs slopes, not signs, and a memory of 1 or more";
            return Err(AttackError::setting("optimiser", "l-bfgs", expected));
        }
        if self.match_weight + self.class_weight + self.statistics_weight == 0.0 {
            return Err(AttackError::setting("match_weight", 0, "nothing ties candidates to what was seen"));
        }
        seen.model.theta.same_layout(&seen.gradient)?;
        seen.gradient.check_finite()?;
        if self.match_weight > 0.0 && seen.gradient.norm_squared()? == 0.0 {
            return Err(no(
                "the gradient is zero".into(),
                "nothing was shared, or the network was sure of every label",
            ));
        }
        if seen.model.loss.is_none() {
            return Err(no("the loss is not known".into(), "say which loss the client minimises"));
        }
        Ok(())
    }

    /// Whether labels are searched for with the samples.
    pub(super) fn joint(&self, seen: &GradientSeen) -> bool {
        self.labels == LabelSource::Joint && seen.labels.is_none()
    }
}
