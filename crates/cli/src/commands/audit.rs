//! `audit`: one's own model, from a folder to a report.

use std::path::PathBuf;
use std::process::ExitCode;

use afterimage_audit::counted;
use afterimage_audit::own::{Outcome, Request, audit};
use afterimage_audit::pipeline::Checked;
use afterimage_audit::plan::Plan;
use afterimage_audit::run_dir::{AUDIT, RunDir};
use afterimage_audit::verdict::Verdict;
use anyhow::{Context, Result};

use super::{directory, follow, gate, print, stopped};
use crate::args::AuditArgs;
use crate::provenance::Provenance;

/// Seconds that an audit may take if nobody says.
const BUDGET: f64 = 600.0;

pub(crate) fn run(args: &AuditArgs) -> Result<ExitCode> {
    let (request, dir) = match &args.resume {
        Some(path) => {
            let dir = RunDir::holding(path, AUDIT)?;
            let text = std::fs::read_to_string(dir.file(AUDIT)).context("cannot be read")?;
            let request: Request = toml::from_str(&text).with_context(|| dir.file(AUDIT).display().to_string())?;
            // Time is given anew; everything else stays as it was asked for.
            let budget = args.budget.unwrap_or(request.budget);
            (Request { budget, ..request }, dir)
        }
        None => start(args)?,
    };
    let followed = follow("audit", 0, &dir, |progress| {
        let mut noted = |plan: &Plan, checked: Checked, run: &RunDir| {
            run.write_json("provenance.json", &Provenance::now(plan, &plan.to_toml()?, checked))
        };
        Ok(match audit(&request, &dir, &mut noted, progress)? {
            Outcome::Judged(summary) => Some(summary),
            Outcome::Stopped => None,
        })
    });
    // What failed before anything was attacked leaves nothing behind.
    if followed.is_err() && args.resume.is_none() && !begun(&dir)? {
        dir.clone().discard()?;
    }
    let judged = followed?;
    let Some(summary) = judged else { return Ok(stopped()) };
    print(&summary, args.json)?;
    eprintln!("\n{}: {}", summary.verdict.headline(), summary.sentence);
    for run in &summary.runs {
        let (name, verdict) = (&run.attack, run.verdict.headline());
        match run.members {
            _ if let Some(labels) = run.labels => eprintln!(
                "  {name:<14} {verdict:<14} {} of {} labels right, {:.1} by chance; no record rebuilt",
                labels.right, labels.members, labels.by_chance
            ),
            _ if !run.scored => eprintln!("  {name:<14} {verdict:<14} stopped before it had a candidate"),
            0 => eprintln!("  {name:<14} {verdict:<14} {} proven", counted(run.proven, "candidate")),
            members => {
                let proven = if run.proven > 0 { format!(", {} proven", run.proven) } else { String::new() };
                // Where nothing was found, what passes the line is what chance gives.
                let passed = if run.verdict == Verdict::Reconstructed { "rebuilt" } else { "past the line" };
                // A line that controls set is passed by what need not be alike.
                let alike = run.recognisable.map_or(String::new(), |(members, controls)| {
                    format!("; recognisable {members}, controls {controls}")
                });
                eprintln!(
                    "  {name:<14} {verdict:<14} {} of {members} {passed}, controls {} of {}{alike}{proven}",
                    run.recovered, run.control_recovered, run.controls
                );
            }
        }
    }
    for other in &summary.not_run {
        eprintln!("  {:<14} not run        {}", other.attack, other.reason);
    }
    summary.import.iter().for_each(|fact| eprintln!("note: {fact}"));
    summary.shortened.iter().for_each(|shortened| eprintln!("note: {shortened}"));
    summary.tried.iter().for_each(|tried| eprintln!("note: {tried}"));
    eprintln!("report: {}", dir.file("report.html").display());
    if summary.wants_time() {
        let longer = (6.0 * request.budget / 60.0).ceil();
        eprintln!("Next: give it more time, afterimage audit --resume {} --budget {longer:.0}m", dir.path().display());
    }
    Ok(gate(summary.verdict, summary.lower_bound(), &args.gate))
}

/// Whether an attack was planned already.
fn begun(dir: &RunDir) -> Result<bool> {
    Ok(dir.runs_inside()?.iter().any(|run| run.has("plan.toml") || run.has("attack.toml")))
}

/// Makes the directory and writes down what is asked for.
fn start(args: &AuditArgs) -> Result<(Request, RunDir)> {
    let folder = args.dir.as_ref().context("no folder was given")?;
    let folder = folder.canonicalize().map_err(|error| {
        let hint = "`afterimage init pytorch` prints the script that writes such a folder";
        anyhow::anyhow!("{}: cannot be opened: {error}\n  hint: {hint}", folder.display())
    })?;
    // Whoever goes on with it may do so from another folder; built-in data have no path.
    let fixed = |path: &Option<PathBuf>| path.as_ref().map(|path| path.canonicalize().unwrap_or_else(|_| path.clone()));
    let (members, controls, groups) = (fixed(&args.members), fixed(&args.controls), fixed(&args.groups));
    let folder_sha256 = Request::fingerprint(&folder)?;
    let (budget, seed) = (args.budget.unwrap_or(BUDGET), args.seed);
    let request = Request { folder, members, controls, groups, budget, seed, folder_sha256 };
    let text = toml::to_string(&request)?;
    let dir = directory(args.out.as_ref(), "audit", &text)?;
    dir.write_json("provenance.json", &Provenance::of_audit(seed))?;
    dir.write(AUDIT, text.as_bytes())?;
    Ok((request, dir))
}
