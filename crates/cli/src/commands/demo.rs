//! `demo`: every kind of leak, on built-in data.

use std::process::ExitCode;

use afterimage_audit::demo::{Request, demo};
use afterimage_audit::pipeline::Checked;
use afterimage_audit::plan::Plan;
use afterimage_audit::run_dir::{DEMO, RunDir};
use anyhow::{Context, Result};

use super::{date_of, directory, follow, print, stopped};
use crate::args::DemoArgs;
use crate::provenance::Provenance;

pub(crate) fn run(args: &DemoArgs) -> Result<ExitCode> {
    let (request, dir) = match &args.resume {
        Some(path) => {
            let dir = RunDir::holding(path, DEMO)?;
            let text = std::fs::read_to_string(dir.file(DEMO)).context("cannot be read")?;
            (toml::from_str(&text).with_context(|| dir.file(DEMO).display().to_string())?, dir)
        }
        None => start(args)?,
    };
    let date = date_of(&dir)?;
    let shown = follow("demo", 0, &dir, |progress| {
        let mut noted = |plan: &Plan, checked: Checked, run: &RunDir| {
            run.write_json("provenance.json", &Provenance::now(plan, &plan.to_toml()?, checked))
        };
        Ok(demo(request, &date, &dir, &mut noted, progress)?)
    })?;
    let Some(shown) = shown else { return Ok(stopped()) };
    print(&shown, args.json)?;
    eprintln!("\n{} leaks were attacked in {:.0} s; the page shows what came back", shown.runs.len(), shown.seconds);
    eprintln!("report: {}", dir.file("report.html").display());
    eprintln!(
        "\nYour own model is next, in three commands:\n  \
         afterimage init pytorch > afterimage_export.py   (a script that writes your model as a folder)\n  \
         afterimage check exported                        (does the import compute what your model does?)\n  \
         afterimage audit exported --members train/ --controls held-out/ --budget 10m"
    );
    Ok(ExitCode::SUCCESS)
}

/// Makes the directory and writes down what is asked for.
fn start(args: &DemoArgs) -> Result<(Request, RunDir)> {
    let request = Request { quick: args.quick };
    let text = toml::to_string(&request)?;
    let dir = directory(args.out.as_ref(), "demo", &text)?;
    dir.write_json("provenance.json", &Provenance::of_demo())?;
    dir.write(DEMO, text.as_bytes())?;
    Ok((request, dir))
}
