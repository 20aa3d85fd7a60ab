//! A classifier whose weights are shared, at the end of training or twice.

use afterimage_attacks::{Observation, PairSeen, WeightsSeen};
use afterimage_nn::Device;

use super::{Observer, Victim};
use crate::plan::{ClassifierPlan, Shared};
use crate::{AuditError, Result};

/// Fails, naming the key, if the plan cannot be followed.
pub(super) fn check(victim: &Victim<'_>, classifier: &ClassifierPlan) -> Result<()> {
    let ClassifierPlan { loss, train, weights, share, before_epoch, before_weights, .. } = classifier;
    victim.targets(*loss)?;
    train.check()?;
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
    } else if pair && *before_epoch >= train.epochs {
        let problem = format!("is {before_epoch}, and training ends after {} at most", train.epochs);
        return Err(AuditError::plan("victim.before_epoch", problem, "take an earlier epoch"));
    }
    Ok(())
}

/// Trained on all members, or loaded. `None` if training was stopped.
pub(super) fn leak(
    victim: &Victim<'_>,
    classifier: &ClassifierPlan,
    observe: &mut Observer<'_>,
) -> Result<Option<Observation>> {
    let ClassifierPlan { loss, train, weights, share, before_epoch, before_weights, share_preprocessing } = classifier;
    let (theta, before) = match weights.as_ref().filter(|_| victim.loads) {
        Some(path) => {
            let before = before_weights.as_ref().filter(|_| *share == Shared::Checkpoints);
            (victim.load(path)?, before.map(|path| victim.load(path)).transpose()?)
        }
        None => {
            let mut recipe = train.clone();
            recipe.keep_epochs.push(*before_epoch);
            let Some(trained) =
                victim.train(&recipe, &victim.truth.members.pixels, victim.targets(*loss)?, *loss, observe)?
            else {
                return Ok(None);
            };
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
    let model = victim.model(&theta, *loss, *share_preprocessing)?;
    Ok(Some(match before {
        Some(before) => Observation::WeightPair(PairSeen { model, before }),
        None => Observation::Weights(WeightsSeen { model }),
    }))
}
