//! `run` of a plan with a section `[figure]`.

use std::process::ExitCode;

use afterimage_audit::Criterion;
use afterimage_audit::figure::{Figure, FigurePlan, Show};
use afterimage_audit::run_dir::RunDir;
use anyhow::{Result, bail};

use super::{date_of, directory, follow, of_plan, print, stopped};
use crate::args::RunArgs;
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
        let file = args.task.plan()?;
        let Some((figure, base)) = of_plan(file, FigurePlan::read(file, changes))? else { return Ok(None) };
        let text = figure.to_toml(&base)?;
        // Before anything is made: a plan that cannot be followed leaves nothing behind.
        let criterion = of_plan(file, figure.check_cells(&base))?;
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
        let Self { figure, base, criterion, dir } = self;
        let date = date_of(dir)?;
        let threads = figure.cell(base, 0, 0, 0)?.compute.threads;
        let made = follow("run", threads, dir, |progress| {
            Ok(afterimage_audit::figure::run(figure, base, *criterion, &date, dir, progress)?)
        })?;
        let Some(figure) = made else { return Ok(stopped()) };
        print(&figure, args.json)?;
        summarise(&figure);
        eprintln!("figure: {}", dir.file("report.html").display());
        Ok(ExitCode::SUCCESS)
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
    let what = match figure.show {
        Show::Labels => "labels right".to_owned(),
        Show::Recovered => "members rebuilt".to_owned(),
        Show::Identified => "members pointed to".to_owned(),
        Show::Curves | Show::Pictures => figure.criterion.metric.to_string(),
    };
    eprintln!("\n{}: {what} over {}", figure.title, figure.x);
    for curve in &figure.curves {
        let value = |mean: Option<f64>| mean.map_or("–".to_owned(), |mean| format!("{mean:.2e}"));
        let values: Vec<String> =
            curve.points.iter().map(|point| format!("{}: {}", point.at(), value(point.mean))).collect();
        eprintln!("  {}  {}", curve.name, values.join("  "));
    }
}
