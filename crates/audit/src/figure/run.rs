//! Runs the cells of a figure, one after another, and keeps each as it is done.

use afterimage_attacks::{Kind, Reconstruction, Tick};
use afterimage_nn::Stream;

use super::victims::Victims;
use super::{Analysis, Cell, Figure, FigurePlan, Show};
use crate::align::Alignment;
use crate::export::{FigurePictures, figure_csv, figure_page};
use crate::findings::label_accuracy;
use crate::metrics::Direction;
use crate::pipeline::{Watcher, hash};
use crate::plan::Plan;
use crate::run_dir::RunDir;
use crate::score::{Scored, rows};
use crate::trial::Trial;
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
    let mut victims = Victims::default();
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
        Show::Curves | Show::Labels | Show::Identified => Vec::new(),
        Show::Pictures => FigurePictures::read(dir, plan.curves.len(), plan.points.len())?,
    };
    dir.write("report.html", figure_page(&figure, date, &pictures).as_bytes())?;
    dir.write("report-public.html", figure_page(&figure, date, &[]).as_bytes())?;
    Ok(Some(figure))
}

/// Makes a victim, attacks it and scores what came back; `None` if it was stopped.
/// What data, method or numbers do not allow is an obstacle of this cell alone.
fn measured(
    plan: &Plan,
    show: Show,
    [curve, point]: [usize; 2],
    plan_sha256: String,
    victims: &mut Victims,
    watcher: &mut dyn Watcher,
) -> Result<Option<(Cell, FigurePictures)>> {
    let victim = victims.of(plan)?;
    let mut truth = victim.truth().clone();
    let mut cell = Cell {
        curve,
        point,
        seed: plan.seed,
        plan_sha256,
        value: None,
        control: None,
        halves: None,
        recovered: 0,
        members: truth.members.pixels.rows(),
        control_recovered: 0,
        controls: truth.controls.pixels.rows() / 2,
        seconds: 0.0,
        obstacle: None,
        analysis: None,
    };
    let tried = match victims.leak(plan, victim, watcher) {
        Ok(None) => return Ok(None),
        Ok(Some((observation, made))) => {
            // A client may choose who its members are only when it has its model.
            truth = made;
            Trial::on(plan, observation, &truth, watcher)
        }
        Err(error) => Err(error),
    };
    match tried {
        Ok(None) => Ok(None),
        Ok(Some(Trial { rebuilt, observation, seconds, .. })) if show == Show::Labels => {
            let (labels, classes) = (&truth.members.labels, observation.model().network.output_shape());
            let found = rebuilt.labels.unwrap_or_default();
            let right = label_accuracy(&found, labels);
            (cell.value, cell.control) = (Some(right), Some(guessed(labels, classes.iter().product(), plan.seed)));
            (cell.recovered, cell.controls) = ((right * labels.len() as f64).round() as usize, 0);
            cell.seconds = seconds;
            let nothing = FigurePictures { shape: truth.shape().to_vec(), members: Vec::new(), rebuilt: Vec::new() };
            Ok(Some((cell, nothing)))
        }
        Ok(Some(Trial { rebuilt, scored, seconds, exposure, observation })) => {
            let of_gradient = observation.kind() == Kind::Gradient;
            let metric = plan.score.criterion.metric;
            let paired = scored.alignments.get(&Alignment::Optimal).and_then(|by| by.get(&metric));
            let together = |values: &[Option<f64>]| together(values, metric.better());
            cell.value = paired.and_then(|scores| together(&scores.members));
            cell.control = paired.and_then(|scores| together(&scores.control));
            let mut each = paired.map(|scores| scores.members.clone()).unwrap_or_default();
            if show == Show::Identified {
                let hits = |hits: &[bool]| -> Vec<Option<f64>> {
                    hits.iter().map(|hit| Some(f64::from(u8::from(*hit)))).collect()
                };
                each = hits(&scored.identified);
                cell.value = mean(&each);
                cell.control = mean(&hits(&scored.control_identified));
            }
            cell.halves = halves(&each, truth.driven.as_deref().filter(|_| of_gradient));
            (cell.recovered, cell.control_recovered) = (scored.count.recovered, scored.count.control_recovered);
            (cell.controls, cell.seconds) = (scored.count.controls, seconds);
            if cell.value.is_none() {
                let candidates = rebuilt.samples.rows();
                cell.obstacle = Some(format!("{candidates} candidates for {} members", cell.members));
            }
            cell.analysis = exposure.map(|exposure| {
                let errors = scored.metrics.get(&metric).map(|scores| scores.members.clone()).unwrap_or_default();
                let greedy = scored.alignments.get(&Alignment::Greedy).and_then(|by| by.get(&metric));
                let mut pairs: Vec<f64> =
                    greedy.map(|scores| scores.members.iter().flatten().copied().collect()).unwrap_or_default();
                pairs.sort_by(f64::total_cmp);
                Analysis { curve, point, seed: plan.seed, exposure: exposure.beside(&errors), errors, pairs }
            });
            let pictures = pictures(&truth, &scored, Some(&rebuilt), metric)?;
            Ok(Some((cell, pictures)))
        }
        Err(error @ (AuditError::Plan { .. } | AuditError::Nn(_) | AuditError::Attack(_))) => {
            cell.obstacle = Some(error.to_string());
            let nothing = Scored::nothing(&truth, plan.score.criterion);
            Ok(Some((cell, pictures(&truth, &nothing, None, plan.score.criterion.metric)?)))
        }
        Err(error) => Err(error),
    }
}

/// What guessing as many labels gives, on average over a hundred guesses.
fn guessed(labels: &[usize], classes: usize, seed: u64) -> f64 {
    let mut stream = Stream::new(seed, "figure/guess", 0);
    let guess = |_| {
        let guess: Vec<usize> = labels.iter().map(|_| stream.below(classes.max(1))).collect();
        label_accuracy(&guess, labels)
    };
    (0..100).map(guess).sum::<f64>() / 100.0
}

/// The root mean square of distances, the mean of likenesses; none if one is missing.
fn together(values: &[Option<f64>], better: Direction) -> Option<f64> {
    let values: Vec<f64> = values.iter().copied().collect::<Option<_>>()?;
    let mean = |values: &mut dyn Iterator<Item = f64>, count: usize| values.sum::<f64>() / count as f64;
    match (values.len(), better) {
        (0, _) => None,
        (count, Direction::Below) => Some(mean(&mut values.iter().map(|x| x * x), count).sqrt()),
        (count, Direction::Above) => Some(mean(&mut values.iter().copied(), count)),
    }
}

/// The mean; none if one is missing.
fn mean(values: &[Option<f64>]) -> Option<f64> {
    together(values, Direction::Above)
}

/// The means of the half of the members with the smaller gradients of their own, and of the other half.
fn halves(values: &[Option<f64>], gradients: Option<&[f64]>) -> Option<[f64; 2]> {
    let gradients = gradients.filter(|gradients| gradients.len() == values.len() && values.len() > 1)?;
    let mut ranked: Vec<usize> = (0..values.len()).collect();
    ranked.sort_by(|&a, &b| gradients[a].total_cmp(&gradients[b]));
    // Of an odd number, the one in the middle is in neither.
    let (count, half) = (ranked.len(), ranked.len() / 2);
    let of = |ranks: &[usize]| mean(&ranks.iter().map(|&place| values[place]).collect::<Vec<_>>());
    Some([of(&ranked[..half])?, of(&ranked[count - half..])?])
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_halved_by_their_own_gradients() {
        let values = [Some(1.0), Some(2.0), Some(3.0), Some(10.0), Some(20.0)];
        assert_eq!(halves(&values, Some(&[5.0, 1.0, 3.0, 2.0, 4.0])), Some([6.0, 10.5]));
        assert_eq!(halves(&values, None), None);
        assert_eq!(halves(&values[..1], Some(&[1.0])), None);
        assert_eq!(halves(&[None, Some(1.0)], Some(&[1.0, 2.0])), None);
    }
}
