//! Rounds of federated learning, to see what a client's settings cost.

use afterimage_attacks::Tick;
use afterimage_nn::{Params, Stream};

use super::defence::defended;
use super::federated::{Round, targets};
use super::{Draw, Observer, Victim};
use crate::accuracy::Test;
use crate::plan::{Plan, VictimPlan};
use crate::{AuditError, Result};

/// The share of a plan's controls that a model tells right after so many rounds with the plan's clients, each of them on a
/// batch of records that are neither members nor controls; `None` if it was stopped.
///
/// In each round every client takes its steps from the common weights, clips its change and adds noise to it; the
/// server goes by their mean.
pub(crate) fn federated_accuracy(
    plan: &Plan,
    rounds: usize,
    lr: f64,
    observe: &mut Observer<'_>,
) -> Result<Option<f64>> {
    let VictimPlan::Federated(client) = &plan.victim else {
        return Err(AuditError::plan("victim.kind", "is no client of federated learning", "use kind = \"federated\""));
    };
    let dtype = plan.compute.dtype;
    let others = Draw::new(&plan.data, plan.seed)?.others(dtype)?;
    let victim = Victim::new(plan)?;
    let (x, labels) = (victim.inputs(&others.pixels)?, others.labels);
    let all = targets(&victim, client, &labels)?;
    let batch = plan.data.members / client.clients;
    if x.rows() < batch * client.clients {
        let problem = format!("{} records are left, and a round takes {}", x.rows(), batch * client.clients);
        return Err(AuditError::plan("data.members", problem, "give more data, or smaller batches"));
    }
    let mut theta = match &client.weights {
        Some(path) => victim.load(path)?,
        None => victim.start()?,
    };
    let network = victim.network.in_mode(client.mode);
    let steps = client.local.map_or(1, |local| local.steps) as f64;
    for round in 0..rounds {
        let order = Stream::new(victim.seed, "victim/rounds", round as u64).permutation(x.rows());
        let one = Round { network: network.clone(), theta: &theta, client };
        let mut mean: Option<Params> = None;
        for (number, rows) in order.chunks_exact(batch).take(client.clients).enumerate() {
            let own = match one.shared(&x.select_rows(rows)?, all.select(rows)?) {
                // Noise has driven the weights out of all bounds: nothing was learnt.
                Err(AuditError::Nn(afterimage_nn::Error::NonFinite { .. })) => return Ok(Some(0.0)),
                other => other?,
            };
            let noise = victim.seed ^ ((round * client.clients + number) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let own = defended(&own, client.defence, noise)?;
            let share = 1.0 / client.clients as f64;
            mean = Some(match mean {
                Some(sum) => sum.combine(1.0, &own, share)?,
                None => own.scale(share)?,
            });
        }
        if let Some(mean) = mean {
            theta = theta.combine(1.0, &mean, -lr * steps)?;
        }
        if observe(Tick { iteration: round + 1, total: rounds, loss: None }).is_break() {
            return Ok(None);
        }
    }
    let controls = &victim.truth.controls;
    let test = Test { x: victim.inputs(&controls.pixels)?, labels: controls.labels.clone() };
    match test.accuracy(|x| Ok(victim.network.forward(&theta, x)?)) {
        Err(AuditError::Nn(afterimage_nn::Error::NonFinite { .. })) => Ok(Some(0.0)),
        other => other.map(Some),
    }
}
