//! `exposure`: what the owner can say of records before anybody attacks.

use std::process::ExitCode;

use afterimage_audit::counted;
use afterimage_audit::plan::Plan;
use afterimage_audit::victim::Victim;
use anyhow::{Result, bail};

use super::{in_pool, of_plan};
use crate::args::ExposureArgs;

pub(crate) fn run(args: &ExposureArgs) -> Result<ExitCode> {
    let seed = args.seed.map(|seed| format!("seed={seed}"));
    let changes: Vec<String> = args.changes.iter().cloned().chain(seed).collect();
    let plan = of_plan(&args.plan, Plan::read(&args.plan, &changes))?;
    let victim = of_plan(&args.plan, Victim::new(&plan))?;
    let Some(exposure) = in_pool(plan.compute.threads, || Ok(victim.exposure()?))? else {
        bail!("there are too many records for one kernel, or it cannot be solved with; lower data.members");
    };
    let ids = &victim.truth().ids;
    let mut order: Vec<usize> = (0..ids.len()).collect();
    order.sort_by(|&a, &b| exposure.alpha[b].total_cmp(&exposure.alpha[a]));
    let median = order.get(order.len() / 2).map_or(0.0, |&place| exposure.alpha[place]);
    println!("record,alpha,times_median");
    for &place in &order {
        let alpha = exposure.alpha[place];
        println!("{},{alpha:.6e},{:.2}", ids[place], alpha / median.max(f64::MIN_POSITIVE));
    }
    eprintln!("|α| of {}, most exposed first; nothing was trained or attacked", counted(ids.len(), "record"));
    eprintln!(
        "It compares records of one plan, not plans: what stands far above the median ({median:.2e}) is what an attack from two \
         checkpoints rebuilds first; what is near nothing, the others predict."
    );
    Ok(ExitCode::SUCCESS)
}
