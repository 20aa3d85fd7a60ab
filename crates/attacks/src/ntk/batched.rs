//! Algorithm 2: the published loss a few candidates at a time.
//!
//! The sum of all gradients, G, is kept; a step moves the candidates of one batch and puts
//! their new gradients in the place of the old. Memory is that of the parameters and one batch.
//!
//! With one batch of all candidates this is algorithm 1. With smaller ones, the loss and the
//! batch's gradient are algorithm 1's at the same point; only the order of the steps differs,
//! and every batch has an optimiser of its own. Batches are fixed parts of the candidates and
//! take turns in a random order; small ones want a lower learning rate, because a batch's momentum
//! is from before the others moved. The softening of ReLU stays what it is for a round of all
//! batches, after which G is summed anew: a G of several sharpnesses would be the sum of none.

use std::collections::BTreeMap;
use std::ops::Range;

use afterimage_nn::{Network, Params, Pass, Seed, Stream, Tensor, Want};

use super::matching::{Matching, added, coefficients};
use super::search::Weighted;
use super::steps::Step;
use crate::{AttackError, Evaluation, Problem};

/// The published loss over batches of candidates: variables 2b and 2b + 1 are the x and α of batch b.
pub(super) struct Batched<'a> {
    pub(super) loss: Matching<'a>,
    /// What candidates should look like, with its weight.
    pub(super) priors: Vec<Weighted<'a>>,
    /// Of the order in which batches take turns.
    pub(super) seed: u64,
    /// G of every step, and of which round it is.
    pub(super) totals: Option<(usize, Vec<Params>)>,
    /// The old gradients of the batch that moves.
    pub(super) old: Vec<Params>,
}

/// The parts of so many candidates with at most so many in each.
pub(super) fn parts(candidates: usize, batch: usize) -> Vec<Range<usize>> {
    (0..candidates).step_by(batch.max(1)).map(|from| from..(from + batch.max(1)).min(candidates)).collect()
}

impl Batched<'_> {
    fn round(&self, iteration: usize, batches: usize) -> usize {
        iteration / batches.max(1)
    }

    /// The batch that moves in an iteration.
    fn turn(&self, iteration: usize, batches: usize) -> usize {
        let mut order: Vec<usize> = (0..batches).collect();
        let mut draws = Stream::new(self.seed, "order", self.round(iteration, batches) as u64);
        for place in (1..batches).rev() {
            order.swap(place, draws.below(place + 1));
        }
        order[iteration % batches.max(1)]
    }

    /// The passes of a batch at every place of a step, seeded, and the sum of their gradients.
    fn gradients<'n>(
        &self,
        network: &'n Network,
        step: usize,
        x: &Tensor,
        alpha: &Tensor,
    ) -> Result<(Vec<Pass<'n>>, Params), AttackError> {
        let before: usize = self.loss.steps[..step].iter().map(|step| step.at.len()).sum();
        let (mut passes, mut sum): (Vec<Pass<'n>>, Option<Params>) = (Vec::new(), None);
        for (place, theta) in self.loss.steps[step].at.iter().enumerate() {
            let mut pass = network.pass(theta, x)?;
            let from = (before + place) * x.rows();
            let c = coefficients(&pass, &alpha.slice_rows(from..from + x.rows())?, self.loss.share)?;
            if let Some(gradient) = pass.backward(Seed::Fixed(c), Want::Weights)?.weights {
                sum = Some(match sum {
                    None => gradient,
                    Some(sum) => sum.combine(1.0, &gradient, 1.0)?,
                });
            }
            passes.push(pass);
        }
        let sum = sum.map_or_else(|| self.loss.steps[step].change.zeros_like(), Ok)?;
        Ok((passes, sum))
    }

    /// G of every step at these values.
    fn sums(&self, network: &Network, at: &[Tensor]) -> Result<Vec<Params>, AttackError> {
        (0..self.loss.steps.len())
            .map(|step| {
                let mut total = self.loss.steps[step].change.zeros_like()?;
                for pair in at.chunks_exact(2) {
                    total = total.combine(1.0, &self.gradients(network, step, &pair[0], &pair[1])?.1, 1.0)?;
                }
                Ok(total)
            })
            .collect()
    }
}

impl Problem for Batched<'_> {
    fn evaluate(&mut self, iteration: usize, at: &[Tensor]) -> Result<Evaluation, AttackError> {
        let batches = at.len() / 2;
        let round = self.round(iteration, batches);
        let network = self.loss.softening.network(self.loss.network, round * batches)?;
        if self.totals.as_ref().is_none_or(|(of, _)| *of != round) {
            self.totals = Some((round, self.sums(&network, at)?));
        }
        let batch = self.turn(iteration, batches);
        let (x, alpha) = (&at[2 * batch], &at[2 * batch + 1]);
        let (mut loss, mut of_x, mut of_alpha, mut old) = (0.0, None, Vec::new(), Vec::new());
        for (place, step) in self.loss.steps.iter().enumerate() {
            let (passes, own) = self.gradients(&network, place, x, alpha)?;
            let total = self.totals.as_ref().map(|(_, totals)| &totals[place]).unwrap_or(&own);
            let weight = self.loss.weight(step);
            let left = total.sub(&step.change)?;
            loss += weight * left.norm_squared()?;
            let direction = left.scale(2.0 * weight)?;
            for pass in &passes {
                let along = pass.along(&direction)?;
                of_alpha.push(along.outputs.reshape(&[x.rows(), alpha.row_len()])?.scale(self.loss.share)?);
                of_x = Some(added(of_x, along.inputs)?);
            }
            old.push(own);
        }
        self.old = old;
        for (weight, prior) in &mut self.priors {
            for (other, pair) in at.chunks_exact(2).enumerate() {
                let found = prior.evaluate(iteration, &pair[..1])?;
                loss += *weight * found.value;
                let own = found.gradients.into_iter().next().flatten().filter(|_| other == batch);
                if let Some(gradient) = own {
                    of_x = Some(added(of_x, gradient.scale(*weight)?)?);
                }
            }
        }
        let mut gradients = vec![None; at.len()];
        gradients[2 * batch] = of_x;
        gradients[2 * batch + 1] = Some(Tensor::concat_rows(&of_alpha.iter().collect::<Vec<_>>())?);
        Ok(Evaluation { loss, gradients })
    }

    fn after_step(&mut self, iteration: usize, values: &mut [Tensor]) -> Result<(), AttackError> {
        let batches = values.len() / 2;
        let (round, batch) = (self.round(iteration, batches), self.turn(iteration, batches));
        let network = self.loss.softening.network(self.loss.network, round * batches)?;
        let (x, alpha) = (&values[2 * batch], &values[2 * batch + 1]);
        let new: Vec<Params> = (0..self.loss.steps.len())
            .map(|step| Ok(self.gradients(&network, step, x, alpha)?.1))
            .collect::<Result<_, AttackError>>()?;
        if let Some((_, totals)) = &mut self.totals {
            for ((total, old), new) in totals.iter_mut().zip(&self.old).zip(&new) {
                *total = total.sub(old)?.combine(1.0, new, 1.0)?;
            }
        }
        Ok(())
    }

    /// G: summed anew in the middle of a round it would differ in its last digits.
    fn memory(&self) -> Result<Vec<(String, Tensor)>, AttackError> {
        let Some((round, totals)) = &self.totals else { return Ok(Vec::new()) };
        let named = |(place, total): (usize, &Params)| {
            let own: Vec<(String, Tensor)> =
                total.state().map(|(name, value)| (format!("{round}:{place}:{name}"), value.clone())).collect();
            own
        };
        Ok(totals.iter().enumerate().flat_map(named).collect())
    }

    fn remember(&mut self, memory: BTreeMap<String, Tensor>) -> Result<(), AttackError> {
        let (mut of, mut totals) = (None, vec![BTreeMap::new(); self.loss.steps.len()]);
        for (name, value) in memory {
            let mut parts = name.splitn(3, ':');
            let mut number = || parts.next().and_then(|part| part.parse::<usize>().ok());
            let (round, place) = (number(), number());
            let (Some(round), Some(total)) = (round, place.and_then(|place| totals.get_mut(place))) else { continue };
            of = Some(round);
            total.insert(parts.next().unwrap_or_default().to_owned(), value);
        }
        let Some(round) = of else { return Ok(()) };
        let params = |(total, step): (BTreeMap<String, Tensor>, &Step)| {
            let (dtype, device) = (step.change.dtype(), step.change.device());
            Ok(self.loss.network.params(total, dtype, device)?)
        };
        let totals = totals.into_iter().zip(self.loss.steps).map(params).collect::<Result<_, AttackError>>()?;
        self.totals = Some((round, totals));
        Ok(())
    }
}
