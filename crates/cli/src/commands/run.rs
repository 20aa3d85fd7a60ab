//! `run`: from plan to findings.

use std::process::ExitCode;

use afterimage_audit::defences::UNASKED;
use afterimage_audit::pipeline;
use afterimage_audit::plan::Plan;
use afterimage_audit::run_dir::RunDir;
use anyhow::{Result, bail};

use super::{conclude, directory, figure, follow, of_plan, stopped};
use crate::args::{RunArgs, TaskArgs};
use crate::provenance::Provenance;

pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    let mut unasked = UNASKED;
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
            if dir.has("findings.json") {
                eprintln!("it was finished before: what it rebuilt is judged once more, and no more than that");
                unasked = 0.0;
            }
            (Plan::read(&dir.file("plan.toml"), &[])?, dir)
        }
        None => {
            let changes = args.task.changes();
            if let Some(task) = figure::Task::start(args, &changes)? {
                return task.run(args);
            }
            start(&args.task, &changes)?
        }
    };
    let found =
        follow("run", plan.compute.threads, &dir, |progress| Ok(pipeline::run_with(&plan, &dir, unasked, progress)?))?;
    found.map_or(Ok(stopped()), |findings| conclude(&findings, &dir, args.json, &args.gate))
}

/// Resolves the plan, makes the directory, and writes down what will be done.
pub(super) fn start(task: &TaskArgs, changes: &[String]) -> Result<(Plan, RunDir)> {
    let file = task.plan()?;
    let plan = of_plan(file, Plan::read(file, changes))?;
    // Before anything is made: a plan that cannot be followed leaves nothing behind.
    let checked = of_plan(file, pipeline::check(&plan))?;
    let text = plan.to_toml()?;
    let dir = directory(task.out.as_ref(), plan.attack.card().name, &text)?;
    dir.write_json("provenance.json", &Provenance::now(&plan, &text, checked))?;
    // The plan last: a directory with a plan can be resumed.
    dir.write("plan.toml", text.as_bytes())?;
    Ok((plan, dir))
}
