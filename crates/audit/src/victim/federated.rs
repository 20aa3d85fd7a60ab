//! A client of federated learning that shares one gradient.

use afterimage_attacks::{GradientSeen, Observation};
use afterimage_nn::{Device, Objective, Seed, Targets, Want};

use super::defence::defended;
use super::{Observer, Victim};
use crate::plan::FederatedPlan;
use crate::{AuditError, Result};

/// Fails, naming the key, if the plan cannot be followed.
pub(super) fn check(victim: &Victim<'_>, client: &FederatedPlan) -> Result<()> {
    let members = victim.plan.data.members;
    if let Some(batch) = client.batch.filter(|batch| *batch != members) {
        let problem = format!("is {batch}, and there are {members} members");
        return Err(AuditError::plan("victim.batch", problem, "the members are the batch: set data.members alone"));
    }
    super::defence::check(client.defence)?;
    if let (Some(recipe), Some(others)) = (&client.pretrain, &victim.others) {
        recipe.check()?;
        targets(victim, client, &others.labels)?;
    }
    targets(victim, client, &victim.truth.members.labels).map(drop)
}

/// Labels as the client's loss takes them.
fn targets(victim: &Victim<'_>, client: &FederatedPlan, labels: &[usize]) -> Result<Targets> {
    match client.classes_as_numbers {
        Some(classes) => victim.numbers_of(labels, classes, client.loss),
        None => victim.targets_of(labels, client.loss),
    }
}

/// The gradient of all members at fresh parameters, or at those of a model
/// trained before on other records. `None` if that training was stopped.
pub(super) fn leak(
    victim: &Victim<'_>,
    client: &FederatedPlan,
    observe: &mut Observer<'_>,
) -> Result<Option<Observation>> {
    let &FederatedPlan { loss, reduction, share_batch_size, share_labels, share_preprocessing, defence, .. } = client;
    let device = victim.plan.compute.device()?;
    let theta = match (&client.pretrain, &victim.others) {
        (Some(recipe), Some(others)) => {
            let targets = targets(victim, client, &others.labels)?;
            let Some(trained) = victim.train(recipe, &others.pixels, targets, loss, observe)? else {
                return Ok(None);
            };
            trained.theta
        }
        _ => victim.start()?.to_device(device)?,
    };
    let x = victim.inputs(&victim.truth.members.pixels)?.to_device(device)?;
    let targets = targets(victim, client, &victim.truth.members.labels)?;
    let objective = Objective::new(loss, reduction, targets.clone());
    let gradients = victim.network.pass(&theta, &x)?.backward(Seed::Loss(objective), Want::Weights)?;
    let gradient = gradients.weights.map_or_else(|| theta.zeros_like(), Ok)?.to_device(Device::Cpu)?;
    Ok(Some(Observation::Gradient(GradientSeen {
        model: victim.model(&theta, loss, share_preprocessing)?,
        gradient: defended(&gradient, defence, victim.seed)?,
        reduction: Some(reduction),
        batch_size: share_batch_size.then_some(x.rows()),
        labels: share_labels.then_some(targets),
    })))
}
