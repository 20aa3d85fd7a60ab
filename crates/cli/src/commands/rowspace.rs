//! `attack rowspace`: how many samples, and is this candidate among them?

use std::path::Path;
use std::process::ExitCode;

use afterimage_attacks::{Observation, RowSpace};
use afterimage_audit::data::Source;
use afterimage_audit::{Truth, counted};
use afterimage_nn::{DType, Device};
use anyhow::{Context, Result};
use serde::Serialize;

use crate::args::AttackArgs;

/// What the first layer gives away by linear algebra alone.
#[derive(Serialize)]
struct Findings {
    layer: String,
    /// Estimated number of independent samples.
    samples: usize,
    /// Ratio of the next singular value to the last that counts: the smaller, the clearer.
    gap: f64,
    singular_values: Vec<f64>,
    /// For each candidate, its name and the part of it outside the samples' span.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    candidates: Vec<Candidate>,
}

#[derive(Serialize)]
struct Candidate {
    id: String,
    residual: f64,
    /// Whether it is one of the samples, or a mixture of them.
    inside: bool,
}

/// Prints the findings as JSON on standard output.
pub(crate) fn run(args: &AttackArgs) -> Result<ExitCode> {
    let file = args.observation.as_ref().context("no observation was given")?;
    let observation = Observation::read(file, Device::Cpu)?;
    let (layer, space) = RowSpace::of_observation(&observation)?;
    let candidates = match &args.candidates {
        Some(path) => members(path, &observation, &space)?,
        None => Vec::new(),
    };
    let found = Findings {
        layer,
        samples: space.rank,
        gap: space.gap,
        singular_values: space.singular_values.iter().copied().take(2 * space.rank + 2).collect(),
        candidates,
    };
    // In one line: what it says in words is read below.
    println!("{}", serde_json::to_string(&found)?);
    eprintln!(
        "layer `{}` was moved by about {} independent samples (the next singular value is {:.1e} of the last)",
        found.layer, found.samples, found.gap
    );
    if space.full {
        eprintln!("note: nothing is left over that samples could be told from: as many samples or more, or noise");
    } else if !found.candidates.is_empty() {
        let inside = found.candidates.iter().filter(|candidate| candidate.inside).count();
        let all = counted(found.candidates.len(), "candidate");
        eprintln!("{inside} of {all} inside (of which less than a thousandth lies outside the samples' span)");
    }
    Ok(ExitCode::SUCCESS)
}

/// The part of each record outside the samples' span, prepared as the network's inputs are.
fn members(path: &Path, observation: &Observation, space: &RowSpace) -> Result<Vec<Candidate>> {
    let (pixels, ids) = if path.extension().is_some_and(|ending| ending == "safetensors") {
        // The truth of a run: its members.
        let truth = Truth::read(path)?;
        (truth.members.pixels.to_dtype(DType::F64)?, truth.ids)
    } else {
        let records = path.display().to_string().parse::<Source>()?.read()?;
        let all: Vec<usize> = (0..records.len()).collect();
        (records.tensor(&all, DType::F64)?, records.ids)
    };
    let inputs = match &observation.model().preprocess {
        Some(preprocess) => preprocess.apply(&pixels)?,
        None => pixels,
    };
    let inputs = inputs.reshape(&[inputs.rows(), inputs.row_len()])?;
    let residuals = space.residuals(&inputs)?;
    let candidate = |(id, residual)| Candidate { id, residual, inside: space.holds(residual) };
    Ok(ids.into_iter().zip(residuals).map(candidate).collect())
}
