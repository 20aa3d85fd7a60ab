//! What tests of several attacks share.
#![allow(dead_code, reason = "every test file is a crate of its own and uses its part")]

use std::ops::ControlFlow;

use afterimage_attacks::{AttackError, Hooks, Tick};
use afterimage_nn::io::TensorFile;

/// Asks an attack to stop after so many iterations, once, and hands back the state it kept then.
pub(crate) struct StopsOnce {
    at: Option<usize>,
    /// What was kept last.
    pub(crate) kept: Option<TensorFile>,
}

impl StopsOnce {
    pub(crate) fn after(iterations: usize) -> Self {
        Self { at: Some(iterations), kept: None }
    }
}

impl Hooks for StopsOnce {
    fn tick(&mut self, tick: Tick) -> ControlFlow<()> {
        match self.at.take_if(|at| tick.iteration >= *at) {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    }

    fn keep(&mut self, state: &TensorFile) -> Result<(), AttackError> {
        self.kept = Some(state.clone());
        Ok(())
    }

    fn resumed(&mut self) -> Option<TensorFile> {
        self.kept.take()
    }
}

/// Remembers what the user is told.
#[derive(Default)]
pub(crate) struct Told(pub(crate) Vec<String>);

impl Hooks for Told {
    fn warn(&mut self, message: &str) {
        self.0.push(message.to_owned());
    }
}
