//! Everything that fits a model, cheapest first, within a budget; and one report over it.

use std::path::{Path, PathBuf};
use std::time::Instant;

use afterimage_attacks::labels::Labels;
use afterimage_attacks::{Attack, Observation, Quiet, RowSpace, Session};
use serde::{Deserialize, Serialize};

use super::fit::{Fit, Fitting, fits, observations};
use super::folder::Exported;
use super::plans::{Records, plan, within};
use super::probe::check;
use crate::combined::{NotRun, Summary};
use crate::findings::Findings;
use crate::hooks::Deadline;
use crate::pipeline::{self, Checked, Task, Watcher};
use crate::plan::Plan;
use crate::reporting;
use crate::rules::Rules;
use crate::run_dir::RunDir;
use crate::victim::Victim;
use crate::{AuditError, Result, Truth};

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The model's folder.
    pub folder: PathBuf,
    /// Records it was trained on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<PathBuf>,
    /// Records it never saw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controls: Option<PathBuf>,
    /// One group for each record, members first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<PathBuf>,
    /// Seconds that all attacks may take together.
    pub budget: f64,
    /// Seed of every random number.
    pub seed: u64,
    /// Hash of the folder's files, when the audit was begun.
    pub folder_sha256: String,
}

impl Request {
    /// A hash of a folder's files, by name.
    pub fn fingerprint(folder: &Path) -> Result<String> {
        let wrong = |error: std::io::Error| AuditError::file(folder, format!("cannot be read: {error}"));
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(wrong)? {
            let path = entry.map_err(wrong)?.path();
            if path.is_file() {
                let bytes = std::fs::read(&path).map_err(wrong)?;
                files.push(format!("{} {}", path.display(), pipeline::hash(&bytes)));
            }
        }
        files.sort();
        Ok(pipeline::hash(files.join("\n").as_bytes()))
    }
}

/// How the reason of a run begins that time did not suffice for.
const OUT_OF_TIME: &str = "the budget";

/// How an audit ended.
#[derive(Debug)]
pub enum Outcome {
    /// With a verdict.
    Judged(Box<Summary>),
    /// It was stopped, and can be gone on with.
    Stopped,
}

/// Writes down how a run of an audit is made, before it is.
pub type Noted<'a> = dyn FnMut(&Plan, Checked, &RunDir) -> Result<()> + 'a;

/// Audits a model: its probe, then every attack that fits. Runs that were finished before are not run again.
pub fn audit(request: &Request, out: &RunDir, noted: &mut Noted<'_>, watcher: &mut dyn Watcher) -> Result<Outcome> {
    watcher.stage("probe");
    if Request::fingerprint(&request.folder)? != request.folder_sha256 {
        let problem = "was changed since this audit was begun; begin a new one";
        return Err(AuditError::file(&request.folder, problem));
    }
    let exported = Exported::read(&request.folder)?;
    let checked = check(&exported)?;
    let unknown = |reason: &str| -> Result<Outcome> {
        let summary = Summary::inconclusive(reason);
        reporting::publish_summary(&summary, &[], out)?;
        Ok(Outcome::Judged(Box::new(summary)))
    };
    if let Some(obstacle) = &checked.obstacle {
        return unknown(&format!("the imported network does not reproduce its probe: {obstacle}."));
    }
    let (members, controls) = match (&request.members, &request.controls) {
        (Some(members), Some(controls)) => (members, controls),
        (None, None) if exported.gradient.is_some() => return certify(&exported, request, out, watcher),
        (None, _) => {
            return unknown(
                "there are no members to look for. Do this: give the records that it was trained on with --members.",
            );
        }
        (_, None) => {
            return unknown(
                "there are no controls, so that nobody can say what would have come back by chance. Do this: give at least 200 \
                 records of the same kind that were never trained on with --controls.",
            );
        }
    };
    let records = Records::read(&exported, members, controls)?;
    let mut fits = fits(&exported, Some(records.members()))?;
    fits.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let mut series = Series {
        exported: &exported,
        request,
        records: &records,
        out,
        left: request.budget,
        runs: Vec::new(),
        not_run: Vec::new(),
    };
    let wanted: Vec<&Fit> = fits.iter().filter(|fit| fit.fitting == Fitting::Fits).collect();
    let waiting = wanted.len();
    for (done, fit) in wanted.into_iter().enumerate() {
        watcher.stage(&format!("{} ({} of {waiting})", fit.attack.card().name, done + 1));
        match series.run(fit, waiting - done, noted, watcher) {
            Ok(true) => {}
            Ok(false) => return Ok(Outcome::Stopped),
            // What one attack cannot do keeps no other from being tried.
            Err(error @ (AuditError::Attack(_) | AuditError::Nn(_) | AuditError::Plan { .. })) => {
                let reason = error.to_string().replace("\n  hint:", ";");
                series.not_run.push(NotRun {
                    attack: fit.attack.card().name.into(),
                    reason: format!("it failed: {reason}"),
                    unfinished: true,
                });
            }
            Err(error) => return Err(error),
        }
    }
    for fit in &fits {
        let (Fitting::No(reason) | Fitting::Outside(reason)) = &fit.fitting else { continue };
        series.not_run.push(NotRun {
            attack: fit.attack.card().name.into(),
            reason: reason.clone(),
            unfinished: false,
        });
    }
    watcher.stage("report");
    let Series { runs, not_run, .. } = series;
    let mut import: Vec<String> =
        checked.agrees.iter().map(|same| format!("{}: the same to {:.1e}", same.what, same.difference)).collect();
    import.extend(checked.notes);
    import.extend(records.notes());
    for observation in observations(&exported)? {
        import.extend(read_off(&observation));
    }
    Ok(Outcome::Judged(Box::new(reporting::combine(&runs, not_run, import, out)?)))
}

/// What is read off a gradient without a search: how many samples there were, and their labels.
fn read_off(observation: &Observation) -> Vec<String> {
    let Observation::Gradient(seen) = observation else { return Vec::new() };
    let mut facts = Vec::new();
    if let Ok((layer, space)) = RowSpace::of_observation(observation) {
        // Of full rank, nothing is left over to tell samples from noise.
        facts.push(match space.rank == space.singular_values.len() {
            true => format!("the gradient of layer `{layer}` is of full rank: {} samples or more, or noise", space.rank),
            false => format!(
                "the gradient of layer `{layer}` shows {} independent samples (the next singular value is {:.1e} of the last)",
                space.rank, space.gap
            ),
        });
    }
    let read = Labels::default().reconstruct(seen, &mut Session::new(1, &mut Quiet));
    // How many, not which: what is said here is published.
    if let Some(labels) = read.ok().and_then(|read| read.labels).filter(|labels| !labels.is_empty()) {
        facts.push(format!("labels of {} samples can be read off the gradient", labels.len()));
    }
    facts
}

/// The attacks of an audit, one after the other.
struct Series<'a> {
    exported: &'a Exported,
    request: &'a Request,
    records: &'a Records,
    out: &'a RunDir,
    /// Seconds of the budget that are left.
    left: f64,
    runs: Vec<RunDir>,
    not_run: Vec<NotRun>,
}

impl Series<'_> {
    /// Runs an attack, while so many wait with it; false if somebody asked to stop.
    fn run(&mut self, fit: &Fit, waiting: usize, noted: &mut Noted<'_>, watcher: &mut dyn Watcher) -> Result<bool> {
        let name = fit.attack.card().name;
        let dir = self.out.inside(name)?;
        if dir.has(pipeline::FINDINGS) {
            let earlier: Findings = dir.read_json(pipeline::FINDINGS)?;
            if !earlier.obstacles.iter().any(|obstacle| obstacle.starts_with(OUT_OF_TIME)) {
                self.runs.push(dir);
                return Ok(true);
            }
        }
        // What cheaper ones leave is for those that need it.
        let share = self.left / waiting as f64;
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
            None => self.not_run.push(NotRun { attack: name.into(), reason, unfinished: true }),
        }
        Ok(true)
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

/// An update that was observed, with nobody to compare: what provably reproduces it, and how many samples it shows.
fn certify(exported: &Exported, request: &Request, out: &RunDir, watcher: &mut dyn Watcher) -> Result<Outcome> {
    let observation = observations(exported)?.into_iter().find(|seen| matches!(seen, Observation::Gradient(_)));
    let Some(observation) = observation else { return Ok(Outcome::Judged(Box::new(Summary::of(&[])))) };
    let (started, import) = (Instant::now(), read_off(&observation));
    let (mut runs, mut not_run) = (Vec::new(), Vec::new());
    for fit in fits(exported, None)? {
        let name = fit.attack.card().name;
        match &fit.fitting {
            // Only these prove what they find.
            Fitting::Fits if ["analytic", "exact", "tensor"].contains(&name) => {}
            Fitting::Fits => {
                let reason = "it proves nothing, and there are no records to compare with".into();
                not_run.push(NotRun { attack: name.into(), reason, unfinished: false });
                continue;
            }
            Fitting::No(reason) | Fitting::Outside(reason) => {
                not_run.push(NotRun { attack: name.into(), reason: reason.clone(), unfinished: false });
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
            Ok(Some(rebuilt)) => {
                pipeline::certified(&rules, &dir, &rebuilt)?;
                runs.push(dir);
            }
            Ok(None) if budgeted.over => {
                let reason = format!("{OUT_OF_TIME} ended first. Do this: give more time with --budget.");
                not_run.push(NotRun { attack: name.into(), reason, unfinished: true });
            }
            Ok(None) => return Ok(Outcome::Stopped),
            Err(AuditError::Attack(afterimage_attacks::AttackError::NotApplicable { reason, hint, .. })) => {
                not_run.push(NotRun { attack: name.into(), reason: format!("{reason} ({hint})"), unfinished: false });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Outcome::Judged(Box::new(reporting::combine(&runs, not_run, import, out)?)))
}
