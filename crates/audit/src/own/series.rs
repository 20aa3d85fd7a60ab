//! The attacks of an audit: each with its share of the budget, the rest for those that need more.

use std::time::Instant;

use afterimage_attacks::{AnyAttack, Stop};

use super::audit::{Noted, Request};
use super::fit::Fit;
use super::folder::Exported;
use super::plans::{Records, plan, steps, within};
use crate::combined::{NotRun, OUT_OF_TIME, Shortened};
use crate::findings::Findings;
use crate::hooks::Deadline;
use crate::pipeline::{self, Watcher};
use crate::plan::Plan;
use crate::run_dir::RunDir;
use crate::verdict::Verdict;
use crate::victim::Victim;
use crate::{AuditError, Result, Truth};

/// The attacks of an audit, one after the other.
pub(super) struct Series<'a> {
    exported: &'a Exported,
    request: &'a Request,
    records: &'a Records,
    out: &'a RunDir,
    /// Seconds of the budget that are left.
    left: f64,
    /// Those that have findings.
    pub(super) runs: Vec<RunDir>,
    pub(super) not_run: Vec<NotRun>,
}

impl<'a> Series<'a> {
    pub(super) fn new(exported: &'a Exported, request: &'a Request, records: &'a Records, out: &'a RunDir) -> Self {
        Self { exported, request, records, out, left: request.budget, runs: Vec::new(), not_run: Vec::new() }
    }

    /// Runs attacks, cheapest first; then, with what is left of the budget, once more those that it had cut short and that
    /// rebuilt nothing. False if somebody asked to stop.
    pub(super) fn run_all(&mut self, fits: &[&Fit], noted: &mut Noted<'_>, watcher: &mut dyn Watcher) -> Result<bool> {
        let waiting = fits.len();
        for (done, fit) in fits.iter().enumerate() {
            watcher.stage(&format!("{} ({} of {waiting})", fit.attack.card().name, done + 1));
            // What cheaper ones leave is for those that need it.
            let share = self.left / (waiting - done) as f64;
            if !self.attempt(fit, share, noted, watcher)? {
                return Ok(false);
            }
        }
        for fit in fits {
            let Some(longer) = self.worth_longer(fit)? else { continue };
            watcher.stage(&format!("{} once more, with the time that is left", fit.attack.card().name));
            self.runs.retain(|run| *run.path() != self.out.file(fit.attack.card().name));
            self.out.remove_folder(fit.attack.card().name)?;
            if !self.attempt(&longer, self.left, noted, watcher)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What one attack cannot do keeps no other from being tried; what is wrong with the data is wrong for all.
    fn attempt(&mut self, fit: &Fit, share: f64, noted: &mut Noted<'_>, watcher: &mut dyn Watcher) -> Result<bool> {
        match self.run(fit, share, noted, watcher) {
            Err(AuditError::Plan { key, problem, hint }) if key.starts_with("data.") => {
                Err(AuditError::Plan { key, problem, hint })
            }
            Err(error @ (AuditError::Attack(_) | AuditError::Nn(_) | AuditError::Plan { .. })) => {
                let reason = format!("it failed: {}", error.to_string().replace("\n  hint:", ";"));
                self.not_run.push(NotRun { attack: fit.attack.card().name.into(), reason, unfinished: true });
                Ok(true)
            }
            done => done,
        }
    }

    /// Runs an attack within so many seconds; false if somebody asked to stop.
    fn run(&mut self, fit: &Fit, share: f64, noted: &mut Noted<'_>, watcher: &mut dyn Watcher) -> Result<bool> {
        let name = fit.attack.card().name;
        let dir = self.out.inside(name)?;
        if dir.has(pipeline::FINDINGS) {
            let earlier: Findings = dir.read_json(pipeline::FINDINGS)?;
            if !earlier.obstacles.iter().any(|obstacle| obstacle.starts_with(OUT_OF_TIME)) {
                self.runs.push(dir);
                return Ok(true);
            }
        }
        let plan = match dir.has("plan.toml") {
            true => Plan::read(&dir.file("plan.toml"), &[])?,
            false => {
                let plan = plan(self.exported, self.request, self.records, &fit.attack, (fit.seconds, share))?;
                if self.runs.is_empty() {
                    self.same_scale(&plan)?;
                }
                noted(&plan, pipeline::check(&plan)?, &dir)?;
                dir.write("plan.toml", plan.to_toml()?.as_bytes())?;
                plan
            }
        };
        let started = Instant::now();
        let mut budgeted = Deadline::new(watcher, share.max(1.0));
        let found = pipeline::run(&plan, &dir, &mut budgeted)?;
        let over = budgeted.over;
        self.left = (self.left - started.elapsed().as_secs_f64()).max(0.0);
        if found.is_some() {
            self.runs.push(dir);
            return Ok(true);
        }
        if !over {
            return Ok(false);
        }
        let reason =
            format!("{OUT_OF_TIME} of {share:.0} s for {name} ended first. Do this: give more time with --budget.");
        match pipeline::unfinished(&plan, &dir, &reason)? {
            Some(_) => self.runs.push(dir),
            None => self.not_run.push(NotRun { attack: name.into(), reason, unfinished: true }),
        }
        Ok(true)
    }

    /// The attack with what its steps were measured to take, if it rebuilt nothing, was cut short, and what is left of the
    /// budget allows half as many steps again.
    fn worth_longer(&self, fit: &Fit) -> Result<Option<Fit>> {
        let place = self.out.file(fit.attack.card().name);
        let Some(dir) = self.runs.iter().find(|run| *run.path() == place) else { return Ok(None) };
        let (findings, made) = (dir.read_json::<Findings>(pipeline::FINDINGS)?, shortened(&fit.attack, dir)?);
        let Some(Shortened { made, usual, .. }) = made.filter(|_| findings.verdict > Verdict::Traces) else {
            return Ok(None);
        };
        // Of one that the clock ended, it is not known what it would have taken.
        if findings.iterations == 0 || findings.stop == Stop::Interrupted {
            return Ok(None);
        }
        let seconds = findings.seconds / findings.iterations as f64 * usual as f64;
        let longer = Fit { seconds, ..fit.clone() };
        let allowed = steps(&within(self.exported, &fit.attack, seconds, self.left)).unwrap_or(0);
        Ok((2 * allowed >= 3 * made).then_some(longer))
    }

    /// Attacks that made fewer steps than they usually do.
    pub(super) fn shortened(&self, fits: &[&Fit]) -> Result<Vec<Shortened>> {
        let place = |fit: &Fit| self.out.file(fit.attack.card().name);
        let ran = |fit: &&&Fit| self.runs.iter().any(|run| *run.path() == place(fit));
        let runs = fits.iter().filter(ran).map(|fit| shortened(&fit.attack, &self.out.inside(fit.attack.card().name)?));
        Ok(runs.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// Fails unless records, prepared as the folder says, look to the network like the inputs of its probe.
    fn same_scale(&self, plan: &Plan) -> Result<()> {
        let Some(inputs) = self.exported.probe.as_ref().and_then(|probe| probe.tensors.get("inputs")) else {
            return Ok(());
        };
        let victim = Victim::new(plan)?;
        let Truth { members, controls, preprocess, .. } = victim.truth();
        // Of controls too: a single member may be dark by itself.
        let mut values = preprocess.apply(&members.pixels)?.to_f64_vec()?;
        values.extend(preprocess.apply(&controls.pixels)?.to_f64_vec()?);
        let spread = |values: &[f64]| {
            let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
            let square = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len().max(1) as f64;
            (mean, square.sqrt())
        };
        let ((mean, std), (probe_mean, probe_std)) = (spread(&values), spread(&inputs.to_f64_vec()?));
        let ratio = std / probe_std.max(f64::MIN_POSITIVE);
        if (mean - probe_mean).abs() <= 0.5 * probe_std && (0.6..1.7).contains(&ratio) {
            return Ok(());
        }
        let problem = format!(
            "prepared as preprocessing.toml says, these records have a mean of {mean:.2} and a deviation of {std:.2}; the \
             inputs of the probe {probe_mean:.2} and {probe_std:.2}: normalisation. Images are read as 0 to 1; give records \
             in the range that preprocessing.toml names"
        );
        Err(AuditError::data(&plan.data.source, problem))
    }
}

/// How far the steps of an attack were cut, by the plan of a run or by the clock, if they were.
fn shortened(usual: &AnyAttack, run: &RunDir) -> Result<Option<Shortened>> {
    let planned = Plan::read(&run.file("plan.toml"), &[])?.attack;
    let findings: Findings = run.read_json(pipeline::FINDINGS)?;
    let (Some(planned_steps), Some(usual)) = (steps(&planned), steps(usual)) else { return Ok(None) };
    let made = if findings.stop == Stop::Interrupted { findings.iterations } else { planned_steps };
    Ok((made < usual).then(|| Shortened { attack: planned.card().name.into(), made, usual }))
}
