//! One pass over the data, in each of the ways there are.

use super::gauss_newton::Steps;
use super::{Dataset, Dynamics, Recipe};
use crate::network::Want;
use crate::ops::Total;
use crate::optim::{Optimizer, UpdateRule};
use crate::{Error, Network, Params, Pass, Result, Seed, Stream, Tensor};

/// A rate of normalised steps this far below the first one means that rounding decides.
const STALLED: f64 = 1e-15;

/// Training under way.
pub(super) struct Run<'a> {
    recipe: &'a Recipe,
    network: &'a Network,
    start: &'a Params,
    data: &'a Dataset,
    seed: u64,
    /// What the next epoch depends on, beside what was given.
    pub(super) at: At,
    /// The full batch at the start of the expansion: linearised full-batch
    /// training computes it once.
    expansion: Option<Pass<'a>>,
    /// The next step of a full batch, already evaluated.
    ahead: Option<Evaluated<'a>>,
    /// Steps of second order, once the others are done.
    steps: Option<Steps<'a>>,
    /// Batches that a device repeats.
    #[cfg(feature = "cuda")]
    repeated: super::repeated::Repeated,
}

/// Where a training is.
pub(super) struct At {
    pub(super) theta: Params,
    pub(super) optimizer: Optimizer,
    /// Step length of normalised descent.
    pub(super) rate: f64,
    /// Velocity of normalised descent with momentum, and the loss it is held against.
    pub(super) velocity: Option<(Params, f64)>,
    /// What the samples add to the weights, moved as the weights are.
    pub(super) driven: Option<(Optimizer, Vec<Tensor>)>,
    /// Damping of steps of second order.
    pub(super) damping: Option<f64>,
}

/// A batch at some parameters: outputs known, gradient still to come.
struct Evaluated<'a> {
    pass: Option<Pass<'a>>,
    outputs: Tensor,
    loss: f64,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        recipe: &'a Recipe,
        network: &'a Network,
        start: &'a Params,
        data: &'a Dataset,
        seed: u64,
    ) -> Result<Self> {
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
            at: At {
                theta: start.clone(),
                optimizer,
                rate: recipe.update.lr(),
                velocity: None,
                driven: None,
                damping: None,
            },
            expansion: None,
            ahead: None,
            steps: None,
            #[cfg(feature = "cuda")]
            repeated: super::repeated::Repeated::default(),
        };
        if recipe.batch.is_none() {
            if recipe.dynamics == Dynamics::Linearised {
                run.expansion = Some(network.pass(start, &data.x)?);
            }
            let ahead = run.evaluate_full(start)?;
            let plain = matches!(recipe.update, UpdateRule::Sgd { .. });
            if plain && !recipe.normalised && recipe.weight_decay == 0.0 {
                run.at.driven = Some((Optimizer::new(recipe.update)?, vec![ahead.outputs.zeros_like()?]));
            }
            run.ahead = Some(ahead);
        }
        Ok(run)
    }

    /// The loss where it is, if that is known: of a full batch.
    pub(super) fn loss_ahead(&self) -> f64 {
        self.ahead.as_ref().map_or(f64::NAN, |ahead| ahead.loss)
    }

    /// Goes on from somewhere else.
    pub(super) fn go_on(&mut self, at: At) {
        (self.at, self.ahead, self.steps) = (at, None, None);
    }

    pub(super) fn network(&self) -> &'a Network {
        self.network
    }

    pub(super) fn rule(&self) -> UpdateRule {
        self.recipe.update
    }

    /// The final parameters, and what each sample added to them.
    pub(super) fn into_parts(self) -> (Params, Option<Tensor>) {
        let driven = self.at.driven.and_then(|(_, driven)| driven.into_iter().next());
        (self.at.theta, driven)
    }

    /// One pass over the data, or after the last of them one step of second order. The loss after it, or `None` if nothing
    /// can be gained.
    pub(super) fn epoch(&mut self, epoch: usize) -> Result<Option<f64>> {
        if let Some(settings) = self.recipe.gauss_newton.filter(|_| epoch >= self.recipe.epochs) {
            let steps = match self.steps.take() {
                Some(steps) => steps,
                None => Steps::new(settings, self.network, self.data, &self.at.theta)?,
            };
            return self.steps.insert(steps).step(&mut self.at.theta, &mut self.at.damping);
        }
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
        if !self.recipe.frozen_statistics && !self.at.theta.buffers().is_empty() {
            self.at.theta = self.network.tracked(&self.at.theta, &pass.statistics()?)?;
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
        gradients.map_or_else(|| self.at.theta.zeros_like(), Ok)
    }

    /// The step ahead, evaluated now if it was not yet.
    fn take_ahead(&mut self) -> Result<Evaluated<'a>> {
        match self.ahead.take() {
            Some(ahead) => Ok(ahead),
            None => self.evaluate_full(&self.at.theta),
        }
    }

    fn full_step(&mut self, factor: f64) -> Result<f64> {
        let Evaluated { pass, outputs, .. } = self.take_ahead()?;
        let c = self.data.objective().gradient(&outputs)?;
        if let Some((optimizer, driven)) = &mut self.at.driven {
            optimizer.step(driven, std::slice::from_ref(&c), factor)?;
        }
        let gradient = self.gradient(pass, c)?;
        self.update(&gradient, factor)?;
        let ahead = self.evaluate_full(&self.at.theta)?;
        let loss = ahead.loss;
        self.ahead = Some(ahead);
        Ok(loss)
    }

    fn normalised_step(&mut self) -> Result<Option<f64>> {
        let Evaluated { pass, outputs, loss } = self.take_ahead()?;
        let (_, c) = self.data.objective().value_and_relative_gradient(&outputs)?;
        let direction = self.gradient(pass, c)?;
        while self.at.rate > STALLED * self.recipe.update.lr() {
            let theta = self.at.theta.combine(1.0, &direction, -self.at.rate)?;
            match self.evaluate_full(&theta) {
                Ok(ahead) if ahead.loss < loss => {
                    self.at.rate *= 1.1;
                    self.at.theta = theta;
                    let loss = ahead.loss;
                    self.ahead = Some(ahead);
                    return Ok(Some(loss));
                }
                // Too long a step: it raised the loss, or left the numbers altogether.
                Ok(_) | Err(Error::NonFinite { .. }) => self.at.rate *= 0.5,
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
        let (mut velocity, level) = match self.at.velocity.take() {
            Some((velocity, level)) => (velocity.combine(momentum, &gradient, self.at.rate)?, level),
            None => (gradient.scale(self.at.rate)?, loss),
        };
        while self.at.rate > STALLED * self.recipe.update.lr() {
            let theta = self.at.theta.sub(&velocity)?;
            match self.evaluate_full(&theta) {
                Ok(ahead) if ahead.loss <= BUMP * level => {
                    // On a plateau every step is good: `lr` is the fastest there is.
                    self.at.rate = (FASTER * self.at.rate).min(self.recipe.update.lr());
                    self.at.theta = theta;
                    let loss = ahead.loss;
                    self.at.velocity = Some((velocity, loss.min(0.9 * level + 0.1 * loss)));
                    self.ahead = Some(ahead);
                    return Ok(Some(loss));
                }
                // The momentum goes, and the step is shorter.
                Ok(_) | Err(Error::NonFinite { .. }) => {
                    self.at.rate *= SLOWER;
                    velocity = gradient.scale(self.at.rate)?;
                }
                Err(other) => return Err(other),
            }
        }
        Ok(None)
    }

    fn mini_batches(&mut self, batch: usize, epoch: usize, rate: f64) -> Result<f64> {
        let samples = self.data.x.rows();
        let order = Stream::new(self.seed, "train/order", epoch as u64).permutation(samples);
        let (mut total, mut unread) = (0.0, Vec::new());
        for indices in order.chunks(batch) {
            let part = self.data.select(indices)?;
            if let Some((loss, factor, gradient)) = self.repeated(&part)? {
                unread.push((loss, factor * indices.len() as f64));
                self.update(&gradient, rate)?;
                continue;
            }
            let objective = part.objective();
            let (mut pass, outputs) = match self.recipe.dynamics {
                Dynamics::Standard => {
                    let pass = self.network.pass(&self.at.theta, &part.x)?;
                    let outputs = pass.outputs().clone();
                    (pass, outputs)
                }
                Dynamics::Linearised => {
                    let pass = self.network.pass(self.start, &part.x)?;
                    let outputs = expanded(&pass, &self.at.theta.sub(self.start)?)?;
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
                self.update(&gradient, rate)?;
            }
        }
        let (unread, weights): (Vec<_>, Vec<f64>) = unread.into_iter().unzip();
        total += Total::read_all(unread)?.iter().zip(weights).map(|(sum, weight)| sum * weight).sum::<f64>();
        Ok(total / samples as f64)
    }

    /// Loss and gradient of a batch as a device repeats them, where it can.
    #[cfg(feature = "cuda")]
    fn repeated(&mut self, batch: &Dataset) -> Result<Option<(Total, f64, Params)>> {
        let tracks = !self.recipe.frozen_statistics && !self.at.theta.buffers().is_empty();
        if self.recipe.dynamics == Dynamics::Linearised || tracks {
            return Ok(None);
        }
        self.repeated.batch(self.network, &self.at.theta, batch)
    }

    /// In main memory nothing is gained by it.
    #[cfg(not(feature = "cuda"))]
    fn repeated(&mut self, _: &Dataset) -> Result<Option<(Total, f64, Params)>> {
        Ok(None)
    }

    fn update(&mut self, gradient: &Params, factor: f64) -> Result<()> {
        let decay = self.recipe.weight_decay;
        let decayed = if decay > 0.0 { Some(gradient.combine(1.0, &self.at.theta, decay)?) } else { None };
        let gradient = decayed.as_ref().unwrap_or(gradient);
        self.at.theta = self.at.optimizer.updated(&self.at.theta, gradient, factor)?;
        Ok(())
    }
}

/// f(θ₀; x) + ⟨∇f(θ₀; x), v⟩
fn expanded(pass: &Pass<'_>, v: &Params) -> Result<Tensor> {
    crate::ops::add(pass.outputs(), &pass.outputs_along(v)?)
}
