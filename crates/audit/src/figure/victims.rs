//! Victims that several curves of a figure have in common are made once.

use std::collections::BTreeMap;

use afterimage_attacks::Observation;

use crate::pipeline::Watcher;
use crate::plan::Plan;
use crate::run_dir::RunDir;
use crate::victim::Victim;
use crate::{Result, Truth};

/// What victims leaked, by the part of their plans that made them.
pub(super) struct Victims<'d> {
    /// Where trained models are kept.
    dir: &'d RunDir,
    made: BTreeMap<String, (Observation, Truth)>,
    /// Numbers of all that are kept.
    size: usize,
}

/// Numbers that are kept at most, or a single victim: some gigabyte.
const MOST: usize = 100_000_000;

/// A victim: made before, or about to be.
pub(super) enum Known<'a> {
    Made(Box<(Observation, Truth)>),
    New(Box<Victim<'a>>),
}

impl Known<'_> {
    /// Members and controls.
    pub(super) fn truth(&self) -> &Truth {
        match self {
            Known::Made(made) => &made.1,
            Known::New(victim) => victim.truth(),
        }
    }
}

impl<'d> Victims<'d> {
    /// None yet.
    pub(super) fn new(dir: &'d RunDir) -> Self {
        Self { dir, made: BTreeMap::new(), size: 0 }
    }

    /// The victim of a plan.
    pub(super) fn of<'a>(&self, plan: &'a Plan) -> Result<Known<'a>> {
        match self.made.get(&key(plan)?) {
            Some(made) => Ok(Known::Made(Box::new(made.clone()))),
            None => Ok(Known::New(Box::new(Victim::new(plan)?.keeping(self.dir)))),
        }
    }

    /// What it leaks, and the truth behind it; `None` if it was stopped.
    pub(super) fn leak(
        &mut self,
        plan: &Plan,
        known: Known<'_>,
        watcher: &mut dyn Watcher,
    ) -> Result<Option<(Observation, Truth)>> {
        let victim = match known {
            Known::Made(made) => return Ok(Some(*made)),
            Known::New(victim) => victim,
        };
        let Some(made) = victim.leak(&mut |tick| watcher.tick(tick))? else { return Ok(None) };
        // A checkpoint has a second set of parameters, a gradient as well.
        let size = 2 * made.0.model().theta.count() + made.1.controls.pixels.count();
        if self.size + size > MOST {
            *self = Self::new(self.dir);
        }
        self.size += size;
        self.made.insert(key(plan)?, made.clone());
        Ok(Some(made))
    }
}

/// The plan but for its attack, which no victim depends on.
fn key(plan: &Plan) -> Result<String> {
    plan.without_attack().to_toml()
}
