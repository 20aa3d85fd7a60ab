//! `exposure`: what the owner can say of records before anybody attacks.

use std::process::ExitCode;

use afterimage_audit::plan::Plan;
use afterimage_audit::victim::Victim;
use anyhow::{Result, bail};

use super::in_pool;
use crate::args::ExposureArgs;

pub(crate) fn run(args: &ExposureArgs) -> Result<ExitCode> {
    let seed = args.seed.map(|seed| format!("seed={seed}"));
    let plan = Plan::read(&args.plan, &args.changes.iter().cloned().chain(seed).collect::<Vec<_>>())?;
    let victim = Victim::new(&plan)?;
    let Some(exposure) = in_pool(plan.compute.threads, || Ok(victim.exposure()?))? else {
        bail!("there are too many records for one kernel, or it cannot be solved with; lower data.members");
    };
    let ids = &victim.truth().ids;
    let mut order: Vec<usize> = (0..ids.len()).collect();
    order.sort_by(|&a, &b| exposure.alpha[b].total_cmp(&exposure.alpha[a]));
    println!("record,alpha");
    order.iter().for_each(|&place| println!("{},{:.6e}", ids[place], exposure.alpha[place]));
    eprintln!("|α| of {} records, most exposed first; nothing was trained or attacked", ids.len());
    Ok(ExitCode::SUCCESS)
}
