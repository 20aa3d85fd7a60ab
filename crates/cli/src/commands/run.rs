//! `run`: from plan to findings.

use std::process::ExitCode;

use afterimage_audit::findings::Findings;
use afterimage_audit::pipeline::{self, Outcome};
use afterimage_audit::plan::Plan;
use afterimage_audit::run_dir::RunDir;
use afterimage_audit::verdict::Verdict;
use anyhow::{Context, Result};
use serde::Serialize;

use super::{directory, in_pool};
use crate::args::{FailOn, RunArgs};
use crate::progress::Progress;

/// Where and how a run was made.
#[derive(Serialize)]
struct Provenance {
    tool: String,
    started: String,
    arguments: Vec<String>,
    system: String,
    processor: String,
    threads: usize,
    device: String,
    dtype: String,
    seed: u64,
    plan_sha256: String,
}

pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    let (plan, dir) = match &args.resume {
        Some(path) => {
            let dir = RunDir::open(path)?;
            (Plan::read(&dir.file("plan.toml"), &[])?, dir)
        }
        None => start(args)?,
    };
    let outcome = in_pool(plan.compute.threads, || {
        let mut progress = Progress::new();
        let outcome = pipeline::run(&plan, &dir, &mut progress);
        progress.finish();
        Ok(outcome?)
    })
    .with_context(|| format!("run in {}", dir.path().display()))?;
    match outcome {
        Outcome::Interrupted => {
            eprintln!("stopped; go on with: afterimage run --resume {}", dir.path().display());
            Ok(ExitCode::FAILURE)
        }
        Outcome::Finished(findings) => {
            if args.json {
                println!("{}", serde_json::to_string_pretty(&findings)?);
            }
            summarise(&findings, &dir);
            Ok(gate(&findings, args))
        }
    }
}

/// Resolves the plan, makes the directory, and writes down what will be done.
fn start(args: &RunArgs) -> Result<(Plan, RunDir)> {
    let path = args.plan.as_ref().context("no plan was given")?;
    let mut plan = Plan::read(path, &args.changes)?;
    plan.seed = args.seed.unwrap_or(plan.seed);
    if let Some(device) = &args.device {
        plan.compute.device.clone_from(device);
    }
    plan.compute.device()?;
    let text = plan.to_toml()?;
    let dir = directory(args.out.as_ref(), plan.attack.card().name, &text)?;
    let provenance = Provenance {
        tool: format!("afterimage {}", env!("CARGO_PKG_VERSION")),
        started: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        arguments: std::env::args().skip(1).collect(),
        system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        processor: processor(),
        threads: if plan.compute.threads == 0 { rayon::current_num_threads() } else { plan.compute.threads },
        device: plan.compute.device.clone(),
        dtype: plan.compute.dtype.to_string(),
        seed: plan.seed,
        plan_sha256: pipeline::hash(text.as_bytes()),
    };
    dir.write_json("provenance.json", &provenance)?;
    // The plan last: a directory with a plan can be resumed.
    dir.write("plan.toml", text.as_bytes())?;
    Ok((plan, dir))
}

/// The processor's own name, where the system tells it.
fn processor() -> String {
    let information = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = information.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned())
}

fn summarise(findings: &Findings, dir: &RunDir) {
    let verdict = findings.verdict.headline();
    eprintln!("\n{verdict}: {}", findings.sentence);
    findings.warnings.iter().for_each(|warning| eprintln!("note: {warning}"));
    eprintln!("report: {}", dir.file("report.html").display());
}

fn gate(findings: &Findings, args: &RunArgs) -> ExitCode {
    let by_verdict = args.fail_on.is_some_and(|worst| match worst {
        FailOn::Reconstructed => findings.verdict == Verdict::Reconstructed,
        FailOn::Traces => matches!(findings.verdict, Verdict::Reconstructed | Verdict::Traces),
    });
    let by_rate = args.fail_above.is_some_and(|rate| findings.interval.low > rate);
    let asked = args.fail_on.is_some() || args.fail_above.is_some();
    if by_verdict || by_rate {
        ExitCode::from(3)
    } else if asked && matches!(findings.verdict, Verdict::Inconclusive | Verdict::NotApplicable) {
        ExitCode::from(4)
    } else {
        ExitCode::SUCCESS
    }
}
