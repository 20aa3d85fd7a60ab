//! Training: full batch or mini-batches, standard or linearised, stopped by loss or epochs.

mod gauss_newton;

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

pub use gauss_newton::GaussNewton;

use crate::loss::Objective;
use crate::network::Want;
use crate::optim::{Optimizer, UpdateRule};
use crate::{Error, Loss, Mode, Network, Params, Pass, Reduction, Result, Seed, Stream, Targets, Tensor};

/// What is being trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dynamics {
    /// The network f(θ; x).
    #[default]
    Standard,
    /// Its first-order expansion f(θ₀; x) + ⟨∇f(θ₀; x), θ − θ₀⟩ about the start.
    Linearised,
}

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

/// How a network is trained.
///
/// | setting | default | purpose |
/// | --- | --- | --- |
/// | `update` | gradient descent, lr 0.01 | the optimiser |
/// | `epochs` | 1000 | passes over the data at most |
/// | `stop_loss` | none | stop once an epoch's loss is at or below it |
/// | `batch` | none | samples a step; none is the full batch |
/// | `schedule` | constant | learning rate over the epochs |
/// | `weight_decay` | 0 | added to the gradient as `weight_decay · θ` |
/// | `dynamics` | standard | or linearised about the start |
/// | `normalised` | false | full-batch gradient descent with steps ∝ 1/loss |
/// | `frozen_statistics` | false | batch normalisation by the running statistics, which stay as they are |
/// | `gauss_newton` | none | steps of second order after the epochs, for squared losses |
/// | `keep_losses`, `keep_epochs` | none | checkpoints when the loss first reaches a value, or after so many epochs (full-batch steps) |
///
/// **Normalised steps.** Gradient descent on a separable classification problem
/// slows down as its loss falls: the step is proportional to it. Dividing the
/// gradient by the loss follows the same curve in a time that grows with
/// ln(1/loss) instead of 1/loss. The rate rises by a tenth after every step
/// that lowers the loss; a step that raises it is taken back and the rate
/// halved (compare Lyu & Li, 2020, appendix L). With momentum the loss need not
/// fall at every step, which carries the weights over plateaus and across kinks:
/// the rate rises by a hundredth a step, up to `lr`; a step to a loss more than 30 %
/// above its level of late is taken back, the velocity dropped and the rate halved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Recipe {
    /// The optimiser.
    pub update: UpdateRule,
    /// Most passes over the data.
    pub epochs: usize,
    /// Loss at which to stop.
    pub stop_loss: Option<f64>,
    /// Samples a step.
    pub batch: Option<usize>,
    /// Learning rate over the epochs.
    pub schedule: Schedule,
    /// Factor of θ in the gradient.
    pub weight_decay: f64,
    /// What is being trained.
    pub dynamics: Dynamics,
    /// Whether steps are divided by the loss.
    pub normalised: bool,
    /// Whether batch normalisation uses the running statistics and leaves them alone:
    /// how a pretrained network is fine-tuned on little data.
    pub frozen_statistics: bool,
    /// Steps of second order after the epochs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gauss_newton: Option<GaussNewton>,
    /// Losses at which to keep the parameters.
    pub keep_losses: Vec<f64>,
    /// Epochs after which to keep the parameters.
    pub keep_epochs: Vec<usize>,
}

impl Default for Recipe {
    fn default() -> Self {
        Self {
            update: UpdateRule::sgd(0.01),
            epochs: 1000,
            stop_loss: None,
            batch: None,
            schedule: Schedule::Constant,
            weight_decay: 0.0,
            dynamics: Dynamics::Standard,
            normalised: false,
            frozen_statistics: false,
            gauss_newton: None,
            keep_losses: Vec::new(),
            keep_epochs: Vec::new(),
        }
    }
}

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

impl Recipe {
    /// Fails, naming the setting, if the settings contradict each other.
    pub fn check(&self) -> Result<()> {
        self.update.check()?;
        let wrong =
            |setting, value: String, expected: &str| Err(Error::Setting { setting, value, expected: expected.into() });
        if self.batch == Some(0) {
            return wrong("batch", "0".into(), "must be at least 1, or absent for the full batch");
        }
        if !(self.weight_decay >= 0.0 && self.weight_decay.is_finite()) {
            return wrong("weight_decay", self.weight_decay.to_string(), "must not be negative");
        }
        if let Some(loss) = self.keep_losses.iter().find(|loss| loss.is_nan()) {
            return wrong("keep_losses", loss.to_string(), "must be numbers");
        }
        if let Schedule::Decay { to } = self.schedule
            && !(to > 0.0 && to.is_finite())
        {
            return wrong("schedule.to", to.to_string(), "must be above 0");
        }
        if self.normalised && self.schedule != Schedule::Constant {
            return wrong("schedule", format!("{:?}", self.schedule), "normalised steps choose their own length");
        }
        let descent = matches!(self.update, UpdateRule::Sgd { .. });
        if self.gauss_newton.is_some() && (self.dynamics == Dynamics::Linearised || self.weight_decay > 0.0) {
            let expected = "is for the network itself, without weight decay";
            return wrong("gauss_newton", "given".into(), expected);
        }
        if self.normalised && (!descent || self.batch.is_some() || self.weight_decay > 0.0) {
            let expected = "needs full-batch gradient descent, without weight decay";
            return wrong("normalised", "true".into(), expected);
        }
        Ok(())
    }

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
        mut observe: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Trained> {
        self.check()?;
        start.check_finite()?;
        let mode = if self.frozen_statistics { Mode::Eval } else { Mode::Train };
        let network = &network.in_mode(mode);
        let mut run = Run::new(self, network, start, data, seed)?;
        let mut keeper = Keeper::new(self);
        let epochs = self.epochs + self.gauss_newton.map_or(0, |steps| steps.steps);
        // Before the first epoch: known for a full batch.
        let mut loss = run.ahead.as_ref().map_or(f64::NAN, |ahead| ahead.loss);
        for epoch in 0..self.epochs {
            // Data and start were checked: what is no number now, training made so.
            let after = match run.epoch(epoch) {
                Err(Error::NonFinite { value, .. }) => Ok(Some(value)),
                other => other,
            };
            let Some(after) = after? else {
                return Ok(keeper.finish(run, loss, epoch, StopReason::Stalled));
            };
            loss = after;
            if !loss.is_finite() {
                let hint = "lower the learning rate, or train in f64".into();
                return Err(Error::Diverged { epochs: epoch, loss, hint });
            }
            keeper.look(epoch + 1, loss, &run.theta);
            if observe(Progress { epoch: epoch + 1, epochs, loss }).is_break() {
                return Ok(keeper.finish(run, loss, epoch + 1, StopReason::Interrupted));
            }
            if self.stop_loss.is_some_and(|stop| loss <= stop) {
                return Ok(keeper.finish(run, loss, epoch + 1, StopReason::LossReached));
            }
        }
        let Some(settings) = self.gauss_newton else {
            return Ok(keeper.finish(run, loss, self.epochs, StopReason::EpochsUsed));
        };
        let mut steps = gauss_newton::Steps::new(settings, network, data, run.theta.clone())?;
        let (mut stop, mut done) = (StopReason::EpochsUsed, self.epochs);
        while done < epochs {
            let Some(after) = steps.step()? else {
                stop = StopReason::Stalled;
                break;
            };
            (loss, done) = (after, done + 1);
            keeper.look(done, loss, steps.theta());
            if observe(Progress { epoch: done, epochs, loss }).is_break() {
                stop = StopReason::Interrupted;
                break;
            }
            if self.stop_loss.is_some_and(|stop| loss <= stop) {
                stop = StopReason::LossReached;
                break;
            }
        }
        run.theta = steps.into_theta();
        Ok(keeper.finish(run, loss, done, stop))
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

    fn finish(self, run: Run<'_>, loss: f64, epochs: usize, stop: StopReason) -> Trained {
        let driven = run.driven.and_then(|(_, driven)| driven.into_iter().next());
        Trained { theta: run.theta, loss, epochs, stop, checkpoints: self.kept, driven }
    }
}

/// A rate of normalised steps this far below the first one means that rounding decides.
const STALLED: f64 = 1e-15;

/// Training under way.
struct Run<'a> {
    recipe: &'a Recipe,
    network: &'a Network,
    start: &'a Params,
    data: &'a Dataset,
    seed: u64,
    optimizer: Optimizer,
    theta: Params,
    /// The full batch at the start of the expansion: linearised full-batch
    /// training computes it once.
    expansion: Option<Pass<'a>>,
    /// The next step of a full batch, already evaluated.
    ahead: Option<Evaluated<'a>>,
    /// Step length of normalised descent.
    rate: f64,
    /// Velocity of normalised descent with momentum, and the loss it is held against.
    velocity: Option<(Params, f64)>,
    /// What the samples add to the weights, moved as the weights are.
    driven: Option<(Optimizer, Vec<Tensor>)>,
}

/// A batch at some parameters: outputs known, gradient still to come.
struct Evaluated<'a> {
    pass: Option<Pass<'a>>,
    outputs: Tensor,
    loss: f64,
}

impl<'a> Run<'a> {
    fn new(recipe: &'a Recipe, network: &'a Network, start: &'a Params, data: &'a Dataset, seed: u64) -> Result<Self> {
        network.check_input(start, &data.x)?;
        if data.targets.len() != data.x.rows() {
            return Err(Error::shape("targets", [data.x.rows()], &[data.targets.len()]));
        }
        let optimizer = Optimizer::new(recipe.update)?;
        let mut run = Self {
            recipe,
            network,
            start,
            data,
            seed,
            optimizer,
            theta: start.clone(),
            expansion: None,
            ahead: None,
            rate: recipe.update.lr(),
            velocity: None,
            driven: None,
        };
        if recipe.batch.is_none() {
            if recipe.dynamics == Dynamics::Linearised {
                run.expansion = Some(network.pass(start, &data.x)?);
            }
            let ahead = run.evaluate_full(&run.theta)?;
            let plain = matches!(recipe.update, UpdateRule::Sgd { .. });
            if plain && !recipe.normalised && recipe.weight_decay == 0.0 {
                run.driven = Some((Optimizer::new(recipe.update)?, vec![ahead.outputs.zeros_like()?]));
            }
            run.ahead = Some(ahead);
        }
        Ok(run)
    }

    /// One pass over the data. The loss after it, or `None` if nothing can be gained.
    fn epoch(&mut self, epoch: usize) -> Result<Option<f64>> {
        let factor = self.recipe.schedule.factor(epoch, self.recipe.epochs);
        match self.recipe.batch {
            Some(batch) => self.mini_batches(batch, epoch, factor).map(Some),
            None if self.recipe.normalised => match self.recipe.update {
                UpdateRule::Sgd { momentum, .. } if momentum > 0.0 => self.rolling_step(momentum),
                _ => self.normalised_step(),
            },
            None => self.full_step(factor).map(Some),
        }
    }

    /// The full batch at `theta`: of the network, or of its expansion.
    fn evaluate_full(&self, theta: &Params) -> Result<Evaluated<'a>> {
        let (pass, outputs) = match &self.expansion {
            Some(expansion) => (None, expanded(expansion, &theta.sub(self.start)?)?),
            None => {
                let pass = self.network.pass(theta, &self.data.x)?;
                let outputs = pass.outputs().clone();
                (Some(pass), outputs)
            }
        };
        let loss = self.data.objective().value(&outputs)?;
        Ok(Evaluated { pass, outputs, loss })
    }

    /// Moves the running statistics towards those of a batch that is being learned.
    fn track(&mut self, pass: &Pass<'_>) -> Result<()> {
        if !self.recipe.frozen_statistics && !self.theta.buffers().is_empty() {
            self.theta = self.network.tracked(&self.theta, &pass.statistics()?)?;
        }
        Ok(())
    }

    /// Σ c ∇f, of the network at θ or of the expansion at θ₀.
    fn gradient(&mut self, mut pass: Option<Pass<'a>>, c: Tensor) -> Result<Params> {
        if let Some(pass) = &pass {
            self.track(pass)?;
        }
        let gradients = match pass.as_mut().or(self.expansion.as_mut()) {
            Some(pass) => pass.backward(Seed::Fixed(c), Want::Weights)?.weights,
            None => None,
        };
        gradients.map_or_else(|| self.theta.zeros_like(), Ok)
    }

    /// The step ahead, evaluated now if it was not yet.
    fn take_ahead(&mut self) -> Result<Evaluated<'a>> {
        match self.ahead.take() {
            Some(ahead) => Ok(ahead),
            None => self.evaluate_full(&self.theta),
        }
    }

    fn full_step(&mut self, factor: f64) -> Result<f64> {
        let Evaluated { pass, outputs, .. } = self.take_ahead()?;
        let c = self.data.objective().gradient(&outputs)?;
        if let Some((optimizer, driven)) = &mut self.driven {
            optimizer.step(driven, std::slice::from_ref(&c), factor)?;
        }
        let gradient = self.gradient(pass, c)?;
        self.update(&gradient, factor)?;
        let ahead = self.evaluate_full(&self.theta)?;
        let loss = ahead.loss;
        self.ahead = Some(ahead);
        Ok(loss)
    }

    fn normalised_step(&mut self) -> Result<Option<f64>> {
        let Evaluated { pass, outputs, loss } = self.take_ahead()?;
        let (_, c) = self.data.objective().value_and_relative_gradient(&outputs)?;
        let direction = self.gradient(pass, c)?;
        while self.rate > STALLED * self.recipe.update.lr() {
            let theta = self.theta.combine(1.0, &direction, -self.rate)?;
            match self.evaluate_full(&theta) {
                Ok(ahead) if ahead.loss < loss => {
                    self.rate *= 1.1;
                    self.theta = theta;
                    let loss = ahead.loss;
                    self.ahead = Some(ahead);
                    return Ok(Some(loss));
                }
                // Too long a step: it raised the loss, or left the numbers altogether.
                Ok(_) | Err(Error::NonFinite { .. }) => self.rate *= 0.5,
                Err(other) => return Err(other),
            }
        }
        Ok(None)
    }

    /// A normalised step with momentum; `None` if even the shortest raises the loss.
    fn rolling_step(&mut self, momentum: f64) -> Result<Option<f64>> {
        /// What the rate is multiplied with after a step, and where the loss rose too far.
        const FASTER: f64 = 1.01;
        const SLOWER: f64 = 0.5;
        /// Too far above the level of late.
        const BUMP: f64 = 1.3;
        let Evaluated { pass, outputs, loss } = self.take_ahead()?;
        let (_, c) = self.data.objective().value_and_relative_gradient(&outputs)?;
        let gradient = self.gradient(pass, c)?;
        let (mut velocity, level) = match self.velocity.take() {
            Some((velocity, level)) => (velocity.combine(momentum, &gradient, self.rate)?, level),
            None => (gradient.scale(self.rate)?, loss),
        };
        while self.rate > STALLED * self.recipe.update.lr() {
            let theta = self.theta.sub(&velocity)?;
            match self.evaluate_full(&theta) {
                Ok(ahead) if ahead.loss <= BUMP * level => {
                    // On a plateau every step is good: `lr` is the fastest there is.
                    self.rate = (FASTER * self.rate).min(self.recipe.update.lr());
                    self.theta = theta;
                    let loss = ahead.loss;
                    self.velocity = Some((velocity, loss.min(0.9 * level + 0.1 * loss)));
                    self.ahead = Some(ahead);
                    return Ok(Some(loss));
                }
                // The momentum goes, and the step is shorter.
                Ok(_) | Err(Error::NonFinite { .. }) => {
                    self.rate *= SLOWER;
                    velocity = gradient.scale(self.rate)?;
                }
                Err(other) => return Err(other),
            }
        }
        Ok(None)
    }

    fn mini_batches(&mut self, batch: usize, epoch: usize, factor: f64) -> Result<f64> {
        let samples = self.data.x.rows();
        let order = Stream::new(self.seed, "train/order", epoch as u64).permutation(samples);
        let mut total = 0.0;
        for indices in order.chunks(batch) {
            let part = self.data.select(indices)?;
            let objective = part.objective();
            let (mut pass, outputs) = match self.recipe.dynamics {
                Dynamics::Standard => {
                    let pass = self.network.pass(&self.theta, &part.x)?;
                    let outputs = pass.outputs().clone();
                    (pass, outputs)
                }
                Dynamics::Linearised => {
                    let pass = self.network.pass(self.start, &part.x)?;
                    let outputs = expanded(&pass, &self.theta.sub(self.start)?)?;
                    (pass, outputs)
                }
            };
            total += objective.value(&outputs)? * indices.len() as f64;
            // The expansion is about the start, and keeps what was known there.
            if self.recipe.dynamics == Dynamics::Standard {
                self.track(&pass)?;
            }
            let gradients = pass.backward(Seed::Fixed(objective.gradient(&outputs)?), Want::Weights)?;
            if let Some(gradient) = gradients.weights {
                self.update(&gradient, factor)?;
            }
        }
        Ok(total / samples as f64)
    }

    fn update(&mut self, gradient: &Params, factor: f64) -> Result<()> {
        let decay = self.recipe.weight_decay;
        let decayed = if decay > 0.0 { Some(gradient.combine(1.0, &self.theta, decay)?) } else { None };
        let gradient = decayed.as_ref().unwrap_or(gradient);
        self.theta = self.optimizer.updated(&self.theta, gradient, factor)?;
        Ok(())
    }
}

/// f(θ₀; x) + ⟨∇f(θ₀; x), v⟩
fn expanded(pass: &Pass<'_>, v: &Params) -> Result<Tensor> {
    crate::ops::add(pass.outputs(), &pass.outputs_along(v)?)
}
