//! `sweep`: many settings, one merged reconstruction.

use std::process::ExitCode;

use afterimage_audit::pipeline::{self, Outcome};
use afterimage_audit::plan::Plan;
use afterimage_audit::run_dir::RunDir;
use afterimage_audit::sweep::{self, SweepPlan, Table};
use anyhow::{Context, Result, bail};

use super::{conclude, directory, in_pool};
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
    let outcome = in_pool(plan.compute.threads, || {
        let mut progress = Progress::new();
        let outcome = follow(&sweep, &base, &plan, &dir, args.jobs, &mut progress);
        progress.finish();
        outcome
    })
    .with_context(|| format!("sweep in {}", dir.path().display()))?;
    match outcome {
        Outcome::Interrupted => {
            eprintln!("stopped; go on with: afterimage sweep --resume {}", dir.path().display());
            Ok(ExitCode::FAILURE)
        }
        Outcome::Finished(findings) => {
            summarise(&dir)?;
            conclude(&findings, &dir, args.json, &args.gate)
        }
    }
}

fn start(args: &SweepArgs) -> Result<(SweepPlan, String, RunDir)> {
    let trials = args.trials.map(|trials| format!("sweep.trials={trials}"));
    let changes: Vec<String> = args.task.changes().into_iter().chain(trials).collect();
    let (sweep, base) = SweepPlan::read(args.task.plan()?, &changes)?;
    let plan = Plan::parse(&base, &[])?;
    let checked = pipeline::check(&plan)?;
    let text = plan.to_toml()?;
    let dir = directory(args.task.out.as_ref(), "sweep", &text)?;
    dir.write_json("provenance.json", &Provenance::now(&plan, &text, checked))?;
    dir.write(SWEEP, sweep.to_toml(&base)?.as_bytes())?;
    dir.write("plan.toml", text.as_bytes())?;
    Ok((sweep, base, dir))
}

fn follow(
    sweep: &SweepPlan,
    base: &str,
    plan: &Plan,
    dir: &RunDir,
    jobs: usize,
    progress: &mut Progress,
) -> Result<Outcome> {
    if !dir.has("sweep.json") {
        if !pipeline::observe(plan, dir, progress)? {
            return Ok(Outcome::Interrupted);
        }
        if sweep::run(sweep, base, dir, jobs, progress)?.is_none() {
            return Ok(Outcome::Interrupted);
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
