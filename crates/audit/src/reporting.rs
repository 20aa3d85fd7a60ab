//! Reports, made from the files of a run and nothing else; and their removal.

use std::path::{Component, Path, PathBuf};

use afterimage_attacks::{Observation, Reconstruction};
use afterimage_nn::{Device, Loss, Tensor};
use serde_json::Value;

use crate::combined::{About, Summary, Tries};
use crate::defences::{DEFENCES, Measured};
use crate::export::{GRID, MaskPicture, Pictures, Plane, Report, Way, combined_page, model_card, sarif};
use crate::findings::Findings;
use crate::hooks::trace;
use crate::own::Request;
use crate::rules::Rules;
use crate::run_dir::{AUDIT, PURGED, RunDir};
use crate::score::{Scoring, rows, score, testing};
use crate::victim::{MODELS, TRAINING};
use crate::{AuditError, Result, Truth};

/// Where and how a run was made.
const PROVENANCE: &str = "provenance.json";
/// Members shown in pictures, best first.
const MEMBERS_SHOWN: usize = 24;
/// Members whose way from damage to candidate is shown.
const WAYS_SHOWN: usize = 6;
/// Controls shown beside them.
const CONTROLS_SHOWN: usize = 6;

/// Writes `report.html`, and `report-public.html` without pictures, names or paths.
///
/// Needs `plan.toml` and `findings.json`; pictures only where truth and
/// reconstruction are still there.
pub fn report(dir: &RunDir) -> Result<()> {
    dir.not_a_figure()?;
    let findings: Findings = dir.read_json("findings.json")?;
    let rules = Rules::read_judged(dir)?;
    let (date, commands) = provenance(dir);
    let pictures = pictures(dir, &rules, &findings)?;
    let text = rules.text(dir)?;
    // The attack's own record, or, of a purged run, what was written on the way.
    let trace = match Reconstruction::read(dir.file("reconstruction.safetensors")) {
        Ok(reconstruction) => reconstruction.trace,
        Err(_) => trace(dir),
    };
    let measured: Option<Measured> = dir.read_json(DEFENCES).ok();
    let mut page = Report {
        findings: &findings,
        card: rules.attack.card(),
        plan: &text,
        shared: &findings.shared,
        date: &date,
        calibrated: rules.score.criterion.threshold.is_none(),
        commands: &commands,
        trace: &trace,
        defences: measured.as_ref(),
        pictures: Some(&pictures),
    };
    dir.write("report.html", page.render().as_bytes())?;
    page.pictures = None;
    dir.write("report-public.html", page.render().as_bytes())
}

/// When a run was made, and by which commands.
fn provenance(dir: &RunDir) -> (String, Vec<String>) {
    // What an audit ran without a plan was made when the audit was.
    let above = || dir.path().parent().map(|parent| std::fs::read(parent.join(PROVENANCE)));
    let own = dir.read_json(PROVENANCE).ok();
    let provenance: Value = own.or_else(|| serde_json::from_slice(&above()?.ok()?).ok()).unwrap_or(Value::Null);
    let date = provenance["started"].as_str().unwrap_or("date unknown").to_owned();
    let command = |key: &str| {
        let words: Vec<&str> = provenance[key].as_array()?.iter().filter_map(Value::as_str).collect();
        Some(format!("afterimage {}", words.join(" ")))
    };
    (date, [command("arguments"), command("scored")].into_iter().flatten().collect())
}

/// Writes down by which arguments a run was scored last, beside those it was made by.
pub(crate) fn note_scoring(dir: &RunDir, arguments: &[String]) -> Result<()> {
    let mut provenance: Value = dir.read_json(PROVENANCE)?;
    provenance["scored"] = arguments.into();
    dir.write_json(PROVENANCE, &provenance)
}

/// Judges several runs together and writes one page over them, a copy of it
/// without links, `summary.json`, SARIF and a paragraph for a model card.
pub fn combine(runs: &[RunDir], about: About, out: &RunDir) -> Result<Summary> {
    runs.iter().try_for_each(RunDir::not_a_figure)?;
    let findings = judged(runs)?;
    let About { not_run, shortened, import } = about;
    let summary = Summary { shortened, import, ..Summary::of_tries(&findings).beside(not_run) };
    let findings: Vec<Findings> = findings.into_iter().map(|(findings, _)| findings).collect();
    publish_summary(&summary, &findings.iter().zip(runs).collect::<Vec<_>>(), out)?;
    Ok(summary)
}

/// What runs found, and in which of their tries.
pub(crate) fn judged(runs: &[RunDir]) -> Result<Vec<(Findings, Tries)>> {
    runs.iter().map(|run| Ok((run.read_json("findings.json")?, Tries::read(run)?))).collect()
}

/// Writes a summary in every form, and the page over it; the runs are in the order in which they were judged.
pub(crate) fn publish_summary(summary: &Summary, runs: &[(&Findings, &RunDir)], out: &RunDir) -> Result<()> {
    let address = |run: &RunDir| {
        let page = run.file("report.html");
        // Linked to from where the page lies: folders may be moved together.
        match page.strip_prefix(out.path()) {
            Ok(below) => below.display().to_string(),
            Err(_) => relative(&page, out.path()).unwrap_or(page).display().to_string(),
        }
    };
    let links: Vec<String> = summary.runs.iter().map(|part| address(runs[part.place].1)).collect();
    // Every form says what the summary says: verdicts after correction, worst first.
    let corrected: Vec<Findings> = (summary.runs.iter())
        .map(|part| {
            let (verdict, sentence) = (part.verdict, part.sentence.clone());
            Findings { verdict, sentence, ..runs[part.place].0.clone() }
        })
        .collect();
    let all: Vec<&Findings> = corrected.iter().collect();
    let date = match (out.has(PROVENANCE), runs.first()) {
        (false, Some((_, run))) => provenance(run).0,
        _ => provenance(out).0,
    };
    out.write_json("summary.json", summary)?;
    out.write_json("summary.sarif", &sarif(&all))?;
    let card = match all.is_empty() {
        true => {
            format!("## Training-data reconstruction\n\n- **{}**. {}\n", summary.verdict.headline(), summary.sentence)
        }
        false => model_card(&all),
    };
    out.write("model-card.md", card.as_bytes())?;
    out.write("report.html", combined_page(summary, &date, Some(&links), &asked(out, runs)?).as_bytes())?;
    let kinds = kinds(runs);
    out.write("report-public.html", combined_page(summary, &date, None, kinds.as_slice()).as_bytes())
}

/// What is shared, as the attacks see it.
fn kinds(runs: &[(&Findings, &RunDir)]) -> Option<(String, String)> {
    let kinds: std::collections::BTreeSet<String> = runs.iter().map(|(run, _)| run.observation.to_string()).collect();
    (!kinds.is_empty()).then(|| ("What is shared".into(), kinds.into_iter().collect::<Vec<_>>().join(", ")))
}

/// What an audit was asked for, for its owner's page.
fn asked(out: &RunDir, runs: &[(&Findings, &RunDir)]) -> Result<Vec<(String, String)>> {
    let mut asked: Vec<(String, String)> = kinds(runs).into_iter().collect();
    if !out.has(AUDIT) {
        return Ok(asked);
    }
    let path = out.file(AUDIT);
    let wrong = |problem: String| AuditError::file(&path, problem);
    let text = std::fs::read_to_string(&path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    let request: Request = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let given = [("Members", &request.members), ("Controls", &request.controls), ("Groups", &request.groups)];
    asked.push(("Folder".into(), request.folder.display().to_string()));
    asked
        .extend(given.iter().filter_map(|(name, path)| Some((name.to_string(), path.as_ref()?.display().to_string()))));
    asked.push(("Seed".into(), request.seed.to_string()));
    Ok(asked)
}

/// How to get from a folder to a file; `None` where there is no way, as between drives.
fn relative(file: &Path, folder: &Path) -> Option<PathBuf> {
    let (file, folder) = (file.canonicalize().ok()?, folder.canonicalize().ok()?);
    let shared = file.components().zip(folder.components()).take_while(|(a, b)| a == b).count();
    let up = folder.components().skip(shared).map(|_| Component::ParentDir);
    (shared > 0).then(|| up.chain(file.components().skip(shared)).collect())
}

/// What a page over several runs shows of one of them.
pub(crate) fn pictures_of(dir: &RunDir, findings: &Findings) -> Result<Pictures> {
    pictures(dir, &Rules::read_judged(dir)?, findings)
}

/// The best members and controls with the candidates nearest to them.
fn pictures(dir: &RunDir, rules: &Rules, findings: &Findings) -> Result<Pictures> {
    if !dir.has("reconstruction.safetensors") {
        return Ok(Pictures::default());
    }
    if !dir.has("truth.safetensors") {
        return alone(dir);
    }
    let truth = Truth::read(dir.file("truth.safetensors"))?;
    let reconstruction = Reconstruction::read(dir.file("reconstruction.safetensors"))?;
    // Inputs of an inner layer are no pictures.
    if reconstruction.layer.is_some() {
        return Ok(Pictures::default());
    }
    let scored = score(&reconstruction, &truth, Scoring::by(rules.score.criterion))?;
    let candidates = truth.preprocess.undo(&reconstruction.samples)?;
    let (candidates, members) = (rows(&candidates)?, rows(&truth.members.pixels)?);
    let controls: Vec<Vec<f64>> = testing(&rows(&truth.controls.pixels)?).cloned().collect();
    let near = |nearest: &[Option<usize>], index: usize| {
        nearest.get(index).copied().flatten().and_then(|at| candidates.get(at).cloned())
    };
    let control_scores = findings.metrics.get(&findings.criterion.metric).map_or(&[][..], |scores| &scores.control);
    let mut closest: Vec<usize> = (0..control_scores.len()).collect();
    closest.sort_by(|&a, &b| findings.criterion.compare(control_scores[a], control_scores[b]));
    let (outputs, plane) = classifier(dir, findings, &truth, &reconstruction)?;
    let lost = truth.damaged.as_ref().filter(|damaged| damaged.kept.contains(&0.0));
    let mask = lost.map(|damaged| damaged.kept.clone());
    Ok(Pictures {
        outputs,
        plane,
        ways: ways(dir, findings, &truth, &reconstruction)?,
        mask: mask.map(|kept| MaskPicture { name: "of these records", shape: truth.shape().to_vec(), kept }),
        shape: truth.shape().to_vec(),
        alone: Vec::new(),
        members: (findings.most_exposed().into_iter().take(MEMBERS_SHOWN))
            .filter_map(|index| Some((index, members.get(index)?.clone(), near(&scored.nearest, index)?)))
            .collect(),
        controls: (closest.into_iter().take(CONTROLS_SHOWN))
            .filter_map(|index| {
                Some((control_scores[index]?, controls.get(index)?.clone(), near(&scored.control_nearest, index)?))
            })
            .collect(),
    })
}

/// What came back of records that nobody gave, proven candidates first.
fn alone(dir: &RunDir) -> Result<Pictures> {
    let reconstruction = Reconstruction::read(dir.file("reconstruction.safetensors"))?;
    if !dir.has("observation.safetensors") || reconstruction.layer.is_some() {
        return Ok(Pictures::default());
    }
    let nobody = Truth::nobody(&Observation::read(dir.file("observation.safetensors"), Device::Cpu)?)?;
    let pixels = rows(&nobody.preprocess.undo(&reconstruction.samples)?)?;
    let mut alone: Vec<(bool, Vec<f64>)> = reconstruction.certified.iter().copied().zip(pixels).collect();
    alone.sort_by_key(|(proven, _)| !proven);
    alone.truncate(MEMBERS_SHOWN);
    Ok(Pictures { shape: nobody.shape().to_vec(), alone, ..Pictures::default() })
}

/// From what was left of the most exposed members to what came back of them; nothing where records were not damaged.
fn ways(dir: &RunDir, findings: &Findings, truth: &Truth, rebuilt: &Reconstruction) -> Result<Vec<Way>> {
    let Some(damaged) = truth.damaged.as_ref().filter(|_| dir.has("observation.safetensors")) else {
        return Ok(Vec::new());
    };
    let Observation::Degraded(seen) = Observation::read(dir.file("observation.safetensors"), Device::Cpu)? else {
        return Ok(Vec::new());
    };
    // What is damaged is damaged as the network is fed with it: black is black there alone.
    let pictured = |x: &Tensor| -> Result<Vec<Vec<f64>>> { rows(&truth.preprocess.undo(x)?) };
    let (left, found, members) = (pictured(&seen.degraded)?, pictured(&rebuilt.samples)?, rows(&truth.members.pixels)?);
    let way = |index: usize| -> Result<Option<Way>> {
        let place = damaged.places.get(index).copied().filter(|&place| place < left.len().min(found.len()));
        let (Some(place), Some(record)) = (place, members.get(index)) else { return Ok(None) };
        let own = |x: &Tensor| x.select_rows(&[place]);
        let mut stages = Vec::new();
        for stage in &rebuilt.stages {
            let kept = stage.kept.as_ref().map(|kept| own(kept)?.to_f64_vec()).transpose()?;
            stages.push((stage.iteration, pictured(&own(&stage.samples)?)?.concat(), kept));
        }
        Ok(Some(Way {
            name: findings.sample_ids.get(index).cloned().unwrap_or_default(),
            record: record.clone(),
            damaged: left[place].clone(),
            stages,
            found: found[place].clone(),
        }))
    };
    findings.most_exposed().into_iter().take(WAYS_SHOWN).filter_map(|index| way(index).transpose()).collect()
}

/// (output, score) of each member, and the plane.
type Answers = (Vec<(f64, f64)>, Option<Plane>);

/// (output, score) of each member of a classifier with one output, and its plane if records
/// are two numbers; nothing for other observations.
fn classifier(dir: &RunDir, findings: &Findings, truth: &Truth, rebuilt: &Reconstruction) -> Result<Answers> {
    let nothing = (Vec::new(), None);
    if !dir.has("observation.safetensors") {
        return Ok(nothing);
    }
    let Observation::Weights(seen) = Observation::read(dir.file("observation.safetensors"), Device::Cpu)? else {
        return Ok(nothing);
    };
    let (network, theta) = (&seen.model.network, &seen.model.theta);
    let classifies = matches!(seen.model.loss, Some(Loss::CrossEntropy | Loss::Logistic));
    if network.output_shape().iter().product::<usize>() != 1 || !classifies {
        return Ok(nothing);
    }
    let answer = |x: &Tensor| -> Result<Vec<f64>> {
        let x = x.reshape(&network.batch_shape(x.rows()))?.to_dtype(theta.dtype())?;
        Ok(network.forward(theta, &x)?.to_f64_vec()?)
    };
    let members = truth.preprocess.apply(&truth.members.pixels)?;
    let of_members = answer(&members)?;
    let scored = |(index, output): (usize, &f64)| Some((*output, findings.criterion_score(index)?));
    let outputs = of_members.iter().enumerate().filter_map(scored).collect();
    if members.row_len() != 2 {
        return Ok((outputs, None));
    }
    let pairs = |x: &Tensor| -> Result<Vec<[f64; 2]>> {
        Ok(x.to_f64_vec()?.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect())
    };
    let (points, candidates) = (pairs(&members)?, pairs(&rebuilt.samples)?);
    let furthest = points.iter().flatten().fold(0.0_f64, |most, x| most.max(x.abs()));
    let reach = 1.25 * furthest.max(f64::MIN_POSITIVE);
    let place = |cell: usize| ((cell as f64 + 0.5) / GRID as f64 * 2.0 - 1.0) * reach;
    let grid: Vec<f64> = (0..GRID * GRID).flat_map(|cell| [place(cell % GRID), -place(cell / GRID)]).collect();
    let surface = answer(&Tensor::from_vec(grid, &[GRID * GRID, 2])?)?;
    let inside = |points: Vec<[f64; 2]>| points.into_iter().filter(|at| at.iter().all(|x| x.abs() < reach)).collect();
    let dropped = rebuilt.dropped.as_ref().map(pairs).transpose()?.unwrap_or_default();
    let plane = Plane {
        reach,
        positive: surface.iter().map(|output| *output > 0.0).collect(),
        members: points.into_iter().zip(of_members.iter().map(|output| *output > 0.0)).collect(),
        candidates: inside(candidates),
        dropped: inside(dropped),
    };
    Ok((outputs, Some(plane)))
}

/// Removes everything of a run from which a record could be seen or rebuilt:
/// truth, observation, trained models and weights, reconstruction, checkpoints, distilled sets, the twin and the report
/// with pictures. Plan, findings, scores and the public report stay.
///
/// Names of records stay in the findings; a purged run cannot be resumed.
pub fn purge(dir: &RunDir) -> Result<()> {
    for run in dir.runs_inside()?.into_iter().chain(dir.other_tries()) {
        purge(&run)?;
    }
    dir.write(PURGED, b"The records of this run were removed; its numbers were kept.\n")?;
    for file in [
        "truth.safetensors",
        "reconstruction.safetensors",
        "observation.safetensors",
        "weights.safetensors",
        "strip.png",
    ] {
        dir.remove(file)?;
    }
    // The pages of an onion and of a policy show numbers alone.
    if !dir.has("onion.toml") && !dir.has("policy.toml") {
        dir.remove("report.html")?;
    }
    // Pictures of a figure, states of trainings, and what a kill in the middle of writing left behind.
    dir.remove_where(|name| {
        ["pictures-", TRAINING].iter().any(|kind| name.starts_with(kind)) || name.ends_with(".part")
    })?;
    for folder in ["twin", "checkpoint", "snapshots", "trials", "sets", MODELS] {
        dir.remove_folder(folder)?;
    }
    Ok(())
}
