//! The line between rebuilt and not, fixed before the attack runs.

use serde::{Deserialize, Serialize};

use crate::metrics::{Direction, Metric};

/// When a record counts as rebuilt. Fixed before the attack runs.
///
/// Written as `{ metric = "mse", below = 1e-8 }`, with `above` where larger is better, or as
/// `{ metric = "ssim3", threshold = "calibrated" }`: the 99th percentile of the calibration controls.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "CriterionText", into = "CriterionText")]
pub struct Criterion {
    /// What is measured.
    pub metric: Metric,
    /// Where the line is; none is the 99th percentile of the calibration controls.
    pub threshold: Option<f64>,
}

/// A criterion as a plan writes it: `{ metric = "mse", below = 1e-8 }` or
/// `{ metric = "ssim3", threshold = "calibrated" }`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table such as { metric = \"mse\", below = 1e-4 }")]
struct CriterionText {
    metric: Metric,
    #[serde(skip_serializing_if = "Option::is_none")]
    below: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    above: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    threshold: Option<Line>,
}

/// What `threshold` says. Findings write the number that it was there; plans name the side it is on.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    Word(String),
    Number(f64),
}

impl TryFrom<CriterionText> for Criterion {
    type Error = String;

    fn try_from(text: CriterionText) -> std::result::Result<Self, String> {
        let CriterionText { metric, below, above, threshold } = text;
        let threshold = match (metric.better(), below, above, &threshold) {
            (_, None, None, Some(Line::Word(word))) if word == "calibrated" => None,
            (_, Some(line), ..) | (_, _, Some(line), _) if !line.is_finite() => {
                return Err(format!("the line of a criterion must be a finite number, not {line}"));
            }
            (Direction::Below, Some(line), None, None) | (Direction::Above, None, Some(line), None) => Some(line),
            (direction, ..) => {
                let key = if direction == Direction::Below { "below" } else { "above" };
                return Err(format!("a criterion on {metric} takes `{key} = NUMBER` or `threshold = \"calibrated\"`"));
            }
        };
        Ok(Criterion { metric, threshold })
    }
}

impl From<Criterion> for CriterionText {
    fn from(criterion: Criterion) -> Self {
        let Criterion { metric, threshold } = criterion;
        let below = threshold.filter(|_| metric.better() == Direction::Below);
        let above = threshold.filter(|_| metric.better() == Direction::Above);
        let calibrated = threshold.is_none().then(|| Line::Word("calibrated".into()));
        CriterionText { metric, below, above, threshold: calibrated }
    }
}

/// The ⌈share (n + 1)⌉-th smallest, which a further number of the same kind
/// exceeds with a chance of at most 1 − share (given 1/(1 − share) numbers or more).
pub(crate) fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * (sorted.len() + 1) as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
}

/// [`percentile`] from the good side: for scores where smaller is better, mirrored.
pub(crate) fn calibrated(values: &[f64], better: Direction) -> f64 {
    match better {
        Direction::Above => percentile(values, 0.99),
        Direction::Below => -percentile(&values.iter().map(|value| -value).collect::<Vec<_>>(), 0.99),
    }
}
