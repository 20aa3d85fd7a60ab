//! Victims that several curves of a figure have in common are made once.

use std::collections::BTreeMap;

use afterimage_attacks::{AnyAttack, Observation};

use crate::pipeline::Watcher;
use crate::plan::Plan;
use crate::victim::Victim;
use crate::{Result, Truth};

/// What victims leaked, by the part of their plans that made them.
#[derive(Default)]
pub(super) struct Victims {
    made: BTreeMap<String, (Observation, Truth)>,
    /// Parameters of all that are kept.
    size: usize,
}

/// Parameters that are kept at most: some gigabyte.
const MOST: usize = 100_000_000;

impl Victims {
    /// Members and controls of a plan.
    pub(super) fn truth(&self, plan: &Plan) -> Result<Truth> {
        match self.made.get(&key(plan)?) {
            Some((_, truth)) => Ok(truth.clone()),
            None => Ok(Victim::new(plan)?.truth().clone()),
        }
    }

    /// What its victim leaks, and the truth behind it; `None` if it was stopped.
    pub(super) fn leak(&mut self, plan: &Plan, watcher: &mut dyn Watcher) -> Result<Option<(Observation, Truth)>> {
        let key = key(plan)?;
        if let Some(made) = self.made.get(&key) {
            return Ok(Some(made.clone()));
        }
        let Some((observation, truth)) = Victim::new(plan)?.leak(&mut |tick| watcher.tick(tick))? else {
            return Ok(None);
        };
        // A checkpoint has a second set of parameters, a gradient as well.
        let size = 2 * observation.model().theta.count() + truth.controls.pixels.count();
        if self.size + size <= MOST {
            self.size += size;
            self.made.insert(key, (observation.clone(), truth.clone()));
        }
        Ok(Some((observation, truth)))
    }
}

/// The plan but for its attack, which no victim depends on.
fn key(plan: &Plan) -> Result<String> {
    let Some(any) = AnyAttack::all().into_iter().next() else { return plan.to_toml() };
    Plan { attack: any, ..plan.clone() }.to_toml()
}
