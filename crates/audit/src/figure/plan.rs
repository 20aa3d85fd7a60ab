//! What a figure is made of, as a plan writes it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::plan::{Plan, section};
use crate::{AuditError, Criterion, Result};

/// The section `[figure]` of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FigurePlan {
    /// What it shows.
    pub title: String,
    /// What to see in it.
    #[serde(default)]
    pub caption: String,
    /// What the axis is.
    pub x: String,
    /// Runs for each curve and point, with seeds that count up from the plan's own.
    #[serde(default = "one")]
    pub seeds: usize,
    /// Curves, or pictures.
    #[serde(default)]
    pub show: Show,
    /// How scores are drawn.
    #[serde(default)]
    pub scale: Scale,
    /// Along the axis.
    pub points: Vec<PointPlan>,
    /// The curves; of pictures, the groups of rows.
    pub curves: Vec<CurvePlan>,
}

fn one() -> usize {
    1
}

/// What a figure shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Show {
    /// Scores along the axis.
    #[default]
    Curves,
    /// What came back at each point, of the first seed, beside the scores.
    Pictures,
    /// The share of labels that were told rightly, instead of scores.
    Labels,
    /// The share of members that pass the criterion, and each line of `score.also`, instead of scores.
    Recovered,
    /// The share of members that their candidates point to among everybody, instead of scores: image
    /// identifiability precision.
    Identified,
}

/// How scores are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// By powers of ten.
    #[default]
    Logarithmic,
    /// As they are.
    Linear,
}

/// A point of the axis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PointPlan {
    /// Where it is.
    pub x: f64,
    /// What stands there instead of the number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Runs here, if not as many as elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seeds: Option<usize>,
    /// `key=value` changes of the plan.
    pub set: Vec<String>,
}

/// A curve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CurvePlan {
    /// Its name.
    pub name: String,
    /// `key=value` changes of the plan.
    #[serde(default)]
    pub set: Vec<String>,
}

impl FigurePlan {
    /// A figure and the text of the plan it varies, if the file has a section
    /// `[figure]`; `changes` are of keys that no curve or point sets.
    pub fn read(path: &Path, changes: &[String]) -> Result<Option<(Self, String)>> {
        Self::parse(&section::text_of(path)?, changes)
    }

    /// The same from text.
    pub fn parse(text: &str, changes: &[String]) -> Result<Option<(Self, String)>> {
        if toml::from_str::<toml::Table>(text).is_ok_and(|table| !table.contains_key("figure")) {
            return Ok(None);
        }
        let (figure, rest) = section::taken::<Self>(text, changes, "figure")?;
        let Some(figure) = figure else { return Ok(None) };
        figure.check()?;
        figure.check_changes(changes)?;
        Ok(Some((figure, rest)))
    }

    /// The whole plan again, from the figure and the rest.
    pub fn to_toml(&self, base: &str) -> Result<String> {
        section::put(self, "figure", base)
    }

    /// Fails if a change is of a key that a curve or point sets: it would be of no effect.
    fn check_changes(&self, changes: &[String]) -> Result<()> {
        let key = |change: &str| change.split('=').next().unwrap_or_default().trim().to_owned();
        let own: Vec<String> = (self.points.iter().map(|point| &point.set))
            .chain(self.curves.iter().map(|curve| &curve.set))
            .flatten()
            .map(|change| key(change))
            .collect();
        match changes.iter().map(|change| key(change)).find(|change| own.contains(change)) {
            None => Ok(()),
            Some(change) => {
                let problem = format!("`{change}` is set by the figure's own curves or points");
                Err(AuditError::plan("--set", problem, "change the plan's [figure] instead"))
            }
        }
    }

    fn check(&self) -> Result<()> {
        let wrong = |key: &str, problem: &str, hint: &str| Err(AuditError::plan(key, problem, hint));
        if self.points.is_empty() || self.curves.is_empty() {
            return wrong("figure", "needs points and curves", "add [[figure.points]] and [[figure.curves]]");
        }
        if self.seeds == 0 || self.points.iter().any(|point| point.seeds == Some(0)) {
            return wrong("figure.seeds", "is 0", "give the number of runs for each point");
        }
        if let Some(point) = self.points.iter().find(|point| !point.x.is_finite()) {
            return wrong("figure.points", &format!("x is {}", point.x), "give finite numbers");
        }
        Ok(())
    }

    /// The plan of one run; `base` is the plan without the figure.
    pub fn cell(&self, base: &str, curve: usize, point: usize, index: usize) -> Result<Plan> {
        let changes: Vec<String> = self.curves[curve].set.iter().chain(&self.points[point].set).cloned().collect();
        let mut plan = Plan::parse(base, &changes)?;
        plan.seed = plan.seed.wrapping_add(index as u64);
        Ok(plan)
    }

    /// Fails, before anything is run, if one of its plans cannot be followed, or if they
    /// do not share a criterion, which is given.
    pub fn check_cells(&self, base: &str) -> Result<Criterion> {
        let mut shared = None;
        for (curve, point, _) in self.cells().filter(|(_, _, index)| *index == 0) {
            let cell = self.cell(base, curve, point, 0)?;
            crate::pipeline::check(&cell)?;
            let criterion = cell.score.criterion;
            if *shared.get_or_insert(criterion) != criterion {
                let problem = format!("differs between the runs of a figure (`{}`)", self.curves[curve].name);
                return Err(AuditError::plan("score.criterion", problem, "give one criterion for all of them"));
            }
        }
        shared.ok_or_else(|| AuditError::plan("figure", "has no cells", "add points and curves"))
    }

    /// Every run: curve, point and index of the seed. Curves follow each other at one point and seed: they
    /// often have the victim in common.
    pub fn cells(&self) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
        (self.points.iter().enumerate()).flat_map(move |(place, point)| {
            (0..point.seeds.unwrap_or(self.seeds))
                .flat_map(move |seed| (0..self.curves.len()).map(move |curve| (curve, place, seed)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = r#"
        seed = 5
        [data]
        source = "synthetic:axes:50"
        members = 2
        [network]
        kind = "probe"
        activation = "tanh"
        [victim]
        kind = "federated"
        loss = "half-squared"
        [attack]
        kind = "tensor"
        [figure]
        title = "Errors"
        x = "dimension"
        seeds = 2
        points = [{ x = 50, set = ["data.source=synthetic:axes:50"] }, { x = 60, set = ["data.source=synthetic:axes:60"] }]
        curves = [{ name = "tanh" }, { name = "relu", set = ["network.activation=relu"] }]
    "#;

    #[test]
    fn cells_are_plans_with_changes() {
        let (figure, base) = FigurePlan::parse(PLAN, &["attack.norm=1.0".into()]).unwrap().unwrap();
        assert_eq!(figure.cells().count(), 8);
        assert_eq!(figure.cells().take(3).collect::<Vec<_>>(), [(0, 0, 0), (1, 0, 0), (0, 0, 1)]);
        let fewer = FigurePlan::parse(&PLAN.replace("{ x = 50,", "{ x = 50, seeds = 1,"), &[]).unwrap().unwrap().0;
        assert_eq!(fewer.cells().count(), 6);
        let cell = figure.cell(&base, 1, 1, 1).unwrap();
        assert_eq!((cell.seed, cell.data.source.as_str()), (6, "synthetic:axes:60"));
        assert!(cell.to_toml().unwrap().contains("activation = \"relu\""));
        assert!(cell.to_toml().unwrap().contains("norm = 1.0"));
        let again = FigurePlan::parse(&figure.to_toml(&base).unwrap(), &[]).unwrap().unwrap();
        assert_eq!(again, (figure, base));
    }

    #[test]
    fn mistakes_are_named() {
        let change = |from: &str, to: &str| FigurePlan::parse(&PLAN.replace(from, to), &[]).map(drop);
        assert!(change("x = 50,", "x = 50, seeds = 0,").unwrap_err().to_string().contains("figure.seeds"));
        assert!(change("seeds = 2", "seeds = 0").unwrap_err().to_string().contains("figure.seeds"));
        assert!(change("seeds = 2", "sedes = 2").unwrap_err().to_string().contains("did you mean `seeds`"));
        assert!(FigurePlan::parse("seed = 1", &[]).unwrap().is_none());
        let own = FigurePlan::parse(PLAN, &["network.activation=sigmoid".into()]).unwrap_err().to_string();
        assert!(own.contains("set by the figure's own"), "{own}");
        let two =
            PLAN.replace("\"network.activation=relu\"", "\"score.criterion={ metric = \\\"mse\\\", below = 1.0 }\"");
        let (figure, base) = FigurePlan::parse(&two, &[]).unwrap().unwrap();
        assert!(figure.check_cells(&base).unwrap_err().to_string().contains("differs between the runs"));
    }
}
