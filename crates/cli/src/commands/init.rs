//! `init`: the first step with a model of one's own.

use std::process::ExitCode;

use afterimage_audit::own::{Meaning, Update};
use anyhow::{Context, Result, bail};

use crate::args::{FederatedArgs, InitArgs, InitWhat, Sent};

/// The script that exports a PyTorch model.
const EXPORT: &str = include_str!("../../assets/afterimage_export.py");

pub(crate) fn run(args: &InitArgs) -> Result<ExitCode> {
    match &args.what {
        InitWhat::Pytorch => print!("{EXPORT}"),
        InitWhat::Federated(args) => federated(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn federated(args: &FederatedArgs) -> Result<()> {
    if args.out.join("network.toml").exists() {
        bail!("{} holds a model already; choose another folder", args.out.display());
    }
    let meaning = match args.sent {
        Sent::Weights => Meaning::Weights,
        Sent::Difference => Meaning::Difference,
        Sent::Gradient => Meaning::Gradient,
    };
    let update = Update {
        model: args.model.clone(),
        base: args.base.clone(),
        update: args.update.clone(),
        meaning,
        lr: args.lr.context("the client's learning rate is needed: --lr")?,
        steps: args.steps,
        step_batch: args.step_batch,
        batch_size: args.batch_size,
    };
    for doubt in update.write(&args.out)? {
        eprintln!("warning: {doubt}");
    }
    eprintln!("{0}: written. Next: afterimage check {0}", args.out.display());
    Ok(())
}
