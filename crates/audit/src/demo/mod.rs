//! Every kind of leak on built-in data, one after the other, and one page over them: what somebody sees first.

mod readings;
mod scenes;

use std::time::Instant;

use afterimage_attacks::{Kind, Observation};
use afterimage_nn::Device;
use serde::{Deserialize, Serialize};

use readings::labels_read;
pub use readings::{Cost, SpaceRead};
use scenes::{DEFENDED, EXACT};
pub use scenes::{SCENES, Scene};

use crate::export::{Pictures, Shown, demo_page, strip};
use crate::findings::Findings;
use crate::hooks::Named;
use crate::pipeline::{self, Checked, Watcher};
use crate::plan::Plan;
use crate::reporting::pictures_of;
use crate::run_dir::RunDir;
use crate::verdict::{PositiveControl, Verdict};
use crate::{AuditError, LabelsRead, Result, Truth};

const DONE: &str = "runs.jsonl";
/// Seconds that a scene took before it was stopped.
const SPENT: &str = "spent.json";

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Whether time is short.
    pub quick: bool,
}

/// One run of a demonstration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Its scene, and its directory.
    pub name: String,
    /// The attack.
    pub attack: String,
    /// What leaked.
    pub observation: Kind,
    /// The verdict.
    pub verdict: Verdict,
    /// The sentence that says it.
    pub sentence: String,
    /// Members rebuilt.
    pub recovered: usize,
    /// Members.
    pub members: usize,
    /// Controls that came back as well.
    pub control_recovered: usize,
    /// Test controls.
    pub controls: usize,
    /// Where controls set the line: members and controls that are recognisable, with a mean squared error below 1e-2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recognisable: Option<(usize, usize)>,
    /// The same attack on a twin built to leak, where nothing came back.
    pub positive_control: Option<PositiveControl>,
    /// Wall-clock time of all of it, training included.
    pub seconds: f64,
}

/// What a demonstration showed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Demo {
    /// Number of the schema.
    pub schema: u32,
    /// Name and version of the program.
    pub tool: String,
    /// Whether time was short.
    pub quick: bool,
    /// The runs, in the order in which they are shown.
    pub runs: Vec<Run>,
    /// Labels read off the first gradient.
    pub labels: LabelsRead,
    /// What its first layer says.
    pub row_space: SpaceRead,
    /// What the defence costs.
    pub cost: Cost,
    /// Wall-clock time of all runs.
    pub seconds: f64,
}

/// Makes and attacks every scene, from wherever the directory says it got to; `None` if it was asked to stop.
///
/// `noted` writes down how each run is made, before it is.
pub fn demo(
    request: Request,
    date: &str,
    out: &RunDir,
    noted: &mut dyn FnMut(&Plan, Checked, &RunDir) -> Result<()>,
    watcher: &mut dyn Watcher,
) -> Result<Option<Demo>> {
    let scenes: Vec<&Scene> = SCENES.iter().filter(|scene| !request.quick || scene.quick.is_some()).collect();
    let mut runs: Vec<Run> = out.read_lines(DONE)?;
    for (place, scene) in scenes.iter().enumerate() {
        if runs.iter().any(|run| run.name == scene.name) {
            continue;
        }
        let mut named = Named::new(watcher, format!("{} of {} {}", place + 1, scenes.len(), scene.name));
        let Some(run) = followed(scene, request, out, noted, &mut named)? else { return Ok(None) };
        watcher.done(&line(&run));
        let text = serde_json::to_string(&run).map_err(|error| AuditError::file(out.path(), error.to_string()))?;
        out.append(DONE, &text)?;
        runs.push(run);
    }
    watcher.stage("what is read off, and what the defence costs");
    let (exact, defended) = (out.inside(EXACT)?, out.inside(DEFENDED)?);
    let truth = Truth::read(exact.file(pipeline::TRUTH))?;
    let observation = Observation::read(exact.file(pipeline::OBSERVATION), Device::Cpu)?;
    let Observation::Gradient(seen) = &observation else {
        return Err(AuditError::file(exact.path(), "holds no gradient; begin anew"));
    };
    let plan = Plan::read(&defended.file("plan.toml"), &[])?;
    let Some(cost) = Cost::of(&plan, plan.data.controls, &mut |tick| watcher.tick(tick))? else { return Ok(None) };
    let demo = Demo {
        schema: 1,
        tool: crate::tool(),
        quick: request.quick,
        labels: labels_read(seen, &truth)?,
        row_space: SpaceRead::of(&observation, &truth)?,
        cost,
        seconds: runs.iter().map(|run| run.seconds).sum(),
        runs,
    };
    watcher.stage("report");
    publish(&demo, &scenes, date, out)?;
    Ok(Some(demo))
}

/// One scene, from its plan to its findings; `None` if it was stopped.
fn followed(
    scene: &Scene,
    request: Request,
    out: &RunDir,
    noted: &mut dyn FnMut(&Plan, Checked, &RunDir) -> Result<()>,
    watcher: &mut dyn Watcher,
) -> Result<Option<Run>> {
    let started = Instant::now();
    let dir = out.inside(scene.name)?;
    // Of a scene that was stopped before.
    let earlier: f64 = if dir.has(SPENT) { dir.read_json(SPENT)? } else { 0.0 };
    let spent = || earlier + started.elapsed().as_secs_f64();
    if !dir.has("plan.toml") {
        let changes: Vec<String> = match request.quick {
            true => scene.quick.unwrap_or_default().iter().map(|&change| change.to_owned()).collect(),
            false => Vec::new(),
        };
        let plan = Plan::parse(scene.plan, &changes)?;
        noted(&plan, pipeline::check(&plan)?, &dir)?;
        dir.write("plan.toml", plan.to_toml()?.as_bytes())?;
    }
    let plan = Plan::read(&dir.file("plan.toml"), &[])?;
    // What would have stopped each leak takes longer than the leaks: `afterimage defences` measures it.
    let Some(found) = pipeline::run_with(&plan, &dir, 0.0, watcher)? else {
        dir.write_json(SPENT, &spent())?;
        return Ok(None);
    };
    dir.remove(SPENT)?;
    Ok(Some(Run {
        name: scene.name.to_owned(),
        attack: found.attack,
        observation: found.observation,
        verdict: found.verdict,
        sentence: found.sentence,
        recovered: found.recovered,
        members: found.members,
        control_recovered: found.control_recovered,
        controls: found.controls,
        recognisable: found.recognisable.filter(|_| plan.score.criterion.threshold.is_none()),
        positive_control: found.positive_control,
        seconds: spent(),
    }))
}

/// A run in one line.
fn line(run: &Run) -> String {
    let Run { name, recovered, members, control_recovered, controls, seconds, .. } = run;
    let verdict = run.verdict.headline();
    let twin = run
        .positive_control
        .map_or(String::new(), |twin| format!(", its twin without the defence {} of {}", twin.recovered, twin.members));
    let alike = run
        .recognisable
        .map_or(String::new(), |(members, controls)| format!("; recognisable {members}, controls {controls}"));
    // What it is called in a list of attacks.
    let name = if *name == run.attack { name.clone() } else { format!("{name} ({})", run.attack) };
    format!(
        "{name:<17} {verdict:<14} {recovered} of {members} rebuilt, controls {control_recovered} of {controls}{alike}{twin} ({seconds:.1} s)"
    )
}

/// Writes the numbers, the page and the picture.
fn publish(demo: &Demo, scenes: &[&Scene], date: &str, out: &RunDir) -> Result<()> {
    let mut shown = Vec::with_capacity(scenes.len());
    for (scene, run) in scenes.iter().copied().zip(&demo.runs) {
        let dir = out.inside(scene.name)?;
        let findings: Findings = dir.read_json(pipeline::FINDINGS)?;
        let pictures = pictures_of(&dir, &findings)?;
        shown.push(Shown { scene, run, findings, pictures });
    }
    out.write_json("demo.json", demo)?;
    let bands = |name: &str| shown.iter().find(|shown| shown.scene.name == name).map(|shown| &shown.pictures);
    let bands: Vec<&Pictures> = STRIP.iter().filter_map(|name| bands(name)).collect();
    if let Some(png) = strip(&bands) {
        out.write("strip.png", &png)?;
    }
    out.write("report.html", demo_page(demo, date, &shown).as_bytes())
}

/// Whose records the picture shows above what was rebuilt of them.
const STRIP: &[&str] = &[EXACT, "unmix", "ntk"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plan_can_be_followed_at_both_lengths() {
        for scene in SCENES {
            for changes in [&[][..], scene.quick.unwrap_or_default()] {
                let changes: Vec<String> = changes.iter().map(|&change| change.to_owned()).collect();
                let plan = Plan::parse(scene.plan, &changes).unwrap();
                pipeline::check(&plan).unwrap_or_else(|error| panic!("{}: {error}", scene.name));
            }
        }
        assert!(STRIP.iter().all(|name| SCENES.iter().any(|scene| scene.name == *name && scene.quick.is_some())));
    }

    #[test]
    fn a_stopped_demonstration_keeps_what_to_go_on_from_and_shows_nothing() {
        struct Impatient;
        impl Watcher for Impatient {
            fn stage(&mut self, _: &str) {}
            fn tick(&mut self, _: afterimage_attacks::Tick) -> std::ops::ControlFlow<()> {
                std::ops::ControlFlow::Break(())
            }
            fn warn(&mut self, _: &str) {}
        }
        let folder = tempfile::tempdir().unwrap();
        let out = RunDir::create(folder.path().join("demo")).unwrap();
        let stopped = demo(Request { quick: true }, "", &out, &mut |_, _, _| Ok(()), &mut Impatient).unwrap();
        assert!(stopped.is_none() && out.file("exact/plan.toml").is_file() && !out.has("demo.json"));
    }
}
