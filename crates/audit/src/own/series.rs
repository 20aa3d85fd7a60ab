//! The attacks of an audit: each with its share of the budget, the rest for those that need more.

use std::time::Instant;

use afterimage_attacks::{AnyAttack, Stop};

use super::audit::{Noted, Request};
use super::fit::Fit;
use super::folder::Exported;
use super::plans::{Records, plan, steps, within};
use super::tries::{can_go_on, effort, most_made, planned, recover, set_aside, settle};
use crate::combined::{NotRun, Shortened, Summary};
use crate::findings::Findings;
use crate::hooks::Deadline;
use crate::pipeline::{self, Watcher};
use crate::plan::Plan;
use crate::reporting;
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
    /// Attacks that were made, or gone on with, this time.
    pub(super) made: usize,
    /// Those that have findings.
    pub(super) runs: Vec<RunDir>,
    pub(super) not_run: Vec<NotRun>,
}

impl<'a> Series<'a> {
    pub(super) fn new(exported: &'a Exported, request: &'a Request, records: &'a Records, out: &'a RunDir) -> Self {
        Self { exported, request, records, out, left: request.budget, made: 0, runs: Vec::new(), not_run: Vec::new() }
    }

    /// Runs attacks, cheapest first; then, with what is left of the budget, once more those that named nobody and may do more.
    /// False if somebody asked to stop.
    pub(super) fn run_all(&mut self, fits: &[&Fit], noted: &mut Noted<'_>, watcher: &mut dyn Watcher) -> Result<bool> {
        let waiting = fits.len();
        let mut pending = Vec::new();
        for (done, fit) in fits.iter().enumerate() {
            let name = fit.attack.card().name;
            // One that was being made once more goes on with all that is left.
            if recover(self.out, name)? {
                pending.push(name);
                continue;
            }
            watcher.stage(&format!("{name} ({} of {waiting})", done + 1));
            // What cheaper ones leave is for those that need it.
            let share = self.left / (waiting - done) as f64;
            if !self.attempt(fit, share, noted, watcher)? {
                return Ok(false);
            }
        }
        for fit in fits {
            let name = fit.attack.card().name;
            let goes_on = pending.contains(&name);
            let next = match goes_on {
                true => Some(((*fit).clone(), "where it was".to_owned())),
                false => self.worth_longer(fit)?,
            };
            let Some((longer, why)) = next else { continue };
            watcher.stage(&format!("{name} once more: {why}"));
            if !goes_on {
                self.runs.retain(|run| *run.path() != self.out.file(name));
                set_aside(self.out, name)?;
            }
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
            if !earlier.out_of_time || dir.not_purged().is_err() {
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
        self.made += 1;
        let mut budgeted = Deadline::new(watcher, share.max(1.0));
        let found = pipeline::run(&plan, &dir, &mut budgeted);
        let over = budgeted.over;
        // What fails has taken its time, too.
        self.left = (self.left - started.elapsed().as_secs_f64()).max(0.0);
        let found = found?;
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

    /// The attack with what its steps were measured to take, if it named nobody, all attacks considered, and what is left of the
    /// budget allows all of its steps, or half as many again, or of `exact` more searches than usual; with what is other about it.
    fn worth_longer(&self, fit: &Fit) -> Result<Option<(Fit, String)>> {
        let name = fit.attack.card().name;
        let place = self.out.file(name);
        let Some(dir) = self.runs.iter().find(|run| *run.path() == place) else { return Ok(None) };
        let findings: Findings = dir.read_json(pipeline::FINDINGS)?;
        let judged = Summary::of_tries(&reporting::judged(&self.runs)?);
        let verdict = judged.runs.iter().find(|part| part.attack == name).map_or(findings.verdict, |part| part.verdict);
        let ended = [Verdict::Reconstructed, Verdict::NotApplicable].contains(&verdict);
        // Of one that the clock ended, it is not known what it would have taken; what had nothing left to gain gains nothing, and
        // what was purged is not made again.
        let gained = findings.stop == Stop::Finished && !matches!(fit.attack, AnyAttack::Exact(_));
        if ended || gained || findings.stop == Stop::Interrupted || dir.not_purged().is_err() {
            return Ok(None);
        }
        if can_go_on(self.out, name) {
            return Ok(Some((fit.clone(), "where the clock had ended it".into())));
        }
        let mut longer = fit.clone();
        if let AnyAttack::Exact(settings) = &mut longer.attack {
            settings.searches = settings.searches.saturating_mul(MORE_SEARCHES);
        } else if let (Some(usual), Some((planned, _))) = (steps(&fit.attack), planned(dir)?) {
            longer.seconds = findings.seconds * usual as f64 / planned.max(1) as f64;
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
             in the range that preprocessing.toml names{}",
            if source.ends_with(".csv") || source.ends_with(".csv.gz") { CLASS_OF_CSV } else { "" }
        );
        Err(AuditError::data(source, problem))
    }
}

/// What may have been taken for a feature, or for the class.
pub(super) const CLASS_OF_CSV: &str =
    ". Of a .csv the column `label`, `class` or `target`, or else the last, is the class, and all others are features";

/// How many times its usual searches the exact attack makes where those named nobody.
const MORE_SEARCHES: usize = 25;

/// How far the steps of an attack were cut in all of its tries, by their plans or by the clock, if they were.
fn shortened(attack: &AnyAttack, run: &RunDir) -> Result<Option<Shortened>> {
    let findings: Findings = run.read_json(pipeline::FINDINGS)?;
    let (Some((usual, unit)), Some(planned)) = (effort(attack), most_made(run)?) else { return Ok(None) };
    // Whoever was found by few searches needs no more, nor does a descent with nothing left to gain.
    let searched = matches!(attack, AnyAttack::Exact(_));
    if searched && findings.verdict == Verdict::Reconstructed || !searched && findings.stop == Stop::Finished {
        return Ok(None);
    }
    let ended = findings.stop == Stop::Interrupted && !searched;
    let made = if ended { findings.iterations.min(planned) } else { planned };
    Ok((made < usual).then(|| Shortened { attack: attack.card().name.into(), made, usual, unit: unit.into() }))
}
