//! A client of federated learning that shares one gradient, or what a few steps of training did.

use std::collections::BTreeMap;
use std::path::Path;

use afterimage_attacks::{Client, Defence, GradientSeen, LocalTraining, Observation};
use afterimage_nn::io::TensorFile;
use afterimage_nn::{
    Device, Mode, Network, Objective, Params, Reduction, Seed, Statistics, Stream, Targets, Tensor, Want,
};

use super::defence::defended;
use super::mixup::mixed;
use super::population::{most_vulnerable, own_gradients};
use super::{Observer, Victim};
use crate::plan::{FederatedPlan, Population, SharedStatistics};
use crate::{AuditError, Result};

/// Fails, naming the key, if the plan cannot be followed.
pub(super) fn check(victim: &Victim<'_>, client: &FederatedPlan) -> Result<()> {
    let wrong = |key: &str, problem: String, hint: &str| Err(AuditError::plan(key, problem, hint));
    let members = victim.plan.data.members;
    if let (Some(path), true) = (&client.gradient, victim.loads) {
        if client.weights.is_none() {
            return wrong("victim.gradient", "is given without the model".into(), "set victim.weights");
        }
        observed(victim, client, path)?;
        return Ok(());
    }
    if let Some(batch) = client.batch.filter(|batch| *batch != members && client.gradient.is_none()) {
        let problem = format!("is {batch}, and there are {members} members");
        return wrong("victim.batch", problem, "the members are the batch: set data.members alone");
    }
    if client.clients == 0 || !members.is_multiple_of(client.clients) {
        let problem = format!("is {}, and {members} members cannot be dealt out to so many", client.clients);
        return wrong("victim.clients", problem, "give a number that divides data.members");
    }
    if let Some(LocalTraining { steps, lr, batch }) = client.local {
        let each = members / client.clients;
        if steps == 0 || !(lr > 0.0 && lr.is_finite()) {
            return wrong("victim.local", format!("is {steps} steps at a rate of {lr}"), "both must be positive");
        }
        if let Some(batch) = batch.filter(|batch| *batch == 0 || !each.is_multiple_of(*batch)) {
            let problem = format!("takes {batch} of a client's {each} samples a step");
            return wrong("victim.local.batch", problem, "give a number that divides them");
        }
    }
    if !(client.mixup >= 0.0 && client.mixup.is_finite()) {
        return wrong("victim.mixup", format!("is {}", client.mixup), "give α of the Beta distribution, 0 for none");
    }
    let several = client.clients > 1 || client.local.is_some();
    let normalises = victim.network.buffer_names().next().is_some();
    if client.share_statistics != SharedStatistics::None && (several || !normalises) {
        let problem = if normalises { "of several batches mean little" } else { "do not exist in this network" };
        return wrong("victim.share_statistics", problem.into(), "leave it out");
    }
    if client.share_statistics == SharedStatistics::Running && client.mode == Mode::Eval {
        let problem = "do not move in evaluation mode".into();
        return wrong("victim.share_statistics", problem, "set victim.mode = \"train\", or share \"batch\"");
    }
    if client.clients > 1 && client.reduction == Reduction::Sum {
        let problem = "is for means over batches".into();
        return wrong("victim.clients", problem, "set victim.reduction = \"mean\"");
    }
    if client.weights.is_some() && client.pretrain.is_some() {
        return wrong("victim.pretrain", "is of no use beside `weights`".into(), "leave one of them out");
    }
    super::defence::check(client.defence)?;
    if let (Some(recipe), Some(others)) = (&client.pretrain, &victim.others) {
        recipe.check()?;
        targets(victim, client, &others.labels)?;
    }
    targets(victim, client, &victim.truth.members.labels).map(drop)
}

/// Labels as the client's loss takes them.
pub(super) fn targets(victim: &Victim<'_>, client: &FederatedPlan, labels: &[usize]) -> Result<Targets> {
    match client.classes_as_numbers {
        Some(classes) => victim.numbers_of(labels, classes, client.loss),
        None => victim.targets_of(labels, client.loss),
    }
}

/// What is shared, with the length of each member's own gradient, of all members at fresh parameters, at those of a file, or at those of a model
/// trained before on other records. `None` if that training was stopped.
pub(super) fn leak(
    victim: &mut Victim<'_>,
    client: &FederatedPlan,
    observe: &mut Observer<'_>,
) -> Result<Option<(Observation, Option<Vec<f64>>)>> {
    let &FederatedPlan { loss, reduction, share_batch_size, share_labels, share_preprocessing, .. } = client;
    let device = victim.plan.compute.device()?;
    if let (Some(path), true) = (&client.gradient, victim.loads) {
        return Ok(Some((Observation::Gradient(observed(victim, client, path)?), None)));
    }
    let theta = match (&client.weights, &client.pretrain, &victim.others) {
        (Some(path), _, _) => victim.load(path)?.to_device(device)?,
        (None, Some(recipe), Some(others)) => {
            let targets = targets(victim, client, &others.labels)?;
            let Some(trained) = victim.train(recipe, &others.pixels, targets, loss, observe)? else {
                return Ok(None);
            };
            trained.theta
        }
        _ => victim.start()?.to_device(device)?,
    };
    if client.population == Population::Vulnerable {
        victim.truth = most_vulnerable(victim, client, &theta)?;
    }
    let x = victim.inputs(&victim.truth.members.pixels)?.to_device(device)?;
    let targets = targets(victim, client, &victim.truth.members.labels)?;
    let round = Round { network: victim.network.in_mode(client.mode), theta: &theta, client };
    let mut gradient: Option<Params> = None;
    // As the client feeds its network: mixed, if it mixes. Statistics are shared by one client alone.
    let mut fed = x.clone();
    let each = x.rows() / client.clients;
    for number in 0..client.clients {
        let rows: Vec<usize> = (number * each..(number + 1) * each).collect();
        let mut own = (x.select_rows(&rows)?, targets.select(&rows)?);
        if client.mixup > 0.0 {
            let mut stream = Stream::new(victim.seed, "victim/mixup", number as u64);
            own = mixed(own.0, &own.1, victim.network.output_shape(), client.mixup, &mut stream)?;
        }
        fed = own.0.clone();
        let own = round.shared(&own.0, own.1)?.to_device(Device::Cpu)?;
        let own = defended(&own, client.defence, victim.seed.wrapping_add(number as u64))?;
        gradient = Some(match gradient {
            Some(sum) => sum.combine(1.0, &own, 1.0 / client.clients as f64)?,
            None => own.scale(1.0 / client.clients as f64)?,
        });
    }
    let gradient = gradient.map_or_else(|| theta.zeros_like(), Ok)?;
    let seen = match client.share_statistics {
        SharedStatistics::None => None,
        _ => Some(round.network.pass(&theta, &fed)?.statistics()?),
    };
    let model = victim.model(&theta, loss, share_preprocessing)?;
    let on_host = |seen: &Statistics| -> Result<Statistics> {
        let (mean, variance) = (seen.mean.to_device(Device::Cpu)?, seen.variance.to_device(Device::Cpu)?);
        Ok(Statistics { mean, variance, ..seen.clone() })
    };
    let seen = seen.map(|seen| seen.iter().map(on_host).collect::<Result<Vec<_>>>()).transpose()?;
    let after = match (client.share_statistics, &seen) {
        (SharedStatistics::Running, Some(seen)) => Some(victim.network.tracked(&model.theta, seen)?),
        _ => None,
    };
    let about = Client {
        mode: client.share_mode.then_some(client.mode),
        statistics: seen.filter(|_| client.share_statistics == SharedStatistics::Batch),
        after,
        // Of several clients nobody can follow the steps of each: their mean is taken for one gradient.
        local: client.local.filter(|_| client.clients == 1),
        defence: (client.share_defence && client.defence != Defence::default()).then_some(client.defence),
    };
    let members = &victim.truth.members;
    let driven = own_gradients(victim, client, &theta, &members.pixels, &members.labels)?;
    let observation = Observation::Gradient(GradientSeen {
        model,
        gradient,
        reduction: Some(reduction),
        batch_size: share_batch_size.then_some(x.rows()),
        labels: share_labels.then_some(targets),
        client: about,
    });
    Ok(Some((observation, Some(driven))))
}

/// What a client was seen to share: a gradient in every parameter and perhaps running statistics after its batch.
fn observed(victim: &Victim<'_>, client: &FederatedPlan, path: &Path) -> Result<GradientSeen> {
    let weights = client.weights.as_deref().unwrap_or(path);
    let model = victim.model(&victim.load(weights)?, client.loss, client.share_preprocessing)?;
    let (gradient, after) = read_gradient(&victim.network, &model.theta, path)?;
    let about = Client {
        mode: client.share_mode.then_some(client.mode),
        statistics: None,
        // After several steps, statistics are those of all of them.
        after: after.filter(|_| client.local.is_none()),
        local: client.local,
        defence: (client.share_defence && client.defence != Defence::default()).then_some(client.defence),
    };
    let (reduction, batch_size) = (Some(client.reduction), client.batch.filter(|_| client.share_batch_size));
    Ok(GradientSeen { model, gradient, reduction, batch_size, labels: None, client: about })
}

/// A gradient in every parameter from a file, and the model's parameters with the running statistics after the batch, if
/// those are there too.
pub(crate) fn read_gradient(network: &Network, theta: &Params, path: &Path) -> Result<(Params, Option<Params>)> {
    let mut named = TensorFile::read(path)?.tensors;
    let mut after: BTreeMap<String, Tensor> = BTreeMap::new();
    for name in network.buffer_names() {
        after.extend(named.remove(name).map(|value| (name.to_owned(), value)));
    }
    let (dtype, wrong) = (theta.dtype(), |error: afterimage_nn::Error| AuditError::file(path, error.to_string()));
    let gradient = network.params(named, dtype, Device::Cpu).map_err(wrong)?;
    if after.is_empty() {
        return Ok((gradient, None));
    }
    after.extend(theta.iter().map(|(name, value)| (name.to_owned(), value.clone())));
    Ok((gradient, Some(network.params(after, dtype, Device::Cpu).map_err(wrong)?)))
}

/// One round of federated learning.
pub(super) struct Round<'a> {
    pub(super) network: Network,
    pub(super) theta: &'a Params,
    pub(super) client: &'a FederatedPlan,
}

impl Round<'_> {
    /// What a client with these samples shares: its gradient, or the mean of those of its steps.
    pub(super) fn shared(&self, x: &Tensor, targets: Targets) -> Result<Params> {
        let FederatedPlan { loss, reduction, local, .. } = *self.client;
        let gradient = |theta: &Params, x: &Tensor, targets: Targets, reduction: Reduction| -> Result<Params> {
            let seed = Seed::Loss(Objective::new(loss, reduction, targets));
            let weights = self.network.pass(theta, x)?.backward(seed, Want::Weights)?.weights;
            Ok(weights.map_or_else(|| theta.zeros_like(), Ok)?)
        };
        let Some(local) = local else { return gradient(self.theta, x, targets, reduction) };
        // (θ_before − θ_after) / (lr · steps) is the mean of the steps' gradients, which loses no digits.
        let (mut theta, mut shared) = (self.theta.clone(), self.theta.zeros_like()?);
        for step in 0..local.steps {
            let rows: Vec<usize> = local.rows(step, x.rows()).collect();
            let own = gradient(&theta, &x.select_rows(&rows)?, targets.select(&rows)?, reduction)?;
            theta = theta.combine(1.0, &own, -local.lr)?;
            shared = shared.combine(1.0, &own, 1.0 / local.steps as f64)?;
        }
        Ok(shared)
    }
}
