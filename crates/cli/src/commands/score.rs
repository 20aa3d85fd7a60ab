//! `score`: what came back, against records that the attack never saw.

use std::path::Path;
use std::process::ExitCode;

use afterimage_attacks::Observation;
use afterimage_audit::data::{Records, Source};
use afterimage_audit::run_dir::{AUDIT, RunDir};
use afterimage_audit::{Sample, Truth, pipeline};
use afterimage_nn::{DType, Device};
use anyhow::{Context, Result, bail};

use super::{conclude, in_pool};
use crate::args::ScoreArgs;

pub(crate) fn run(args: &ScoreArgs) -> Result<ExitCode> {
    let dir = RunDir::open(&args.run)?;
    let truth = args.truth.as_ref().map(|path| truth(path, args.controls.as_deref(), &dir)).transpose()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let findings = in_pool(0, || Ok(pipeline::rescore(&dir, truth, &args.changes, &arguments)?))
        .with_context(|| format!("score of {}", args.run.display()))?;
    if let Some(audit) = dir.path().parent().filter(|above| above.join(AUDIT).is_file()) {
        eprintln!(
            "note: the audit's page is as it was; make it again with: afterimage audit --resume {}",
            audit.display()
        );
    }
    conclude(&findings, &dir, args.json, &args.gate)
}

/// Members and controls from files. How the victim prepared its inputs is what
/// the file says, or else the observation; where neither does, values stay as they are.
fn truth(members: &Path, controls: Option<&Path>, dir: &RunDir) -> Result<Truth> {
    let observation = Observation::read(dir.file("observation.safetensors"), Device::Cpu)?;
    let preprocess = observation.model().preprocess.clone().unwrap_or_default();
    let network = &observation.model().network;
    if !members.exists() {
        bail!("{}: does not exist", members.display());
    }
    let whole = members.extension().is_some_and(|ending| ending == "safetensors");
    match (whole, controls) {
        (true, None) => {
            let truth = Truth::read(members)?;
            let says = truth.preprocess.mean.is_some() || truth.preprocess.std.is_some();
            Ok(if says { truth } else { Truth { preprocess, ..truth } })
        }
        (false, Some(controls)) => {
            let (members, controls) = (read(members)?, read(controls)?);
            let sample = |records: &Records| -> Result<Sample> {
                let all: Vec<usize> = (0..records.len()).collect();
                let pixels = records.tensor(&all, DType::F32)?;
                // Rows of a table are pictures to a network that takes pictures.
                let pixels = pixels.reshape(&network.batch_shape(pixels.rows())).unwrap_or(pixels);
                Ok(Sample { pixels, labels: records.labels.clone() })
            };
            if members.shape != controls.shape {
                bail!("members have shape {:?} and controls {:?}", members.shape, controls.shape);
            }
            let (members_of, controls_of) = (sample(&members)?, sample(&controls)?);
            let (driven, damaged) = (None, None);
            Ok(Truth { members: members_of, controls: controls_of, preprocess, ids: members.ids, driven, damaged })
        }
        (true, Some(_)) => bail!("a safetensors file holds its controls as `control_x`; leave out --controls"),
        (false, None) => bail!("controls are missing\n  hint: give records that were never trained on with --controls"),
    }
}

fn read(path: &Path) -> Result<Records> {
    Ok(path.display().to_string().parse::<Source>()?.read()?)
}
