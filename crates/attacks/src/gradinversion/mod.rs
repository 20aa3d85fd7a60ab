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
//! | D, equation 3, and what is known of the client's defence | `matching` |
//! | labels, equation 8 | [`labels`](crate::labels) |
//! | R_BN, equation 10 | `fidelity` |
//! | E over several starts, equations 11 and 12 | `group` |
//! | steps of training at the client | `unrolled` |
//! | what is wrong with a gradient, told before the search | `preflight` |
//!
//! Departures: starts are registered by phase correlation and a smooth flow instead of a pretrained network; TV is
//! a mean over pixels, lengths are means over samples, so that weights mean the same for every size.

mod fidelity;
mod group;
mod kept;
mod matching;
mod preflight;
mod search;
mod settings;
mod unrolled;

use afterimage_nn::optim::UpdateRule;
use afterimage_nn::train::Schedule;
use afterimage_nn::{Loss, Objective, Targets, Tensor};

pub use fidelity::BatchStatistics;
pub use group::Consensus;
pub use matching::Distance;
pub use settings::{Decay, GradInversion, LabelSource, LocalSteps, Steps};

use crate::labels::Labels;
use crate::restarts::restarted;
use crate::{
    Attack, AttackError, Card, Descended, Descent, GradientSeen, Keep, PixelRange, Reconstruction, Session, Stop,
    TotalVariation, Variable,
};
use fidelity::Fidelity;
use group::Group;
use kept::Kept;
use matching::Target;
use search::{Objectives, Search, Weights};
use settings::NAME;

impl Attack for GradInversion {
    const CARD: Card = settings::CARD;

    type Sees = GradientSeen;

    fn applies(&self, seen: &GradientSeen) -> Result<(), AttackError> {
        self.check(seen)?;
        self.known_labels(seen).map(drop)
    }

    fn reconstruct(&self, seen: &GradientSeen, session: &mut Session<'_>) -> Result<Reconstruction, AttackError> {
        self.check(seen)?;
        for doubt in preflight::doubts(seen)? {
            session.warn(&doubt);
        }
        let known = self.known_labels(seen)?;
        let mut notes = known.notes;
        let samples = known.samples;
        let objectives = self.objectives(seen, known.targets, samples)?;
        let joint = self.joint(seen);
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
            target: Target::new(seen, self.distance)?,
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
        let alike = match &objectives.objective.targets {
            Targets::Classes(labels) if !self.joint(seen) => group::alike(labels),
            _ => Vec::new(),
        };
        let group = Group {
            weight: self.group_weight,
            consensus: self.consensus,
            from: self.group_from,
            every: self.group_every,
            iterations: self.iterations,
            alike,
            means: Vec::new(),
        };
        Ok(Search {
            objectives,
            starts,
            group: (starts > 1 && self.group_weight > 0.0).then_some(group),
            kept: Kept::new(starts),
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
            keep: Keep::Last,
            stop_loss: self.stop_loss,
        };
        let mut found = descent.run(&variables, &mut search, session)?;
        search.kept.replace(&mut found.values);
        Ok(found)
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
