//! `attack`: an observation file in, a reconstruction out, no truth anywhere.

use std::process::ExitCode;

use afterimage_attacks::Observation;
use afterimage_audit::pipeline;
use afterimage_audit::plan::change_attack;
use afterimage_nn::Device;
use anyhow::Result;

use super::{cards, directory, in_pool};
use crate::args::AttackArgs;
use crate::progress::Progress;

pub(crate) fn run(args: &AttackArgs) -> Result<ExitCode> {
    let attack = change_attack(&cards::find(&args.name)?, &args.changes)?;
    let device: Device = args.device.parse()?;
    // Read before anything is made: a wrong file leaves nothing behind.
    let observation = Observation::read(&args.observation, Device::Cpu)?;
    let dir = directory(args.out.as_ref(), &args.name, &format!("{attack:?}{}", args.seed))?;
    observation.write(dir.file("observation.safetensors"))?;
    dir.seal("observation.safetensors")?;
    let rebuilt = in_pool(0, || {
        let mut progress = Progress::new();
        let rebuilt = pipeline::attack(&attack, args.seed, device, &dir, &mut progress);
        progress.finish();
        Ok(rebuilt?)
    })?;
    let path = dir.path().display();
    match rebuilt {
        None => {
            eprintln!("stopped before anything was rebuilt");
            return Ok(ExitCode::FAILURE);
        }
        Some(rebuilt) => {
            let certain = rebuilt.certified.iter().filter(|certified| **certified).count();
            eprintln!("{} candidates, {certain} of them certified, in {path}", rebuilt.samples.rows());
            rebuilt.notes.iter().for_each(|note| eprintln!("note: {note}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}
