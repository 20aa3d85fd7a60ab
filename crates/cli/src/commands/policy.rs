//! `policy`: what should a federated-learning operator ask of clients?

use std::process::ExitCode;

use afterimage_audit::policy::{self, Policy, PolicyPlan};
use afterimage_audit::run_dir::RunDir;
use anyhow::Result;

use super::{date_of, directory, follow, of_plan, print, stopped};
use crate::args::PolicyArgs;
use crate::provenance::Provenance;

const PLAN: &str = "policy.toml";

pub(crate) fn run(args: &PolicyArgs) -> Result<ExitCode> {
    let (plan, base, dir) = match &args.task.resume {
        Some(path) => {
            let dir = RunDir::holding(path, PLAN)?;
            let (plan, base) = PolicyPlan::read(&dir.file(PLAN), &[])?;
            (plan, base, dir)
        }
        None => start(args)?,
    };
    let date = date_of(&dir)?;
    let threads = afterimage_audit::plan::Plan::parse(&base, &[])?.compute.threads;
    let made = follow("policy", threads, &dir, |progress| Ok(policy::run(&plan, &base, &date, &dir, progress)?))?;
    let Some(policy) = made else { return Ok(stopped()) };
    print(&policy, args.json)?;
    summarise(&policy);
    eprintln!("report: {}", dir.file("report.html").display());
    Ok(ExitCode::SUCCESS)
}

fn start(args: &PolicyArgs) -> Result<(PolicyPlan, String, RunDir)> {
    let file = args.task.plan()?;
    let (plan, base) = of_plan(file, PolicyPlan::read(file, &args.task.changes()))?;
    let largest = of_plan(file, policy::check(&plan, &base))?;
    let text = plan.to_toml(&base)?;
    let dir = directory(args.task.out.as_ref(), "policy", &text)?;
    dir.write_json("provenance.json", &Provenance::of_figure(&largest, &text))?;
    // The plan last: a directory with a plan can be resumed.
    dir.write(PLAN, text.as_bytes())?;
    Ok((plan, base, dir))
}

/// The least noise for each way to share, and the best of all.
fn summarise(policy: &Policy) {
    eprintln!(
        "\nbatch  steps  clients  clip   noise  rebuilt    accuracy, %   (least noise from which on nothing came back)"
    );
    for cell in policy.enough() {
        let setting = cell.setting;
        eprintln!(
            "{:>5} {:>6} {:>8} {:>5} {:>7}  0 of {:<5} {:>11.1}",
            setting.batch,
            setting.steps,
            setting.clients,
            setting.clip,
            setting.noise,
            cell.members,
            100.0 * cell.accuracy
        );
    }
    match policy.best() {
        Some(cell) => eprintln!(
            "most accurate of these: batch {}, noise {}, {:.1} %",
            cell.setting.batch,
            cell.setting.noise,
            100.0 * cell.accuracy
        ),
        None => eprintln!("something came back at every setting"),
    }
}
