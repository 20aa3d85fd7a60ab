//! One file a command.

pub(crate) mod attack;
pub(crate) mod audit;
pub(crate) mod cards;
pub(crate) mod check;
pub(crate) mod defences;
pub(crate) mod demo;
pub(crate) mod distill;
pub(crate) mod exposure;
pub(crate) mod figure;
pub(crate) mod files;
pub(crate) mod init;
pub(crate) mod onion;
pub(crate) mod packaging;
pub(crate) mod policy;
pub(crate) mod rowspace;
pub(crate) mod run;
pub(crate) mod score;
pub(crate) mod sweep;
pub(crate) mod train;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use afterimage_audit::AuditError;
use afterimage_audit::findings::Findings;
use afterimage_audit::pipeline::hash;
use afterimage_audit::run_dir::RunDir;
use afterimage_audit::verdict::Verdict;
use anyhow::{Context, Result, anyhow};

use crate::args::{FailOn, GateArgs};
use crate::progress::Progress;

/// The directory asked for, or a new one under `runs/` named by time, attack and plan.
fn directory(out: Option<&PathBuf>, attack: &str, plan: &str) -> Result<RunDir> {
    let path = out.cloned().unwrap_or_else(|| {
        let time = jiff::Timestamp::now().strftime("%Y-%m-%dT%H-%M-%SZ");
        PathBuf::from("runs").join(format!("{time}_{attack}_{}", &hash(plan.as_bytes())[..8]))
    });
    Ok(RunDir::create(path)?)
}

/// What was made of a plan; an error names the file, not just "the plan".
fn of_plan<T>(file: &Path, made: afterimage_audit::Result<T>) -> Result<T> {
    made.map_err(|error| match error {
        AuditError::Plan { key, problem, hint } => anyhow!("{}, {key}: {problem}\n  hint: {hint}", file.display()),
        other => other.into(),
    })
}

/// Does the work inside a pool of so many threads; 0 is one for each core.
fn in_pool<T: Send>(threads: usize, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build()?.install(work)
}

/// Follows a task in a directory, with progress, in a pool of its own; `None`, with what to type to go on by
/// this command, if it was stopped.
fn follow<T: Send>(
    command: &str,
    threads: usize,
    dir: &RunDir,
    task: impl FnOnce(&mut Progress) -> Result<Option<T>> + Send,
) -> Result<Option<T>> {
    let made = in_pool(threads, || {
        let mut progress = Progress::new();
        let made = task(&mut progress);
        progress.finish();
        made
    })
    .with_context(|| format!("{command} in {}", dir.path().display()))?;
    if made.is_none() {
        eprintln!("stopped; go on with: afterimage {command} --resume {}", dir.path().display());
    }
    Ok(made)
}

/// The exit code of a task that somebody stopped: 128 and the number of Ctrl-C's signal, as shells have it.
pub(crate) const STOPPED: u8 = 130;

/// Stopped on request: neither done nor failed.
fn stopped() -> ExitCode {
    ExitCode::from(STOPPED)
}

/// When a task was begun, as its directory says.
fn date_of(dir: &RunDir) -> Result<String> {
    let provenance: serde_json::Value = dir.read_json("provenance.json")?;
    Ok(provenance["started"].as_str().unwrap_or("date unknown").to_owned())
}

/// Prints numbers on standard output, if asked to.
fn print(numbers: &impl serde::Serialize, json: bool) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(numbers)?);
    }
    Ok(())
}

/// Says what was found, prints it if asked to, and turns it into an exit code.
fn conclude(findings: &Findings, dir: &RunDir, json: bool, gates: &GateArgs) -> Result<ExitCode> {
    print(findings, json)?;
    summarise(findings, dir);
    // What passed the line by chance was not rebuilt.
    let low = if findings.verdict == Verdict::Reconstructed { findings.interval.low } else { 0.0 };
    Ok(gate(findings.verdict, low, gates))
}

fn summarise(findings: &Findings, dir: &RunDir) {
    let verdict = findings.verdict.headline();
    eprintln!("\n{verdict}: {}", findings.sentence);
    let unsaid = findings.reasons.iter().filter(|reason| !findings.sentence.contains(reason.as_str()));
    // What was found needs no reason; what was not does.
    let unsaid = unsaid.filter(|_| findings.verdict != Verdict::Reconstructed);
    unsaid.for_each(|reason| eprintln!("reason: {reason}"));
    findings.warnings.iter().for_each(|warning| eprintln!("note: {warning}"));
    if !findings.rules_fixed {
        eprintln!("note: the rule was chosen after the attack had run");
    }
    eprintln!("report: {}", dir.file("report.html").display());
}

/// The exit code of a verdict, with the lower end of the interval for what can be rebuilt.
fn gate(verdict: Verdict, low: f64, args: &GateArgs) -> ExitCode {
    let by_verdict = args.fail_on.is_some_and(|worst| match worst {
        FailOn::Reconstructed => verdict == Verdict::Reconstructed,
        FailOn::Traces => matches!(verdict, Verdict::Reconstructed | Verdict::Traces),
    });
    let by_rate = args.fail_above.is_some_and(|rate| low > rate);
    let asked = args.fail_on.is_some() || args.fail_above.is_some();
    if by_verdict || by_rate {
        let share = if by_rate { format!(", at least {:.0} % can be rebuilt", 100.0 * low) } else { String::new() };
        eprintln!("gate: tripped by {}{share}: exit code 3", verdict.headline());
        ExitCode::from(3)
    } else if asked && matches!(verdict, Verdict::Inconclusive | Verdict::NotApplicable) {
        eprintln!("gate: it was asked for, and the verdict is {}: exit code 4", verdict.headline());
        ExitCode::from(4)
    } else {
        ExitCode::SUCCESS
    }
}
