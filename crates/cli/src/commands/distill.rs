//! `distill`: few records that stand for many.

use std::process::ExitCode;

use afterimage_audit::distill::{self, DistillPlan, Outcome, Table};
use afterimage_audit::run_dir::RunDir;
use anyhow::{Context, Result};

use super::{directory, in_pool};
use crate::args::DistillArgs;
use crate::progress::Progress;
use crate::provenance::Provenance;

const PLAN: &str = "distill.toml";

pub(crate) fn run(args: &DistillArgs) -> Result<ExitCode> {
    let (plan, dir) = match &args.task.resume {
        Some(path) => {
            let dir = RunDir::holding(path, PLAN)?;
            (DistillPlan::read(&dir.file(PLAN), &[])?, dir)
        }
        None => start(args)?,
    };
    let provenance: serde_json::Value = dir.read_json("provenance.json")?;
    let date = provenance["started"].as_str().unwrap_or("date unknown").to_owned();
    let outcome = in_pool(plan.compute.threads, || {
        let mut progress = Progress::new();
        let outcome = distill::run(&plan, &date, &dir, &mut progress);
        progress.finish();
        Ok(outcome?)
    })
    .with_context(|| format!("distillation in {}", dir.path().display()))?;
    match outcome {
        Outcome::Interrupted => {
            eprintln!("stopped; go on with: afterimage distill --resume {}", dir.path().display());
            Ok(ExitCode::FAILURE)
        }
        Outcome::Finished(table) => {
            if args.json {
                println!("{}", serde_json::to_string_pretty(&table)?);
            }
            summarise(&table);
            eprintln!("report: {}", dir.file("report.html").display());
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn start(args: &DistillArgs) -> Result<(DistillPlan, RunDir)> {
    let plan = DistillPlan::read(args.task.plan()?, &args.task.changes())?;
    distill::check(&plan)?;
    let text = plan.to_toml()?;
    let dir = directory(args.task.out.as_ref(), "distill", &text)?;
    dir.write_json("provenance.json", &Provenance::of_distillation(&plan, &text))?;
    // The plan last: a directory with a plan can be resumed.
    dir.write(PLAN, text.as_bytes())?;
    Ok((plan, dir))
}

/// One line a set.
fn summarise(table: &Table) {
    eprintln!("\nrecords            standard  linearised  infinite width  (% right of {})", table.tested);
    for row in &table.rows {
        let [standard, linearised, infinite] =
            [row.accuracy.standard, row.accuracy.linearised, row.accuracy.infinite].map(|share| 100.0 * share);
        let name = format!("{} {}", row.method.name(), row.size);
        eprintln!("{name:<17} {standard:>9.1}  {linearised:>10.1}  {infinite:>14.1}  seed {}", row.seed);
    }
}
