//! A client of federated learning that shares one gradient.

use afterimage_attacks::{GradientSeen, Observation};
use afterimage_nn::{Device, Objective, Seed, Want};

use super::Victim;
use crate::plan::FederatedPlan;
use crate::{AuditError, Result};

/// Fails, naming the key, if the plan cannot be followed.
pub(super) fn check(victim: &Victim<'_>, client: &FederatedPlan) -> Result<()> {
    let members = victim.plan.data.members;
    if let Some(batch) = client.batch.filter(|batch| *batch != members) {
        let problem = format!("is {batch}, and there are {members} members");
        return Err(AuditError::plan("victim.batch", problem, "the members are the batch: set data.members alone"));
    }
    victim.targets(client.loss).map(drop)
}

/// The gradient of all members at freshly initialised parameters.
pub(super) fn leak(victim: &Victim<'_>, client: &FederatedPlan) -> Result<Observation> {
    let FederatedPlan { loss, reduction, share_batch_size, share_labels, share_preprocessing, .. } = *client;
    let device = victim.plan.compute.device()?;
    let theta = victim.start()?.to_device(device)?;
    let x = victim.inputs(&victim.truth.members.pixels)?.to_device(device)?;
    let targets = victim.targets(loss)?;
    let objective = Objective::new(loss, reduction, targets.clone());
    let gradients = victim.network.pass(&theta, &x)?.backward(Seed::Loss(objective), Want::Weights)?;
    let gradient = gradients.weights.map_or_else(|| theta.zeros_like(), Ok)?.to_device(Device::Cpu)?;
    Ok(Observation::Gradient(GradientSeen {
        model: victim.model(&theta, loss, share_preprocessing)?,
        gradient,
        reduction: Some(reduction),
        batch_size: share_batch_size.then_some(x.rows()),
        labels: share_labels.then_some(targets),
    }))
}
