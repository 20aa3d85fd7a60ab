//! `sweep`: many settings, one merged reconstruction.

use std::process::ExitCode;

use afterimage_audit::findings::Findings;
use afterimage_audit::pipeline;
use afterimage_audit::plan::Plan;
use afterimage_audit::run_dir::RunDir;
use afterimage_audit::sweep::{self, SweepPlan, Table};
use anyhow::{Result, bail};

use super::{conclude, directory, follow, of_plan, stopped};
use crate::args::SweepArgs;
use crate::progress::Progress;
use crate::provenance::Provenance;

/// The sweep as it was asked for; `plan.toml` is the plan its findings are judged by.
const SWEEP: &str = "sweep.toml";

pub(crate) fn run(args: &SweepArgs) -> Result<ExitCode> {
    let (sweep, base, dir) = match &args.task.resume {
        Some(path) => {
            let dir = RunDir::open(path)?;
            dir.not_purged()?;
            if !dir.has(SWEEP) {
                bail!("{0} is no sweep; go on with: afterimage run --resume {0}", path.display());
            }
            let (sweep, base) = SweepPlan::read(&dir.file(SWEEP), &[])?;
            (sweep, base, dir)
        }
        None => start(args)?,
    };
    let plan = Plan::parse(&base, &[])?;
    let found = follow("sweep", plan.compute.threads, &dir, |progress| {
        found_by(&sweep, &base, &plan, &dir, args.jobs, progress)
    })?;
    let Some(findings) = found else { return Ok(stopped()) };
    summarise(&dir)?;
    conclude(&findings, &dir, args.json, &args.gate)
}

fn start(args: &SweepArgs) -> Result<(SweepPlan, String, RunDir)> {
    let trials = args.trials.map(|trials| format!("sweep.trials={trials}"));
    let changes: Vec<String> = args.task.changes().into_iter().chain(trials).collect();
    let file = args.task.plan()?;
    let (sweep, base) = of_plan(file, SweepPlan::read(file, &changes))?;
    let plan = of_plan(file, Plan::parse(&base, &[]))?;
    let checked = of_plan(file, pipeline::check(&plan))?;
    let text = plan.to_toml()?;
    let dir = directory(args.task.out.as_ref(), "sweep", &text)?;
    dir.write_json("provenance.json", &Provenance::now(&plan, &text, checked))?;
    dir.write(SWEEP, sweep.to_toml(&base)?.as_bytes())?;
    dir.write("plan.toml", text.as_bytes())?;
    Ok((sweep, base, dir))
}

/// Findings of all trials together; `None` if it was stopped.
fn found_by(
    sweep: &SweepPlan,
    base: &str,
    plan: &Plan,
    dir: &RunDir,
    jobs: usize,
    progress: &mut Progress,
) -> Result<Option<Findings>> {
    if !dir.has("sweep.json") {
        if !pipeline::observe(plan, dir, progress)? {
            return Ok(None);
        }
        if sweep::run(sweep, base, dir, jobs, progress)?.is_none() {
            return Ok(None);
        }
    }
    dir.remove_folder("trials")?;
    // The reconstruction is there: what is left is to score it, as of any run.
    Ok(pipeline::run(plan, dir, progress)?)
}

/// The trials that explain most of the weights in the last round.
fn summarise(dir: &RunDir) -> Result<()> {
    let table: Table = dir.read_json("sweep.json")?;
    let last = table.rows.iter().map(|row| row.round).max().unwrap_or(0);
    eprintln!("\nexplained  settings (round {}; all trials: {})", last + 1, dir.file("sweep.csv").display());
    for row in table.rows.iter().filter(|row| row.round == last).take(5) {
        let explained = row.explained.map_or("failed".to_owned(), |value| format!("{value:.4}"));
        eprintln!("{explained:<9}  {}", row.settings.join(" "));
    }
    Ok(())
}
