//! `report` and `purge`: what is done with the files of a run.

use std::path::PathBuf;
use std::process::ExitCode;

use afterimage_audit::combined::About;
use afterimage_audit::reporting;
use afterimage_audit::run_dir::{AUDIT, DEMO, RunDir};
use anyhow::{Context, Result};

use crate::args::ReportArgs;

/// Makes reports again, or one over several runs.
pub(crate) fn report(args: &ReportArgs) -> Result<ExitCode> {
    let (mut runs, mut about) = (Vec::new(), None);
    for path in &args.runs {
        let dir = RunDir::any(path)?;
        let mut inside = dir.runs_inside()?;
        // Of an audit or a demonstration, all that have findings.
        inside.retain(|run| run.has("findings.json") && !run.is_other_try());
        about = about.or(dir.has(AUDIT).then(|| About::of_audit(&dir)).transpose()?.filter(|_| args.runs.len() == 1));
        let these = if inside.is_empty() { vec![RunDir::open(path)?] } else { inside };
        for run in these {
            reporting::report(&run).with_context(|| format!("report of {}", run.path().display()))?;
            // Of a purged run the public report alone is made again.
            let made = if run.has("report.html") { "report.html" } else { "report-public.html" };
            eprintln!("{}", run.file(made).display());
            runs.push(run);
        }
    }
    if let Some(out) = &args.out {
        let out = RunDir::create(out)?;
        let summary = reporting::combine(&runs, about.unwrap_or_default(), &out)?;
        eprintln!("\n{}: {}", summary.verdict.headline(), summary.sentence);
        eprintln!("report: {}", out.file("report.html").display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes records, pictures, and what they could be rebuilt from.
pub(crate) fn purge(runs: &[PathBuf]) -> Result<ExitCode> {
    for run in runs {
        reporting::purge(&RunDir::any(run)?).with_context(|| format!("purge of {}", run.display()))?;
        eprintln!(
            "{}: all records were removed; kept are numbers, names of records and pages without pictures. Your own files (data, an \
             exported folder with its probe) are yours to remove",
            run.display()
        );
        // A page over several runs shows the pictures of each.
        let above = run.canonicalize().ok().and_then(|path| path.parent().map(PathBuf::from));
        if let Some(above) = above.filter(|above| [AUDIT, DEMO].iter().any(|file| above.join(file).is_file())) {
            eprintln!("note: pages of the whole may still show them: afterimage purge {}", above.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}
