//! From plan to findings, one direction, a file at every step.
//!
//! Each step reads what the step before it wrote. An interrupted run goes on
//! at the first file that is missing, and the attack of a run reads the same
//! observation file that `afterimage attack` would.

use std::ops::ControlFlow;
use std::time::Instant;

use afterimage_attacks::{AnyAttack, AttackError, Observation, Reconstruction, Session, Stop, Tick};
use afterimage_nn::Device;
use sha2::{Digest, Sha256};

use crate::align::Pool;
use crate::defences::{self, QUICK, UNASKED};
use crate::export;
use crate::exposure::Exposure;
use crate::findings::{Circumstances, Findings};
use crate::hooks::{DirHooks, Timing};
use crate::learnt::Learnt;
use crate::plan::Plan;
use crate::rules::Rules;
use crate::run_dir::RunDir;
use crate::score::{Scored, Scoring, Space, last_layer, score};
use crate::verdict::{PositiveControl, Verdict};
use crate::victim::Victim;
use crate::{AuditError, Result, Truth};

pub(crate) const OBSERVATION: &str = "observation.safetensors";
pub(crate) const TRUTH: &str = "truth.safetensors";
pub(crate) const RECONSTRUCTION: &str = "reconstruction.safetensors";
pub(crate) const FINDINGS: &str = "findings.json";

/// Who watches a run.
pub trait Watcher {
    /// A step begins.
    fn stage(&mut self, name: &str);
    /// Training or the attack moved on; `Break` asks it to stop.
    fn tick(&mut self, tick: Tick) -> ControlFlow<()>;
    /// Whether it asked to stop because time was over: what there is then counts.
    fn out_of_time(&self) -> bool {
        false
    }
    /// Something the user should know.
    fn warn(&mut self, message: &str);
    /// Something that was finished, of several; whoever follows one thing alone need not say it.
    fn done(&mut self, _message: &str) {}
}

/// A plan that can be followed.
#[derive(Debug, Clone)]
pub struct Checked {
    /// Hash of the members' names and of the values of members and controls.
    pub data_sha256: String,
}

/// Fails, before anything is written, if a plan cannot be followed: data that
/// cannot be read, a network that does not fit them, a criterion without
/// meaning for them.
pub fn check(plan: &Plan) -> Result<Checked> {
    plan.compute.check()?;
    let (needs, gives) = (plan.attack.needs(), plan.victim.gives());
    if needs != gives {
        let name = plan.attack.card().name;
        let problem = format!("`{name}` needs {needs}, and this victim shares {gives}");
        return Err(AuditError::plan("attack.kind", problem, "`afterimage list` says what each attack needs"));
    }
    let victim = Victim::new(plan)?;
    let (metric, truth) = (plan.score.criterion.metric, victim.truth());
    let row = vec![0.5; truth.members.pixels.row_len()];
    let lpips = plan.score.lpips(truth.shape())?;
    let pool = Pool::new(Vec::new(), truth.shape()).with_lpips(lpips.as_ref());
    if pool.compare(metric, &row, &row).is_none() {
        let problem = format!("{metric} has no meaning for records of shape {:?}", truth.shape());
        return Err(AuditError::plan("score.criterion", problem, "use mse, l2, psnr or ncc"));
    }
    if plan.score.criterion.threshold.is_none() && truth.controls.pixels.rows() < 2 {
        let problem = "is calibrated on controls, and there are none";
        return Err(AuditError::plan("score.criterion", problem, "give it a fixed line, or ask for controls"));
    }
    let mut hasher = Sha256::new();
    for id in &truth.ids {
        hasher.update((id.len() as u64).to_le_bytes());
        hasher.update(id.as_bytes());
    }
    for pixels in [&truth.members.pixels, &truth.controls.pixels] {
        pixels.to_f64_vec()?.iter().for_each(|value| hasher.update(value.to_le_bytes()));
    }
    Ok(Checked { data_sha256: hex(hasher.finalize().as_slice()) })
}

/// Follows a plan to its findings, from wherever the directory says it got to; `None` if it was asked to stop.
///
/// Where the leak was quickly found, what would have stopped it is measured as well.
pub fn run(plan: &Plan, dir: &RunDir, watcher: &mut dyn Watcher) -> Result<Option<Findings>> {
    run_with(plan, dir, UNASKED, watcher)
}

/// The same, with so many seconds for measuring what would have stopped a leak that was quickly found; none at 0.
pub fn run_with(plan: &Plan, dir: &RunDir, unasked: f64, watcher: &mut dyn Watcher) -> Result<Option<Findings>> {
    let started = Instant::now();
    let task = Task::of(plan)?;
    plan.compute.prepare();
    // Whatever it was scored by since: a run that is followed to its end is judged by its plan.
    Rules::forget_judged(dir)?;
    if !observe(plan, dir, watcher)? {
        return Ok(None);
    }
    watcher.stage("attack");
    let rules = Rules::of(plan);
    let reconstruction = match attack(&task, dir, watcher) {
        Ok(Some(reconstruction)) => reconstruction,
        Ok(None) => return Ok(None),
        Err(AuditError::Attack(AttackError::NotApplicable { reason, hint, .. })) => {
            let findings = not_applicable(&rules, dir, format!("{reason} ({hint})."))?;
            publish(dir, &findings)?;
            return Ok(Some(findings));
        }
        Err(error) => return Err(error),
    };
    watcher.stage("score");
    let truth = Truth::read(dir.file(TRUTH))?;
    let mut findings = judge(&rules, dir, &truth, &reconstruction, None, Vec::new())?;
    // A twin answers the one question that nothing found leaves open.
    if !matches!(findings.verdict, Verdict::Reconstructed | Verdict::Traces) {
        // Cut off by the clock: no twin could be attacked at the same settings.
        if reconstruction.stop == Stop::Interrupted {
            return Ok(None);
        }
        watcher.stage("positive control");
        let (twin, obstacles) = match positive_control(plan, &task, &rules, dir, watcher) {
            Ok(Some(twin)) => (Some(twin), Vec::new()),
            Ok(None) => return Ok(None),
            // What data, method or numbers do not allow is a fact about the run, not a failure of it.
            Err(
                error @ (AuditError::Plan { .. }
                | AuditError::Nn(_)
                | AuditError::Attack(AttackError::NotApplicable { .. } | AttackError::Nn(_))),
            ) => (None, vec![format!("no twin could be attacked: {error}.")]),
            Err(error) => return Err(error),
        };
        findings = judge(&rules, dir, &truth, &reconstruction, twin, obstacles)?;
    } else if unasked > 0.0 && findings.seconds.max(started.elapsed().as_secs_f64()) <= QUICK {
        // What would have stopped it, where that is quickly told; `afterimage defences` takes longer.
        if defences::measure(plan, dir, unasked, watcher)?.is_none() && !watcher.out_of_time() {
            return Ok(None);
        }
    }
    // What the clock ended in the middle of the attack counts, and can be gone on with.
    findings.out_of_time = reconstruction.stop == Stop::Interrupted;
    watcher.stage("report");
    publish(dir, &findings)?;
    Ok(Some(findings))
}

/// Makes the victim of a plan and keeps what it leaks, unless that is done; false if it was stopped.
pub fn observe(plan: &Plan, dir: &RunDir, watcher: &mut dyn Watcher) -> Result<bool> {
    if dir.has(OBSERVATION) {
        return Ok(true);
    }
    watcher.stage("victim");
    plan.compute.prepare();
    let Some((observation, truth)) = Victim::new(plan)?.keeping(dir).leak(&mut |tick| watcher.tick(tick))? else {
        return Ok(false);
    };
    keep(dir, &observation, &truth)?;
    Ok(true)
}

/// Judges a run again, or for the first time, by the rules of its directory
/// with changes on top; a truth that is given becomes part of the directory, and
/// so do the arguments by which it was asked for.
pub fn rescore(dir: &RunDir, truth: Option<Truth>, changes: &[String], arguments: &[String]) -> Result<Findings> {
    dir.not_a_figure()?;
    dir.not_purged()?;
    let given = truth.is_some();
    let truth = match truth {
        Some(truth) => truth,
        None if dir.has(TRUTH) => Truth::read(dir.file(TRUTH))?,
        None => {
            let problem = "holds no truth to compare with; give the records with `--truth` and `--controls`";
            return Err(AuditError::file(dir.path(), problem));
        }
    };
    let rules = Rules::read(dir)?.changed(changes)?;
    let reconstruction = Reconstruction::read(dir.file(RECONSTRUCTION))?;
    let twin = match dir.file("twin").join(RECONSTRUCTION) {
        rebuilt if rebuilt.is_file() => {
            Some(Reconstruction::read(rebuilt)?).filter(|twin| twin.stop != Stop::Interrupted)
        }
        _ => None,
    };
    let twin = twin.map(|rebuilt| verdict_on_twin(&rules, &dir.inside("twin")?, &rebuilt)).transpose()?;
    let earlier = dir.read_json(FINDINGS).map(|earlier: Findings| (earlier.obstacles, earlier.out_of_time));
    let (obstacles, out_of_time) = earlier.unwrap_or_default();
    let mut findings = judge(&rules, dir, &truth, &reconstruction, twin, obstacles)?;
    findings.out_of_time = out_of_time;
    findings.rules_fixed = changes.is_empty();
    // Only now that all went well: the records become the run's, the rules those it is judged by.
    if given {
        truth.write(dir.file(TRUTH))?;
        dir.seal(TRUTH)?;
    }
    rules.write_judged(dir)?;
    crate::reporting::note_scoring(dir, arguments)?;
    publish(dir, &findings)?;
    Ok(findings)
}

/// Writes findings in every form, and the report.
fn publish(dir: &RunDir, findings: &Findings) -> Result<()> {
    dir.write_json(FINDINGS, findings)?;
    dir.write("samples.csv", export::samples_csv(findings).as_bytes())?;
    dir.write_json("findings.sarif", &export::sarif(&[findings]))?;
    dir.write("model-card.md", export::model_card(&[findings]).as_bytes())?;
    crate::reporting::report(dir)
}

/// The same attack at the same settings on a twin; `None` if it was interrupted.
fn positive_control(
    plan: &Plan,
    task: &Task<'_>,
    rules: &Rules,
    dir: &RunDir,
    watcher: &mut dyn Watcher,
) -> Result<Option<PositiveControl>> {
    let twin = dir.inside("twin")?;
    if !twin.has(OBSERVATION) {
        // Built to leak: whatever the victim does to what it shares, its twin does not.
        let open = Plan { victim: plan.victim.undefended(), ..plan.clone() };
        let Some((observation, truth)) = Victim::twin(&open)?.keeping(dir).leak(&mut |tick| watcher.tick(tick))? else {
            return Ok(None);
        };
        keep(&twin, &observation, &truth)?;
    }
    // A twin that the clock cut off says nothing of the attack.
    let whole = |rebuilt: &Reconstruction| rebuilt.stop != Stop::Interrupted;
    let Some(rebuilt) = attack(task, &twin, watcher)?.filter(whole) else { return Ok(None) };
    verdict_on_twin(rules, &twin, &rebuilt).map(Some)
}

/// The twin is judged by the rules the victim is judged by.
fn verdict_on_twin(rules: &Rules, twin: &RunDir, rebuilt: &Reconstruction) -> Result<PositiveControl> {
    let judged = judge(rules, twin, &Truth::read(twin.file(TRUTH))?, rebuilt, None, Vec::new())?;
    Ok(PositiveControl { members: judged.members, recovered: judged.recovered, verdict: judged.verdict })
}

/// The truth first: where the observation is, the truth is too.
fn keep(dir: &RunDir, observation: &Observation, truth: &Truth) -> Result<()> {
    truth.write(dir.file(TRUTH))?;
    dir.seal(TRUTH)?;
    observation.write(dir.file(OBSERVATION))?;
    dir.seal(OBSERVATION)
}

/// An attack to be run on the observation of a directory.
pub struct Task<'a> {
    /// The attack.
    pub attack: &'a AnyAttack,
    /// Seed of its random numbers.
    pub seed: u64,
    /// Where it computes.
    pub device: Device,
    /// Seconds between checkpoints.
    pub checkpoint_seconds: u64,
}

impl<'a> Task<'a> {
    fn of(plan: &'a Plan) -> Result<Self> {
        let compute = &plan.compute;
        let (device, checkpoint_seconds) = (compute.device()?, compute.checkpoint_seconds);
        Ok(Self { attack: &plan.attack, seed: plan.seed, device, checkpoint_seconds })
    }
}

/// Runs an attack on the observation file of a directory, unless it has been;
/// `None` if it was interrupted. Where time was over, what it had by then is kept, and where to go on from.
pub fn attack(task: &Task<'_>, dir: &RunDir, watcher: &mut dyn Watcher) -> Result<Option<Reconstruction>> {
    if dir.has(RECONSTRUCTION) {
        let earlier = Reconstruction::read(dir.file(RECONSTRUCTION))?;
        // What the clock cut off goes on from its checkpoint.
        if earlier.stop != Stop::Interrupted {
            return Ok(Some(earlier));
        }
    }
    let observation = Observation::read(dir.file(OBSERVATION), task.device)?;
    let mut hooks = DirHooks::new(dir, task.checkpoint_seconds, watcher)?;
    let reconstruction = task.attack.run(&observation, &mut Session::new(task.seed, &mut hooks))?;
    let interrupted = reconstruction.stop == Stop::Interrupted;
    if interrupted && !hooks.out_of_time() {
        return Ok(None);
    }
    hooks.keep_time()?;
    reconstruction.write(dir.file(RECONSTRUCTION))?;
    dir.seal(RECONSTRUCTION)?;
    if !interrupted {
        dir.remove_folder("checkpoint")?;
    }
    Ok(Some(reconstruction))
}

fn judge(
    rules: &Rules,
    dir: &RunDir,
    truth: &Truth,
    reconstruction: &Reconstruction,
    positive_control: Option<PositiveControl>,
    obstacles: Vec<String>,
) -> Result<Findings> {
    let observation = Observation::read(dir.file(OBSERVATION), Device::Cpu)?;
    let model = observation.model();
    let features = last_layer(model);
    // Inputs of an inner layer are compared with what that layer reads, and have no other features.
    let inner = reconstruction.layer.as_ref().map(|layer| truth.as_read_by(layer, model)).transpose()?;
    let by_features = rules.score.identify == Space::Features && inner.is_none();
    let judged = inner.as_ref().unwrap_or(truth);
    let (lpips, metrics) = (rules.score.lpips(judged.shape())?, rules.score.measured());
    let scoring = Scoring {
        lpips: lpips.as_ref(),
        metrics: &metrics,
        criterion: rules.score.criterion,
        alignments: &rules.score.alignments,
        features: by_features.then_some(&features),
    };
    let scored = score(reconstruction, judged, scoring)?;
    let seconds = Timing::read(dir)?.seconds;
    let exposure = Exposure::of_observation(&observation, truth)?;
    let learnt = Learnt::of_observation(&observation, truth)?;
    let about = Circumstances {
        positive_control,
        obstacles,
        exposure,
        learnt,
        ..circumstances(rules, dir, &observation, seconds)?
    };
    Ok(Findings::new(about, reconstruction, truth, &scored, &rules.score))
}

fn circumstances<'a>(
    rules: &Rules,
    dir: &RunDir,
    observation: &'a Observation,
    seconds: f64,
) -> Result<Circumstances<'a>> {
    Ok(Circumstances {
        attack: rules.attack.card().name,
        observation,
        seed: rules.seed,
        seconds,
        model_sha256: model_hash(observation)?,
        plan_sha256: hash(rules.text(dir)?.as_bytes()),
        positive_control: None,
        obstacles: Vec::new(),
        not_applicable: None,
        exposure: None,
        learnt: None,
    })
}

/// The findings of an attack that does not apply: nothing was tested.
fn not_applicable(rules: &Rules, dir: &RunDir, reason: String) -> Result<Findings> {
    let truth = Truth::read(dir.file(TRUTH))?;
    nothing_found(rules, dir, &truth, |about| about.not_applicable = Some(reason))
}

/// The findings of an attack that came to no result.
fn nothing_found(
    rules: &Rules,
    dir: &RunDir,
    truth: &Truth,
    say_why: impl FnOnce(&mut Circumstances<'_>),
) -> Result<Findings> {
    let observation = Observation::read(dir.file(OBSERVATION), Device::Cpu)?;
    let mut about = circumstances(rules, dir, &observation, 0.0)?;
    say_why(&mut about);
    let stop = if about.not_applicable.is_some() { Stop::NotApplicable } else { Stop::Interrupted };
    let none = Reconstruction { stop, ..Reconstruction::finished(truth.members.pixels.slice_rows(0..0)?, 0.0, false) };
    let scored = Scored::nothing(truth, rules.score.criterion);
    Ok(Findings::new(about, &none, truth, &scored, &rules.score))
}

/// Judges a run that a clock ended by what there is; `None` if not even its observation is there.
pub(crate) fn unfinished(plan: &Plan, dir: &RunDir, reason: &str) -> Result<Option<Findings>> {
    if !dir.has(OBSERVATION) {
        return Ok(None);
    }
    let (rules, truth) = (Rules::of(plan), Truth::read(dir.file(TRUTH))?);
    let mut findings = match dir.has(RECONSTRUCTION) {
        true => {
            let rebuilt = Reconstruction::read(dir.file(RECONSTRUCTION))?;
            judge(&rules, dir, &truth, &rebuilt, None, vec![reason.to_owned()])?
        }
        false => nothing_found(&rules, dir, &truth, |about| about.obstacles = vec![reason.to_owned()])?,
    };
    findings.out_of_time = true;
    publish(dir, &findings)?;
    Ok(Some(findings))
}

/// Judges what an attack rebuilt where there is nobody to compare with: by what it can prove alone.
pub(crate) fn certified(rules: &Rules, dir: &RunDir, rebuilt: &Reconstruction) -> Result<Findings> {
    let observation = Observation::read(dir.file(OBSERVATION), Device::Cpu)?;
    let truth = Truth::nobody(&observation)?;
    let about = circumstances(rules, dir, &observation, Timing::read(dir)?.seconds)?;
    let scored = Scored::nothing(&truth, rules.score.criterion);
    let findings = Findings::new(about, rebuilt, &truth, &scored, &rules.score);
    publish(dir, &findings)?;
    Ok(findings)
}

/// SHA-256 in hexadecimal.
pub fn hash(bytes: &[u8]) -> String {
    hex(Sha256::digest(bytes).as_slice())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The hash of the observed parameters: names and values, in the network's order.
pub fn model_hash(observation: &Observation) -> Result<String> {
    let mut hasher = Sha256::new();
    for (name, value) in observation.model().theta.state() {
        hasher.update(name.as_bytes());
        for number in value.to_f64_vec().map_err(AuditError::from)? {
            hasher.update(number.to_le_bytes());
        }
    }
    Ok(hex(hasher.finalize().as_slice()))
}
