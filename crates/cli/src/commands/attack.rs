//! `attack`: an observation file in, a reconstruction out, no truth anywhere.

use std::process::ExitCode;

use afterimage_attacks::Observation;
use afterimage_audit::counted;
use afterimage_audit::pipeline::{self, Task};
use afterimage_audit::plan::change_attack;
use afterimage_audit::rules::Rules;
use afterimage_audit::run_dir::RunDir;
use afterimage_nn::Device;
use anyhow::{Context, Result, bail};

use super::{cards, directory, in_pool, stopped};
use crate::args::AttackArgs;
use crate::progress::Progress;
use crate::provenance::Provenance;

/// Seconds between checkpoints.
const CHECKPOINT_SECONDS: u64 = 10;

pub(crate) fn run(args: &AttackArgs) -> Result<ExitCode> {
    if args.name.as_deref() == Some("rowspace") {
        return super::rowspace::run(args);
    }
    if args.candidates.is_some() {
        bail!("--candidates goes with `rowspace` alone");
    }
    let device: Device = args.device.parse()?;
    let (dir, rules) = match &args.resume {
        Some(path) => {
            let dir = RunDir::open(path)?;
            let rules = Rules::read(&dir)?;
            (dir, rules)
        }
        None => start(args)?,
    };
    let Rules { attack, seed, .. } = &rules;
    let task = Task { attack, seed: *seed, device, checkpoint_seconds: CHECKPOINT_SECONDS };
    let rebuilt = in_pool(0, || {
        let mut progress = Progress::new();
        let rebuilt = pipeline::attack(&task, &dir, &mut progress);
        progress.finish();
        Ok(rebuilt?)
    })?;
    let path = dir.path().display();
    match rebuilt {
        None => {
            eprintln!("stopped; go on with: afterimage attack --resume {path}");
            return Ok(stopped());
        }
        Some(rebuilt) => {
            let certain = rebuilt.certified.iter().filter(|certified| **certified).count();
            match &rebuilt.labels {
                Some(labels) if rebuilt.samples.rows() == 0 => eprintln!("{} labels, in {path}", labels.len()),
                _ => {
                    let candidates = counted(rebuilt.samples.rows(), "candidate");
                    let certified = if certain > 0 { format!(", {certain} of them certified") } else { String::new() };
                    eprintln!("{candidates}{certified}, in {path}");
                }
            }
            rebuilt.notes.iter().for_each(|note| eprintln!("note: {note}"));
            eprintln!("compare it with records: afterimage score {path} --truth FILE --controls FILE");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Resolves the attack, makes the directory, and copies the observation into it.
fn start(args: &AttackArgs) -> Result<(RunDir, Rules)> {
    let name = args.name.as_deref().context("no attack was named")?;
    let file = args.observation.as_ref().context("no observation was given")?;
    let attack = change_attack(&cards::find(name)?, &args.changes)?;
    // Read before anything is made: a wrong file leaves nothing behind.
    let observation = Observation::read(file, Device::Cpu)?;
    let rules = Rules::usual(&attack, args.seed)?;
    attack.fits(&observation)?;
    let dir = directory(args.out.as_ref(), name, &format!("{attack:?}{}", args.seed))?;
    observation.write(dir.file("observation.safetensors"))?;
    dir.seal("observation.safetensors")?;
    dir.write_json("provenance.json", &Provenance::of_attack(&rules, &args.device))?;
    // The rules last: a directory with rules can be resumed.
    rules.write(&dir)?;
    Ok((dir, rules))
}
