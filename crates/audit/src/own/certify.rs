//! What an update gives away where nobody is known to compare with: proof, and what is read off without a search.

use std::time::Instant;

use afterimage_attacks::labels::Labels;
use afterimage_attacks::{Attack, AttackError, GradientSeen, Observation, Quiet, RowSpace, Session, Stop};

use super::audit::{Outcome, Request};
use super::fit::{Fitting, fits, observations};
use super::folder::Exported;
use super::plans::within;
use crate::combined::{About, NotRun, Summary};
use crate::hooks::Deadline;
use crate::pipeline::{self, Task, Watcher};
use crate::reporting;
use crate::rules::Rules;
use crate::run_dir::RunDir;
use crate::{AuditError, Result, counted};

/// What is read off a gradient without a search: how many samples there were, and, where nobody can say whether they are right,
/// that there are labels.
pub(super) fn read_off(observation: &Observation, labels: bool) -> Vec<String> {
    let Observation::Gradient(seen) = observation else { return Vec::new() };
    let mut facts = Vec::new();
    let mut samples = seen.batch_size;
    if let Ok((layer, space)) = RowSpace::of_observation(observation) {
        let shown = samples.is_none_or(|batch| space.rank <= batch) && !space.full;
        samples = samples.or(shown.then_some(space.rank));
        facts.push(match shown {
            true => format!(
                "the gradient of layer `{layer}` shows {} independent samples (the next singular value is {:.1e} of the last)",
                space.rank, space.gap
            ),
            // Nothing is left over to tell samples from noise.
            false => format!("the gradient of layer `{layer}` does not show how many samples there were: noise, or too many"),
        });
    }
    // Labels of a batch are counted out over its samples.
    if samples.is_none() || !labels {
        return facts;
    }
    let seen = GradientSeen { batch_size: samples, ..seen.clone() };
    let read = Labels::default().reconstruct(&seen, &mut Session::new(1, &mut Quiet));
    // How many, not which: what is said here is published.
    if let Some(labels) = read.ok().and_then(|read| read.labels).filter(|labels| !labels.is_empty()) {
        facts.push(format!("labels of {} can be read off the gradient, right or not", counted(labels.len(), "sample")));
    }
    facts
}

/// An update that was observed, with nobody to compare: what provably reproduces it, and how many samples it shows.
pub(super) fn certify(
    exported: &Exported,
    request: &Request,
    notes: Vec<String>,
    out: &RunDir,
    watcher: &mut dyn Watcher,
) -> Result<Outcome> {
    let observation = observations(exported)?.into_iter().find(|seen| matches!(seen, Observation::Gradient(_)));
    let Some(observation) = observation else { return Ok(Outcome::Judged(Box::new(Summary::of(&[])))) };
    let (started, mut import) = (Instant::now(), notes);
    import.extend(read_off(&observation, true));
    let (mut runs, mut not_run) = (Vec::new(), Vec::new());
    for fit in fits(exported, None)? {
        let name = fit.attack.card().name;
        match &fit.fitting {
            // Only these prove what they find.
            Fitting::Fits if ["analytic", "exact", "tensor"].contains(&name) => {}
            Fitting::Fits => {
                let reason = "it fits, but proves nothing by itself, and there are no records to compare with. Do this: give them \
                              with --members and --controls.";
                not_run.push(NotRun::unfinished(name, reason, false));
                continue;
            }
            Fitting::No(reason) | Fitting::Outside(reason) => {
                not_run.push(NotRun::unfit(name, reason.as_str()));
                continue;
            }
        }
        watcher.stage(name);
        let dir = out.inside(name)?;
        let attack = within(exported, &fit.attack, fit.seconds, request.budget);
        let rules = Rules::usual(&attack, request.seed)?;
        if !dir.has("attack.toml") {
            observation.write(dir.file(pipeline::OBSERVATION))?;
            dir.seal(pipeline::OBSERVATION)?;
            rules.write(&dir)?;
        }
        let task =
            Task { attack: &attack, seed: request.seed, device: afterimage_nn::Device::Cpu, checkpoint_seconds: 10 };
        let mut budgeted = Deadline::new(watcher, (request.budget - started.elapsed().as_secs_f64()).max(1.0));
        match pipeline::attack(&task, &dir, &mut budgeted) {
            Ok(Some(rebuilt)) if rebuilt.stop != Stop::Interrupted || rebuilt.certified.contains(&true) => {
                pipeline::certified(&rules, &dir, &rebuilt)?;
                runs.push(dir);
            }
            Ok(_) if budgeted.over => {
                let reason = "the budget ended first. Do this: give more time with --budget.";
                not_run.push(NotRun::unfinished(name, reason, true));
            }
            Ok(_) => return Ok(Outcome::Stopped),
            Err(AuditError::Attack(AttackError::NotApplicable { reason, hint, .. })) => {
                not_run.push(NotRun::unfit(name, format!("{reason} ({hint})")));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Outcome::Judged(Box::new(reporting::combine(&runs, About { not_run, import, ..About::default() }, out)?)))
}
