//! An autoencoder, shared with damaged records.

use afterimage_attacks::{DegradedSeen, Observation};
use afterimage_nn::{Loss, Stream, Targets, Tensor};

use super::damage::damage;
use super::{Observer, Victim};
use crate::plan::AutoencoderPlan;
use crate::{AuditError, Result};

/// Fails, naming the key, if the plan cannot be followed or the network does not map records to records.
pub(super) fn check(victim: &Victim<'_>, autoencoder: &AutoencoderPlan) -> Result<()> {
    autoencoder.train.check()?;
    super::damage::check(autoencoder.degrade)?;
    if let Some(path) = autoencoder.weights.as_ref().filter(|_| victim.loads) {
        victim.load(path)?;
    }
    let (inputs, outputs) = (victim.network.input_shape(), victim.network.output_shape());
    if inputs.iter().product::<usize>() == outputs.iter().product::<usize>() {
        return Ok(());
    }
    let problem = format!("takes {inputs:?} and gives {outputs:?}: an autoencoder gives back what it takes");
    Err(AuditError::plan("network", problem, "use kind = \"fc-autoencoder\""))
}

/// Trained on all members, or loaded; members and controls are damaged alike
/// and mixed, so that a place in the file tells nothing. `None` if training was stopped.
pub(super) fn leak(
    victim: &Victim<'_>,
    autoencoder: &AutoencoderPlan,
    observe: &mut Observer<'_>,
) -> Result<Option<Observation>> {
    let AutoencoderPlan { train, weights, degrade, share_mask, share_noise, share_preprocessing } = autoencoder;
    let members = victim.inputs(&victim.truth.members.pixels)?;
    let theta = match weights.as_ref().filter(|_| victim.loads) {
        Some(path) => victim.load(path)?,
        None => {
            let rows: Vec<usize> =
                std::iter::once(members.rows()).chain(victim.network.output_shape().iter().copied()).collect();
            let targets = Targets::Values(members.reshape(&rows)?.to_device(victim.plan.compute.device()?)?);
            let Some(trained) = victim.train(train, &victim.truth.members.pixels, targets, Loss::Mse, observe)? else {
                return Ok(None);
            };
            trained.theta
        }
    };
    let everyone = Tensor::concat_rows(&[&members, &victim.inputs(&victim.truth.controls.pixels)?])?;
    let order = Stream::new(victim.seed, "victim/order", 0).permutation(everyone.rows());
    let damaged = damage(*degrade, &everyone.select_rows(&order)?, victim.truth.shape(), victim.seed)?;
    Ok(Some(Observation::Degraded(DegradedSeen {
        model: victim.model(&theta, Loss::Mse, *share_preprocessing)?,
        degraded: damaged.samples,
        mask: share_mask.then_some(damaged.mask),
        noise: share_noise.then_some(degrade.noise),
    })))
}
