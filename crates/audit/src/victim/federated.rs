//! A client of federated learning that shares one gradient.

use afterimage_attacks::{GradientSeen, Model, Observation};
use afterimage_nn::{DType, Device, Loss, Network, Objective, Seed, Targets, Tensor, Want};

use super::Draw;
use crate::plan::{Plan, VictimPlan};
use crate::truth::Truth;
use crate::{AuditError, Result};

/// The gradient of all members at freshly initialised parameters.
pub(super) fn leak(plan: &Plan, draw: &Draw) -> Result<(Observation, Truth)> {
    let VictimPlan::Federated { loss, reduction, share_batch_size, share_labels, share_preprocessing } = plan.victim;
    let (dtype, device) = (plan.compute.dtype, plan.compute.device()?);
    let truth = draw.truth(dtype)?;
    let (spec, init) = plan.network.build(truth.shape());
    let network = Network::new(spec)?;
    let theta = network.init(&init, plan.seed, dtype)?.to_device(device)?;
    let preprocess = truth.preprocess.clone();
    let x = preprocess.apply(&truth.members.pixels)?.to_device(device)?;
    let targets = targets(loss, &truth.members.labels, network.output_shape(), dtype)?;
    let objective = Objective::new(loss, reduction, targets.clone());
    let gradients = network.pass(&theta, &x)?.backward(Seed::Loss(objective), Want::Weights)?;
    let gradient = gradients.weights.map_or_else(|| theta.zeros_like(), Ok)?.to_device(Device::Cpu)?;
    let model = Model {
        network,
        theta: theta.to_device(Device::Cpu)?,
        loss: Some(loss),
        preprocess: share_preprocessing.then_some(preprocess),
    };
    let seen = GradientSeen {
        model,
        gradient,
        reduction: Some(reduction),
        batch_size: share_batch_size.then_some(truth.members.labels.len()),
        labels: share_labels.then_some(targets),
    };
    Ok((Observation::Gradient(seen), truth))
}

/// Labels as the loss takes them.
fn targets(loss: Loss, labels: &[usize], outputs: &[usize], dtype: DType) -> Result<Targets> {
    if loss == Loss::CrossEntropy {
        return Ok(Targets::Classes(labels.to_vec()));
    }
    if outputs != [1] {
        let hint = "use loss = \"cross-entropy\", or a network with one output";
        return Err(AuditError::plan(
            "victim.loss",
            format!("{loss} needs one output, the network has {outputs:?}"),
            hint,
        ));
    }
    // Two classes as −1 and +1.
    if let Some(label) = labels.iter().find(|label| **label > 1) {
        let hint = "relabel the data: relabel = \"odd-even\", \"vehicles-animals\" or a map";
        return Err(AuditError::plan("data.relabel", format!("class {label} is neither 0 nor 1"), hint));
    }
    let signs: Vec<f64> = labels.iter().map(|&label| if label == 1 { 1.0 } else { -1.0 }).collect();
    Ok(Targets::Values(Tensor::from_f64(&signs, &[labels.len(), 1], dtype)?))
}
