//! Members and controls against candidates: the same question asked of both.

use std::collections::BTreeMap;

use afterimage_attacks::{Model, Reconstruction};
use afterimage_nn::Tensor;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::align::{Alignment, Pool};
use crate::criterion::{Criterion, calibrated};
use crate::findings::Also;
use crate::metrics::{Direction, Lpips, Metric};
use crate::plan::ScorePlan;
use crate::statistics::false_discovery;
use crate::truth::Truth;
use crate::verdict::Count;
use crate::{AuditError, Result};

/// Where identification looks for the nearest record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Space {
    /// Euclidean distance of pixels.
    #[default]
    Pixels,
    /// Cosine distance of what the observed network's last layer reads.
    Features,
}

/// From network inputs to features, one row each.
pub type Features<'a> = dyn Fn(&Tensor) -> Result<Tensor> + 'a;

/// What a model's last layer reads of network inputs.
pub(crate) fn last_layer(model: &Model) -> impl Fn(&Tensor) -> Result<Tensor> + '_ {
    |x| {
        let x = x.reshape(&model.network.batch_shape(x.rows()))?;
        let x = x.to_dtype(model.theta.dtype())?.to_device(model.theta.device())?;
        Ok(model.network.features(&model.theta, &x)?)
    }
}

/// How a run is scored.
#[derive(Clone, Copy)]
pub struct Scoring<'a> {
    /// What is measured beside the criterion's metric.
    pub metrics: &'a [Metric],
    /// When a record counts as rebuilt.
    pub criterion: Criterion,
    /// Pairings for figures.
    pub alignments: &'a [Alignment],
    /// Features for identification; pixels if absent.
    pub features: Option<&'a Features<'a>>,
    /// The network of the metric `lpips`, which has no values without it.
    pub lpips: Option<&'a Lpips>,
}

impl Scoring<'_> {
    /// By a criterion alone.
    pub fn by(criterion: Criterion) -> Self {
        Self { metrics: &[], criterion, alignments: &[], features: None, lpips: None }
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

/// Scores by metric.
pub type ByMetric = BTreeMap<Metric, Scores>;

/// What scoring gives.
#[derive(Debug, Clone)]
pub struct Scored {
    /// Scores by metric.
    pub metrics: ByMetric,
    /// Scores by pairing and metric; controls are as many as members, where there are.
    pub alignments: BTreeMap<Alignment, ByMetric>,
    /// Where the line was.
    pub threshold: f64,
    /// For each member, the candidate nearest to it.
    pub nearest: Vec<Option<usize>>,
    /// For each test control, likewise.
    pub control_nearest: Vec<Option<usize>>,
    /// For each member, whether its candidate points to it among all members and test controls.
    pub identified: Vec<bool>,
    /// For each test control, likewise: what the same rule gives by chance.
    pub control_identified: Vec<bool>,
    /// How many passed.
    pub count: Count,
    /// The members that can be named, and the expected share of false finds among them.
    pub named: Named,
}

impl Scored {
    /// What passes the other lines that the rules name.
    pub(crate) fn also(&self, rules: &ScorePlan) -> Vec<Also> {
        let metric = rules.criterion.metric;
        let beyond = |values: &[Option<f64>], line: f64| {
            values.iter().flatten().filter(|score| metric.better().better(**score, line)).count()
        };
        let scores = self.metrics.get(&metric);
        let line = |&threshold: &f64| Also {
            threshold,
            recovered: scores.map_or(0, |scores| beyond(&scores.members, threshold)),
            control_recovered: scores.map_or(0, |scores| beyond(&scores.control, threshold)),
        };
        rules.also.iter().map(line).collect()
    }

    /// Nothing was brought back, because nothing could be tried.
    pub fn nothing(truth: &Truth, criterion: Criterion) -> Self {
        let (members, controls) = (truth.members.pixels.rows(), truth.controls.pixels.rows() / 2);
        Self {
            metrics: BTreeMap::new(),
            alignments: BTreeMap::new(),
            threshold: criterion.threshold.unwrap_or(0.0),
            nearest: vec![None; members],
            control_nearest: vec![None; controls],
            identified: vec![false; members],
            control_identified: vec![false; controls],
            count: Count { recovered: 0, members, control_recovered: 0, controls },
            named: Named { count: 0, fdr: 1.0 },
        }
    }
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

/// The controls that calibrate: the even-numbered ones.
fn calibrating<T>(controls: &[T]) -> impl Iterator<Item = &T> {
    controls.iter().step_by(2)
}

/// The controls that test: the odd-numbered ones.
pub(crate) fn testing<T>(controls: &[T]) -> impl Iterator<Item = &T> {
    controls.iter().skip(1).step_by(2)
}

/// Scores every member and control by its nearest candidate.
///
/// Half of the controls calibrate the threshold, half test it; with a fixed
/// threshold the first half is simply not used.
pub fn score(reconstruction: &Reconstruction, truth: &Truth, scoring: Scoring<'_>) -> Result<Scored> {
    let samples = &reconstruction.samples;
    if samples.row_len() != truth.members.pixels.row_len() {
        let problem = format!("candidates have shape {:?}, records {:?}", samples.shape(), truth.shape());
        return Err(AuditError::data("reconstruction", problem));
    }
    let criterion = scoring.criterion;
    let better = criterion.metric.better();
    let pool = Pool::new(rows(&truth.preprocess.undo(samples)?)?, truth.shape()).with_lpips(scoring.lpips);
    let nearest = |records: &[Vec<f64>]| -> Vec<Best> {
        records.par_iter().map(|record| pool.nearest(record, criterion.metric)).collect()
    };
    let (members, controls) = (rows(&truth.members.pixels)?, rows(&truth.controls.pixels)?);
    let (member_best, control_best) = (nearest(&members), nearest(&controls));
    let threshold = criterion.threshold.unwrap_or_else(|| {
        let calibration: Vec<f64> = calibrating(&control_best).flatten().map(|(_, value)| *value).collect();
        calibrated(&calibration, better)
    });
    if !threshold.is_finite() {
        let hint = "give the criterion a fixed line, or more controls";
        return Err(AuditError::plan("score.criterion", "the controls have no scores to calibrate on", hint));
    }
    let controls: Vec<Vec<f64>> = testing(&controls).cloned().collect();
    let control_best: Vec<Best> = testing(&control_best).copied().collect();
    let passing = |best: &[Best]| best.iter().flatten().filter(|(_, value)| better.better(*value, threshold)).count();
    let count = Count {
        recovered: passing(&member_best),
        members: members.len(),
        control_recovered: passing(&control_best),
        controls: controls.len(),
    };
    // A record without a candidate can be beyond no line.
    let worst = if better == Direction::Above { f64::NEG_INFINITY } else { f64::INFINITY };
    let values =
        |best: &[Best]| -> Vec<f64> { best.iter().map(|best| best.map_or(worst, |(_, value)| value)).collect() };
    let place =
        |best: &[Best]| -> Vec<Option<usize>> { best.iter().map(|best| best.map(|(index, _)| index)).collect() };
    let (nearest, control_nearest) = (place(&member_best), place(&control_best));
    let (identified, control_identified) = identify(samples, truth, &nearest, &control_nearest, scoring.features)?;
    let wanted: Vec<Metric> = scoring.metrics.iter().copied().chain([criterion.metric]).collect();
    let measure = |metric: Metric, records: &[Vec<f64>], best: &[Best]| -> Vec<Option<f64>> {
        let pairs = records.par_iter().zip(best);
        let value = |(record, best): (&Vec<f64>, &Best)| match *best {
            Some((_, value)) if metric == criterion.metric => Some(value),
            Some((index, _)) => pool.measure(metric, record, index),
            None => None,
        };
        pairs.map(value).collect()
    };
    let metrics = wanted.iter().map(|&metric| {
        let control = measure(metric, &controls, &control_best);
        (metric, Scores { members: measure(metric, &members, &member_best), control })
    });
    // Pairings are one to one or compete for candidates: as many controls as members, or chance looks better than it is.
    let as_many = &controls[..controls.len().min(members.len())];
    let alignments = scoring.alignments.iter().map(|&alignment| {
        let paired = |records: &[Vec<f64>]| pool.align(alignment, records, criterion.metric);
        let (member_pairs, control_pairs) = (paired(&members), paired(as_many));
        let measured = |metric: Metric, records: &[Vec<f64>], pairs: &[Option<Vec<f64>>]| {
            let value = |(record, image): (&Vec<f64>, &Option<Vec<f64>>)| {
                image.as_ref().and_then(|image| pool.compare(metric, record, image))
            };
            records.par_iter().zip(pairs).map(value).collect()
        };
        let scores = wanted.iter().copied().chain(alignment.own_metric()).map(|metric| {
            let control = measured(metric, as_many, &control_pairs);
            (metric, Scores { members: measured(metric, &members, &member_pairs), control })
        });
        (alignment, scores.collect())
    });
    Ok(Scored {
        metrics: metrics.collect(),
        alignments: alignments.collect(),
        threshold,
        nearest,
        control_nearest,
        identified,
        control_identified,
        count,
        named: named(&values(&member_best), &values(&control_best), threshold, better),
    })
}

/// Of everybody in the pool of members and test controls, is the record the one
/// nearest to its candidate? Asked of members, and of test controls.
fn identify(
    samples: &Tensor,
    truth: &Truth,
    nearest: &[Option<usize>],
    control_nearest: &[Option<usize>],
    features: Option<&Features<'_>>,
) -> Result<(Vec<bool>, Vec<bool>)> {
    let seen = |pixels: &Tensor| -> Result<Vec<Vec<f64>>> {
        match features {
            // Nobody has no features.
            Some(features) if pixels.rows() > 0 => {
                // What is no number has no features; as zero it points to nobody in particular.
                let pixels = pixels.map(|x| if x.is_finite() { x } else { 0.0 })?;
                let mut seen = rows(&features(&truth.preprocess.apply(&pixels)?)?)?;
                for row in &mut seen {
                    let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
                    row.iter_mut().for_each(|x| *x /= norm);
                }
                Ok(seen)
            }
            _ => rows(pixels),
        }
    };
    let candidates = seen(&truth.preprocess.undo(samples)?)?;
    // Controls come first, so that a tie is never a member's.
    let mut pool: Vec<Vec<f64>> = testing(&seen(&truth.controls.pixels)?).cloned().collect();
    let first = pool.len();
    pool.extend(seen(&truth.members.pixels)?);
    let points_to: Vec<Option<usize>> = candidates
        .par_iter()
        .map(|candidate| {
            let distance = |row: &[f64]| row.iter().zip(candidate).map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
            let distances: Vec<f64> = pool.iter().map(|row| distance(row)).collect();
            (0..pool.len()).min_by(|&a, &b| distances[a].total_cmp(&distances[b]))
        })
        .collect();
    let hits = |nearest: &[Option<usize>], first: usize| {
        let hit = |(place, index): (usize, &Option<usize>)| index.is_some_and(|i| points_to[i] == Some(first + place));
        nearest.iter().enumerate().map(hit).collect()
    };
    Ok((hits(nearest, first), hits(control_nearest, 0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::truth::Sample;

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
            driven: None,
            damaged: None,
        }
    }

    fn candidates(values: &[f64]) -> Reconstruction {
        Reconstruction::finished(Tensor::from_vec(values.to_vec(), &[values.len(), 1]).unwrap(), 1.0, false)
    }

    #[test]
    fn each_record_is_scored_by_its_nearest_candidate() {
        let criterion = Criterion { metric: Metric::Mse, threshold: Some(1e-3) };
        let truth = truth(&[0.1, 0.5, 0.9], &[0.3, 0.2, 0.7, 0.501]);
        let scored =
            score(&candidates(&[0.5, 0.11]), &truth, Scoring { metrics: &[Metric::L2], ..Scoring::by(criterion) })
                .unwrap();
        assert_eq!(scored.nearest, [Some(1), Some(0), Some(0)]);
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
        let scored = score(&candidates(&[0.0]), &truth(&[0.0], &controls), Scoring::by(criterion)).unwrap();
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
        let scored = score(&candidates(&[f64::NAN]), &truth(&[0.1], &[0.3, 0.2]), Scoring::by(criterion)).unwrap();
        assert_eq!((scored.nearest, scored.count.recovered), (vec![None], 0));
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
