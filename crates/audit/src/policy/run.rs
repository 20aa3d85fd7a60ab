//! Attacks every setting, and trains with it.

use afterimage_attacks::{AnyAttack, AttackError, Tick};
use afterimage_nn::Device;

use super::{Cell, Policy, PolicyPlan, Setting};
use crate::export::{policy_csv, policy_page};
use crate::hooks::Unheard;
use crate::pipeline::{Watcher, hash};
use crate::plan::Plan;
use crate::run_dir::RunDir;
use crate::trial::Trial;
use crate::victim::{Victim, federated_accuracy};
use crate::{AuditError, Criterion, Result};

const CELLS: &str = "cells.jsonl";

/// Fails, before anything is written, if a setting cannot be followed; gives the plan of the largest.
pub fn check(policy: &PolicyPlan, base: &str) -> Result<Plan> {
    let size = |setting: &Setting| (setting.batch * setting.clients, setting.steps);
    let largest = policy.settings().into_iter().max_by_key(size);
    let largest = largest.ok_or_else(|| AuditError::plan("policy", "has no settings", "give batches"))?;
    let plan = policy.plan(base, largest, 0)?;
    if plan.compute.device()? != Device::Cpu {
        return Err(AuditError::plan("compute.device", "policies are made on the processor", "leave it out"));
    }
    for attack in attacks(policy, &plan) {
        crate::pipeline::check(&Plan { attack, ..plan.clone() })?;
    }
    Ok(plan)
}

fn attacks(policy: &PolicyPlan, plan: &Plan) -> Vec<AnyAttack> {
    if policy.attacks.is_empty() { vec![plan.attack.clone()] } else { policy.attacks.clone() }
}

/// Goes on from wherever the directory says it got to; `None` if it was asked to stop.
pub fn run(
    policy: &PolicyPlan,
    base: &str,
    date: &str,
    dir: &RunDir,
    watcher: &mut dyn Watcher,
) -> Result<Option<Policy>> {
    let watcher = &mut Unheard(watcher);
    let earlier = dir.read_lines::<Cell>(CELLS)?;
    let plan = check(policy, base)?;
    let settings = policy.settings();
    let mut cells = Vec::with_capacity(settings.len());
    for (place, &setting) in settings.iter().enumerate() {
        let own = format!("{}{setting:?}", policy.to_toml(base)?);
        let plan_sha256 = hash(own.as_bytes());
        if let Some(done) = earlier.iter().find(|cell| cell.plan_sha256 == plan_sha256) {
            cells.push(done.clone());
            continue;
        }
        watcher.stage(&format!("setting {} of {}", place + 1, settings.len()));
        if watcher.tick(Tick { iteration: place, total: settings.len(), loss: None }).is_break() {
            return Ok(None);
        }
        let Some(cell) = made(policy, base, setting, plan_sha256, watcher)? else { return Ok(None) };
        let line = serde_json::to_string(&cell).map_err(|error| AuditError::file(dir.path(), error.to_string()))?;
        dir.append(CELLS, &line)?;
        cells.push(cell);
    }
    watcher.stage("report");
    let names = attacks(policy, &plan).iter().map(|attack| attack.card().name.to_owned()).collect();
    let tested = Victim::new(&plan)?.truth().controls.pixels.rows();
    let criterion = said(plan.score.criterion);
    let policy = Policy { schema: 1, tool: crate::tool(), attacks: names, criterion, tested, cells };
    dir.write_json("policy.json", &policy)?;
    dir.write("policy.csv", policy_csv(&policy).as_bytes())?;
    dir.write("report.html", policy_page(&policy, date).as_bytes())?;
    Ok(Some(policy))
}

/// A criterion in words.
fn said(criterion: Criterion) -> String {
    let side = if criterion.metric.better() == crate::metrics::Direction::Below { "below" } else { "above" };
    match criterion.threshold {
        Some(line) => format!("{} {side} {line}", criterion.metric),
        None => format!("{} beyond 99 % of controls", criterion.metric),
    }
}

/// One setting: attacked in several rounds, and trained with. `None` if it was stopped.
fn made(
    policy: &PolicyPlan,
    base: &str,
    setting: Setting,
    plan_sha256: String,
    watcher: &mut dyn Watcher,
) -> Result<Option<Cell>> {
    let mut cell = Cell {
        setting,
        plan_sha256,
        members: 0,
        recovered: 0,
        controls: 0,
        control_recovered: 0,
        accuracy: 0.0,
        seconds: 0.0,
    };
    for seed in 0..policy.attacked(setting) {
        let plan = policy.plan(base, setting, seed)?;
        let victim = Victim::new(&plan)?;
        let Some((observation, truth)) = victim.leak(&mut |tick| watcher.tick(tick))? else { return Ok(None) };
        // A record, member or control, is rebuilt if one of the attacks rebuilds it.
        let mut members = vec![false; truth.members.pixels.rows()];
        let mut controls = vec![false; crate::score::testing(&truth.controls.labels).count()];
        let mut tested = false;
        for attack in attacks(policy, &plan) {
            let plan = Plan { attack, ..plan.clone() };
            let trial = match Trial::on(&plan, observation.clone(), &truth, watcher) {
                Ok(Some(trial)) => trial,
                Ok(None) => return Ok(None),
                // An attack that gives up rebuilds nobody, and tests nothing.
                Err(AuditError::Attack(AttackError::NotApplicable { .. } | AttackError::Nn(_))) => continue,
                Err(error) => return Err(error),
            };
            cell.seconds += trial.seconds;
            // What is rebuilt of a layer inside is not the record.
            let Some(scores) =
                trial.scored.metrics.get(&plan.score.criterion.metric).filter(|_| trial.rebuilt.layer.is_none())
            else {
                continue;
            };
            tested = true;
            let better = plan.score.criterion.metric.better();
            let passes = |score: &Option<f64>| score.is_some_and(|score| better.better(score, trial.scored.threshold));
            members.iter_mut().zip(&scores.members).for_each(|(rebuilt, score)| *rebuilt |= passes(score));
            controls.iter_mut().zip(&scores.control).for_each(|(rebuilt, score)| *rebuilt |= passes(score));
        }
        if !tested {
            continue;
        }
        cell.members += members.len();
        cell.recovered += members.iter().filter(|rebuilt| **rebuilt).count();
        cell.controls += controls.len();
        cell.control_recovered += controls.iter().filter(|rebuilt| **rebuilt).count();
    }
    let plan = policy.plan(base, setting, 0)?;
    let Some(accuracy) = federated_accuracy(&plan, policy.rounds, policy.lr, &mut |tick| watcher.tick(tick))? else {
        return Ok(None);
    };
    Ok(Some(Cell { accuracy, ..cell }))
}
