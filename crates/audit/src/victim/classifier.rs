//! A classifier whose weights are shared, at the end of training or twice.

use afterimage_attacks::{Observation, PairSeen, WeightsSeen};
use afterimage_nn::Device;

use super::defence::released;
use super::{Observer, Victim, row_lengths};
use crate::plan::{ClassifierPlan, Shared};
use crate::{AuditError, Result};

/// Fails, naming the key, if the plan cannot be followed.
pub(super) fn check(victim: &Victim<'_>, classifier: &ClassifierPlan) -> Result<()> {
    let ClassifierPlan { loss, train, weights, share, before_epoch, between_epochs, before_weights, .. } = classifier;
    victim.targets(*loss)?;
    train.check()?;
    if classifier.start_weights.is_some() {
        victim.start()?;
    } else if !classifier.fresh_layers.is_empty() {
        let problem = "is given, and every layer starts anew";
        return Err(AuditError::plan("victim.fresh_layers", problem, "name the file of the others: start_weights"));
    }
    let pair = *share == Shared::Checkpoints;
    if let Some(path) = weights.as_ref().filter(|_| victim.loads) {
        victim.load(path)?;
        match before_weights {
            Some(path) if pair => drop(victim.load(path)?),
            None if pair => {
                let problem = "is missing: weights from a file have no earlier checkpoint of their own";
                return Err(AuditError::plan("victim.before_weights", problem, "name the file that holds it"));
            }
            _ => {}
        }
        if !between_epochs.is_empty() {
            let problem = "is given, and weights from a file have no checkpoints of their own";
            return Err(AuditError::plan("victim.between_epochs", problem, "leave it out"));
        }
    } else if pair && *before_epoch >= train.epochs {
        let problem = format!("is {before_epoch}, and training ends after {} at most", train.epochs);
        return Err(AuditError::plan("victim.before_epoch", problem, "take an earlier epoch"));
    }
    let rising = std::iter::once(before_epoch).chain(between_epochs).is_sorted_by(|a, b| a < b);
    let fits = pair && rising;
    if !(between_epochs.is_empty() || fits) {
        let problem = "takes epochs after `before_epoch`, in order, with share = \"checkpoints\"";
        return Err(AuditError::plan("victim.between_epochs", problem, "such as [100, 1000]"));
    }
    Ok(())
}

/// Trained on all members, or loaded; and how much each of them drove training, where that is known.
/// `None` if training was stopped.
pub(super) fn leak(
    victim: &Victim<'_>,
    classifier: &ClassifierPlan,
    observe: &mut Observer<'_>,
) -> Result<Option<(Observation, Option<Vec<f64>>)>> {
    let ClassifierPlan {
        loss,
        train,
        weights,
        share,
        before_epoch,
        between_epochs,
        before_weights,
        share_preprocessing,
        rounding,
        ..
    } = classifier;
    let (mut between, mut driven) = (Vec::new(), None);
    let (theta, before) = match weights.as_ref().filter(|_| victim.loads) {
        Some(path) => {
            let before = before_weights.as_ref().filter(|_| *share == Shared::Checkpoints);
            (victim.load(path)?, before.map(|path| victim.load(path)).transpose()?)
        }
        None => {
            let mut recipe = train.clone();
            recipe.keep_epochs.push(*before_epoch);
            recipe.keep_epochs.extend(between_epochs);
            let Some(trained) =
                victim.train(&recipe, &victim.truth.members.pixels, victim.targets(*loss)?, *loss, observe)?
            else {
                return Ok(None);
            };
            // From its start to its end: not what lies between other checkpoints.
            driven = trained.driven.filter(|_| *before_epoch == 0);
            // Those that training did not come to are not there to be shared.
            for kept in trained.checkpoints.iter().filter(|kept| between_epochs.contains(&kept.epoch)) {
                between.push(kept.theta.to_device(Device::Cpu)?);
            }
            let kept = trained.checkpoints.into_iter().find(|kept| kept.epoch == *before_epoch);
            let before = match (share, kept) {
                (Shared::Weights, _) => None,
                (Shared::Checkpoints, _) if *before_epoch == 0 => Some(victim.start()?),
                (Shared::Checkpoints, Some(kept)) => Some(kept.theta.to_device(Device::Cpu)?),
                (Shared::Checkpoints, None) => {
                    let problem = format!("is {before_epoch}, and training ended after {}", trained.epochs);
                    return Err(AuditError::plan("victim.before_epoch", problem, "take an earlier epoch"));
                }
            };
            (trained.theta, before)
        }
    };
    let model = victim.model(&released(&theta, *rounding)?, *loss, *share_preprocessing)?;
    let observation = match before {
        Some(before) => {
            let before = released(&before, *rounding)?;
            Observation::WeightPair(PairSeen { model, before, between })
        }
        None => Observation::Weights(WeightsSeen { model }),
    };
    Ok(Some((observation, driven.map(|driven| row_lengths(&driven)).transpose()?)))
}
