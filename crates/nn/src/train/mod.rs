//! Training: full batch or mini-batches, standard or linearised, stopped by loss or epochs; from where it was stopped, if
//! it was.

mod epoch;
mod gauss_newton;
mod recipe;
#[cfg(feature = "cuda")]
mod repeated;
mod schedule;
mod state;

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

pub use gauss_newton::GaussNewton;
pub use recipe::{Dynamics, Recipe};
pub use schedule::Schedule;

use crate::io::TensorFile;
use crate::loss::Objective;
use crate::{Error, Loss, Mode, Network, Params, Reduction, Result, Targets, Tensor};
use epoch::Run;

/// Why training ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// The loss reached `stop_loss`.
    LossReached,
    /// All epochs were used.
    EpochsUsed,
    /// The observer asked for it.
    Interrupted,
    /// No step lowers the loss any more (normalised steps and those of Gauss–Newton).
    Stalled,
}

/// Parameters kept on the way.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// Epochs completed when it was taken.
    pub epoch: usize,
    /// Loss there.
    pub loss: f64,
    /// The parameters.
    pub theta: Params,
}

/// What training gave.
#[derive(Debug, Clone)]
pub struct Trained {
    /// The final parameters.
    pub theta: Params,
    /// Loss of the last epoch: of the full batch at the final parameters, or
    /// the mean over an epoch's mini-batches as they were visited.
    pub loss: f64,
    /// Epochs completed.
    pub epochs: usize,
    /// Why it ended.
    pub stop: StopReason,
    /// The checkpoints asked for, in the order they were reached.
    pub checkpoints: Vec<Checkpoint>,
    /// −∫ ∂loss/∂f dt, one row a sample: how much each drove the weights by each of its outputs.
    /// Of plain full-batch descent without weight decay; what is linearised has moved by exactly
    /// Σ_i (this)_i ∇f(x_i).
    pub driven: Option<Tensor>,
}

/// What an observer is told after every epoch.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Epochs completed.
    pub epoch: usize,
    /// Most epochs there will be.
    pub epochs: usize,
    /// Loss of this epoch.
    pub loss: f64,
}

/// Training data with its loss.
#[derive(Debug, Clone)]
pub struct Dataset {
    /// Samples, one a row.
    pub x: Tensor,
    /// What the outputs should be.
    pub targets: Targets,
    /// The loss of one sample; batches are averaged.
    pub loss: Loss,
}

impl Dataset {
    fn objective(&self) -> Objective {
        Objective::new(self.loss, Reduction::Mean, self.targets.clone())
    }

    fn select(&self, indices: &[usize]) -> Result<Self> {
        Ok(Self { x: self.x.select_rows(indices)?, targets: self.targets.select(indices)?, loss: self.loss })
    }
}

/// What surrounds a training: it is told of progress, and keeps states to go on from.
pub trait Hooks {
    /// Called after every epoch; `Break` stops the run.
    fn epoch(&mut self, progress: Progress) -> ControlFlow<()>;

    /// Whether a state should be kept now. One is kept before a stop in any case.
    fn wants_state(&mut self) -> bool {
        false
    }

    /// Keeps a state. What is not written keeps none, and a stopped run starts again.
    fn keep(&mut self, _state: &TensorFile) -> Result<()> {
        Ok(())
    }

    /// The state that was kept last, if the run goes on from one.
    fn resumed(&mut self) -> Option<TensorFile> {
        None
    }
}

/// An observer without states.
struct Observer<F>(F);

impl<F: FnMut(Progress) -> ControlFlow<()>> Hooks for Observer<F> {
    fn epoch(&mut self, progress: Progress) -> ControlFlow<()> {
        (self.0)(progress)
    }
}

impl Recipe {
    /// Trains a network from `start`. The observer is called after every epoch
    /// and may stop the run; `seed` orders the mini-batches.
    ///
    /// ```
    /// use afterimage_nn::train::{Dataset, Recipe, StopReason};
    /// use afterimage_nn::{DType, Init, Loss, Network, Targets, Tensor, optim::UpdateRule, zoo::Mlp};
    /// use std::ops::ControlFlow;
    /// let network = Network::new(Mlp::new(1, &[16], 1).spec())?;
    /// let start = network.init(&Init::Kaiming.into(), 1, DType::F64)?;
    /// let data = Dataset {
    ///     x: Tensor::from_vec(vec![-1.0, 0.0, 1.0], &[3, 1])?,
    ///     targets: Targets::Values(Tensor::from_vec(vec![1.0, 0.0, 1.0], &[3, 1])?),
    ///     loss: Loss::Mse,
    /// };
    /// let recipe = Recipe { update: UpdateRule::adam(0.02), stop_loss: Some(1e-6), ..Recipe::default() };
    /// let trained = recipe.train(&network, &start, &data, 1, |_| ControlFlow::Continue(()))?;
    /// assert_eq!(trained.stop, StopReason::LossReached);
    /// # Ok::<(), afterimage_nn::Error>(())
    /// ```
    pub fn train(
        &self,
        network: &Network,
        start: &Params,
        data: &Dataset,
        seed: u64,
        observe: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Trained> {
        self.train_with(network, start, data, seed, &mut Observer(observe))
    }

    /// The same with hooks, which may keep states on the way: a run that goes on from one comes to the same bits as one that
    /// was never stopped.
    pub fn train_with(
        &self,
        network: &Network,
        start: &Params,
        data: &Dataset,
        seed: u64,
        hooks: &mut dyn Hooks,
    ) -> Result<Trained> {
        self.check()?;
        start.check_finite()?;
        let mode = if self.frozen_statistics { Mode::Eval } else { Mode::Train };
        let network = &network.in_mode(mode);
        let mut run = Run::new(self, network, start, data, seed)?;
        let mut keeper = Keeper::new(self);
        // Before the first epoch: known for a full batch.
        let (mut epoch, mut loss) = (0, run.loss_ahead());
        if let Some(file) = hooks.resumed() {
            (epoch, loss) = state::resume(file, &mut run, &mut keeper)?;
        }
        let epochs = self.epochs + self.gauss_newton.map_or(0, |steps| steps.steps);
        let mut stop = StopReason::EpochsUsed;
        while epoch < epochs {
            // Data and start were checked: what is no number now, training made so.
            let after = match run.epoch(epoch) {
                Err(Error::NonFinite { value, .. }) => Ok(Some(value)),
                other => other,
            };
            let Some(after) = after? else {
                stop = StopReason::Stalled;
                break;
            };
            loss = after;
            if !loss.is_finite() {
                let hint = "lower the learning rate, or train in f64".into();
                return Err(Error::Diverged { epochs: epoch, loss, hint });
            }
            epoch += 1;
            keeper.look(epoch, loss, &run.at.theta);
            let asked = hooks.epoch(Progress { epoch, epochs, loss }).is_break();
            if !asked && self.stop_loss.is_some_and(|stop| loss <= stop) {
                stop = StopReason::LossReached;
                break;
            }
            if asked || hooks.wants_state() {
                hooks.keep(&state::file(epoch, loss, &run, &keeper)?)?;
            }
            if asked {
                stop = StopReason::Interrupted;
                break;
            }
        }
        Ok(keeper.finish(run, loss, epoch, stop))
    }
}

/// Takes the checkpoints.
struct Keeper {
    losses: Vec<f64>,
    epochs: Vec<usize>,
    kept: Vec<Checkpoint>,
}

impl Keeper {
    fn new(recipe: &Recipe) -> Self {
        let mut losses = recipe.keep_losses.clone();
        losses.sort_by(f64::total_cmp);
        Self { losses, epochs: recipe.keep_epochs.clone(), kept: Vec::new() }
    }

    fn look(&mut self, epoch: usize, loss: f64, theta: &Params) {
        // Largest last: several thresholds may fall at once.
        let mut keep = self.epochs.contains(&epoch);
        while self.losses.last().is_some_and(|threshold| loss <= *threshold) {
            self.losses.pop();
            keep = true;
        }
        if keep {
            self.kept.push(Checkpoint { epoch, loss, theta: theta.clone() });
        }
    }

    /// Goes on where another one kept this.
    fn keep(&mut self, kept: Checkpoint) {
        self.losses.retain(|threshold| kept.loss > *threshold);
        self.kept.push(kept);
    }

    fn finish(self, run: Run<'_>, loss: f64, epochs: usize, stop: StopReason) -> Trained {
        let (theta, driven) = run.into_parts();
        Trained { theta, loss, epochs, stop, checkpoints: self.kept, driven }
    }
}
