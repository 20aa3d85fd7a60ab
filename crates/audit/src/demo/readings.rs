//! What is read off without a search, beside what a guess or a stranger gives; and what a defence costs.

use afterimage_attacks::labels::Labels;
use afterimage_attacks::{Attack, GradientSeen, Observation, Quiet, RowSpace, Session};
use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::score::testing;
use crate::victim::{Observer, federated_accuracy};
use crate::{LabelsRead, Result, Truth};

/// The labels that a gradient gives away.
pub(super) fn labels_read(seen: &GradientSeen, truth: &Truth) -> Result<LabelsRead> {
    let found = Labels::default().reconstruct(seen, &mut Session::new(1, &mut Quiet))?.labels.unwrap_or_default();
    Ok(LabelsRead::of(&found, truth))
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

impl SpaceRead {
    pub(super) fn of(observation: &Observation, truth: &Truth) -> Result<Self> {
        let (layer, space) = RowSpace::of_observation(observation)?;
        let outside = |pixels| -> Result<Vec<f64>> {
            let x = truth.preprocess.apply(pixels)?;
            Ok(space.residuals(&x.reshape(&[x.rows(), x.row_len()])?)?)
        };
        let inside = |parts: &mut dyn Iterator<Item = &f64>| parts.filter(|part| space.holds(**part)).count();
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
