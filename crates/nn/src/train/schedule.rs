//! The learning rate over a run.

use serde::{Deserialize, Serialize};

/// How the learning rate changes over the run.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Schedule {
    /// Not at all.
    #[default]
    Constant,
    /// Down to zero along a half cosine over all epochs, after a linear rise.
    Cosine {
        /// Epochs of the rise.
        #[serde(default)]
        warmup: usize,
    },
    /// As it is until so much of the run is over, then down to zero along a half cosine.
    Settle {
        /// Part of the run, from 0 to 1.
        from: f64,
    },
    /// Multiplied by `factor` each time one of these parts of the run is over.
    Stairs {
        /// Parts of the run, from 0 to 1.
        at: [f64; 3],
        /// What to multiply with.
        factor: f64,
    },
    /// By the same factor in every epoch, down to this part of it at the end.
    Decay {
        /// Part of the learning rate that is left, above 0.
        to: f64,
    },
    /// Multiplied by `factor` every `every` epochs.
    Step {
        /// Epochs between changes.
        every: usize,
        /// What to multiply with.
        factor: f64,
    },
}

impl Schedule {
    /// What the learning rate is multiplied with in an epoch (counted from 0) of so many.
    pub fn factor(self, epoch: usize, epochs: usize) -> f64 {
        match self {
            Schedule::Constant => 1.0,
            Schedule::Cosine { warmup } if epoch < warmup => (epoch + 1) as f64 / warmup as f64,
            Schedule::Cosine { warmup } => {
                half_cosine((epoch - warmup) as f64 / epochs.saturating_sub(warmup).max(1) as f64)
            }
            Schedule::Settle { from } => {
                let progress = epoch as f64 / epochs.max(1) as f64;
                half_cosine((progress - from).max(0.0) / (1.0 - from).max(f64::MIN_POSITIVE))
            }
            Schedule::Stairs { at, factor } => {
                let progress = epoch as f64 / epochs.max(1) as f64;
                at.iter().filter(|part| progress >= **part).map(|_| factor).product()
            }
            Schedule::Decay { to } => to.powf(epoch as f64 / epochs.max(1) as f64),
            Schedule::Step { every, factor } => factor.powf((epoch / every.max(1)) as f64),
        }
    }
}

/// From 1 at 0 to 0 at 1.
fn half_cosine(progress: f64) -> f64 {
    0.5 * (1.0 + (std::f64::consts::PI * progress.min(1.0)).cos())
}
