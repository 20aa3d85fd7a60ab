//! Reports, made from the files of a run and nothing else; and their removal.

use afterimage_attacks::Reconstruction;
use serde_json::Value;

use crate::export::{Pictures, Report};
use crate::findings::Findings;
use crate::plan::Plan;
use crate::run_dir::RunDir;
use crate::score::{rows, score};
use crate::{Result, Truth};

/// Members shown in pictures, best first.
const MEMBERS_SHOWN: usize = 24;
/// Controls shown beside them.
const CONTROLS_SHOWN: usize = 6;

/// Writes `report.html`, and `report-public.html` without pictures, names or paths.
///
/// Needs `plan.toml` and `findings.json`; pictures only where truth and
/// reconstruction are still there.
pub fn report(dir: &RunDir) -> Result<()> {
    let findings: Findings = dir.read_json("findings.json")?;
    let plan = Plan::read(&dir.file("plan.toml"), &[])?;
    let provenance: Value = dir.read_json("provenance.json").unwrap_or(Value::Null);
    let date = provenance["started"].as_str().unwrap_or("date unknown").to_owned();
    let words = provenance["arguments"].as_array().cloned().unwrap_or_default();
    let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
    let command = format!("afterimage {}", words.join(" "));
    let pictures = pictures(dir, &plan, &findings)?;
    let text = plan.to_toml()?;
    let mut page = Report {
        findings: &findings,
        card: plan.attack.card(),
        plan: &text,
        shared: &findings.shared,
        date: &date,
        command: &command,
        pictures: Some(&pictures),
    };
    dir.write("report.html", page.render().as_bytes())?;
    page.pictures = None;
    dir.write("report-public.html", page.render().as_bytes())
}

/// The best members and controls with the candidates nearest to them.
fn pictures(dir: &RunDir, plan: &Plan, findings: &Findings) -> Result<Pictures> {
    if !dir.has("truth.safetensors") || !dir.has("reconstruction.safetensors") {
        return Ok(Pictures::default());
    }
    let truth = Truth::read(dir.file("truth.safetensors"))?;
    let reconstruction = Reconstruction::read(dir.file("reconstruction.safetensors"))?;
    let scored = score(&reconstruction, &truth, &[], plan.score.criterion)?;
    let candidates = truth.preprocess.undo(&reconstruction.samples)?;
    let (candidates, members) = (rows(&candidates)?, rows(&truth.members.pixels)?);
    // The odd-numbered controls are those that test.
    let controls: Vec<Vec<f64>> = rows(&truth.controls.pixels)?.into_iter().skip(1).step_by(2).collect();
    let Some(scores) = findings.metrics.get(&plan.score.criterion.metric) else { return Ok(Pictures::default()) };
    let better = plan.score.criterion.metric.better();
    let best_first = |values: &[Option<f64>]| {
        let mut order: Vec<usize> = (0..values.len()).filter(|&index| values[index].is_some()).collect();
        order.sort_by(|&a, &b| match (values[a], values[b]) {
            (Some(a), Some(b)) if better.better(a, b) => std::cmp::Ordering::Less,
            (Some(a), Some(b)) if better.better(b, a) => std::cmp::Ordering::Greater,
            _ => std::cmp::Ordering::Equal,
        });
        order
    };
    let near = |nearest: &[Option<usize>], index: usize| {
        nearest.get(index).copied().flatten().and_then(|at| candidates.get(at).cloned())
    };
    let shown_members = best_first(&scores.members).into_iter().take(MEMBERS_SHOWN);
    let shown_controls = best_first(&scores.control).into_iter().take(CONTROLS_SHOWN);
    Ok(Pictures {
        shape: truth.shape().to_vec(),
        members: shown_members
            .filter_map(|index| Some((index, members.get(index)?.clone(), near(&scored.nearest, index)?)))
            .collect(),
        controls: shown_controls
            .filter_map(|index| {
                Some((scores.control[index]?, controls.get(index)?.clone(), near(&scored.control_nearest, index)?))
            })
            .collect(),
    })
}

/// Removes everything of a run from which a record could be seen or rebuilt:
/// truth, observation, reconstruction, checkpoints, the twin and the report
/// with pictures. Plan, findings, scores and the public report stay.
pub fn purge(dir: &RunDir) -> Result<()> {
    for file in ["truth.safetensors", "reconstruction.safetensors", "observation.safetensors", "report.html"] {
        dir.remove(file)?;
    }
    // What a kill in the middle of writing left behind.
    dir.remove_parts()?;
    for folder in ["twin", "checkpoint", "snapshots"] {
        dir.remove_folder(folder)?;
    }
    Ok(())
}
