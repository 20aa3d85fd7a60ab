//! Records that a gradient gives away more easily: Yin et al. (2021), section 4.3.

use std::collections::HashSet;

use afterimage_nn::{Mode, Objective, Params, Reduction, Seed, Tensor, Want};

use super::Victim;
use super::federated::targets;
use crate::Result;
use crate::plan::FederatedPlan;
use crate::truth::{Sample, Truth};

/// How long the gradient of each record alone is.
pub(super) fn own_gradients(
    victim: &Victim<'_>,
    client: &FederatedPlan,
    theta: &Params,
    pixels: &Tensor,
    labels: &[usize],
) -> Result<Vec<f64>> {
    // Of one sample alone, statistics of a batch say nothing.
    let network = victim.network.in_mode(Mode::Eval);
    let x = victim.inputs(pixels)?.to_device(theta.device())?;
    let targets = targets(victim, client, labels)?;
    let length = |row: usize| -> Result<f64> {
        let seed = Seed::Loss(Objective::new(client.loss, Reduction::Mean, targets.select(&[row])?));
        let gradient = network.pass(theta, &x.select_rows(&[row])?)?.backward(seed, Want::Weights)?.weights;
        Ok(gradient.map(|gradient| gradient.norm_squared()).transpose()?.unwrap_or(0.0).sqrt())
    };
    (0..x.rows()).map(length).collect()
}

/// Members and controls with the roles dealt anew: members are those with the largest gradients of their own, no
/// two of one class where the plan wants that.
pub(super) fn most_vulnerable(victim: &Victim<'_>, client: &FederatedPlan, theta: &Params) -> Result<Truth> {
    let Truth { members, controls, ids, .. } = &victim.truth;
    let pixels = Tensor::concat_rows(&[&members.pixels, &controls.pixels])?;
    let labels: Vec<usize> = members.labels.iter().chain(&controls.labels).copied().collect();
    let ids: Vec<&String> = ids.iter().chain(&victim.control_ids).collect();

    let sizes = own_gradients(victim, client, theta, &pixels, &labels)?;

    let mut ranked: Vec<usize> = (0..sizes.len()).collect();
    ranked.sort_by(|&a, &b| sizes[b].total_cmp(&sizes[a]));
    let mut classes = HashSet::new();
    let wanted = |row: &usize| !victim.plan.data.distinct || classes.insert(labels[*row]);
    let chosen: Vec<usize> = ranked.into_iter().filter(wanted).take(members.labels.len()).collect();
    let others: Vec<usize> = (0..sizes.len()).filter(|row| !chosen.contains(row)).collect();
    let sample = |rows: &[usize]| -> Result<Sample> {
        Ok(Sample { pixels: pixels.select_rows(rows)?, labels: rows.iter().map(|&row| labels[row]).collect() })
    };
    Ok(Truth {
        members: sample(&chosen)?,
        controls: sample(&others)?,
        ids: chosen.iter().map(|&row| ids[row].clone()).collect(),
        ..victim.truth.clone()
    })
}
