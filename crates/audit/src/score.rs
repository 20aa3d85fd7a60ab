//! Members and controls against candidates: the same question asked of both.

use std::collections::BTreeMap;

use afterimage_attacks::Reconstruction;
use afterimage_nn::Tensor;
use serde::{Deserialize, Serialize};

use crate::metrics::{Direction, Metric};
use crate::statistics::false_discovery;
use crate::truth::{Sample, Truth};
use crate::verdict::Count;
use crate::{AuditError, Result};

/// When a record counts as rebuilt. Fixed before the attack runs.
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
#[serde(deny_unknown_fields)]
struct CriterionText {
    metric: Metric,
    #[serde(skip_serializing_if = "Option::is_none")]
    below: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    above: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    threshold: Option<String>,
}

impl TryFrom<CriterionText> for Criterion {
    type Error = String;

    fn try_from(text: CriterionText) -> std::result::Result<Self, String> {
        let CriterionText { metric, below, above, threshold } = text;
        let threshold = match (metric.better(), below, above, threshold.as_deref()) {
            (_, None, None, Some("calibrated")) => None,
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
        let calibrated = threshold.is_none().then(|| "calibrated".to_owned());
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
fn calibrated(values: &[f64], better: Direction) -> f64 {
    match better {
        Direction::Above => percentile(values, 0.99),
        Direction::Below => -percentile(&values.iter().map(|value| -value).collect::<Vec<_>>(), 0.99),
    }
}

/// The scores of one metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// One for each member, in truth order; none where there is no candidate.
    pub members: Vec<Option<f64>>,
    /// One for each test control.
    pub control: Vec<Option<f64>>,
}

/// What scoring gives.
#[derive(Debug, Clone)]
pub struct Scored {
    /// Scores by metric.
    pub metrics: BTreeMap<Metric, Scores>,
    /// Where the line was.
    pub threshold: f64,
    /// For each member, the candidate nearest to it.
    pub nearest: Vec<Option<usize>>,
    /// For each test control, likewise.
    pub control_nearest: Vec<Option<usize>>,
    /// Whether each member passed.
    pub passed: Vec<bool>,
    /// For each member, whether its candidate points to it among all members and test controls.
    pub identified: Vec<bool>,
    /// For each test control, likewise: what the same rule gives by chance.
    pub control_identified: Vec<bool>,
    /// How many passed.
    pub count: Count,
    /// The members that can be named, and the expected share of false finds among them.
    pub named: Named,
}

/// Members that can be named one by one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Named {
    /// How many.
    pub count: usize,
    /// The expected share of false finds among them; the smallest possible one if there are none.
    pub fdr: f64,
}

/// Largest expected share of false finds at which records are named.
pub const FALSE_DISCOVERY: f64 = 0.05;

/// The most members that can be named: those beyond the loosest line, at or
/// beyond the criterion's, where the expected share of false finds
/// n (c + 1) / ((N + 1) k) is at most 5 %.
///
/// The criterion's own line lets a few controls through by design. Members far
/// beyond it can be named all the same: at a line just short of the weakest of
/// them, no control passes. Choosing the line this way is the procedure of
/// Benjamini & Hochberg on conformal p-values (Bates et al., 2023).
pub fn named(members: &[f64], controls: &[f64], threshold: f64, better: Direction) -> Named {
    let beyond = |values: &[f64], line: f64| values.iter().filter(|&&value| !better.better(line, value)).count();
    let lines = members.iter().filter(|&&score| better.better(score, threshold));
    let estimates: Vec<(usize, f64)> = lines
        .map(|&line| {
            let count = beyond(members, line);
            (count, false_discovery(count, members.len(), beyond(controls, line), controls.len()))
        })
        .collect();
    let most = estimates.iter().filter(|(_, fdr)| *fdr <= FALSE_DISCOVERY).max_by_key(|(count, _)| *count);
    match most {
        Some(&(count, fdr)) => Named { count, fdr },
        None => Named { count: 0, fdr: estimates.iter().map(|(_, fdr)| *fdr).fold(1.0, f64::min) },
    }
}

/// The candidate nearest to a record, and how near.
type Best = Option<(usize, f64)>;

/// Records and candidates as rows of doubles.
pub(crate) fn rows(tensor: &Tensor) -> Result<Vec<Vec<f64>>> {
    let width = tensor.row_len().max(1);
    Ok(tensor.to_f64_vec()?.chunks_exact(width).map(<[f64]>::to_vec).collect())
}

/// Scores every member and control by its nearest candidate.
///
/// Even-numbered controls calibrate the threshold, odd-numbered ones test it;
/// with a fixed threshold the first half is simply not used.
pub fn score(
    reconstruction: &Reconstruction,
    truth: &Truth,
    metrics: &[Metric],
    criterion: Criterion,
) -> Result<Scored> {
    let samples = &reconstruction.samples;
    if samples.row_len() != truth.members.pixels.row_len() {
        let problem = format!("candidates have shape {:?}, records {:?}", samples.shape(), truth.shape());
        return Err(AuditError::data("reconstruction", problem));
    }
    let candidates = rows(&truth.preprocess.undo(samples)?)?;
    let pair = |record: &[f64], metric: Metric| {
        let measured = candidates.iter().map(|candidate| metric.measure(record, candidate, truth.shape()));
        let better = |a: f64, b: f64| metric.better().better(a, b);
        measured.enumerate().fold(None, |best: Best, (index, value)| match (best, value) {
            (Some((_, old)), Some(new)) if !better(new, old) => best,
            (_, Some(new)) if new.is_finite() => Some((index, new)),
            _ => best,
        })
    };
    let nearest = |sample: &Sample| -> Result<(Vec<Vec<f64>>, Vec<Best>)> {
        let records = rows(&sample.pixels)?;
        let best = records.iter().map(|record| pair(record, criterion.metric)).collect();
        Ok((records, best))
    };
    let (member_rows, member_best) = nearest(&truth.members)?;
    let (control_rows, control_best) = nearest(&truth.controls)?;
    let half = |parity: usize| control_best.iter().skip(parity).step_by(2);
    let threshold = criterion.threshold.unwrap_or_else(|| {
        let calibration: Vec<f64> = half(0).flatten().map(|(_, value)| *value).collect();
        calibrated(&calibration, criterion.metric.better())
    });
    if !threshold.is_finite() {
        let hint = "give the criterion a fixed line, or more controls";
        return Err(AuditError::plan("score.criterion", "the controls have no scores to calibrate on", hint));
    }
    let passes =
        |best: &Option<(usize, f64)>| best.is_some_and(|(_, value)| criterion.metric.better().better(value, threshold));
    let passed: Vec<bool> = member_best.iter().map(passes).collect();
    let test_best: Vec<_> = half(1).copied().collect();
    let test_rows: Vec<&Vec<f64>> = control_rows.iter().skip(1).step_by(2).collect();
    let count = Count {
        recovered: passed.iter().filter(|passed| **passed).count(),
        members: passed.len(),
        control_recovered: test_best.iter().filter(|best| passes(best)).count(),
        controls: test_best.len(),
    };
    // A record without a candidate can be beyond no line.
    let worst = if criterion.metric.better() == Direction::Above { f64::NEG_INFINITY } else { f64::INFINITY };
    let values =
        |best: &[Best]| -> Vec<f64> { best.iter().map(|best| best.map_or(worst, |(_, value)| value)).collect() };
    let named = named(&values(&member_best), &values(&test_best), threshold, criterion.metric.better());
    // Identification: of everybody in the pool, is the record the one nearest to its candidate?
    // Controls come first, so that a tie is never a member's.
    let pool: Vec<&Vec<f64>> = test_rows.iter().copied().chain(&member_rows).collect();
    let nearest_in_pool = |candidate: &[f64]| {
        let distance = |row: &[f64]| row.iter().zip(candidate).map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
        (0..pool.len()).min_by(|&a, &b| distance(pool[a]).total_cmp(&distance(pool[b])))
    };
    let points_to =
        |place: usize, best: &Best| best.is_some_and(|(index, _)| nearest_in_pool(&candidates[index]) == Some(place));
    let control_identified = test_best.iter().enumerate().map(|(place, best)| points_to(place, best)).collect();
    let first = test_rows.len();
    let identified = member_best.iter().enumerate().map(|(place, best)| points_to(first + place, best)).collect();
    let measure = |metric: Metric, record: &[f64], best: &Best| {
        best.and_then(|(index, value)| {
            if metric == criterion.metric {
                Some(value)
            } else {
                metric.measure(record, &candidates[index], truth.shape())
            }
        })
    };
    let all = metrics.iter().copied().chain([criterion.metric]);
    let metrics = all.map(|metric| {
        let members = member_rows.iter().zip(&member_best).map(|(row, best)| measure(metric, row, best)).collect();
        let control = test_rows.iter().zip(&test_best).map(|(row, best)| measure(metric, row, best)).collect();
        (metric, Scores { members, control })
    });
    Ok(Scored {
        metrics: metrics.collect(),
        threshold,
        nearest: member_best.iter().map(|best| best.map(|(index, _)| index)).collect(),
        control_nearest: test_best.iter().map(|best| best.map(|(index, _)| index)).collect(),
        passed,
        identified,
        control_identified,
        count,
        named,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn truth(members: &[f64], controls: &[f64]) -> Truth {
        let sample = |values: &[f64]| Sample {
            pixels: Tensor::from_vec(values.to_vec(), &[values.len(), 1]).unwrap(),
            labels: vec![0; values.len()],
        };
        let ids = (0..members.len()).map(|index| index.to_string()).collect();
        Truth {
            members: sample(members),
            controls: sample(controls),
            preprocess: afterimage_attacks::Preprocess::default(),
            ids,
        }
    }

    fn candidates(values: &[f64]) -> Reconstruction {
        Reconstruction::finished(Tensor::from_vec(values.to_vec(), &[values.len(), 1]).unwrap(), 1.0, false)
    }

    #[test]
    fn each_record_is_scored_by_its_nearest_candidate() {
        let criterion = Criterion { metric: Metric::Mse, threshold: Some(1e-3) };
        let truth = truth(&[0.1, 0.5, 0.9], &[0.3, 0.2, 0.7, 0.501]);
        let scored = score(&candidates(&[0.5, 0.11]), &truth, &[Metric::L2], criterion).unwrap();
        assert_eq!(scored.nearest, [Some(1), Some(0), Some(0)]);
        assert_eq!(scored.passed, [true, true, false]);
        // Only the odd-numbered controls test: 0.2 and 0.501.
        let expected = Count { recovered: 2, members: 3, control_recovered: 1, controls: 2 };
        assert_eq!(scored.count, expected);
        let l2 = scored.metrics[&Metric::L2].members[2].unwrap();
        assert!((l2 - 0.4).abs() < 1e-12);
    }

    #[test]
    fn a_calibrated_threshold_comes_from_the_other_half() {
        let controls: Vec<f64> = (0..400).map(|i| 0.5 + f64::from(i) / 800.0).collect();
        let criterion = Criterion { metric: Metric::L2, threshold: None };
        let scored = score(&candidates(&[0.0]), &truth(&[0.0], &controls), &[], criterion).unwrap();
        // The second smallest of 200 distances: a further one is below it with a chance of 1 in 100.
        assert!((scored.threshold - (0.5 + 2.0 / 800.0)).abs() < 1e-12, "{}", scored.threshold);
        assert_eq!((scored.count.recovered, scored.count.controls), (1, 200));
    }

    #[test]
    fn members_beyond_every_control_can_be_named() {
        let controls: Vec<f64> = (0..100).map(|i| f64::from(i) / 100.0).collect();
        // Three of four members far beyond; a line at 0.9 alone would let ten controls through.
        let found = named(&[0.95, 5.0, 6.0, 7.0], &controls, 0.9, Direction::Above);
        assert_eq!(found.count, 3);
        assert!((found.fdr - 4.0 / (101.0 * 3.0)).abs() < 1e-12, "{found:?}");
        assert_eq!(named(&[0.1, 0.2], &controls, 0.9, Direction::Above), Named { count: 0, fdr: 1.0 });
        let mirrored: Vec<f64> = controls.iter().map(|x| -x).collect();
        assert_eq!(named(&[-0.95, -5.0, -6.0, -7.0], &mirrored, -0.9, Direction::Below), found);
        // Sixty of a hundred pass as controls do; only those beyond everybody are named.
        let crowd: Vec<f64> = (0..75).map(|i| f64::from(i) / 75.0).chain([2.0; 25]).collect();
        assert_eq!(named(&crowd, &controls, 0.4, Direction::Above).count, 25);
    }

    #[test]
    fn candidates_that_are_not_numbers_are_no_candidates() {
        let criterion = Criterion { metric: Metric::Mse, threshold: Some(1.0) };
        let scored = score(&candidates(&[f64::NAN]), &truth(&[0.1], &[0.3, 0.2]), &[], criterion).unwrap();
        assert_eq!((scored.nearest, scored.passed), (vec![None], vec![false]));
    }

    #[test]
    fn criteria_are_read_and_contradictions_refused() {
        let read = |text: &str| toml::from_str::<Criterion>(text).map_err(|error| error.to_string());
        assert_eq!(
            read("metric = \"mse\"\nbelow = 1e-8"),
            Ok(Criterion { metric: Metric::Mse, threshold: Some(1e-8) })
        );
        let calibrated = Criterion { metric: Metric::Ssim3, threshold: None };
        assert_eq!(read("metric = \"ssim3\"\nthreshold = \"calibrated\""), Ok(calibrated));
        assert_eq!(read(&toml::to_string(&calibrated).unwrap()), Ok(calibrated));
        assert!(read("metric = \"mse\"\nabove = 1e-8").unwrap_err().contains("below = NUMBER"));
        assert!(read("metric = \"mse\"").unwrap_err().contains("calibrated"));
    }
}
