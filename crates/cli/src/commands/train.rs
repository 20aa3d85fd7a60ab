//! `train`: the victim of a plan, and no attack.

use std::process::ExitCode;

use afterimage_attacks::{Observation, Tick};
use afterimage_audit::figure::FigurePlan;
use afterimage_audit::pipeline;
use afterimage_audit::plan::Plan;
use afterimage_audit::run_dir::RunDir;
use afterimage_nn::Device;
use anyhow::{Result, bail};

use super::{follow, of_plan, run, stopped};
use crate::args::TrainArgs;

/// The trained weights, with PyTorch's names.
const WEIGHTS: &str = "weights.safetensors";

pub(crate) fn run(args: &TrainArgs) -> Result<ExitCode> {
    let (plan, dir) = match &args.task.resume {
        Some(path) => {
            let dir = RunDir::open(path)?;
            dir.not_purged()?;
            dir.not_a_figure()?;
            (Plan::read(&dir.file("plan.toml"), &[])?, dir)
        }
        None => {
            let file = args.task.plan()?;
            if of_plan(file, FigurePlan::read(file, &[]))?.is_some() {
                bail!(
                    "{}: is the plan of a figure, which has many victims; `afterimage run` makes them",
                    file.display()
                );
            }
            run::start(&args.task, &args.task.changes())?
        }
    };
    let made = follow("train", plan.compute.threads, &dir, |progress| {
        Ok(pipeline::observe(&plan, &dir, progress)?.then(|| progress.last()))
    })?;
    let Some(last) = made else { return Ok(stopped()) };
    let seen = Observation::read(dir.file("observation.safetensors"), Device::Cpu)?;
    seen.model().theta.save(dir.file(WEIGHTS))?;
    dir.seal(WEIGHTS)?;
    eprintln!();
    // Nothing was trained where the weights were given, or made before.
    if let Some(Tick { iteration, loss: Some(loss), .. }) = last {
        eprintln!("loss: {loss:.3e} after {iteration} epochs");
    }
    eprintln!("weights: {}", dir.file(WEIGHTS).display());
    eprintln!("what is shared: {}", dir.file("observation.safetensors").display());
    eprintln!("attack it with: afterimage run --resume {}", dir.path().display());
    Ok(ExitCode::SUCCESS)
}
