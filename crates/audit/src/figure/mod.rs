//! Figures: one plan run many times, with a setting varied along an axis.
//!
//! A plan with a section `[figure]` is not one audit but a figure: every curve
//! and point changes some keys of the rest of the plan, and is run for several
//! seeds. What comes out is a page with curves or pictures, their numbers, and
//! what controls give, which is chance.

mod cell;
mod plan;
mod run;
mod victims;

pub use cell::{Analysis, Cell};
pub use plan::{CurvePlan, FigurePlan, PointPlan, Scale, Show};
pub use run::run;

use serde::{Deserialize, Serialize};

use crate::Criterion;
use crate::findings::Also;
use crate::statistics::mean_interval;

/// The runs of one curve at one point, over seeds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Where on the axis.
    pub x: f64,
    /// What stands there instead of a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Runs that were made.
    #[serde(default)]
    pub seeds: usize,
    /// Runs that gave a value.
    pub runs: usize,
    /// Mean over those.
    pub mean: Option<f64>,
    /// Smallest.
    pub low: Option<f64>,
    /// Largest.
    pub high: Option<f64>,
    /// 95 % interval of the mean, by Student's t over runs; none of a single run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
    /// Mean of what controls give.
    pub control: Option<f64>,
    /// Of gradients: means of those members whose own gradients are the smaller ones of a batch, and the larger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halves: Option<[f64; 2]>,
    /// With a criterion of squared errors: the mean of −10 log₁₀ of the members' errors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub psnr: Option<f64>,
    /// How many passed other lines, over all seeds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<Also>,
    /// Members that passed, over all seeds.
    pub recovered: usize,
    /// Members, over all seeds.
    pub members: usize,
    /// Test controls that passed, over all seeds.
    pub control_recovered: usize,
    /// Test controls, over all seeds.
    pub controls: usize,
    /// Mean seconds of an attack that was run.
    pub seconds: f64,
    /// Why runs gave no value.
    pub obstacles: Vec<String>,
}

impl Point {
    /// What stands there on the axis.
    pub fn at(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.x.to_string())
    }
}

/// One curve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Its name.
    pub name: String,
    /// Its points, in the plan's order.
    pub points: Vec<Point>,
    /// Slope of a line through the logarithms, where there are two positive points at least.
    pub slope: Option<f64>,
}

/// A finished figure: `figure.json`; docs/schema describes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Number of the schema.
    pub schema: u32,
    /// Name and version of the program.
    pub tool: String,
    /// What it shows.
    pub title: String,
    /// What to see in it.
    pub caption: String,
    /// What the axis is.
    pub x: String,
    /// When a record counts as rebuilt; its metric is what is drawn.
    pub criterion: Criterion,
    /// How it is drawn.
    pub scale: Scale,
    /// What is drawn: scores, or a share of labels (what passes are labels then) or of members.
    #[serde(default)]
    pub show: Show,
    /// Runs for each point.
    pub seeds: usize,
    /// The curves.
    pub curves: Vec<Curve>,
    /// Of runs from two checkpoints, each of them record by record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub analyses: Vec<Analysis>,
}

impl Figure {
    /// Puts cells together.
    pub fn of(plan: &FigurePlan, criterion: Criterion, cells: &[Cell]) -> Self {
        let curve = |(place, curve): (usize, &CurvePlan)| {
            let own: Vec<&Cell> = cells.iter().filter(|cell| cell.curve == place).collect();
            let points: Vec<Point> = (plan.points.iter().enumerate())
                .map(|(place, point)| summarise(point, own.iter().copied().filter(|cell| cell.point == place)))
                .collect();
            let slope = slope(points.iter().filter_map(|point| Some((point.x, point.mean?))));
            Curve { name: curve.name.clone(), points, slope }
        };
        Self {
            schema: 1,
            tool: crate::tool(),
            title: plan.title.clone(),
            caption: plan.caption.clone(),
            x: plan.x.clone(),
            criterion,
            scale: plan.scale,
            show: plan.show,
            seeds: plan.seeds,
            curves: plan.curves.iter().enumerate().map(curve).collect(),
            analyses: cells.iter().filter_map(|cell| cell.analysis.clone()).collect(),
        }
    }
}

fn summarise<'a>(at: &PointPlan, cells: impl Iterator<Item = &'a Cell>) -> Point {
    let cells: Vec<&Cell> = cells.collect();
    let values: Vec<f64> = cells.iter().filter_map(|cell| cell.value).collect();
    let mean = |values: &[f64]| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
    let mut obstacles: Vec<String> = cells.iter().filter_map(|cell| cell.obstacle.clone()).collect();
    obstacles.sort();
    obstacles.dedup();
    let mut also: Vec<Also> = Vec::new();
    for line in cells.iter().flat_map(|cell| &cell.also) {
        match also.iter_mut().find(|sum| sum.threshold == line.threshold) {
            None => also.push(*line),
            Some(sum) => {
                sum.recovered += line.recovered;
                sum.control_recovered += line.control_recovered;
            }
        }
    }
    Point {
        x: at.x,
        name: at.name.clone(),
        psnr: mean(&cells.iter().filter_map(|cell| cell.psnr).collect::<Vec<_>>()),
        also,
        seeds: cells.len(),
        runs: values.len(),
        mean: mean(&values),
        interval: mean_interval(&values),
        low: values.iter().copied().reduce(f64::min),
        high: values.iter().copied().reduce(f64::max),
        control: mean(&cells.iter().filter_map(|cell| cell.control).collect::<Vec<_>>()),
        halves: match [0, 1]
            .map(|half| mean(&cells.iter().filter_map(|c| c.halves).map(|h| h[half]).collect::<Vec<_>>()))
        {
            [Some(smaller), Some(larger)] => Some([smaller, larger]),
            _ => None,
        },
        recovered: cells.iter().map(|cell| cell.recovered).sum(),
        members: cells.iter().map(|cell| cell.members).sum(),
        control_recovered: cells.iter().map(|cell| cell.control_recovered).sum(),
        controls: cells.iter().map(|cell| cell.controls).sum(),
        seconds: mean(&cells.iter().filter(|cell| cell.seconds > 0.0).map(|cell| cell.seconds).collect::<Vec<_>>())
            .unwrap_or(0.0),
        obstacles,
    }
}

/// The slope of ln y over ln x by least squares.
fn slope(points: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    let logs: Vec<(f64, f64)> = points.filter(|(x, y)| *x > 0.0 && *y > 0.0).map(|(x, y)| (x.ln(), y.ln())).collect();
    let n = logs.len() as f64;
    let (mx, my) = (logs.iter().map(|p| p.0).sum::<f64>() / n, logs.iter().map(|p| p.1).sum::<f64>() / n);
    let spread: f64 = logs.iter().map(|p| (p.0 - mx).powi(2)).sum();
    let together: f64 = logs.iter().map(|p| (p.0 - mx) * (p.1 - my)).sum();
    (logs.len() > 1 && spread > 0.0).then(|| together / spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_have_their_exponent_as_slope() {
        let points = [1.0_f64, 2.0, 5.0, 9.0].map(|x| (x, 3.0 * x.powf(-0.5)));
        assert!((slope(points.into_iter()).unwrap() + 0.5).abs() < 1e-12);
        assert_eq!(slope([(1.0, 2.0)].into_iter()), None);
        assert_eq!(slope([(0.0, 2.0), (-1.0, 3.0)].into_iter()), None);
    }

    #[test]
    fn cells_become_points() {
        let cell = |seed: u64, value: Option<f64>| Cell {
            curve: 0,
            point: 0,
            seed,
            value,
            plan_sha256: String::new(),
            control: Some(1.4),
            halves: Some([1.0, 2.0 + seed as f64]),
            recovered: 1,
            members: 2,
            control_recovered: 0,
            controls: 20,
            seconds: 0.5,
            obstacle: value.is_none().then(|| "nothing".to_owned()),
            psnr: Some(30.0),
            also: vec![Also { threshold: 0.5, recovered: 2, control_recovered: 1 }],
            analysis: None,
        };
        let at = PointPlan { x: 50.0, name: None, seeds: None, set: Vec::new() };
        let point = summarise(&at, [cell(1, Some(0.1)), cell(2, Some(0.3)), cell(3, None)].iter());
        assert!((point.mean.unwrap() - 0.2).abs() < 1e-12);
        // t of one degree of freedom is 12.706, the standard error 0.1.
        let [low, high] = point.interval.unwrap();
        assert!((low - (0.2 - 1.2706)).abs() < 1e-3 && (high - (0.2 + 1.2706)).abs() < 1e-3, "{low} {high}");
        assert_eq!(point.also, [Also { threshold: 0.5, recovered: 6, control_recovered: 3 }]);
        assert_eq!(point.halves, Some([1.0, 4.0]));
        assert_eq!((point.low, point.high, point.recovered, point.members), (Some(0.1), Some(0.3), 3, 6));
        assert_eq!((point.obstacles, point.runs, point.controls), (vec!["nothing".to_owned()], 2, 60));
    }
}
