//! Is the gradient that is audited one of the members? The owner can ask, and attacks never do: a gradient whose sign was turned,
//! or that batch normalisation made in another mode than is said, would keep them from finding what is there.

use afterimage_attacks::Observation;
use afterimage_nn::{Mode, Params};

use super::fit::observations;
use super::folder::Exported;
use crate::plan::{FederatedPlan, Plan, VictimPlan};
use crate::victim::Victim;
use crate::{AuditError, Result};

/// Cosine from which on two gradients are the same but for their size.
const SAME: f64 = 0.99;

/// What the members' own gradient says of the one that is audited.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Belonging {
    /// A fact.
    Said(String),
    /// Something is told wrongly, and attacks would fail for that alone.
    Wrong(String),
}

/// Compares the observed gradient with that of the members, computed as the client is said to have; nothing where the client is
/// none, or its gradient cannot be computed.
pub(super) fn belongs(exported: &Exported, plan: &Plan) -> Result<Option<Belonging>> {
    let VictimPlan::Federated(client) = &plan.victim else { return Ok(None) };
    let seen = observations(exported)?.into_iter().find_map(|seen| match seen {
        Observation::Gradient(seen) => Some(seen.gradient),
        _ => None,
    });
    let Some(seen) = seen else { return Ok(None) };
    let other = match client.mode {
        Mode::Eval => Mode::Train,
        Mode::Train => Mode::Eval,
    };
    let Some((cosine, factor)) = alike(plan, client, client.mode, &seen)? else { return Ok(None) };
    let normalised = exported.network.buffer_names().next().is_some();
    if cosine < SAME && normalised && alike(plan, client, other, &seen)?.is_some_and(|(cosine, _)| cosine >= SAME) {
        let mode = if other == Mode::Train { "train" } else { "eval" };
        return Ok(Some(Belonging::Wrong(format!(
            "the gradient is that of the members if batch normalisation is in its mode \"{mode}\", and is taken for one of the other. Do this: \
             set mode = \"{mode}\" in training.toml"
        ))));
    }
    Ok(Some(match cosine {
        cosine if cosine <= -0.9 => Belonging::Wrong(
            "the gradient points against that of the members: its sign was turned. Do this: of weights, give what the client sent less what \
             it had before as --sent difference; for the export script, before - after"
                .into(),
        ),
        cosine if cosine >= SAME && (0.8..1.25).contains(&factor) => {
            Belonging::Said(format!("the gradient is that of the members (cosine {cosine:.4}, size {factor:.3} times theirs)"))
        }
        cosine if cosine >= SAME => Belonging::Said(format!(
            "the gradient is that of the members but for its size, which is {factor:.3} times theirs: it was clipped, or learning rate, steps or \
             reduction are others than is said (--lr, --steps; reduction in training.toml)"
        )),
        cosine => Belonging::Said(format!(
            "the gradient is like that of the members by a cosine of {cosine:.2}: noise was added, or records, labels, steps or loss are others \
             than is said"
        )),
    }))
}

/// ⟨a, b⟩ / ‖a‖‖b‖ of the observed gradient and of that of the members in a mode, and how many times as large it is.
fn alike(plan: &Plan, client: &FederatedPlan, mode: Mode, seen: &Params) -> Result<Option<(f64, f64)>> {
    let client = FederatedPlan { gradient: None, mode, ..client.clone() };
    let plan = Plan { victim: VictimPlan::Federated(client), ..plan.clone() };
    let made = Victim::new(&plan).and_then(|victim| victim.leak(&mut |_| std::ops::ControlFlow::Continue(())));
    let own = match made {
        Ok(Some((Observation::Gradient(own), _))) => own,
        // A batch of one that is normalised by itself, steps that do not divide it: nothing to compare with.
        Ok(_) | Err(AuditError::Nn(_) | AuditError::Attack(_) | AuditError::Plan { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let own = own.gradient.to_dtype(seen.dtype())?;
    let (product, size) = (seen.dot(&own)?, own.norm_squared()?);
    let cosine = product / (seen.norm_squared()? * size).sqrt().max(f64::MIN_POSITIVE);
    Ok(Some((cosine, product / size.max(f64::MIN_POSITIVE))))
}
