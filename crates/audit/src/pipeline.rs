//! From plan to findings, one direction, a file at every step.
//!
//! Each step reads what the step before it wrote. An interrupted run goes on
//! at the first file that is missing, and the attack of a run reads the same
//! observation file that `afterimage attack` would.

use std::ops::ControlFlow;
use std::time::Instant;

use afterimage_attacks::{AnyAttack, AttackError, Hooks, Observation, Reconstruction, Session, Stop, Tick};
use afterimage_nn::Device;
use afterimage_nn::io::TensorFile;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::findings::{Circumstances, Findings};
use crate::plan::Plan;
use crate::run_dir::RunDir;
use crate::score::score;
use crate::verdict::{PositiveControl, Verdict};
use crate::{AuditError, Result, Truth, victim};

const OBSERVATION: &str = "observation.safetensors";
const TRUTH: &str = "truth.safetensors";
const RECONSTRUCTION: &str = "reconstruction.safetensors";
const CHECKPOINT: &str = "state.safetensors";
const TIMING: &str = "timing.json";

/// Who watches a run.
pub trait Watcher {
    /// A step begins.
    fn stage(&mut self, name: &str);
    /// The attack moved on; `Break` asks it to stop.
    fn tick(&mut self, tick: Tick) -> ControlFlow<()>;
    /// Something the user should know.
    fn warn(&mut self, message: &str);
}

/// How long the attack took, kept so that a report can be made again.
#[derive(Serialize, Deserialize)]
struct Timing {
    seconds: f64,
}

/// The outcome of [`run`].
pub enum Outcome {
    /// It came to its end.
    Finished(Box<Findings>),
    /// It was asked to stop and can be resumed.
    Interrupted,
}

/// Follows a plan to its findings, from wherever the directory says it got to.
pub fn run(plan: &Plan, dir: &RunDir, watcher: &mut dyn Watcher) -> Result<Outcome> {
    if !dir.has(OBSERVATION) {
        watcher.stage("victim");
        let (observation, truth) = victim::leak(plan)?;
        check_criterion(plan, &truth)?;
        keep(dir, &observation, &truth)?;
    }
    watcher.stage("attack");
    let Some(reconstruction) = attack(&plan.attack, plan.seed, plan.compute.device()?, dir, watcher)? else {
        return Ok(Outcome::Interrupted);
    };
    watcher.stage("score");
    let mut findings = findings(plan, dir, &reconstruction, None, Vec::new())?;
    // A twin answers the one question that nothing found leaves open.
    if !matches!(findings.verdict, Verdict::Reconstructed | Verdict::Traces) {
        watcher.stage("positive control");
        let (twin, obstacles) = match positive_control(plan, dir, watcher) {
            Ok(Some(twin)) => (Some(twin), Vec::new()),
            Ok(None) => return Ok(Outcome::Interrupted),
            // What the data or the method do not allow is a fact about the run, not a failure of it.
            Err(error @ (AuditError::Plan { .. } | AuditError::Attack(AttackError::NotApplicable { .. }))) => {
                (None, vec![format!("no twin could be attacked: {error}.")])
            }
            Err(error) => return Err(error),
        };
        findings = self::findings(plan, dir, &reconstruction, twin, obstacles)?;
    }
    dir.write_json("findings.json", &findings)?;
    dir.write("samples.csv", crate::export::samples_csv(&findings).as_bytes())?;
    watcher.stage("report");
    crate::reporting::report(dir)?;
    Ok(Outcome::Finished(Box::new(findings)))
}

/// Fails before the attack if the criterion has no meaning for these records.
fn check_criterion(plan: &Plan, truth: &Truth) -> Result<()> {
    let metric = plan.score.criterion.metric;
    let row = vec![0.5; truth.members.pixels.row_len()];
    if metric.measure(&row, &row, truth.shape()).is_some() {
        return Ok(());
    }
    let problem = format!("{metric} has no meaning for records of shape {:?}", truth.shape());
    Err(AuditError::plan("score.criterion", problem, "use mse, l2, psnr or ncc"))
}

/// The same attack at the same settings on a twin; `None` if it was interrupted.
fn positive_control(plan: &Plan, dir: &RunDir, watcher: &mut dyn Watcher) -> Result<Option<PositiveControl>> {
    let twin = dir.inside("twin")?;
    if !twin.has(OBSERVATION) {
        let (observation, truth) = victim::leak_twin(plan)?;
        keep(&twin, &observation, &truth)?;
    }
    let Some(rebuilt) = attack(&plan.attack, plan.seed, plan.compute.device()?, &twin, watcher)? else {
        return Ok(None);
    };
    // The twin is judged by the rules the victim is judged by.
    let judged = self::findings(plan, &twin, &rebuilt, None, Vec::new())?;
    Ok(Some(PositiveControl { members: judged.members, recovered: judged.recovered, verdict: judged.verdict }))
}

/// The truth first: where the observation is, the truth is too.
fn keep(dir: &RunDir, observation: &Observation, truth: &Truth) -> Result<()> {
    truth.write(dir.file(TRUTH))?;
    dir.seal(TRUTH)?;
    observation.write(dir.file(OBSERVATION))?;
    dir.seal(OBSERVATION)
}

/// Runs an attack on the observation file of a directory, unless it has been;
/// `None` if it was interrupted.
pub fn attack(
    attack: &AnyAttack,
    seed: u64,
    device: Device,
    dir: &RunDir,
    watcher: &mut dyn Watcher,
) -> Result<Option<Reconstruction>> {
    if dir.has(RECONSTRUCTION) {
        return Ok(Some(Reconstruction::read(dir.file(RECONSTRUCTION))?));
    }
    let observation = Observation::read(dir.file(OBSERVATION), device)?;
    let start = Instant::now();
    let mut hooks = DirHooks { dir: dir.inside("checkpoint")?, trace: dir.clone(), watcher, last: Instant::now() };
    let reconstruction = attack.run(&observation, &mut Session::new(seed, &mut hooks))?;
    if reconstruction.stop == Stop::Interrupted {
        return Ok(None);
    }
    dir.write_json(TIMING, &Timing { seconds: start.elapsed().as_secs_f64() })?;
    reconstruction.write(dir.file(RECONSTRUCTION))?;
    dir.seal(RECONSTRUCTION)?;
    Ok(Some(reconstruction))
}

/// Hooks that keep checkpoints and a trace in a run directory.
struct DirHooks<'a> {
    dir: RunDir,
    trace: RunDir,
    watcher: &'a mut dyn Watcher,
    last: Instant,
}

/// Seconds between checkpoints.
const CHECKPOINT_EVERY: u64 = 10;

impl Hooks for DirHooks<'_> {
    fn tick(&mut self, tick: Tick) -> ControlFlow<()> {
        if let Some(loss) = tick.loss {
            let line = format!("{{\"iteration\":{},\"loss\":{loss:e}}}", tick.iteration);
            if let Err(error) = self.trace.append("trace.jsonl", &line) {
                self.watcher.warn(&error.to_string());
            }
        }
        self.watcher.tick(tick)
    }

    fn wants_checkpoint(&mut self) -> bool {
        self.last.elapsed().as_secs() >= CHECKPOINT_EVERY
    }

    fn keep(&mut self, state: &TensorFile) -> std::result::Result<(), AttackError> {
        self.last = Instant::now();
        Ok(state.write(self.dir.file(CHECKPOINT))?)
    }

    fn resumed(&mut self) -> Option<TensorFile> {
        if !self.dir.has(CHECKPOINT) {
            return None;
        }
        match TensorFile::read(self.dir.file(CHECKPOINT)) {
            Ok(state) => Some(state),
            Err(error) => {
                self.watcher.warn(&format!("starting again, because the checkpoint cannot be used: {error}"));
                None
            }
        }
    }

    fn warn(&mut self, message: &str) {
        self.watcher.warn(message);
    }
}

fn findings(
    plan: &Plan,
    dir: &RunDir,
    reconstruction: &Reconstruction,
    positive_control: Option<PositiveControl>,
    obstacles: Vec<String>,
) -> Result<Findings> {
    let truth = Truth::read(dir.file(TRUTH))?;
    let scored = score(reconstruction, &truth, &plan.score.metrics, plan.score.criterion)?;
    let observation = Observation::read(dir.file(OBSERVATION), Device::Cpu)?;
    let timing: Timing = dir.read_json(TIMING)?;
    let about = Circumstances {
        attack: plan.attack.card().name,
        observation: &observation,
        seed: plan.seed,
        seconds: timing.seconds,
        model_sha256: model_hash(&observation)?,
        plan_sha256: hash(plan.to_toml()?.as_bytes()),
        positive_control,
        obstacles,
    };
    Ok(Findings::new(about, reconstruction, &truth, &scored, plan.score.criterion))
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
    for (name, value) in observation.model().theta.iter() {
        hasher.update(name.as_bytes());
        for number in value.to_f64_vec().map_err(AuditError::from)? {
            hasher.update(number.to_le_bytes());
        }
    }
    Ok(hex(hasher.finalize().as_slice()))
}
