//! `defences`: what would have stopped the leak of a run, measured.

use std::process::ExitCode;

use afterimage_audit::defences::{Row, measure};
use afterimage_audit::plan::Plan;
use afterimage_audit::reporting;
use afterimage_audit::run_dir::RunDir;
use anyhow::{Result, bail};

use super::{in_pool, print, stopped};
use crate::args::DefencesArgs;
use crate::progress::Progress;

pub(crate) fn run(args: &DefencesArgs) -> Result<ExitCode> {
    let dir = RunDir::open(&args.run)?;
    dir.not_a_figure()?;
    dir.not_purged()?;
    if !dir.has("plan.toml") {
        bail!("{} followed no plan: nobody knows how a twin of its victim is made", args.run.display());
    }
    let plan = Plan::read(&dir.file("plan.toml"), &[])?;
    let measured = in_pool(plan.compute.threads, || {
        let mut progress = Progress::new();
        let measured = measure(&plan, &dir, args.budget, &mut progress);
        progress.finish();
        Ok(measured?)
    })?;
    let Some(measured) = measured else {
        eprintln!("stopped; what was measured before stays");
        return Ok(stopped());
    };
    reporting::report(&dir)?;
    print(&measured, args.json)?;
    eprintln!("{:<14} {:<14} {:<14} defence", "rebuilt", "controls", "recognisable");
    for row in &measured.rows {
        let Row { defence, members, recovered, recognisable, obstacle, control_recovered, controls, .. } = row;
        match obstacle {
            Some(obstacle) => eprintln!("{:<14} {:<14} {:<14} {defence} ({obstacle})", "–", "–", "–"),
            None => {
                let seen = recognisable.map_or("–".to_owned(), |(seen, _)| format!("{seen} of {members}"));
                let [rebuilt, chance] =
                    [(recovered, members), (control_recovered, controls)].map(|(some, all)| format!("{some} of {all}"));
                eprintln!("{rebuilt:<14} {chance:<14} {seen:<14} {defence}");
            }
        }
    }
    measured.left_out.iter().for_each(|defence| eprintln!("not measured for want of time: {defence}"));
    eprintln!("report: {}", dir.file("report.html").display());
    Ok(ExitCode::SUCCESS)
}
