//! `run` of a plan with a section `[figure]`.

use std::process::ExitCode;

use afterimage_audit::Criterion;
use afterimage_audit::figure::{Figure, FigurePlan, Outcome};
use afterimage_audit::run_dir::RunDir;
use anyhow::{Context, Result, bail};

use super::{directory, in_pool};
use crate::args::RunArgs;
use crate::progress::Progress;
use crate::provenance::Provenance;

/// A figure to be made, and where.
pub(crate) struct Task {
    figure: FigurePlan,
    base: String,
    criterion: Criterion,
    dir: RunDir,
}

impl Task {
    /// A new one, if the plan is one of a figure.
    pub(crate) fn start(args: &RunArgs, changes: &[String]) -> Result<Option<Self>> {
        let Some((figure, base)) = FigurePlan::read(args.task.plan()?, changes)? else { return Ok(None) };
        let text = figure.to_toml(&base)?;
        // Before anything is made: a plan that cannot be followed leaves nothing behind.
        let criterion = figure.check_cells(&base)?;
        no_gates(args)?;
        let dir = directory(args.task.out.as_ref(), "figure", &text)?;
        let plan = figure.cell(&base, 0, 0, 0)?;
        dir.write_json("provenance.json", &Provenance::of_figure(&plan, &text))?;
        dir.write("plan.toml", text.as_bytes())?;
        Ok(Some(Self { figure, base, criterion, dir }))
    }

    /// An interrupted one, if the directory is one of a figure.
    pub(crate) fn resume(dir: &RunDir) -> Result<Option<Self>> {
        let Some((figure, base)) = FigurePlan::read(&dir.file("plan.toml"), &[])? else { return Ok(None) };
        let criterion = figure.check_cells(&base)?;
        Ok(Some(Self { figure, base, criterion, dir: dir.clone() }))
    }

    /// Makes it.
    pub(crate) fn run(&self, args: &RunArgs) -> Result<ExitCode> {
        no_gates(args)?;
        let provenance: serde_json::Value = self.dir.read_json("provenance.json")?;
        let date = provenance["started"].as_str().unwrap_or("date unknown").to_owned();
        let threads = self.figure.cell(&self.base, 0, 0, 0)?.compute.threads;
        let outcome = in_pool(threads, || {
            let mut progress = Progress::new();
            let outcome = afterimage_audit::figure::run(
                &self.figure,
                &self.base,
                self.criterion,
                &date,
                &self.dir,
                &mut progress,
            );
            progress.finish();
            Ok(outcome?)
        })
        .with_context(|| format!("figure in {}", self.dir.path().display()))?;
        match outcome {
            Outcome::Interrupted => {
                eprintln!("stopped; go on with: afterimage run --resume {}", self.dir.path().display());
                Ok(ExitCode::FAILURE)
            }
            Outcome::Finished(figure) => {
                if args.json {
                    println!("{}", serde_json::to_string_pretty(&figure)?);
                }
                summarise(&figure);
                eprintln!("figure: {}", self.dir.file("report.html").display());
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// A figure has no verdict that a gate could trip on.
fn no_gates(args: &RunArgs) -> Result<()> {
    if args.gate.fail_on.is_some() || args.gate.fail_above.is_some() {
        bail!("a figure has no verdict: --fail-on and --fail-above are for single runs");
    }
    Ok(())
}

/// One line a curve.
fn summarise(figure: &Figure) {
    eprintln!("\n{}: {} over {}", figure.title, figure.criterion.metric, figure.x);
    for curve in &figure.curves {
        let value = |mean: Option<f64>| mean.map_or("–".to_owned(), |mean| format!("{mean:.2e}"));
        let values: Vec<String> =
            curve.points.iter().map(|point| format!("{}: {}", point.x, value(point.mean))).collect();
        eprintln!("  {}  {}", curve.name, values.join("  "));
    }
}
