//! Training records from two checkpoints of one training.
//!
//! *Threat model.* Weights from before and after training are public, as they are of
//! every model that is fine-tuned from a published one. Loo, Hasani, Lechner, Amini &
//! Rus (2023), "Understanding reconstruction attacks with the neural tangent kernel and
//! dataset distillation".
//!
//! | symbol | here | shape |
//! | --- | --- | --- |
//! | Δθ = θ_f − θ_0 | the change of the weights | |
//! | x_j | candidates | m x d |
//! | α_j | their multipliers, one for each output and place | m x C |
//! | ∇f | the gradient of the outputs in the weights, at θ_0, θ_f or both | |
//!
//! Training moves weights along ∇f(x_i) of its records. Where the network is wide that
//! gradient hardly changes on the way, and Δθ = Σ_i α_i ∇f(x_i), whatever the loss was
//! and wherever training stopped. So, as published,
//!
//! ```text
//! minimise ‖Δθ − (1/mC) Σ_j Σ_k α_jk ∇f_k(x_j)‖² + w · m · mean (what of x lies outside the pixel range)²
//! ```
//!
//! by Adam over x and α, with softplus(βz)/β for ReLU and β rising: L_f with the gradients
//! at θ_f, L_0 with those at θ_0, the hybrid loss with both and multipliers for each
//! (appendix I). Algorithm 2 is in [`batched`](self), with `batch`.
//!
//! Beyond the paper, and the default:
//!
//! - Before any descent, and after it again with its help: the change of the first layer is
//!   A X with zeros in A where a unit was off for a record all along, and the sparsest
//!   columns are the records', to rounding (`zeros.rs`).
//! - Candidates are searched in the space that the change of the first layer spans:
//!   x = c F with as many coordinates as there were records, less one for the bias. Its
//!   rank says how many records there were, and so how many candidates to look for.
//! - Multipliers are the best ones for the candidates at every step (variable
//!   projection): what is left of Δθ is a function of x alone. Its gradient comes from
//!   the factors of the gradients; none is multiplied out.
//! - Several starts. Each column of the first layer's change that the candidates of one show
//!   takes a dimension from the search of the next (`held.rs`). Where none is shown, starts are
//!   independent: candidates are weighed by what Δθ would lack without them, and those that
//!   other starts found too are surer.
//! - More checkpoints, where there are some: each change between two of them is
//!   explained by the same candidates with multipliers of its own.

mod batched;
mod columns;
mod held;
mod matching;
mod projected;
mod search;
mod softening;
mod space;
mod steps;
mod zeros;

use afterimage_nn::{DType, Device, Params, Tensor};
use serde::{Deserialize, Serialize};

use crate::attack::{all_positive, none_negative};
use crate::confidence::{agreement, merged};
use crate::kkt::DualRule;
use crate::margin::{self, outputs_of};
use crate::restarts::restarted;
use crate::{Attack, AttackError, Card, Model, PairSeen, Parameter, Reconstruction, Session, Stop, TracePoint};
use columns::Columns;
use search::Search;
use space::ChangeSpace;
pub use steps::Gradients;
use steps::Step;
use zeros::Zeros;

/// The attack.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ntk {
    /// m, candidates; one and a half times the rank of the first layer's change if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub candidates: Option<usize>,
    /// Starts, one after the other; each is held to what those before it showed.
    pub restarts: usize,
    /// Steps of each.
    pub iterations: usize,
    /// Where gradients are taken.
    pub gradients: Gradients,
    /// Whether multipliers are the best ones at every step, or move with the candidates.
    pub duals: DualRule,
    /// Whether what is left counts beside ‖Δθ‖², or as it is: as published.
    pub form: Form,
    /// Whether candidates are searched in the span of the first layer's change, where there is one.
    pub row_space: bool,
    /// Whether records are first looked for by the zeros of that change.
    pub zeros: bool,
    /// Learning rate of the candidates.
    pub lr: f64,
    /// Learning rate of the multipliers, where they move.
    pub lr_alpha: f64,
    /// Part of the run after which the learning rates fall to zero; 1 leaves them as they are.
    pub settle: f64,
    /// Scale of the candidates at the start.
    pub sigma: f64,
    /// β of the softplus that stands for ReLU, at the start and at most; `[0, 0]` leaves ReLU as it is.
    pub softplus: [f64; 2],
    /// w, weight of the pixel range; 0 is no prior at all.
    pub range_weight: f64,
    /// The range of network inputs, if it is not what the known preprocessing says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<[f64; 2]>,
    /// Weight of the penalty on high frequencies.
    pub smooth_weight: f64,
    /// Candidates that move at once (algorithm 2); all of them if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<usize>,
    /// Number type of the search; that of the weights if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<DType>,
}

/// What is minimised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// What is left of Δθ, beside its size.
    #[default]
    Relative,
    /// What is left of Δθ, as it is: the authors' program.
    Released,
}

impl Default for Ntk {
    fn default() -> Self {
        Self {
            candidates: None,
            restarts: 3,
            iterations: 3000,
            gradients: Gradients::Both,
            duals: DualRule::Projected,
            form: Form::Relative,
            row_space: true,
            zeros: true,
            lr: 0.02,
            lr_alpha: 0.02,
            settle: 0.7,
            sigma: 0.2,
            softplus: [10.0, 200.0],
            range_weight: 1.0,
            range: None,
            smooth_weight: 0.0,
            batch: None,
            dtype: None,
        }
    }
}

const NAME: &str = "ntk";

impl Attack for Ntk {
    const CARD: Card = Card {
        name: NAME,
        summary: "Rebuilds training records from two checkpoints: the weights before and after training.",
        attacker: "Anybody who has both: whoever downloads a fine-tuned model and the published one it came from. No \
                   data, no gradients, no queries; minutes of computing.",
        method: "Training moves the weights along the network's gradients at its records. The change of the first layer \
                 tells how many records there were, in which space they lie and, by its zeros, often the records \
                 themselves. For the rest the attack searches inputs whose gradients, with the best weights for each, \
                 add up to the change.",
        needs: "Both checkpoints, of a network that was trained by gradient descent with a low learning rate. The \
                loss may be any, and training may have stopped at any time. Best for wide networks and few records.",
        limits: "Where gradients change much on the way (narrow networks, many records, high learning rates) the \
                 change is no sum of gradients at its ends. Of a linear model only the span of the records is in the \
                 change. Without the earlier checkpoint there is nothing to go by.",
        citation: "N. Loo, R. Hasani, M. Lechner, A. Amini, D. Rus. Understanding reconstruction attacks with the \
                   neural tangent kernel and dataset distillation. ICLR 2024.",
        defences: &[
            "Do not publish the checkpoint that training started from, or publish it rounded.",
            "Train on more records, with weight decay, which is not a sum of gradients. Small batches and stopping early \
             do not help.",
            "Train with differential privacy, which bounds what any single record can leave in the weights.",
        ],
        parameters: &[
            Parameter {
                name: "candidates",
                default: "none",
                purpose: "inputs searched at once; 1.5 times the rank of the first layer's change if not given",
                range: "1 or more; the paper takes twice the records",
            },
            Parameter {
                name: "restarts",
                default: "3",
                purpose: "starts, one after the other, each held to what those before it showed",
                range: "1 or more",
            },
            Parameter {
                name: "iterations",
                default: "3000",
                purpose: "steps of each start",
                range: "0 or more; the paper takes 80000",
            },
            Parameter {
                name: "gradients",
                default: "\"both\"",
                purpose: "take gradients at the later checkpoint, the earlier, or both: L_f, L_0, hybrid",
                range: "\"both\", \"final\" or \"initial\"",
            },
            Parameter {
                name: "duals",
                default: "\"projected\"",
                purpose: "multipliers are the best ones for the candidates at every step, or move with them",
                range: "\"projected\" or \"descent\" (as published)",
            },
            Parameter {
                name: "form",
                default: "\"relative\"",
                purpose: "whether what is left counts beside the size of the change, or as it is",
                range: "\"relative\" or \"released\"",
            },
            Parameter {
                name: "row_space",
                default: "true",
                purpose: "search in the span of the first layer's change, where it shows one",
                range: "true or false (as published)",
            },
            Parameter {
                name: "zeros",
                default: "true",
                purpose: "look first for records by the zeros of the first layer's change; needs `row_space` and ReLU",
                range: "true or false (as published)",
            },
            Parameter { name: "lr", default: "0.02", purpose: "learning rate of the candidates", range: "positive" },
            Parameter {
                name: "lr_alpha",
                default: "0.02",
                purpose: "learning rate of the multipliers, where they move",
                range: "positive",
            },
            Parameter {
                name: "settle",
                default: "0.7",
                purpose: "part of the run after which learning rates fall to zero",
                range: "0 to 1; 1 leaves them as they are (as published)",
            },
            Parameter { name: "sigma", default: "0.2", purpose: "scale of the random start", range: "positive" },
            Parameter {
                name: "softplus",
                default: "[10.0, 200.0]",
                purpose: "sharpness of the softplus that stands for ReLU, at the start and at most",
                range: "0 or more; [0, 0] leaves ReLU as it is",
            },
            margin::RANGE_WEIGHT,
            margin::RANGE,
            Parameter {
                name: "smooth_weight",
                default: "0",
                purpose: "weight of the penalty on high frequencies",
                range: "0 or more; images only",
            },
            Parameter {
                name: "batch",
                default: "none",
                purpose: "candidates that move at once (algorithm 2); all of them if not given",
                range: "1 or more; needs duals = \"descent\"",
            },
            Parameter {
                name: "dtype",
                default: "none",
                purpose: "number type of the search; that of the weights if not given",
                range: "\"f32\" (faster) or \"f64\"",
            },
        ],
    };

    type Sees = PairSeen;

    fn applies(&self, seen: &PairSeen) -> Result<(), AttackError> {
        self.check()?;
        outputs_of(&seen.model, NAME)?;
        Step::all(seen, self.gradients, NAME).map(drop)
    }

    fn reconstruct(&self, seen: &PairSeen, session: &mut Session<'_>) -> Result<Reconstruction, AttackError> {
        self.check()?;
        let model = &seen.model;
        outputs_of(model, NAME)?;
        let steps = Step::all(seen, self.gradients, NAME)?;
        let space = match self.row_space {
            true => ChangeSpace::of(&model.network, &steps)?,
            false => Err("the search is in pixels".to_owned()),
        };
        let mut notes = vec![match &space {
            Ok(space) => format!("the change of the first layer shows {} independent records", space.rank),
            Err(reason) => format!("candidates are searched among all inputs: {reason}"),
        }];
        let candidates = match (self.candidates, &space) {
            (Some(candidates), _) => candidates,
            (None, Ok(space)) => (3 * space.rank).div_ceil(2),
            (None, Err(reason)) => {
                let expected = format!("must be given, because {reason}: twice the records, if their number is known");
                return Err(AttackError::setting("candidates", "none", &expected));
            }
        };
        let space = space.ok();
        let zeros = match &space {
            Some(space) if self.zeros => Zeros::of(seen, space, session)?,
            _ => None,
        };
        let first = zeros.as_ref().map(|zeros| zeros.shown(None, session)).transpose()?.flatten();
        if let Some(shown) = first.as_ref().filter(|shown| shown.complete || shown.stopped) {
            return self.exact(shown, notes, model);
        }
        // The space is told from the weights as they are; the search may be in fewer digits.
        let dtype = self.dtype.unwrap_or(model.theta.dtype());
        let reduced = |params: &Params| match &space {
            Some(space) => Ok(space.reduced(params)?.to_dtype(dtype)?),
            None => Ok(params.to_dtype(dtype)?),
        };
        let steps: Vec<Step> = steps.iter().map(|step| step.map(&reduced)).collect::<Result<_, AttackError>>()?;
        let span = space.as_ref().map(|space| space.span.to_dtype(dtype)).transpose()?;
        let search = Search { attack: self, seen, steps: &steps, space: space.as_ref(), span, candidates };
        search.check()?;
        let holds = self.duals == DualRule::Projected;
        let mut columns = match (&zeros, &space) {
            (Some(zeros), Some(space)) => Some(Columns::of(zeros, space, holds)?),
            _ => None,
        };
        // Columns that the last start was held to.
        let mut told = 0;
        let found = restarted(self.restarts, session, |found, session| {
            let Some(columns) = &mut columns else { return search.run(found.len(), &[], session).map(Some) };
            columns.learn(found)?;
            if columns.complete() && !found.is_empty() {
                return Ok(None);
            }
            told = columns.known().len();
            search.run(found.len(), columns.known(), session).map(Some)
        })?;
        if told > 0 {
            notes.push(format!("the last start was held to {told} columns that candidates before it showed"));
        }
        let stop = found.last().map(|found| found.stop);
        if let Some(columns) = columns.as_mut().filter(|_| stop != Some(Stop::Interrupted)) {
            columns.learn(&found)?;
        }
        // One start after the other, as they were run.
        let trace = found.iter().enumerate().flat_map(|(start, found)| {
            let before = start * self.iterations;
            found.trace.iter().map(move |point| TracePoint { iteration: before + point.iteration, ..*point })
        });
        let trace = trace.collect();
        // A start that was told of others' findings has them among its own.
        let apart = if told > 0 { found.len() - 1 } else { 0 };
        let parts = found.into_iter().skip(apart).map(|found| search.weighed(found)).collect::<Result<Vec<_>, _>>()?;
        let all = agreed(parts)?;
        let Some(mut all) = merged(&all)? else {
            return Err(AttackError::setting("restarts", self.restarts, "must be 1 or more"));
        };
        notes.append(&mut all.notes);
        let mut all = Reconstruction { stop: stop.unwrap_or(all.stop), trace, notes: Vec::new(), ..all };
        if all.stop != Stop::Interrupted {
            let second = match (&zeros, &columns) {
                (Some(zeros), Some(columns)) => zeros.shown(Some(columns.hunt()), session)?,
                _ => None,
            };
            if second.as_ref().is_some_and(|shown| shown.stopped) {
                all.stop = Stop::Interrupted;
            }
            // Help is no promise: what was seen without it counts as well.
            let shown = [first, second].into_iter().flatten().max_by_key(|shown| shown.agreement.len());
            if let Some(shown) = shown.filter(|shown| !shown.agreement.is_empty()) {
                let exact = self.exact(&shown, notes, model)?;
                notes = exact.notes.clone();
                all = beside(exact, all)?;
            }
        }
        Ok(Reconstruction { notes, ..all })
    }
}

impl Ntk {
    /// What the zeros showed.
    fn exact(
        &self,
        shown: &zeros::Shown,
        mut notes: Vec<String>,
        model: &Model,
    ) -> Result<Reconstruction, AttackError> {
        let count = shown.agreement.len();
        let all = if shown.complete { "all of them" } else { "not all of them" };
        notes.push(format!("{count} records, {all}, follow from the zeros of the change, to rounding"));
        let samples = shown.records.to_device(Device::Cpu)?;
        let outputs: usize = model.network.output_shape().iter().product();
        let labels = match count {
            0 => Vec::new(),
            _ => {
                let f = model.network.forward(&model.theta, &shown.records.to_device(model.theta.device())?)?;
                f.to_f64_vec()?.chunks_exact(outputs).map(|f| margin::Labels::margin_of(f).1).collect()
            }
        };
        Ok(Reconstruction {
            labels: Some(labels),
            confidence: shown.agreement.clone(),
            certified: shown.certain(),
            stop: if shown.stopped { Stop::Interrupted } else { Stop::Finished },
            notes,
            ..Reconstruction::finished(samples, 0.0, false)
        })
    }
}

/// Exact records, and what a descent found beside them.
fn beside(exact: Reconstruction, rest: Reconstruction) -> Result<Reconstruction, AttackError> {
    let alike = agreement(&rest, &[&exact])?;
    let others: Vec<usize> = (0..alike.len()).filter(|&place| alike[place] == 0.0).collect();
    let labels = |of: &Reconstruction| of.labels.clone().unwrap_or_default();
    let (more, all) = (labels(&rest), labels(&exact));
    Ok(Reconstruction {
        samples: Tensor::concat_rows(&[&exact.samples, &rest.samples.select_rows(&others)?])?,
        labels: Some(all.into_iter().chain(others.iter().map(|&place| more[place])).collect()),
        confidence: exact.confidence.iter().copied().chain(others.iter().map(|&at| rest.confidence[at])).collect(),
        certified: exact.certified.iter().copied().chain(others.iter().map(|_| false)).collect(),
        coefficients: None,
        ..rest
    })
}

/// Each part's candidates are as sure as their weight and the part of the others that found them say.
fn agreed(parts: Vec<Reconstruction>) -> Result<Vec<Reconstruction>, AttackError> {
    let mut sure = Vec::new();
    for (place, part) in parts.iter().enumerate() {
        let others: Vec<&Reconstruction> =
            parts.iter().enumerate().filter(|(other, _)| *other != place).map(|(_, part)| part).collect();
        let confidence = match others.is_empty() {
            true => part.confidence.clone(),
            false => {
                let found = agreement(part, &others)?;
                part.confidence.iter().zip(found).map(|(weight, found)| (weight * found).sqrt()).collect()
            }
        };
        sure.push(Reconstruction { confidence, ..part.clone() });
    }
    Ok(sure)
}

impl Ntk {
    fn check(&self) -> Result<(), AttackError> {
        for (setting, value) in
            [("candidates", self.candidates), ("batch", self.batch), ("restarts", Some(self.restarts))]
        {
            if value == Some(0) {
                return Err(AttackError::setting(setting, 0, "must be 1 or more"));
            }
        }
        if self.batch.is_some() && self.duals == DualRule::Projected {
            let expected = "needs multipliers that move: set `duals` to \"descent\"";
            return Err(AttackError::setting("batch", self.batch.unwrap_or(0), expected));
        }
        all_positive([("sigma", self.sigma), ("lr", self.lr), ("lr_alpha", self.lr_alpha)])?;
        let at_least_zero = [
            ("softplus", self.softplus[0]),
            ("softplus", self.softplus[1]),
            ("range_weight", self.range_weight),
            ("smooth_weight", self.smooth_weight),
            ("settle", self.settle),
        ];
        none_negative(at_least_zero)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
