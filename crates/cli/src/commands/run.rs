//! `run`: from plan to findings.

use std::process::ExitCode;

use afterimage_audit::pipeline::{self, Outcome};
use afterimage_audit::plan::Plan;
use afterimage_audit::run_dir::RunDir;
use anyhow::{Context, Result, bail};

use super::{conclude, directory, figure, in_pool};
use crate::args::RunArgs;
use crate::progress::Progress;
use crate::provenance::Provenance;

pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    let (plan, dir) = match &args.task.resume {
        Some(path) => {
            let dir = RunDir::open(path)?;
            dir.not_purged()?;
            if dir.has("sweep.toml") && !dir.has("sweep.json") {
                bail!("{0} is a sweep; go on with: afterimage sweep --resume {0}", path.display());
            }
            if let Some(task) = figure::Task::resume(&dir)? {
                return task.run(args);
            }
            (Plan::read(&dir.file("plan.toml"), &[])?, dir)
        }
        None => {
            let changes = changes(args);
            if let Some(task) = figure::Task::start(args, &changes)? {
                return task.run(args);
            }
            start(args, &changes)?
        }
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
        Outcome::Finished(findings) => conclude(&findings, &dir, args.json, &args.gate),
    }
}

/// Changes of the plan, and its device.
fn changes(args: &RunArgs) -> Vec<String> {
    let device = args.device.as_ref().map(|device| format!("compute.device=\"{device}\""));
    args.task.changes().into_iter().chain(device).collect()
}

/// Resolves the plan, makes the directory, and writes down what will be done.
fn start(args: &RunArgs, changes: &[String]) -> Result<(Plan, RunDir)> {
    let plan = Plan::read(args.task.plan()?, changes)?;
    // Before anything is made: a plan that cannot be followed leaves nothing behind.
    let checked = pipeline::check(&plan)?;
    let text = plan.to_toml()?;
    let dir = directory(args.task.out.as_ref(), plan.attack.card().name, &text)?;
    dir.write_json("provenance.json", &Provenance::now(&plan, &text, checked))?;
    // The plan last: a directory with a plan can be resumed.
    dir.write("plan.toml", text.as_bytes())?;
    Ok((plan, dir))
}
