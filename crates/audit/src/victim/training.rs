//! A training in the directory of a run: its state is kept every so often, and a run that was stopped goes on from there.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use afterimage_attacks::Tick;
use afterimage_nn::io::TensorFile;
use afterimage_nn::train::{Hooks, Progress, Recipe};

use super::models::key;
use super::{Observer, Victim};
use crate::run_dir::RunDir;
use crate::{AuditError, Result};

/// What names of states begin with.
pub(crate) const TRAINING: &str = "training-";

/// Keeping a state may take this part of the time.
const SHARE: u32 = 20;

/// Passes on progress, and keeps states if there is a directory for them.
pub(super) struct Keeping<'a, 'b> {
    observe: &'a mut Observer<'b>,
    place: Option<(&'a RunDir, String)>,
    resumed: Option<TensorFile>,
    every: Duration,
    last: Instant,
}

impl<'a, 'b> Keeping<'a, 'b> {
    /// Around the training of a victim by a recipe. Fails if there is a state that cannot be read.
    pub(super) fn new(victim: &'a Victim<'_>, recipe: &Recipe, observe: &'a mut Observer<'b>) -> Result<Self> {
        let every = Duration::from_secs(victim.plan.compute.checkpoint_seconds);
        let mut keeping = Self { observe, place: None, resumed: None, every, last: Instant::now() };
        if let Some(dir) = &victim.models {
            let name = name(victim, recipe)?;
            if dir.has(&name) {
                keeping.resumed = Some(TensorFile::read(dir.file(&name)).map_err(starts_again(dir, &name))?);
            }
            keeping.place = Some((dir, name));
        }
        Ok(keeping)
    }

    /// What a failure of the training means where it went on from a state.
    pub(super) fn failed(&self, error: afterimage_nn::Error) -> AuditError {
        match &self.place {
            Some((dir, name)) if matches!(error, afterimage_nn::Error::Parse { .. }) => starts_again(dir, name)(error),
            _ => error.into(),
        }
    }

    /// Once the training is over, its state is of no use.
    pub(super) fn done(self) -> Result<()> {
        self.place.map_or(Ok(()), |(dir, name)| dir.remove(&name))
    }
}

/// The name of the file: what decides a training is hashed into it.
fn name(victim: &Victim<'_>, recipe: &Recipe) -> Result<String> {
    let plan = victim.plan.without_attack().to_toml()?;
    let recipe = toml::to_string(recipe).map_err(|error| AuditError::plan("victim.train", error.to_string(), ""))?;
    let text = format!("{plan}\n{recipe}\n{}, {}", victim.seed, victim.truth.ids.join(" "));
    Ok(format!("{TRAINING}{}.safetensors", key(&text)))
}

fn starts_again(dir: &RunDir, name: &str) -> impl Fn(afterimage_nn::Error) -> AuditError {
    let path = dir.file(name);
    move |error| {
        let problem = format!("training cannot go on from it: {error}\n  hint: remove it to train from the start");
        AuditError::file(&path, problem)
    }
}

impl Hooks for Keeping<'_, '_> {
    fn epoch(&mut self, progress: Progress) -> ControlFlow<()> {
        (self.observe)(Tick { iteration: progress.epoch, total: progress.epochs, loss: Some(progress.loss) })
    }

    fn wants_state(&mut self) -> bool {
        self.place.is_some() && self.last.elapsed() >= self.every
    }

    fn keep(&mut self, state: &TensorFile) -> afterimage_nn::Result<()> {
        let Some((dir, name)) = &self.place else { return Ok(()) };
        let begun = Instant::now();
        state.write(dir.file(name))?;
        let sealed = dir.seal(name);
        // A large network on a slow disk is kept more rarely.
        self.every = self.every.max(begun.elapsed() * SHARE);
        self.last = Instant::now();
        sealed.map_err(|error| afterimage_nn::Error::File { path: dir.file(name), problem: error.to_string() })
    }

    fn resumed(&mut self) -> Option<TensorFile> {
        self.resumed.take()
    }
}
