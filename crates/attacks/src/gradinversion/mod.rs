//! Samples from the gradient of their batch, by search: candidates whose gradient is the one that was shared.
//!
//! *Threat model.* A client of federated learning shares the gradient of a batch, or what a few steps of training
//! did to the model. Yin et al. (2021), "See through gradients: image batch recovery via GradInversion"; with other
//! settings "Deep leakage from gradients" (Zhu et al., 2019), iDLG (Zhao et al., 2020), "Inverting gradients"
//! (Geiping et al., 2020) and, without the gradient, DeepInversion (Yin et al., 2020).
//!
//! | symbol | here | shape |
//! | --- | --- | --- |
//! | x | candidates of one start | K x d |
//! | G(x), T | their gradient, and the one that was seen | parameters |
//! | y | labels: shared, read off T, or searched for | K |
//!
//! minimise w_m D(G(x), T) + w_tv TV(x) + w_2 ‖x‖ + w_bn R_BN(x) + w_g ‖x − E‖
//!
//! | part | where |
//! | --- | --- |
//! | D, equation 4, and what is known of the client's defence | `matching` |
//! | labels, equation 8 | [`labels`](crate::labels) |
//! | R_BN, equation 11 | `fidelity` |
//! | E over several starts, equations 12 to 14 | `group` |
//! | steps of training at the client | `unrolled` |
//! | what is wrong with a gradient, told before the search | `preflight` |
//!
//! Departures: starts are registered by phase correlation and a smooth flow instead of a pretrained network; TV is
//! a mean over pixels, lengths are means over samples, so that weights mean the same for every size.

mod fidelity;
mod group;
mod matching;
mod preflight;
mod search;
mod unrolled;

use afterimage_nn::optim::UpdateRule;
use afterimage_nn::train::Schedule;
use afterimage_nn::{Loss, Objective, Targets, Tensor};
use serde::{Deserialize, Serialize};

pub use fidelity::BatchStatistics;
pub use group::Consensus;
pub use matching::Distance;

use crate::labels::{Labels, Rule};
use crate::restarts::restarted;
use crate::{
    Attack, AttackError, Card, Descended, Descent, GradientSeen, Keep, Parameter, PixelRange, Reconstruction, Session,
    Stop, TotalVariation, Variable, Variation,
};
use fidelity::Fidelity;
use group::Group;
use matching::Target;
use search::{Objectives, Search, Weights};

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
    /// Whether each parameter's gradient is measured by its own size: small ones, of layers near the input, count as
    /// much as large ones.
    pub relative: bool,
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
    fn rule(self) -> Option<Rule> {
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
            distance: Distance::Layers,
            relative: false,
            match_weight: 1.0,
            class_weight: 0.0,
            tv_weight: 0.1,
            variation: Variation::Anisotropic,
            l2_weight: 1e-4,
            statistics_weight: 0.1,
            statistics: BatchStatistics::Best,
            starts: 4,
            group_weight: 0.01,
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

const NAME: &str = "gradinversion";

impl Attack for GradInversion {
    const CARD: Card = Card {
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
                default: "\"layers\"",
                purpose: "how gradients are compared",
                range: "layers, squared, cosine",
            },
            Parameter {
                name: "relative",
                default: "false",
                purpose: "each parameter counts alike, whatever the size of its gradient",
                range: "true, false",
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
                default: "0.1",
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
                default: "0.01",
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

    type Sees = GradientSeen;

    fn reconstruct(&self, seen: &GradientSeen, session: &mut Session<'_>) -> Result<Reconstruction, AttackError> {
        self.check(seen)?;
        for doubt in preflight::doubts(seen)? {
            session.warn(&doubt);
        }
        let known = self.known_labels(seen)?;
        let mut notes = known.notes;
        let samples = known.samples;
        let objectives = self.objectives(seen, known.targets, samples)?;
        let joint = self.labels == LabelSource::Joint && seen.labels.is_none();
        let (found, starts) = match self.optimiser {
            Steps::Adam => (self.together(seen, &objectives, samples, joint, session)?, self.starts),
            Steps::LBfgs => (self.in_turn(seen, &objectives, samples, joint, session)?, 1),
        };
        // The attacker's own choice among the starts: the smallest loss, without what holds them together.
        let losses = (0..starts).map(|start| {
            let y = found.values.get(starts + start).filter(|_| joint);
            Ok(objectives.evaluate(&found.values[start], y)?.loss)
        });
        let losses = losses.collect::<Result<Vec<f64>, AttackError>>()?;
        let best = (0..starts).min_by(|&a, &b| losses[a].total_cmp(&losses[b])).unwrap_or(0);
        if starts > 1 {
            let each: Vec<String> = losses.iter().map(|loss| format!("{loss:.3e}")).collect();
            notes.push(format!("losses of the {starts} starts: {}; the smallest was kept", each.join(", ")));
        }
        let labels = match found.values.get(starts + best).filter(|_| joint) {
            Some(y) => Some(largest_of_rows(y)?),
            None => match &objectives.objective.targets {
                Targets::Classes(classes) => Some(classes.clone()),
                Targets::Values(_) => None,
            },
        };
        let targets = labels.clone().map_or_else(|| objectives.objective.targets.clone(), Targets::Classes);
        let told = Objective { targets, ..objectives.objective.clone() };
        let misfit = objectives.misfit(&found.values[best], &told)?;
        let mut rebuilt = Reconstruction::descended(found, best)?;
        rebuilt.labels = labels;
        if let Some(misfit) = misfit {
            rebuilt.confidence = vec![1.0 / (1.0 + misfit); rebuilt.samples.rows()];
            notes.push(format!("the candidates' gradient is off by {:.2} % of the one that was seen", 100.0 * misfit));
        }
        rebuilt.notes = notes;
        Ok(rebuilt)
    }
}

/// What is known of the batch before the search.
struct Known {
    targets: Targets,
    samples: usize,
    notes: Vec<String>,
}

impl GradInversion {
    fn check(&self, seen: &GradientSeen) -> Result<(), AttackError> {
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
        for (name, value) in weights {
            if !(value >= 0.0 && value.is_finite()) {
                return Err(AttackError::setting(name, value, "must be a number of at least 0"));
            }
        }
        for (name, value) in [("lr", self.lr), ("sigma", self.sigma)] {
            if !(value > 0.0 && value.is_finite()) {
                return Err(AttackError::setting(name, value, "must be a positive number"));
            }
        }
        if self.starts == 0 {
            return Err(AttackError::setting("starts", 0, "must be 1 or more"));
        }
        let joint = self.labels == LabelSource::Joint && seen.labels.is_none();
        if joint && (self.match_weight == 0.0 || self.class_weight > 0.0) {
            return Err(AttackError::setting("labels", "joint", "is for the gradient alone: set class_weight to 0"));
        }
        if self.optimiser == Steps::LBfgs && (self.signed || self.history == 0) {
            let expected = "a line search needs slopes, not signs, and a memory of 1 or more";
            return Err(AttackError::setting("optimiser", "l-bfgs", expected));
        }
        if self.match_weight + self.class_weight + self.statistics_weight == 0.0 {
            return Err(AttackError::setting("match_weight", 0, "nothing ties candidates to what was seen"));
        }
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

    /// Labels, and how many samples there are.
    fn known_labels(&self, seen: &GradientSeen) -> Result<Known, AttackError> {
        let no = |reason: String, hint: &str| AttackError::NotApplicable { attack: NAME, reason, hint: hint.into() };
        let told = seen.batch_size.or((self.batch > 0).then_some(self.batch));
        if told == Some(0) {
            return Err(AttackError::setting("batch", 0, "is the number of samples, 1 or more"));
        }
        let classes: usize = seen.model.network.output_shape().iter().product();
        if let Some(targets) = &seen.labels {
            let samples = told.unwrap_or(targets.len());
            if targets.len() != samples {
                return Err(no(format!("{} labels for {samples} samples", targets.len()), "share one for each"));
            }
            if let Targets::Classes(labels) = targets
                && let Some(label) = labels.iter().find(|label| **label >= classes)
            {
                return Err(no(format!("label {label} is beyond the network's {classes} classes"), "count from 0"));
            }
            return Ok(Known { targets: targets.clone(), samples, notes: Vec::new() });
        }
        let Some(rule) = self.labels.rule() else {
            if seen.model.loss != Some(Loss::CrossEntropy) {
                return Err(no("labels can be searched for with cross-entropy alone".into(), "share the labels"));
            }
            let samples = told.ok_or_else(|| no("the size of the batch is not known".into(), "give it as `batch`"))?;
            return Ok(Known { targets: Targets::Classes(vec![0; samples]), samples, notes: Vec::new() });
        };
        let restored = Labels { rule, batch: self.batch, ..Labels::default() }.restore(seen)?;
        let (mut labels, notes) = (restored.labels, restored.notes);
        let samples = told.unwrap_or(labels.len());
        // A rule that finds each class once may find too few; what is missing is most likely one of those.
        if labels.len() < samples && !labels.is_empty() {
            labels = labels.iter().copied().cycle().take(samples).collect();
            labels.sort_unstable();
        }
        Ok(Known { targets: Targets::Classes(labels), samples, notes })
    }

    fn objectives<'a>(
        &self,
        seen: &'a GradientSeen,
        targets: Targets,
        samples: usize,
    ) -> Result<Objectives<'a>, AttackError> {
        let model = &seen.model;
        let shape = model.network.input_shape();
        let image = shape.len() == 3;
        let weights = Weights {
            matching: self.match_weight,
            class: self.class_weight,
            statistics: self.statistics_weight,
            variation: if image { self.tv_weight } else { 0.0 },
            length: self.l2_weight,
        };
        let fidelity = match self.statistics_weight > 0.0 {
            true => Fidelity::new(seen, self.statistics, samples)?,
            false => None,
        };
        Ok(Objectives {
            network: model.network.in_mode(seen.client.mode.unwrap_or_default()),
            theta: &model.theta,
            target: Target::new(seen, self.distance, self.relative)?,
            objective: Objective::new(
                model.loss.unwrap_or(Loss::CrossEntropy),
                seen.reduction.unwrap_or_default(),
                targets,
            ),
            local: seen.client.local.filter(|_| self.local == LocalSteps::Unrolled),
            fidelity,
            variation: image.then(|| TotalVariation::new(shape, self.variation, 0)).transpose()?,
            weights,
        })
    }

    /// Starts, one tensor each, and logits of labels where those are searched for.
    fn variables(
        &self,
        seen: &GradientSeen,
        samples: usize,
        joint: bool,
        starts: std::ops::Range<usize>,
        session: &Session<'_>,
    ) -> Result<Vec<Variable>, AttackError> {
        let (network, theta) = (&seen.model.network, &seen.model.theta);
        let classes: usize = network.output_shape().iter().product();
        let one = |name: &str, start: usize, scale: f64, shape: &[usize]| -> Result<Variable, AttackError> {
            let drawn = session.stream(name, start as u64).normal_tensor(scale, shape, theta.dtype())?;
            let update = UpdateRule::adam(self.lr);
            Ok(Variable { name: format!("{name}{start}").into(), start: drawn.to_device(theta.device())?, update })
        };
        let mut variables = Vec::new();
        for start in starts.clone() {
            variables.push(one("x", start, self.sigma, &network.batch_shape(samples))?);
        }
        for start in starts.filter(|_| joint) {
            variables.push(one("y", start, 1.0, &[samples, classes])?);
        }
        Ok(variables)
    }

    fn schedule(&self) -> Schedule {
        match self.decay {
            Decay::None => Schedule::Constant,
            Decay::Cosine => Schedule::Cosine { warmup: self.warmup },
            Decay::Stairs => Schedule::Stairs { at: [0.375, 0.625, 0.875], factor: 0.1 },
        }
    }

    /// The range that candidates are kept in, if they are.
    fn range(&self, seen: &GradientSeen) -> Result<Option<PixelRange>, AttackError> {
        let known = seen.model.preprocess.as_ref().filter(|_| self.clamp);
        Ok(known.map(|known| PixelRange::new(known, seen.model.network.input_shape(), 0)).transpose()?)
    }

    fn search<'a>(
        &self,
        seen: &GradientSeen,
        objectives: &'a Objectives<'a>,
        starts: usize,
        seed: u64,
    ) -> Result<Search<'a>, AttackError> {
        let grouped = starts > 1 && self.group_weight > 0.0;
        let group = Group::new(self.group_weight, self.consensus, self.group_from, self.group_every, self.iterations);
        Ok(Search {
            objectives,
            starts,
            group: grouped.then_some(group),
            signed: self.signed,
            range: self.range(seen)?,
            noise: self.noise,
            lr: self.lr,
            schedule: self.schedule(),
            iterations: self.iterations,
            seed,
        })
    }

    /// All starts at once, by Adam.
    fn together(
        &self,
        seen: &GradientSeen,
        objectives: &Objectives<'_>,
        samples: usize,
        joint: bool,
        session: &mut Session<'_>,
    ) -> Result<Descended, AttackError> {
        let variables = self.variables(seen, samples, joint, 0..self.starts, session)?;
        let mut search = self.search(seen, objectives, self.starts, session.seed())?;
        let descent = Descent {
            iterations: self.iterations,
            schedule: self.schedule(),
            keep: Keep::Best,
            stop_loss: self.stop_loss,
        };
        descent.run(&variables, &mut search, session)
    }

    /// One start after the other, by L-BFGS; the best of them, or the first that is done.
    fn in_turn(
        &self,
        seen: &GradientSeen,
        objectives: &Objectives<'_>,
        samples: usize,
        joint: bool,
        session: &mut Session<'_>,
    ) -> Result<Descended, AttackError> {
        let descent = Descent { iterations: self.iterations, stop_loss: self.stop_loss, ..Descent::default() };
        let mut found = restarted(self.starts, session, |before, session| {
            let done = |found: &Descended| self.stop_loss.is_some_and(|stop| found.loss <= stop);
            if before.iter().any(done) {
                return Ok(None);
            }
            let start = before.len();
            let variables = self.variables(seen, samples, joint, start..start + 1, session)?;
            let mut search = self.search(seen, objectives, 1, session.seed())?;
            descent.quasi_newton(&variables, &mut search, self.history, session).map(Some)
        })?;
        let stopped = found.last().is_some_and(|last| last.stop == Stop::Interrupted);
        let best = (0..found.len()).min_by(|&a, &b| found[a].loss.total_cmp(&found[b].loss)).unwrap_or(0);
        let iterations = found.iter().map(|found| found.iterations).sum();
        let mut best = found.swap_remove(best);
        best.iterations = iterations;
        if let Some(range) = self.range(seen)? {
            best.values[0] = range.clamped(&best.values[0])?;
        }
        if stopped {
            best.stop = Stop::Interrupted;
        }
        Ok(best)
    }
}

/// The class each row says.
fn largest_of_rows(logits: &Tensor) -> Result<Vec<usize>, AttackError> {
    let values = logits.to_f64_vec()?;
    let largest = |row: &[f64]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or(0);
    Ok(values.chunks_exact(logits.row_len().max(1)).map(largest).collect())
}
