//! An autoencoder, shared with damaged records.

use afterimage_attacks::{DegradedSeen, Observation};
use afterimage_nn::train::Recipe;
use afterimage_nn::{Loss, Params, Stream, Targets, Tensor};

use super::damage::damage;
use super::defence::released;
use super::models::{Models, not_reached};
use super::{Observer, Victim};
use crate::plan::{AutoencoderPlan, Degrade, Plan, VictimPlan};
use crate::truth::Damaged;
use crate::{AuditError, Result, Truth};

/// Fails, naming the key, if the plan cannot be followed or the network does not map records to records.
pub(super) fn check(victim: &Victim<'_>, autoencoder: &AutoencoderPlan) -> Result<()> {
    autoencoder.train.check()?;
    super::damage::check(autoencoder.degrade)?;
    if let Some(loss) = autoencoder.at_loss.filter(|loss| !(*loss > 0.0 && loss.is_finite())) {
        return Err(AuditError::plan("victim.at_loss", format!("is {loss}"), "give a positive number"));
    }
    if autoencoder.damaged == Some(0) {
        return Err(AuditError::plan("victim.damaged", "is 0", "leave it out to share damaged copies of all"));
    }
    if autoencoder.at_loss.is_some() && autoencoder.weights.is_some() {
        let problem = "is given with weights from a file, which are shared as they are";
        return Err(AuditError::plan("victim.at_loss", problem, "leave one of them out"));
    }
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

/// Members and controls, or the first of each, are damaged alike and mixed, so that a place in the file tells nothing; with it what
/// their owner knows. `None` if training was stopped.
pub(super) fn leak(
    victim: &mut Victim<'_>,
    autoencoder: &AutoencoderPlan,
    observe: &mut Observer<'_>,
) -> Result<Option<(Observation, Damaged)>> {
    let AutoencoderPlan { weights, degrade, share_mask, share_noise, share_preprocessing, .. } = autoencoder;
    let theta = match weights.as_ref().filter(|_| victim.loads) {
        Some(path) => Some(victim.load(path)?),
        None => trained(victim, autoencoder, observe)?,
    };
    let Some(theta) = theta else { return Ok(None) };
    let theta = released(&theta, autoencoder.rounding)?;
    if let Some(count) = autoencoder.damaged {
        victim.truth.keep_first(count)?;
    }
    let Truth { members, controls, .. } = &victim.truth;
    let everyone = Tensor::concat_rows(&[&victim.inputs(&members.pixels)?, &victim.inputs(&controls.pixels)?])?;
    let order = Stream::new(victim.seed, "victim/order", 0).permutation(everyone.rows());
    let after = damage(*degrade, &everyone.select_rows(&order)?, victim.truth.shape(), victim.seed)?;
    let seen = DegradedSeen {
        model: victim.model(&theta, Loss::Mse, *share_preprocessing)?,
        degraded: after.samples,
        mask: share_mask.then(|| after.mask.clone()).filter(|_| after.kernel.is_none()),
        blur: after.kernel,
        noise: share_noise.then_some(degrade.noise),
    };
    let mut places = vec![0; order.len()];
    order.into_iter().enumerate().for_each(|(place, record)| places[record] = place);
    places.truncate(members.pixels.rows());
    Ok(Some((Observation::Degraded(seen), Damaged { places, kept: after.mask.to_f64_vec()? })))
}

/// Trained on all members to the end or to the loss that is asked for, unless that was done before; `None` if it was
/// stopped.
fn trained(victim: &Victim<'_>, autoencoder: &AutoencoderPlan, observe: &mut Observer<'_>) -> Result<Option<Params>> {
    let at_loss = autoencoder.at_loss;
    let models = victim.models.as_ref().map(|dir| Models::of(dir, &training(victim, autoencoder)?)).transpose()?;
    if let Some(models) = &models
        && let Some(theta) = models.read(at_loss, &victim.network, victim.plan.compute.dtype)?
    {
        return Ok(Some(theta));
    }
    let mut recipe = autoencoder.train.clone();
    recipe.keep_losses.extend(at_loss.filter(|loss| !autoencoder.train.keep_losses.contains(loss)));
    let pixels = &victim.truth.members.pixels;
    let rows: Vec<usize> =
        std::iter::once(pixels.rows()).chain(victim.network.output_shape().iter().copied()).collect();
    let targets = victim.inputs(pixels)?.reshape(&rows)?.to_device(victim.plan.compute.device()?)?;
    let Some(trained) = victim.train(&recipe, pixels, Targets::Values(targets), Loss::Mse, observe)? else {
        return Ok(None);
    };
    let first = |loss: f64| trained.checkpoints.iter().find(|kept| kept.loss <= loss);
    if let Some(models) = &models {
        let kept = recipe.keep_losses.iter().filter_map(|&loss| Some((loss, first(loss)?.theta.clone())));
        models.keep(&kept.collect::<Vec<_>>(), &trained.theta)?;
    }
    let Some(loss) = at_loss else { return Ok(Some(trained.theta)) };
    match (first(loss), &models) {
        (Some(kept), _) => return Ok(Some(kept.theta.clone())),
        (None, Some(models)) => models.miss(loss, trained.loss)?,
        (None, None) => {}
    }
    Err(not_reached(loss, trained.loss))
}

/// What a training depends on: its plan but for what is done with the model, and who is trained.
fn training(victim: &Victim<'_>, autoencoder: &AutoencoderPlan) -> Result<String> {
    let plain = AutoencoderPlan {
        train: Recipe { keep_losses: Vec::new(), ..autoencoder.train.clone() },
        at_loss: None,
        rounding: None,
        degrade: Degrade::default(),
        damaged: None,
        share_mask: false,
        share_noise: true,
        share_preprocessing: true,
        ..autoencoder.clone()
    };
    let plan = Plan { victim: VictimPlan::Autoencoder(plain), ..victim.plan.without_attack() };
    Ok(format!("{}\nseed of this one: {}, {}", plan.to_toml()?, victim.seed, victim.truth.ids.join(" ")))
}
