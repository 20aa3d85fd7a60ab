//! `onion`: who becomes easy to rebuild once the easiest are gone?

use std::process::ExitCode;

use afterimage_audit::onion::{self, Onion, OnionPlan};
use afterimage_audit::run_dir::RunDir;
use anyhow::Result;

use super::{date_of, directory, follow, of_plan, print, stopped};
use crate::args::OnionArgs;
use crate::provenance::Provenance;

const PLAN: &str = "onion.toml";

pub(crate) fn run(args: &OnionArgs) -> Result<ExitCode> {
    let (plan, base, dir) = match &args.task.resume {
        Some(path) => {
            let dir = RunDir::holding(path, PLAN)?;
            let (plan, base) = OnionPlan::read(&dir.file(PLAN), &[])?;
            (plan, base, dir)
        }
        None => start(args)?,
    };
    let date = date_of(&dir)?;
    let threads = afterimage_audit::plan::Plan::parse(&base, &[])?.compute.threads;
    let made = follow("onion", threads, &dir, |progress| Ok(onion::run(&plan, &base, &date, &dir, progress)?))?;
    let Some(onion) = made else { return Ok(stopped()) };
    print(&onion, args.json)?;
    summarise(&onion);
    eprintln!("report: {}", dir.file("report.html").display());
    Ok(ExitCode::SUCCESS)
}

fn start(args: &OnionArgs) -> Result<(OnionPlan, String, RunDir)> {
    let file = args.task.plan()?;
    let (plan, base) = of_plan(file, OnionPlan::read(file, &args.task.changes()))?;
    let first = of_plan(file, onion::check(&plan, &base))?;
    let text = plan.to_toml(&base)?;
    let dir = directory(args.task.out.as_ref(), "onion", &text)?;
    dir.write_json("provenance.json", &Provenance::of_figure(&first, &text))?;
    // The plan last: a directory with a plan can be resumed.
    dir.write(PLAN, text.as_bytes())?;
    Ok((plan, base, dir))
}

/// One line a training.
fn summarise(onion: &Onion) {
    eprintln!("\ntaken away by     records  accuracy, %  beyond every test control");
    for layer in &onion.layers {
        let beyond = if layer.errors.is_empty() { "–".to_owned() } else { layer.beyond.to_string() };
        let (rule, accuracy) = (layer.rule.name(), 100.0 * layer.accuracy);
        eprintln!("{rule:<16} {:>8}  {accuracy:>11.1}  {beyond:>25}", layer.records);
    }
}
