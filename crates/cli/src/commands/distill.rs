//! `distill`: few records that stand for many.

use std::process::ExitCode;

use afterimage_audit::distill::{self, DistillPlan, Table};
use afterimage_audit::run_dir::RunDir;
use anyhow::Result;

use super::{date_of, directory, follow, of_plan, print, stopped};
use crate::args::DistillArgs;
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
    let date = date_of(&dir)?;
    let made =
        follow("distill", plan.compute.threads, &dir, |progress| Ok(distill::run(&plan, &date, &dir, progress)?))?;
    let Some(table) = made else { return Ok(stopped()) };
    print(&table, args.json)?;
    summarise(&table);
    eprintln!("report: {}", dir.file("report.html").display());
    Ok(ExitCode::SUCCESS)
}

fn start(args: &DistillArgs) -> Result<(DistillPlan, RunDir)> {
    let file = args.task.plan()?;
    let plan = of_plan(file, DistillPlan::read(file, &args.task.changes()))?;
    of_plan(file, distill::check(&plan))?;
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
