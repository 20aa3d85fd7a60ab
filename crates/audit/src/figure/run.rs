//! Runs the cells of a figure, one after another, and keeps each as it is done.

use std::ops::ControlFlow;
use std::time::Instant;

use afterimage_attacks::{AttackError, Hooks, Reconstruction, Session, Stop, Tick};
use afterimage_nn::io::TensorFile;

use super::{Cell, Figure, FigurePlan, Show};
use crate::align::Alignment;
use crate::export::{FigurePictures, figure_csv, figure_page};
use crate::pipeline::Watcher;
use crate::plan::Plan;
use crate::run_dir::RunDir;
use crate::score::{Scored, Scoring, rows, score};
use crate::victim::Victim;
use crate::{AuditError, Metric, Result, Truth};

const CELLS: &str = "cells.jsonl";

/// How a figure ended.
pub enum Outcome {
    /// It is whole.
    Finished(Box<Figure>),
    /// It was asked to stop; what is done is kept.
    Interrupted,
}

/// Passes on progress, keeps nothing: a cell that was stopped is run again.
struct Watched<'a>(&'a mut dyn Watcher);

impl Hooks for Watched<'_> {
    fn tick(&mut self, tick: Tick) -> ControlFlow<()> {
        self.0.tick(tick)
    }
    fn wants_checkpoint(&mut self) -> bool {
        false
    }
    fn keep(&mut self, _: &TensorFile) -> std::result::Result<(), AttackError> {
        Ok(())
    }
    fn resumed(&mut self) -> Option<TensorFile> {
        None
    }
    fn warn(&mut self, message: &str) {
        self.0.warn(message);
    }
}

/// Makes a figure in a directory, from wherever it got to; `base` is the plan
/// without the figure, `date` is written on the page.
pub fn run(plan: &FigurePlan, base: &str, date: &str, dir: &RunDir, watcher: &mut dyn Watcher) -> Result<Outcome> {
    let Some(metric) = plan.check_cells(base)? else {
        return Err(AuditError::plan("figure", "has no cells", "add points and curves"));
    };
    let mut cells = finished(dir)?;
    let total = plan.cells().count();
    for (number, (curve, point, index)) in plan.cells().enumerate() {
        let trial = plan.cell(base, curve, point, index)?;
        if cells.iter().any(|cell| (cell.curve, cell.point, cell.seed) == (curve, point, trial.seed)) {
            continue;
        }
        let (name, x) = (&plan.curves[curve].name, plan.points[point].x);
        watcher.stage(&format!("{} of {total}: {name}, {x}", number + 1));
        let Some((cell, pictures)) = measured(&trial, [curve, point], metric, watcher)? else {
            return Ok(Outcome::Interrupted);
        };
        if plan.show == Show::Pictures && index == 0 {
            pictures.write(dir, curve, point)?;
        }
        let line = serde_json::to_string(&cell).map_err(|error| AuditError::file(dir.path(), error.to_string()))?;
        dir.append(CELLS, &line)?;
        cells.push(cell);
    }
    watcher.stage("report");
    let figure = Figure::of(plan, metric, &cells);
    dir.write_json("figure.json", &figure)?;
    dir.write("figure.csv", figure_csv(&figure).as_bytes())?;
    let pictures = match plan.show {
        Show::Curves => Vec::new(),
        Show::Pictures => FigurePictures::read(dir, plan.curves.len(), plan.points.len())?,
    };
    dir.write("report.html", figure_page(&figure, date, &pictures).as_bytes())?;
    dir.write("report-public.html", figure_page(&figure, date, &[]).as_bytes())?;
    Ok(Outcome::Finished(Box::new(figure)))
}

/// The cells that are done; a line cut short by a kill is not, and is taken away.
fn finished(dir: &RunDir) -> Result<Vec<Cell>> {
    let text = std::fs::read_to_string(dir.file(CELLS)).unwrap_or_default();
    let read = |line: &str| serde_json::from_str::<Cell>(line).ok().map(|cell| (cell, format!("{line}\n")));
    let (cells, lines): (Vec<Cell>, String) = text.lines().filter_map(read).unzip();
    if lines != text {
        dir.write(CELLS, lines.as_bytes())?;
    }
    Ok(cells)
}

/// Makes a victim, attacks it and scores what came back; `None` if it was stopped.
fn measured(
    plan: &Plan,
    [curve, point]: [usize; 2],
    metric: Metric,
    watcher: &mut dyn Watcher,
) -> Result<Option<(Cell, FigurePictures)>> {
    let Some((observation, truth)) = Victim::new(plan)?.leak(&mut |tick| watcher.tick(tick))? else {
        return Ok(None);
    };
    let started = Instant::now();
    let mut hooks = Watched(watcher);
    let rebuilt = plan.attack.run(&observation, &mut Session::new(plan.seed, &mut hooks));
    let seconds = started.elapsed().as_secs_f64();
    let (scored, obstacle, rebuilt) = match rebuilt {
        Ok(rebuilt) if rebuilt.stop == Stop::Interrupted => return Ok(None),
        Ok(rebuilt) => {
            let (criterion, alignments) = (plan.score.criterion, &[Alignment::Optimal][..]);
            let scoring = Scoring { metrics: &[metric], alignments, ..Scoring::by(criterion) };
            let inner = rebuilt.layer.as_ref().map(|layer| truth.as_read_by(layer, observation.model())).transpose()?;
            (score(&rebuilt, inner.as_ref().unwrap_or(&truth), scoring)?, None, Some(rebuilt))
        }
        Err(AttackError::NotApplicable { reason, .. }) => {
            (Scored::nothing(&truth, plan.score.criterion), Some(reason), None)
        }
        Err(error) => return Err(error.into()),
    };
    let paired = scored.alignments.get(&Alignment::Optimal).and_then(|by| by.get(&metric));
    let rms = |values: &[Option<f64>]| -> Option<f64> {
        let values: Option<Vec<f64>> = values.iter().copied().collect();
        let values = values.filter(|values| !values.is_empty())?;
        Some((values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64).sqrt())
    };
    let cell = Cell {
        curve,
        point,
        seed: plan.seed,
        value: paired.and_then(|scores| rms(&scores.members)),
        control: paired.and_then(|scores| rms(&scores.control)),
        recovered: scored.count.recovered,
        members: scored.count.members,
        seconds,
        obstacle,
    };
    let pictures = pictures(&truth, &scored, rebuilt.as_ref())?;
    Ok(Some((cell, pictures)))
}

fn pictures(truth: &Truth, scored: &Scored, rebuilt: Option<&Reconstruction>) -> Result<FigurePictures> {
    let candidates = match rebuilt {
        Some(rebuilt) if rebuilt.layer.is_none() => rows(&truth.preprocess.undo(&rebuilt.samples)?)?,
        _ => Vec::new(),
    };
    let nearest = |at: &Option<usize>| at.and_then(|at| candidates.get(at).cloned()).unwrap_or_default();
    Ok(FigurePictures {
        shape: truth.shape().to_vec(),
        members: rows(&truth.members.pixels)?,
        rebuilt: scored.nearest.iter().map(nearest).collect(),
    })
}
