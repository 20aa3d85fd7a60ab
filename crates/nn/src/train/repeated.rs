//! The loss of a batch and its gradient, which a device repeats as they were recorded.
//!
//! A small network asks a device for a hundred things a batch, and asking takes longer than doing them. Recorded once, they
//! are asked for together ([`Replay`]). Squared losses of networks without running statistics can be, in batches of one size.

use super::Dataset;
use crate::cuda::{Replay, duplicate_of};
use crate::network::Want;
use crate::ops::Total;
use crate::{Network, Objective, Params, Reduction, Result, Seed, Targets, Tensor};

/// What the device has been told to repeat.
#[derive(Default)]
pub(super) enum Repeated {
    #[default]
    Nothing,
    Batch {
        replay: Replay,
        /// What the sum of squares is multiplied with.
        factor: f64,
    },
    /// Something in it cannot be recorded.
    Impossible,
}

impl Repeated {
    /// The loss of a batch, not read yet, with what to multiply it with, and its gradient at θ; `None` where this batch is
    /// not to be had so.
    pub(super) fn batch(
        &mut self,
        network: &Network,
        theta: &Params,
        batch: &Dataset,
    ) -> Result<Option<(Total, f64, Params)>> {
        let Targets::Values(targets) = &batch.targets else { return Ok(None) };
        if batch.x.on_cpu() || targets.device() != batch.x.device() {
            return Ok(None);
        }
        let inputs: Vec<&Tensor> = [&batch.x, targets].into_iter().chain(theta.values()).collect();
        if let Repeated::Nothing = self {
            *self = Self::record(network, theta, batch, &inputs)?;
        }
        let Repeated::Batch { replay, factor } = self else { return Ok(None) };
        // The last batch of an epoch may be smaller.
        if !replay.takes(&inputs) {
            return Ok(None);
        }
        let (loss, gradient) = replay.run(&inputs, |written| {
            // Whoever keeps these keeps copies: the next run writes over them.
            let own = written.iter().map(duplicate_of).collect::<Result<Vec<_>>>()?;
            Ok((own[0].clone(), Params { values: own[1..].to_vec(), ..theta.clone() }))
        })?;
        Ok(Some((Total::Parts(loss), *factor, gradient)))
    }

    fn record(network: &Network, theta: &Params, batch: &Dataset, inputs: &[&Tensor]) -> Result<Self> {
        let held = theta.buffers().iter().map(|buffer| buffer.value.clone()).collect();
        let mut found = None;
        let replay = Replay::record(inputs, held, |inputs| {
            let theta = Params { values: inputs[2..].to_vec(), ..theta.clone() };
            let mut pass = network.pass(&theta, &inputs[0])?;
            let objective = Objective::new(batch.loss, Reduction::Mean, Targets::Values(inputs[1].clone()));
            let Some((c, squares, factor)) = objective.unread(pass.outputs())? else { return Ok(Vec::new()) };
            let gradients = pass.backward(Seed::Fixed(c), Want::Weights)?.weights;
            let Total::Parts(parts) = squares else { return Ok(Vec::new()) };
            let values = gradients.into_iter().flat_map(|gradients| gradients.values);
            found = Some(factor);
            Ok(std::iter::once(parts).chain(values).collect())
        })?;
        Ok(match (replay, found) {
            (Some(replay), Some(factor)) => Repeated::Batch { replay, factor },
            _ => Repeated::Impossible,
        })
    }
}
