//! Runs the cells of a figure, one after another, and keeps each as it is done.

use afterimage_attacks::{Reconstruction, Tick};

use super::victims::Victims;
use super::{Cell, Figure, FigurePlan, Show};
use crate::export::{FigurePictures, MaskPicture, figure_csv, figure_page};
use crate::pipeline::{Watcher, hash};
use crate::plan::{Mask, Plan, VictimPlan};
use crate::run_dir::RunDir;
use crate::score::{Scored, rows};
use crate::trial::Trial;
use crate::victim::Victim;
use crate::{AuditError, Criterion, Metric, Result, Truth};

const CELLS: &str = "cells.jsonl";

/// Makes a figure in a directory, from wherever it got to; `base` is the plan
/// without the figure, `criterion` what [`FigurePlan::check_cells`] gave, `date` is written on the page.
/// `None` if it was asked to stop; what is done is kept.
pub fn run(
    plan: &FigurePlan,
    base: &str,
    criterion: Criterion,
    date: &str,
    dir: &RunDir,
    watcher: &mut dyn Watcher,
) -> Result<Option<Figure>> {
    let (earlier, mut cells) = (dir.read_lines::<Cell>(CELLS)?, Vec::new());
    let total = plan.cells().count();
    let mut victims = Victims::new(dir);
    for (number, (curve, point, index)) in plan.cells().enumerate() {
        let trial = plan.cell(base, curve, point, index)?;
        let plan_sha256 = hash(trial.to_toml()?.as_bytes());
        let own = |cell: &&Cell| {
            (cell.curve, cell.point, cell.seed, &cell.plan_sha256) == (curve, point, trial.seed, &plan_sha256)
        };
        let has_pictures = plan.show != Show::Pictures || index > 0 || FigurePictures::exist(dir, curve, point);
        if let Some(done) = earlier.iter().find(own).filter(|_| has_pictures) {
            cells.push(done.clone());
            continue;
        }
        let (name, x) = (&plan.curves[curve].name, plan.points[point].x);
        watcher.stage(&format!("{} of {total}: {name}, {x}", number + 1));
        if watcher.tick(Tick { iteration: number, total, loss: None }).is_break() {
            return Ok(None);
        }
        let Some((cell, pictures)) = measured(&trial, plan.show, [curve, point], plan_sha256, &mut victims, watcher)?
        else {
            return Ok(None);
        };
        if plan.show == Show::Pictures && index == 0 {
            pictures.write(dir, curve, point)?;
        }
        let line = serde_json::to_string(&cell).map_err(|error| AuditError::file(dir.path(), error.to_string()))?;
        dir.append(CELLS, &line)?;
        cells.push(cell);
    }
    watcher.stage("report");
    let figure = Figure::of(plan, criterion, &cells);
    dir.write_json("figure.json", &figure)?;
    dir.write("figure.csv", figure_csv(&figure).as_bytes())?;
    let pictures = match plan.show {
        Show::Curves | Show::Labels | Show::Identified | Show::Recovered => Vec::new(),
        Show::Pictures => FigurePictures::read(dir, plan.curves.len(), plan.points.len())?,
    };
    let masks = masks(plan, base)?;
    dir.write("report.html", figure_page(&figure, date, &pictures, &masks).as_bytes())?;
    dir.write("report-public.html", figure_page(&figure, date, &[], &masks).as_bytes())?;
    Ok(Some(figure))
}

/// The masks that records of its runs are damaged by: of those that are drawn at random, one example each.
fn masks(figure: &FigurePlan, base: &str) -> Result<Vec<MaskPicture>> {
    let mut found: Vec<MaskPicture> = Vec::new();
    for (curve, point, _) in figure.cells().filter(|(_, _, index)| *index == 0) {
        let plan = figure.cell(base, curve, point, 0)?;
        let VictimPlan::Autoencoder(victim) = &plan.victim else { continue };
        let name = victim.degrade.mask.name();
        if victim.degrade.mask != Mask::None && !found.iter().any(|mask| mask.name == name) {
            let victim = Victim::new(&plan)?;
            found.push(MaskPicture { name, shape: victim.truth().shape().to_vec(), kept: victim.kept() });
        }
    }
    Ok(found)
}

/// Makes a victim, attacks it and scores what came back; `None` if it was stopped.
/// What data, method or numbers do not allow is an obstacle of this cell alone.
fn measured(
    plan: &Plan,
    show: Show,
    [curve, point]: [usize; 2],
    plan_sha256: String,
    victims: &mut Victims<'_>,
    watcher: &mut dyn Watcher,
) -> Result<Option<(Cell, FigurePictures)>> {
    plan.compute.prepare();
    let victim = victims.of(plan)?;
    let mut truth = victim.truth().clone();
    let mut cell = Cell::empty([curve, point], plan.seed, plan_sha256, &truth);
    let tried = match victims.leak(plan, victim, watcher) {
        Ok(None) => return Ok(None),
        Ok(Some((observation, made))) => {
            // A client may choose who its members are only when it has its model.
            truth = made;
            Trial::on(plan, observation, &truth, watcher)
        }
        Err(error) => Err(error),
    };
    let metric = plan.score.criterion.metric;
    match tried {
        Ok(None) => Ok(None),
        Ok(Some(trial)) if show == Show::Labels => {
            cell.take_labels(&trial, &truth, plan.seed);
            let nothing = FigurePictures { shape: truth.shape().to_vec(), members: Vec::new(), rebuilt: Vec::new() };
            Ok(Some((cell, nothing)))
        }
        Ok(Some(trial)) => {
            cell.take_scores(&trial, &truth, show, &plan.score);
            let pictures = pictures(&truth, &trial.scored, Some(&trial.rebuilt), metric)?;
            Ok(Some((cell, pictures)))
        }
        Err(error @ (AuditError::Plan { .. } | AuditError::Nn(_) | AuditError::Attack(_))) => {
            cell.obstacle = Some(error.to_string());
            let nothing = Scored::nothing(&truth, plan.score.criterion);
            Ok(Some((cell, pictures(&truth, &nothing, None, metric)?)))
        }
        Err(error) => Err(error),
    }
}

fn pictures(
    truth: &Truth,
    scored: &Scored,
    rebuilt: Option<&Reconstruction>,
    metric: Metric,
) -> Result<FigurePictures> {
    let candidates = match rebuilt {
        Some(rebuilt) if rebuilt.layer.is_none() => rows(&truth.preprocess.undo(&rebuilt.samples)?)?,
        _ => Vec::new(),
    };
    let members = rows(&truth.members.pixels)?;
    let nearest = |(member, at): (&Vec<f64>, &Option<usize>)| {
        let candidate = at.and_then(|at| candidates.get(at).cloned()).unwrap_or_default();
        // Known up to its sign, it is shown with the one that fits.
        let along: f64 = candidate.iter().zip(member).map(|(a, b)| a * b).sum();
        let sign = if metric == Metric::L2Sign && along < 0.0 { -1.0 } else { 1.0 };
        candidate.iter().map(|x| sign * x).collect()
    };
    let rebuilt = members.iter().zip(&scored.nearest).map(nearest).collect();
    Ok(FigurePictures { shape: truth.shape().to_vec(), members, rebuilt })
}
