//! What is read off without a search, beside what a guess or a stranger gives; and what a defence costs.

use afterimage_attacks::labels::Labels;
use afterimage_attacks::{Attack, GradientSeen, Observation, Quiet, RowSpace, Session};
use serde::{Deserialize, Serialize};

use crate::findings::label_accuracy;
use crate::plan::Plan;
use crate::score::testing;
use crate::victim::{Observer, federated_accuracy};
use crate::{Result, Truth};

/// Labels of a batch that were read off its gradient.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LabelsRead {
    /// Samples of the batch.
    pub members: usize,
    /// Labels that are right.
    pub right: usize,
    /// Labels that are right if the batch is thought to be divided as the controls are, without its gradient.
    pub guessed: usize,
}

impl LabelsRead {
    pub(super) fn of(seen: &GradientSeen, truth: &Truth) -> Result<Self> {
        let found = Labels::default().reconstruct(seen, &mut Session::new(1, &mut Quiet))?.labels.unwrap_or_default();
        let labels = &truth.members.labels;
        let right = |found: &[usize]| (label_accuracy(found, labels) * labels.len() as f64).round() as usize;
        // As many labels as there are samples, evenly from those of the controls in rising order.
        let mut others = truth.controls.labels.clone();
        others.sort_unstable();
        let even = |index: usize| others.get((2 * index + 1) * others.len() / (2 * labels.len()));
        let guess: Vec<usize> = (0..labels.len()).filter_map(even).copied().collect();
        Ok(Self { members: labels.len(), right: right(&found), guessed: right(&guess) })
    }
}

/// What the first layer's gradient says of a batch by linear algebra alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SpaceRead {
    /// The layer.
    pub layer: String,
    /// Independent samples that it shows.
    pub samples: usize,
    /// Members.
    pub members: usize,
    /// Members of which less than a thousandth lies outside the samples' span.
    pub members_inside: usize,
    /// Controls that test.
    pub controls: usize,
    /// Those of which as little does.
    pub controls_inside: usize,
}

/// The part of a record outside the span below which it is taken for one of the batch.
const INSIDE: f64 = 1e-3;

impl SpaceRead {
    pub(super) fn of(observation: &Observation, truth: &Truth) -> Result<Self> {
        let (layer, space) = RowSpace::of_observation(observation)?;
        let outside = |pixels| -> Result<Vec<f64>> {
            let x = truth.preprocess.apply(pixels)?;
            Ok(space.residuals(&x.reshape(&[x.rows(), x.row_len()])?)?)
        };
        let inside = |parts: &mut dyn Iterator<Item = &f64>| parts.filter(|part| **part < INSIDE).count();
        let (members, controls) = (outside(&truth.members.pixels)?, outside(&truth.controls.pixels)?);
        Ok(Self {
            layer,
            samples: space.rank,
            members: members.len(),
            members_inside: inside(&mut members.iter()),
            controls: testing(&controls).count(),
            controls_inside: inside(&mut testing(&controls)),
        })
    }
}

/// What a defence costs: how accurate a model becomes with clients that defend themselves, and without.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Rounds of training.
    pub rounds: usize,
    /// Records that accuracy is measured on; nobody trains on them.
    pub tested: usize,
    /// Accuracy without the defence.
    pub undefended: f64,
    /// Accuracy with it.
    pub defended: f64,
}

/// Rounds of training; the plan's network has learnt by then what it will.
const ROUNDS: usize = 1000;
/// Learning rate of the server.
const RATE: f64 = 0.2;

impl Cost {
    /// `None` if it was stopped.
    pub(super) fn of(plan: &Plan, tested: usize, observe: &mut Observer<'_>) -> Result<Option<Self>> {
        let open = Plan { victim: plan.victim.undefended(), ..plan.clone() };
        let mut accuracy = |plan: &Plan| federated_accuracy(plan, ROUNDS, RATE, observe);
        let (Some(undefended), Some(defended)) = (accuracy(&open)?, accuracy(plan)?) else { return Ok(None) };
        Ok(Some(Self { rounds: ROUNDS, tested, undefended, defended }))
    }
}
