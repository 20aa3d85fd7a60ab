//! `check`: does an exported model compute what it should, and which attacks fit it?

use std::process::ExitCode;

use afterimage_audit::own::{Checked, Exported, Fit, Fitting, check, fits};
use anyhow::Result;
use serde_json::{Value, json};

use super::{in_pool, print};
use crate::args::CheckArgs;

pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode> {
    let (exported, checked, fits) = in_pool(0, || {
        let exported = Exported::read(&args.dir)?;
        let (checked, fits) = (check(&exported)?, fits(&exported, args.members)?);
        Ok((exported, checked, fits))
    })?;
    print(&report(&checked, &fits), args.json)?;
    let shape = |sides: &[usize]| sides.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
    eprintln!(
        "network: {} parameters, takes {}, gives {}, loss {}",
        exported.theta.count(),
        shape(exported.network.input_shape()),
        shape(exported.network.output_shape()),
        exported.loss()
    );
    for same in &checked.agrees {
        eprintln!("probe: {}: the same to {:.1e} of their size", same.what, same.difference);
    }
    checked.notes.iter().for_each(|note| eprintln!("note: {note}"));
    table(&fits);
    let one = exported.gradient.is_some() && exported.training.batch_size.is_none();
    let batch = if one { "; batch_size is not in training.toml, so that they are for a batch of one" } else { "" };
    eprintln!(
        "\nTimes and memory are estimates for this machine, without twins and without measuring defences{batch}."
    );
    Ok(match &checked.obstacle {
        // Last, where it is seen: whatever fits a network that computes something else fits nothing.
        Some(obstacle) => {
            eprintln!("\nerror: {obstacle}");
            ExitCode::FAILURE
        }
        None if fits.iter().all(|fit| fit.fitting != Fitting::Fits) => {
            eprintln!("No attack here fits this model: nothing can be tested, which says nothing of what it leaks.");
            ExitCode::SUCCESS
        }
        None => {
            eprintln!("Next: afterimage audit {} --members DATA --controls DATA", args.dir.display());
            ExitCode::SUCCESS
        }
    })
}

/// One row an attack: those that fit first.
fn table(fits: &[Fit]) {
    eprintln!("\n{:<14} {:<9} {:>9} {:>9}  why", "attack", "fits", "time", "memory");
    let mut rows: Vec<&Fit> = fits.iter().collect();
    rows.sort_by_key(|fit| fit.fitting != Fitting::Fits);
    for fit in rows {
        let name = fit.attack.card().name;
        match &fit.fitting {
            Fitting::Fits => {
                eprintln!("{name:<14} {:<9} {:>9} {:>9}", "yes", seconds(fit.seconds), bytes(fit.bytes));
            }
            Fitting::No(reason) => eprintln!("{name:<14} {:<9} {:>9} {:>9}  {reason}", "no", "–", "–"),
            Fitting::Outside(reason) => eprintln!("{name:<14} {:<9} {:>9} {:>9}  {reason}", "outside", "–", "–"),
        }
    }
}

fn seconds(time: f64) -> String {
    match time {
        time if time < 1.0 => "< 1 s".into(),
        time if time < 100.0 => format!("{time:.0} s"),
        time if time < 6000.0 => format!("{:.0} min", time / 60.0),
        time => format!("{:.0} h", time / 3600.0),
    }
}

fn bytes(size: f64) -> String {
    if size < 1e9 { format!("{:.0} MB", (size / 1e6).max(1.0)) } else { format!("{:.1} GB", size / 1e9) }
}

fn report(checked: &Checked, fits: &[Fit]) -> Value {
    let agrees: Vec<Value> =
        checked.agrees.iter().map(|same| json!({ "what": same.what, "difference": same.difference })).collect();
    let fits: Vec<Value> = (fits.iter())
        .map(|fit| {
            let (fits, reason) = match &fit.fitting {
                Fitting::Fits => ("yes", None),
                Fitting::No(reason) => ("no", Some(reason)),
                Fitting::Outside(reason) => ("outside", Some(reason)),
            };
            json!({ "attack": fit.attack.card().name, "fits": fits, "reason": reason, "seconds": fit.seconds, "bytes": fit.bytes })
        })
        .collect();
    json!({ "probe": agrees, "obstacle": checked.obstacle, "attacks": fits })
}
