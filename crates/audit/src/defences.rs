//! What would have stopped a leak, measured: the attack of a run on twins that defend themselves.
//!
//! A twin is built to leak; each row changes one thing about how it is made or shared, and says how much the
//! same attack still brings back. Nothing else differs: network, settings, criterion, controls.

use std::time::{Duration, Instant};

use afterimage_attacks::AttackError;
use serde::{Deserialize, Serialize};

use crate::hooks::{Deadline, Unheard};
use crate::metrics::Metric;
use crate::pipeline::Watcher;
use crate::plan::{FederatedPlan, Plan, SharedStatistics, VictimPlan};
use crate::run_dir::RunDir;
use crate::trial::Trial;
use crate::verdict::Count;
use crate::victim::Victim;
use crate::{AuditError, Result};

pub(crate) const DEFENCES: &str = "defences.json";

/// Seconds of a run up to which its defences are measured without being asked for.
pub(crate) const QUICK: f64 = 2.0;
/// Seconds that measuring them may take then.
pub const UNASKED: f64 = 10.0;
/// Mean squared error below which a picture is still told from others.
pub(crate) const RECOGNISABLE: f64 = 1e-2;
/// How many times as long as without a defence an attack is given.
const PATIENCE: f64 = 5.0;

/// What was measured.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Measured {
    /// The twin as it is, then one row for each defence.
    pub rows: Vec<Row>,
    /// Names of defences that time did not allow for.
    #[serde(default)]
    pub left_out: Vec<String>,
}

/// One defence.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Row {
    /// What is done.
    pub defence: String,
    /// What of the plan is changed for it.
    pub changes: Vec<String>,
    /// Records of the twin.
    pub members: usize,
    /// Those that came back all the same.
    pub recovered: usize,
    /// Those that could still be recognised, below a mean squared error of 1e-2, where that is measured; and controls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recognisable: Option<(usize, usize)>,
    /// Test controls.
    pub controls: usize,
    /// Those that passed.
    pub control_recovered: usize,
    /// Why nothing can be said, if nothing can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
}

/// A defence as a change of the plan.
struct Defence {
    name: String,
    changes: Vec<String>,
}

fn defence(name: impl Into<String>, changes: &[&str]) -> Defence {
    Defence { name: name.into(), changes: changes.iter().map(|&change| change.into()).collect() }
}

/// Those that make sense for a victim.
fn defences(plan: &Plan) -> Vec<Defence> {
    let larger = |factor: usize, what: &str| {
        let members = twin_members(plan) * factor;
        // Half of the controls are left to compare with.
        let changes = format!("data.twin_members={members}");
        (2 * members <= plan.data.controls)
            .then(|| defence(format!("{factor} times as many records {what}"), &[&changes]))
    };
    let rounded = [
        defence("released weights rounded to 8 bits of mantissa (bfloat16)", &["victim.rounding=\"bf16\""]),
        defence("released weights rounded to 8 bits (int8)", &["victim.rounding=\"int8\""]),
    ];
    match &plan.victim {
        VictimPlan::Federated(client) => {
            let mut all: Vec<Defence> =
                [larger(4, "in the batch"), larger(16, "in the batch")].into_iter().flatten().collect();
            all.extend([
                defence("noise of 1 % of the gradient's size", &["victim.defence.noise=0.01"]),
                defence("noise of 10 %", &["victim.defence.noise=0.1"]),
                defence("noise as large as the gradient", &["victim.defence.noise=1.0"]),
                defence("clipped to a norm of 0.1, without noise", &["victim.defence.clip=0.1"]),
                defence("the smallest 90 % of the gradient set to 0", &["victim.defence.prune=0.9"]),
                defence("rounded to 8 bits", &["victim.defence.quantise=\"int8\""]),
                defence("signs alone", &["victim.defence.quantise=\"sign\""]),
            ]);
            all.extend(local(client));
            if client.share_statistics != SharedStatistics::None {
                all.push(defence("batch statistics not shared", &["victim.share_statistics=\"none\""]));
            }
            all
        }
        VictimPlan::Classifier(_) => {
            let mut all = vec![defence("training stopped early, at a loss of 0.1", &["victim.train.stop_loss=0.1"])];
            all.extend(larger(4, "to train on"));
            all.extend(rounded);
            all
        }
        VictimPlan::Autoencoder(_) => {
            let mut all = vec![
                defence("training stopped early, at a loss of 1e-3", &["victim.train.stop_loss=1e-3"]),
                defence("training stopped early, at a loss of 1e-2", &["victim.train.stop_loss=1e-2"]),
            ];
            all.extend(larger(4, "to train on"));
            all.extend(rounded);
            all
        }
    }
}

/// Several steps at the client, where it takes one.
fn local(client: &FederatedPlan) -> Option<Defence> {
    let steps = "victim.local={ steps = 8, lr = 0.1 }";
    client.local.is_none().then(|| defence("the change of 8 steps of training shared, at a rate of 0.1", &[steps]))
}

/// Measures the defences of a run within so many seconds and keeps them in its directory; `None` if it was stopped.
///
/// An attack that a defence stops may search for long. It is given five times as long as it takes on the twin that does
/// not defend itself, and an equal share of the time that is left where that is longer; once more, with what is left in the
/// end.
pub fn measure(plan: &Plan, dir: &RunDir, seconds: f64, watcher: &mut dyn Watcher) -> Result<Option<Measured>> {
    let (started, watcher) = (Instant::now(), &mut Unheard(watcher));
    let (mut measured, mut stopped, mut least) = (Measured::default(), Vec::new(), 0.0_f64);
    let bare = defence("none: the twin as it is", &[]);
    let all: Vec<Defence> = std::iter::once(bare).chain(defences(plan)).collect();
    let count = all.len();
    for (place, Defence { name, changes }) in all.into_iter().enumerate() {
        let left = seconds - started.elapsed().as_secs_f64();
        let patience = if place == 0 { seconds } else { least.max(left / (count - place) as f64) };
        if left <= 0.0 {
            measured.left_out.push(name);
            continue;
        }
        watcher.stage(&format!("defence: {name}"));
        let (begun, allowed) = (Instant::now(), patience.min(left));
        let mut timed = Deadline::new(watcher, allowed);
        let row = row(plan, &changes, &mut timed)?;
        match row {
            Some(row) => measured.rows.push(Row { defence: name, changes, ..row }),
            None if !timed.over => return Ok(None),
            // Cut short by the whole rather than by its own share, it says nothing.
            None if left < patience || measured.rows.is_empty() => measured.left_out.push(name),
            None => {
                stopped.push((measured.rows.len(), allowed));
                measured.rows.push(cut(name, changes, allowed));
            }
        }
        if measured.rows.len() == 1 {
            least = (PATIENCE * begun.elapsed().as_secs_f64()).max(1.0);
        }
    }
    if !again(plan, &mut measured, &stopped, started + Duration::from_secs_f64(seconds), watcher)? {
        return Ok(None);
    }
    dir.write_json(DEFENCES, &measured)?;
    Ok(Some(measured))
}

/// Gives those that were stopped (rows, and seconds they had) equal shares of the time that others have left, where
/// that is twice as long; false if somebody asked to stop.
fn again(
    plan: &Plan,
    measured: &mut Measured,
    stopped: &[(usize, f64)],
    end: Instant,
    watcher: &mut Unheard<'_>,
) -> Result<bool> {
    for (done, &(index, allowed)) in stopped.iter().enumerate() {
        let share = end.saturating_duration_since(Instant::now()).as_secs_f64() / (stopped.len() - done) as f64;
        if share < 2.0 * allowed {
            continue;
        }
        let Row { defence, changes, .. } = measured.rows[index].clone();
        watcher.stage(&format!("defence once more, for {share:.0} s: {defence}"));
        let mut timed = Deadline::new(watcher, share);
        measured.rows[index] = match row(plan, &changes, &mut timed)? {
            Some(row) => Row { defence, changes, ..row },
            None if timed.over => cut(defence, changes, share),
            None => return Ok(false),
        };
    }
    Ok(true)
}

/// A defence whose measuring time ended.
fn cut(defence: String, changes: Vec<String>, seconds: f64) -> Row {
    let obstacle = Some(format!("not measured: the attack was stopped after {seconds:.0} s"));
    Row { defence, changes, obstacle, ..Row::default() }
}

fn twin_members(plan: &Plan) -> usize {
    plan.data.twin_members.unwrap_or(plan.data.members)
}

/// One twin with changes, attacked; `None` if time was over or somebody asked to stop.
fn row(plan: &Plan, changes: &[String], watcher: &mut Deadline<'_>) -> Result<Option<Row>> {
    let mut changed = Plan::parse(&plan.to_toml()?, changes)?;
    if changed.score.criterion.metric == Metric::Mse {
        changed.score.also = vec![RECOGNISABLE];
    }
    let trial = Victim::twin(&changed).and_then(|twin| Trial::of(&changed, twin, watcher));
    Ok(match trial {
        Ok(Some(trial)) => {
            let Count { recovered, members, control_recovered, controls } = trial.scored.count;
            let also = trial.scored.also(&changed.score).into_iter().find(|also| also.threshold == RECOGNISABLE);
            let recognisable = also.map(|also| (also.recovered, also.control_recovered));
            Some(Row { recovered, members, control_recovered, controls, recognisable, ..Row::default() })
        }
        Ok(None) => None,
        // The attack gives up: nothing comes back.
        Err(AuditError::Attack(AttackError::NotApplicable { reason, .. })) => {
            let obstacle = Some(format!("the attack gives up: {reason}"));
            Some(Row { members: twin_members(&changed), obstacle, ..Row::default() })
        }
        Err(error @ (AuditError::Plan { .. } | AuditError::Nn(_) | AuditError::Attack(_))) => {
            Some(Row { obstacle: Some(error.to_string().replace("\n  hint:", ";")), ..Row::default() })
        }
        Err(error) => return Err(error),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::Silent;

    #[test]
    fn what_was_stopped_is_measured_with_the_time_that_others_left() {
        let text = "[data]\nsource = \"builtin:digits-8x8\"\nmembers = 1\ncontrols = 40\n[network]\nkind = \"mlp\"\nhidden = [16]\noutputs = 10\n\
                    activation = \"relu\"\n[victim]\nkind = \"federated\"\n[attack]\nkind = \"analytic\"\n[score]\nmetrics = [\"mse\"]\ncriterion = \
                    { metric = \"mse\", below = 1e-8 }\n";
        let plan = Plan::parse(text, &[]).unwrap();
        let stopped = || Measured { rows: vec![cut("as it is".into(), Vec::new(), 0.1)], ..Measured::default() };
        let after = |seconds: u64| {
            let mut measured = stopped();
            let end = Instant::now() + Duration::from_secs(seconds);
            assert!(again(&plan, &mut measured, &[(0, 0.1)], end, &mut Unheard(&mut Silent)).unwrap());
            measured
        };
        assert_eq!(after(0), stopped(), "no time was left");
        let measured = after(600);
        assert_eq!((measured.rows[0].recovered, &measured.rows[0].obstacle), (1, &None));
    }
}
