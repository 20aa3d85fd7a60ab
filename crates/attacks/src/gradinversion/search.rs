//! What is minimised over candidates: the objective of every start, and what holds starts together.

use std::collections::BTreeMap;

use afterimage_nn::train::Schedule;
use afterimage_nn::{Along, Network, Objective, Params, Seed, Stream, Targets, Tensor, Want};
use rayon::prelude::*;

use super::fidelity::Fidelity;
use super::group::Group;
use super::kept::Kept;
use super::matching::{Compared, Target};
use super::unrolled::{Unrolled, trained, unrolled};
use crate::{AttackError, Contribution, Evaluation, LocalTraining, PixelRange, Problem, Term, TotalVariation};

/// The weights of the terms; 0 leaves one out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weights {
    pub(super) matching: f64,
    pub(super) class: f64,
    pub(super) statistics: f64,
    pub(super) variation: f64,
    pub(super) length: f64,
}

/// The objective of one start.
pub(super) struct Objectives<'a> {
    pub(super) network: Network,
    pub(super) theta: &'a Params,
    pub(super) target: Target,
    /// The client's loss, with labels that are known or taken for known.
    pub(super) objective: Objective,
    pub(super) local: Option<LocalTraining>,
    pub(super) fidelity: Option<Fidelity>,
    pub(super) variation: Option<TotalVariation>,
    pub(super) weights: Weights,
}

/// A loss with its gradients in the candidates and in the logits of their labels.
pub(super) struct Found {
    pub(super) loss: f64,
    x: Tensor,
    y: Option<Tensor>,
}

impl Objectives<'_> {
    /// At candidates x with labels softmax(y), or with the known ones.
    pub(super) fn evaluate(&self, x: &Tensor, y: Option<&Tensor>) -> Result<Found, AttackError> {
        let objective = match y {
            Some(y) => Objective { targets: Targets::Values(softmax(y)?), ..self.objective.clone() },
            None => self.objective.clone(),
        };
        let Weights { matching, class, statistics, variation, length } = self.weights;
        let mut found = Found { loss: 0.0, x: x.zeros_like()?, y: None };
        let fidelity = self.fidelity.as_ref().filter(|_| statistics != 0.0);
        let unrolls = self.local.filter(|_| matching != 0.0);
        if let Some(local) = unrolls {
            let Unrolled { value, inputs, outputs } =
                unrolled(&self.network, self.theta, x, &objective, local, &self.target)?;
            found.add(matching, value, &inputs)?;
            let each = matching * objective.weight(local.rows(0, x.rows()).len());
            found.y = y.map(|y| pull_labels(y, &outputs, each)).transpose()?;
        }
        if (matching != 0.0 && unrolls.is_none()) || class != 0.0 || fidelity.is_some() {
            let mut pass = self.network.pass(self.theta, x)?;
            if matching != 0.0 && unrolls.is_none() {
                let Compared { value, direction } = self.target.compare(&mut pass, Seed::Loss(objective.clone()))?;
                let Along { outputs, inputs } = pass.along(&direction)?;
                found.add(matching, value, &inputs)?;
                let each = matching * objective.weight(x.rows());
                found.y = y.map(|y| pull_labels(y, &outputs, each)).transpose()?;
            }
            // Both go back through the network together.
            let mut c = None;
            if class != 0.0 {
                found.loss += class * objective.value(pass.outputs())?;
                c = Some(objective.gradient(pass.outputs())?.scale(class)?);
            }
            let mut slopes = Vec::new();
            if let Some(fidelity) = fidelity {
                let (value, own) = fidelity.evaluate(&pass)?;
                found.loss += statistics * value;
                for mut slope in own {
                    slope.mean = slope.mean.scale(statistics)?;
                    slope.variance = slope.variance.scale(statistics)?;
                    slopes.push(slope);
                }
            }
            if c.is_some() || !slopes.is_empty() {
                found.x = found.x.combine(1.0, &pass.pull_statistics(c.as_ref(), &slopes)?, 1.0)?;
            }
        }
        if let Some(mut prior) = self.variation.clone().filter(|_| variation != 0.0) {
            let Contribution { value, gradients } = prior.evaluate(0, std::slice::from_ref(x))?;
            if let Some(Some(gradient)) = gradients.first() {
                found.add(variation, value, gradient)?;
            }
        }
        if length != 0.0 {
            let (value, gradient) = mean_length(x)?;
            found.add(length, value, &gradient)?;
        }
        Ok(found)
    }

    /// G(x) with these labels, as the client would share it.
    pub(super) fn gradient(&self, x: &Tensor, objective: &Objective) -> Result<Params, AttackError> {
        if let Some(local) = self.local {
            return Ok(trained(&self.network, self.theta, x, objective, local)?.1);
        }
        let mut pass = self.network.pass(self.theta, x)?;
        let gradient = pass.backward(Seed::Loss(objective.clone()), Want::Weights)?.weights;
        Ok(gradient.map_or_else(|| self.theta.zeros_like(), Ok)?)
    }

    /// ‖G(x) − T‖ / ‖T‖ with these labels.
    pub(super) fn misfit(&self, x: &Tensor, objective: &Objective) -> Result<Option<f64>, AttackError> {
        self.target.misfit(&self.gradient(x, objective)?)
    }
}

impl Found {
    fn add(&mut self, weight: f64, value: f64, gradient: &Tensor) -> Result<(), AttackError> {
        self.loss += weight * value;
        self.x = self.x.combine(1.0, &gradient.reshape(self.x.shape())?, weight)?;
        Ok(())
    }
}

/// The softmax of each row.
fn softmax(logits: &Tensor) -> Result<Tensor, AttackError> {
    let mut values = logits.to_f64_vec()?;
    for row in values.chunks_exact_mut(logits.row_len().max(1)) {
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        row.iter_mut().for_each(|z| *z = (*z - largest).exp());
        let sum: f64 = row.iter().sum();
        row.iter_mut().for_each(|p| *p /= sum);
    }
    Ok(Tensor::from_f64(&values, logits.shape(), logits.dtype())?.to_device(logits.device())?)
}

/// ∂D/∂y for labels p = softmax(y): cross-entropy has ∂L/∂f = w (softmax(f) − p), so ∂D/∂p = −w u, up to
/// what all classes share, with u = ⟨∂D/∂G, ∇_θ f⟩; and ∂p_j/∂y_k = p_j (δ_jk − p_k).
/// `each` is w times the weight of the term.
fn pull_labels(y: &Tensor, outputs: &Tensor, each: f64) -> Result<Tensor, AttackError> {
    let width = y.row_len().max(1);
    let (p, u) = (softmax(y)?.to_f64_vec()?, outputs.to_f64_vec()?);
    let mut gradient = vec![0.0; p.len()];
    for ((p, u), gradient) in p.chunks_exact(width).zip(u.chunks_exact(width)).zip(gradient.chunks_exact_mut(width)) {
        let mean: f64 = p.iter().zip(u).map(|(p, u)| p * u).sum();
        for ((p, u), gradient) in p.iter().zip(u).zip(gradient) {
            *gradient = -each * p * (u - mean);
        }
    }
    Ok(Tensor::from_f64(&gradient, y.shape(), y.dtype())?.to_device(y.device())?)
}

/// The mean of the rows' lengths, with its gradient: 0 where a row is.
pub(super) fn mean_length(rows: &Tensor) -> Result<(f64, Tensor), AttackError> {
    let (mut values, length) = (rows.to_f64_vec()?, rows.row_len().max(1));
    let (mut mean, each) = (0.0, 1.0 / rows.rows().max(1) as f64);
    for row in values.chunks_exact_mut(length) {
        let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt();
        mean += each * norm;
        row.iter_mut().for_each(|x| *x = if norm > 0.0 { *x * each / norm } else { 0.0 });
    }
    Ok((mean, Tensor::from_f64(&values, rows.shape(), rows.dtype())?.to_device(rows.device())?))
}

/// All starts at once: x_1 … x_G, then y_1 … y_G where labels are searched for, too.
pub(super) struct Search<'a> {
    pub(super) objectives: &'a Objectives<'a>,
    pub(super) starts: usize,
    pub(super) group: Option<Group>,
    pub(super) kept: Kept,
    /// Only the signs of gradients in x are used.
    pub(super) signed: bool,
    /// Candidates never leave this range.
    pub(super) range: Option<PixelRange>,
    /// Standard deviation of the noise after a step, in units of its learning rate.
    pub(super) noise: f64,
    pub(super) lr: f64,
    pub(super) schedule: Schedule,
    pub(super) iterations: usize,
    pub(super) seed: u64,
}

impl Problem for Search<'_> {
    fn evaluate(&mut self, iteration: usize, at: &[Tensor]) -> Result<Evaluation, AttackError> {
        let (xs, ys) = at.split_at(self.starts);
        if let Some(group) = &mut self.group {
            group.renew(iteration, xs)?;
        }
        let group = self.group.as_ref();
        let found: Vec<Found> = (xs.par_iter().enumerate())
            .map(|(start, x)| {
                let mut found = self.objectives.evaluate(x, ys.get(start))?;
                if let Some((weight, off)) = group.map(|group| group.off(start, x)).transpose()?.flatten() {
                    let (value, gradient) = mean_length(&off)?;
                    found.add(weight, value, &gradient)?;
                }
                if self.signed {
                    found.x = found.x.signs()?;
                }
                Ok(found)
            })
            .collect::<Result<_, AttackError>>()?;
        // Losses from before starts are held together do not compare with those after.
        if group.is_none_or(Group::holds) {
            for (start, found) in found.iter().enumerate() {
                self.kept.offer(start, found.loss, &xs[start], ys.get(start));
            }
        }
        let loss = found.iter().map(|found| found.loss).sum::<f64>() / self.starts as f64;
        let (xs, ys): (Vec<_>, Vec<_>) = found.into_iter().map(|found| (Some(found.x), found.y)).unzip();
        Ok(Evaluation { loss, gradients: xs.into_iter().chain(ys).take(at.len()).collect() })
    }

    fn after_step(&mut self, iteration: usize, values: &mut [Tensor]) -> Result<(), AttackError> {
        let scale = self.noise * self.lr * self.schedule.factor(iteration, self.iterations);
        for (start, x) in values.iter_mut().take(self.starts).enumerate() {
            if scale > 0.0 {
                let place = (iteration * self.starts + start) as u64;
                let noise =
                    Stream::new(self.seed, "attack/langevin", place).normal_tensor(scale, x.shape(), x.dtype())?;
                *x = x.combine(1.0, &noise.to_device(x.device())?, 1.0)?;
            }
            if let Some(range) = &self.range {
                *x = range.clamped(x)?;
            }
        }
        Ok(())
    }

    fn memory(&self) -> Result<Vec<(String, Tensor)>, AttackError> {
        let mut memory = self.kept.memory()?;
        if let Some(group) = &self.group {
            memory.extend(group.memory()?);
        }
        Ok(memory)
    }

    fn remember(&mut self, mut memory: BTreeMap<String, Tensor>) -> Result<(), AttackError> {
        let device = self.objectives.theta.device();
        self.kept.remember(&mut memory, device)?;
        if let Some(group) = &mut self.group {
            group.remember(&mut memory, device)?;
        }
        Ok(())
    }
}
