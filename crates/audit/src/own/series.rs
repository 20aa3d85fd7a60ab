//! The attacks of an audit: each with its share of the budget, the rest for those that need more.

use std::time::Instant;

use afterimage_attacks::{AnyAttack, Stop};

use super::audit::{Noted, Request};
use super::fit::Fit;
use super::folder::Exported;
use super::plans::{Records, plan, steps, within};
use super::tries::{effort, most_made, set_aside, settle, tries};
use crate::combined::{NotRun, Shortened, Tried};
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
            let Some((longer, why)) = self.worth_longer(fit)? else { continue };
            let name = fit.attack.card().name;
            watcher.stage(&format!("{name} once more: {why}"));
            self.runs.retain(|run| *run.path() != self.out.file(name));
            set_aside(self.out, name)?;
            if !self.attempt(&longer, self.left, noted, watcher)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What one attack cannot do keeps no other from being tried; what is wrong with the data is wrong for all.
    fn attempt(&mut self, fit: &Fit, share: f64, noted: &mut Noted<'_>, watcher: &mut dyn Watcher) -> Result<bool> {
        let name = fit.attack.card().name;
        let attempted = match self.run(fit, share, noted, watcher) {
            Err(AuditError::Plan { key, problem, hint }) if key.starts_with("data.") => {
                return Err(AuditError::Plan { key, problem, hint });
            }
            Err(error @ (AuditError::Attack(_) | AuditError::Nn(_) | AuditError::Plan { .. })) => {
                let reason = format!("it failed: {}", error.to_string().replace("\n  hint:", ";"));
                self.not_run.push(NotRun::unfinished(name, reason, false));
                true
            }
            done => done?,
        };
        if attempted && settle(self.out, name)? {
            let earlier = self.out.inside(name)?;
            self.not_run.retain(|other| other.attack != name);
            self.runs.retain(|run| run.path() != earlier.path());
            self.runs.push(earlier);
        }
        Ok(attempted)
    }

    /// Runs an attack within so many seconds; false if somebody asked to stop.
    fn run(&mut self, fit: &Fit, share: f64, noted: &mut Noted<'_>, watcher: &mut dyn Watcher) -> Result<bool> {
        let name = fit.attack.card().name;
        let dir = self.out.inside(name)?;
        if dir.has(pipeline::FINDINGS) {
            let earlier: Findings = dir.read_json(pipeline::FINDINGS)?;
            if !earlier.out_of_time {
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
            format!("the budget of {share:.0} s for {name} ended first. Do this: give more time with --budget.");
        match pipeline::unfinished(&plan, &dir, &reason)? {
            Some(_) => self.runs.push(dir),
            None => self.not_run.push(NotRun::unfinished(name, reason, true)),
        }
        Ok(true)
    }

    /// The attack with what its steps were measured to take, if it named nobody, and what is left of the budget allows all of
    /// its steps, or half as many again, or of `exact` more searches than usual; with what is other about it.
    fn worth_longer(&self, fit: &Fit) -> Result<Option<(Fit, String)>> {
        let place = self.out.file(fit.attack.card().name);
        let Some(dir) = self.runs.iter().find(|run| *run.path() == place) else { return Ok(None) };
        let findings: Findings = dir.read_json(pipeline::FINDINGS)?;
        // Of one that the clock ended, it is not known what it would have taken.
        if findings.verdict == Verdict::Reconstructed || findings.stop == Stop::Interrupted {
            return Ok(None);
        }
        let mut longer = fit.clone();
        if let AnyAttack::Exact(settings) = &mut longer.attack {
            settings.searches = settings.searches.saturating_mul(MORE_SEARCHES);
        } else if findings.iterations == 0 {
            return Ok(None);
        } else {
            let usual = steps(&fit.attack).unwrap_or(0) as f64;
            longer.seconds = findings.seconds / findings.iterations as f64 * usual;
        }
        let allowed = effort(&within(self.exported, &longer.attack, longer.seconds, self.left));
        let (Some(made), Some((allowed, unit)), Some((usual, _))) = (most_made(dir)?, allowed, effort(&longer.attack))
        else {
            return Ok(None);
        };
        let found = if findings.verdict == Verdict::Traces { "left traces" } else { "rebuilt no more than chance" };
        let why = format!("{allowed} {unit}, after {made} {found}");
        Ok((made < usual && (allowed == usual || 2 * allowed >= 3 * made)).then_some((longer, why)))
    }

    /// Other tries of the attacks that ran.
    pub(super) fn tried(&self) -> Result<Vec<Tried>> {
        Ok(self.runs.iter().map(tries).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
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
        let [members, controls] = [members, controls].map(|sample| preprocess.apply(&sample.pixels));
        let [members, controls] = [members?.to_f64_vec()?, controls?.to_f64_vec()?];
        let spread = |values: &[f64]| {
            let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
            let square = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len().max(1) as f64;
            (mean, square.sqrt())
        };
        let (probe_mean, probe_std) = spread(&inputs.to_f64_vec()?);
        let far = |values: &[f64]| {
            let (mean, std) = spread(values);
            let ratio = std / probe_std.max(f64::MIN_POSITIVE);
            let alike = (mean - probe_mean).abs() <= 0.5 * probe_std && (0.6..1.7).contains(&ratio);
            (!alike).then_some((mean, std))
        };
        // Of both together: a single member may be dark by itself.
        let Some((mean, std)) = far(&[&members[..], &controls[..]].concat()) else { return Ok(()) };
        let (of_members, of_controls) = (far(&members), far(&controls));
        let (source, (mean, std)) = match (of_members, of_controls, &plan.data.controls_from) {
            (None, Some(theirs), Some(source)) => (source, theirs),
            (Some(theirs), None, _) => (&plan.data.source, theirs),
            _ => (&plan.data.source, (mean, std)),
        };
        let problem = format!(
            "prepared as preprocessing.toml says, these records have a mean of {mean:.2} and a deviation of {std:.2}; the \
             inputs of the probe {probe_mean:.2} and {probe_std:.2}: normalisation. Images are read as 0 to 1; give records \
             in the range that preprocessing.toml names"
        );
        Err(AuditError::data(source, problem))
    }
}

/// How many times its usual searches the exact attack makes where those found nothing.
const MORE_SEARCHES: usize = 25;

/// How far the steps of an attack were cut, by the plan of a run or by the clock, if they were.
fn shortened(usual: &AnyAttack, run: &RunDir) -> Result<Option<Shortened>> {
    let planned = Plan::read(&run.file("plan.toml"), &[])?.attack;
    let findings: Findings = run.read_json(pipeline::FINDINGS)?;
    let (Some(planned_steps), Some(usual)) = (steps(&planned), steps(usual)) else { return Ok(None) };
    let made = if findings.stop == Stop::Interrupted { findings.iterations } else { planned_steps };
    Ok((made < usual).then(|| Shortened { attack: planned.card().name.into(), made, usual }))
}
