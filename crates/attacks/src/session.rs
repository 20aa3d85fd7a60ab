//! The run an attack is part of: seeds, progress, checkpoints, and the wish to stop.

use std::ops::ControlFlow;

use afterimage_nn::Stream;
use afterimage_nn::io::TensorFile;

use crate::AttackError;

/// Where an attack is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tick {
    /// Iterations done.
    pub iteration: usize,
    /// Iterations there will be at most.
    pub total: usize,
    /// The attacker's own objective, where there is one.
    pub loss: Option<f64>,
}

/// What surrounds an attack: it is told of progress and keeps checkpoints.
/// No path is ever handed to the attack. What is not written keeps nothing and goes on.
pub trait Hooks {
    /// Called after every iteration. `Break` asks the attack to stop where it is.
    fn tick(&mut self, _tick: Tick) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Whether a checkpoint should be taken now.
    fn wants_checkpoint(&mut self) -> bool {
        false
    }

    /// Keeps a state from which the attack can go on.
    fn keep(&mut self, _state: &TensorFile) -> Result<(), AttackError> {
        Ok(())
    }

    /// The state that was kept last, if the run goes on from one.
    fn resumed(&mut self) -> Option<TensorFile> {
        None
    }

    /// Something the user should know.
    fn warn(&mut self, _message: &str) {}
}

/// Hooks that do nothing: for tests and for use as a library.
#[derive(Debug, Default)]
pub struct Quiet;

impl Hooks for Quiet {}

/// One run of an attack.
pub struct Session<'a> {
    seed: u64,
    hooks: &'a mut dyn Hooks,
}

impl<'a> Session<'a> {
    /// A run with this seed, watched by these hooks.
    pub fn new(seed: u64, hooks: &'a mut dyn Hooks) -> Self {
        Self { seed, hooks }
    }

    /// The stream of random numbers of this name and index.
    pub fn stream(&self, name: &str, index: u64) -> Stream {
        Stream::new(self.seed, &format!("attack/{name}"), index)
    }

    /// The run's seed, for streams that a problem draws from by itself.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Says where the attack is; `Break` asks it to stop.
    pub fn tick(&mut self, tick: Tick) -> ControlFlow<()> {
        self.hooks.tick(tick)
    }

    /// Keeps a checkpoint if it is time for one.
    pub fn checkpoint(&mut self, state: impl FnOnce() -> Result<TensorFile, AttackError>) -> Result<(), AttackError> {
        if self.hooks.wants_checkpoint() { self.hooks.keep(&state()?) } else { Ok(()) }
    }

    /// Keeps a checkpoint, whether or not it is time for one: before a stop.
    pub fn keep(&mut self, state: &TensorFile) -> Result<(), AttackError> {
        self.hooks.keep(state)
    }

    /// The state to go on from, if there is one.
    pub fn resumed(&mut self) -> Option<TensorFile> {
        self.hooks.resumed()
    }

    /// The seed and the hooks, for a run that is a part of this one.
    pub(crate) fn hooks(&mut self) -> (u64, &mut dyn Hooks) {
        (self.seed, self.hooks)
    }

    /// Tells the user something.
    pub fn warn(&mut self, message: &str) {
        self.hooks.warn(message);
    }
}
