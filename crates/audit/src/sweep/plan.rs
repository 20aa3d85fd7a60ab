//! What a sweep draws, as a plan writes it.

use std::path::Path;

use afterimage_nn::Stream;
use serde::{Deserialize, Serialize};

use crate::plan::{Plan, section};
use crate::{AuditError, Result};

/// The section `[sweep]` of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SweepPlan {
    /// Settings that are drawn.
    pub trials: usize,
    /// Rounds; each but the last has fewer iterations than the next.
    pub rounds: usize,
    /// One in so many trials goes on to the next round, with so many times the iterations.
    pub keep: usize,
    /// What is drawn from.
    pub ranges: Ranges,
}

impl Default for SweepPlan {
    fn default() -> Self {
        Self { trials: 27, rounds: 3, keep: 3, ranges: Ranges::default() }
    }
}

/// Ranges by name, or one by one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Ranges {
    /// Those of `kkt` as its paper has them ("paper"), or its authors' program ("released");
    /// or "none": the plan's own settings from other random starts.
    Named(String),
    /// Given in the plan.
    Given(Vec<Range>),
}

impl Default for Ranges {
    fn default() -> Self {
        Ranges::Named("released".into())
    }
}

/// Where a setting is drawn from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// The key, such as `attack.lr`.
    pub key: String,
    /// Smallest value.
    pub from: f64,
    /// Largest value.
    pub to: f64,
    /// Whether its logarithm is drawn evenly, not it itself.
    #[serde(default)]
    pub log: bool,
}

impl Range {
    fn new(key: &str, from: f64, to: f64, log: bool) -> Self {
        Self { key: format!("attack.{key}"), from, to, log }
    }

    fn draw(&self, stream: &mut Stream) -> f64 {
        match self.log {
            true => stream.uniform(self.from.ln(), self.to.ln()).exp(),
            false => stream.uniform(self.from, self.to),
        }
    }

    fn check(&self) -> Result<()> {
        let problem = match () {
            () if !self.key.starts_with("attack.") => "is no setting of the attack",
            () if !(self.from < self.to && self.from.is_finite() && self.to.is_finite()) => {
                "needs a smaller `from` than `to`"
            }
            () if self.log && self.from <= 0.0 => "cannot be drawn by its logarithm from 0 or less",
            () => return Ok(()),
        };
        let problem = format!("`{}` {problem}", self.key);
        Err(AuditError::plan(
            "sweep.ranges",
            problem,
            "e.g. { key = \"attack.lr\", from = 1e-5, to = 1.0, log = true }",
        ))
    }
}

impl SweepPlan {
    /// A sweep and the plan it varies, from a file with or without a section `[sweep]`.
    pub fn read(path: &Path, changes: &[String]) -> Result<(Self, String)> {
        Self::parse(&section::text_of(path)?, changes)
    }

    /// The same from text.
    pub fn parse(text: &str, changes: &[String]) -> Result<(Self, String)> {
        let (sweep, base) = section::taken::<Self>(text, changes, "sweep")?;
        let sweep = sweep.unwrap_or_default();
        sweep.check(&base)?;
        Ok((sweep, base))
    }

    fn check(&self, base: &str) -> Result<()> {
        let wrong = |key: &str, problem: &str, hint: &str| Err(AuditError::plan(key, problem, hint));
        if self.trials == 0 || self.rounds == 0 {
            return wrong("sweep", "needs a trial and a round at least", "set sweep.trials and sweep.rounds");
        }
        if self.keep < 2 {
            return wrong("sweep.keep", "must be 2 or more", "3 keeps one trial in three");
        }
        self.ranges()?.iter().try_for_each(Range::check)?;
        // Every drawn setting must be one of the attack's; the first trial tells.
        self.trial(base, 0, 0).map(|_| ())
    }

    fn ranges(&self) -> Result<Vec<Range>> {
        match &self.ranges {
            Ranges::Given(ranges) if ranges.is_empty() => {
                Err(AuditError::plan("sweep.ranges", "is empty", "give a range, or \"released\" or \"paper\""))
            }
            Ranges::Given(ranges) => Ok(ranges.clone()),
            // Haim et al. (2022), B.2; the program differs in two places.
            Ranges::Named(name) if name == "paper" => Ok(vec![
                Range::new("lr", 1e-5, 1.0, true),
                Range::new("sigma", 1e-6, 1.0, true),
                Range::new("lambda_min", 1e-4, 1.0, true),
                Range::new("alpha", 10.0, 500.0, false),
            ]),
            Ranges::Named(name) if name == "released" => Ok(vec![
                Range::new("lr", 1e-5, 1.0, true),
                Range::new("sigma", 1e-6, 0.1, true),
                Range::new("lambda_min", 0.01, 0.5, false),
                Range::new("alpha", 10.0, 500.0, false),
            ]),
            Ranges::Named(name) if name == "none" => Ok(Vec::new()),
            Ranges::Named(other) => Err(AuditError::plan(
                "sweep.ranges",
                format!("`{other}` is not known"),
                "\"released\", \"paper\" or \"none\", or a list of { key, from, to, log }",
            )),
        }
    }

    /// What a trial changes, and the plan it makes. Rounds before the last have fewer iterations.
    pub fn trial(&self, base: &str, round: usize, trial: usize) -> Result<(Vec<String>, Plan)> {
        let own = Plan::parse(base, &[])?;
        let mut stream = Stream::new(own.seed, "sweep", trial as u64);
        let changes: Vec<String> =
            self.ranges()?.iter().map(|range| format!("{}={:e}", range.key, range.draw(&mut stream))).collect();
        let full = crate::plan::changed_table(base, &[])?;
        let full = full.get("attack").and_then(|attack| attack.get("iterations")).and_then(toml::Value::as_integer);
        let Some(full) = full else {
            let problem = "the plan does not say how many iterations the last round has";
            return Err(AuditError::plan("attack.iterations", problem, "set it; earlier rounds have fewer"));
        };
        let later = (self.rounds - 1 - round.min(self.rounds - 1)) as u32;
        let iterations = (full / (self.keep as i64).saturating_pow(later)).max(1);
        let all: Vec<String> = changes.iter().cloned().chain([format!("attack.iterations={iterations}")]).collect();
        let mut plan = Plan::parse(base, &all)?;
        plan.seed = plan.seed.wrapping_add(trial as u64);
        Ok((changes, plan))
    }

    /// Trials of a round.
    pub fn count(&self, round: usize) -> usize {
        self.trials.div_ceil(self.keep.saturating_pow(round as u32)).max(1)
    }

    /// The whole plan again.
    pub fn to_toml(&self, base: &str) -> Result<String> {
        section::put(self, "sweep", base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = r#"
        [data]
        source = "builtin:digits"
        members = 4
        [network]
        kind = "mlp"
        hidden = [8]
        outputs = 1
        [victim]
        kind = "classifier"
        loss = "logistic"
        [attack]
        kind = "kkt"
        iterations = 90
    "#;

    #[test]
    fn trials_are_drawn_within_their_ranges_and_rounds_grow() {
        let (sweep, base) = SweepPlan::parse(PLAN, &["sweep.ranges=paper".into()]).unwrap();
        assert_eq!((sweep.count(0), sweep.count(1), sweep.count(2)), (27, 9, 3));
        let (changes, first) = sweep.trial(&base, 0, 5).unwrap();
        assert_eq!(changes, sweep.trial(&base, 2, 5).unwrap().0);
        assert_ne!(changes, sweep.trial(&base, 2, 6).unwrap().0);
        let last = sweep.trial(&base, 2, 5).unwrap().1;
        let iterations = |plan: &Plan| plan.to_toml().unwrap().contains("iterations = 10");
        assert!(iterations(&first) && !iterations(&last));
        // The plan's own settings, from other starts.
        let (restarts, base) = SweepPlan::parse(PLAN, &["sweep.ranges=none".into(), "sweep.rounds=1".into()]).unwrap();
        let [(none, one), (_, two)] = [0, 1].map(|trial| restarts.trial(&base, 0, trial).unwrap());
        assert!(none.is_empty() && one.attack == two.attack && one.seed != two.seed);
        let again = SweepPlan::parse(&sweep.to_toml(&base).unwrap(), &[]).unwrap().0;
        assert_eq!(again, sweep);
    }

    #[test]
    fn what_cannot_be_drawn_is_refused() {
        for (change, words) in [
            ("sweep.trials=0", "at least"),
            ("sweep.keep=1", "2 or more"),
            ("sweep.ranges=mine", "not known"),
            ("sweep.ranges=[{ key = \"attack.lr\", from = 0.0, to = 1.0, log = true }]", "logarithm"),
            ("sweep.ranges=[{ key = \"attack.lr\", from = 2.0, to = 1.0 }]", "smaller"),
            ("sweep.ranges=[{ key = \"seed\", from = 0.0, to = 1.0 }]", "no setting"),
            ("sweep.ranges=[{ key = \"attack.speed\", from = 0.0, to = 1.0 }]", "speed"),
        ] {
            let error = SweepPlan::parse(PLAN, &[change.into()]).unwrap_err().to_string();
            assert!(error.contains(words), "{change}: {error}");
        }
    }
}
