//! Records where the kinks of many units meet: low-dimensional data, from weights alone.
//!
//! *Threat model.* The final weights are public. The method is this project's own.
//!
//! | symbol | here | shape |
//! | --- | --- | --- |
//! | w_j, b_j | weight and bias of a unit of the first layer | d, 1 |
//! | {x : w_j·x + b_j = 0} | its kink | a line where d = 2 |
//!
//! At the largest margin a ReLU network is as flat as its records allow: units bend
//! where a bend is of use, and in few dimensions that is *at* records, so that the
//! kink of a unit passes through as many of them as it has dimensions. (Twenty
//! points on a circle: one in ten of all distances between a point and a kink is
//! nothing, two points a unit.) The conditions of Haim et al. (2022) then hold with
//! subgradients alone, and a search by gradients, which needs derivatives at
//! records, has little to go by; see `docs/kkt.md`.
//!
//! So, directly: kinks of d random units meet in a point. A point that many other
//! kinks pass through, and where |Φ| is the value on which most such points agree,
//! the margin, is a record; the sign of Φ is its label.

use afterimage_nn::{Activation, DType, Stream, Tensor};
use faer::Mat;
use faer::linalg::solvers::SolveLstsq;
use serde::{Deserialize, Serialize};

use crate::attack::{all_positive, none_negative};
use crate::dense::perceptron;
use crate::margin::{Labels, outputs_of};
use crate::{Attack, AttackError, Card, Model, Parameter, Reconstruction, Session, Stop, Tick, WeightsSeen};

/// The attack.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Kinks {
    /// Random sets of units whose kinks are made to meet.
    pub draws: usize,
    /// Distance, beside that of the kinks from the origin, within which a kink passes through a point.
    pub tolerance: f64,
    /// Distance, measured likewise, within which two points are one.
    pub merge_within: f64,
    /// Points with fewer kinks than this part of the most are no candidates.
    pub keep_above: f64,
    /// How far |Φ| may be from the margin, as a part of it.
    pub margin_within: f64,
}

impl Default for Kinks {
    fn default() -> Self {
        Self { draws: 50_000, tolerance: 2e-3, merge_within: 0.03, keep_above: 0.25, margin_within: 0.02 }
    }
}

const NAME: &str = "kinks";
/// Most dimensions: d random units share a record once in about 10^d draws.
const DIMENSIONS: usize = 4;
/// Points looked at closely.
const PEAKS: usize = 1000;
/// Units shorter than this beside the mean square are dead.
const ALIVE: f64 = 0.1;
/// Points further out than this, beside the kinks, are meetings of near-parallel ones.
const OUT: f64 = 3.0;

impl Attack for Kinks {
    const CARD: Card = Card {
        name: NAME,
        summary: "Finds records of few dimensions where the kinks of many units meet.",
        attacker: "Anybody who can download the weights. A second of computing, no data.",
        method: "A network at its largest margin bends at its records. Kinks of random units are made to meet; points \
                 that many kinks pass through, and where the output has the one size most of them agree on, are records.",
        needs: "A perceptron with ReLU and a bias in its first layer, trained far past zero error; data of at most \
                four dimensions.",
        limits: "More dimensions than four: kinks that meet in one record are then not found by drawing. Networks that \
                 are not converged have kinks near their records, not at them.",
        citation: "This project; the conditions: Haim, Vardi, Yehudai, Shamir & Irani (2022).",
        defences: &["Stop training early.", "Share outputs, not weights.", "Add noise to the weights."],
        parameters: &[
            Parameter {
                name: "draws",
                default: "50000",
                purpose: "random sets of units whose kinks are made to meet",
                range: "1 or more",
            },
            Parameter {
                name: "tolerance",
                default: "0.002",
                purpose: "distance within which a kink passes through a point; 1 is that of the kinks from the origin",
                range: "positive",
            },
            Parameter {
                name: "merge_within",
                default: "0.03",
                purpose: "distance within which two points are one",
                range: "0 or more",
            },
            Parameter {
                name: "keep_above",
                default: "0.25",
                purpose: "points with fewer kinks than this part of the most are dropped",
                range: "0 to 1",
            },
            Parameter {
                name: "margin_within",
                default: "0.02",
                purpose: "how far the output may be from the margin, as a part of it",
                range: "positive",
            },
        ],
    };

    type Sees = WeightsSeen;

    fn applies(&self, seen: &WeightsSeen) -> Result<(), AttackError> {
        self.check()?;
        outputs_of(&seen.model, NAME)?;
        Lines::of(&seen.model).map(drop)
    }

    fn reconstruct(&self, seen: &WeightsSeen, session: &mut Session<'_>) -> Result<Reconstruction, AttackError> {
        self.check()?;
        let model = &seen.model;
        let outputs = outputs_of(model, NAME)?;
        let kinks = Lines::of(model)?;
        let (points, draws) = self.meetings(&kinks, session);
        let peaks = self.peaks(&kinks, points);
        let (network, theta, d) = (&model.network, &model.theta, kinks.dimensions());
        let flat: Vec<f64> = peaks.iter().flat_map(|peak| peak.at.iter().copied()).collect();
        let all = Tensor::from_f64(&flat, &network.batch_shape(peaks.len()), theta.dtype())?;
        let f = match peaks.is_empty() {
            true => Vec::new(),
            false => network.forward(theta, &all.to_device(theta.device())?)?.to_f64_vec()?,
        };
        let heights: Vec<(f64, usize)> = f.chunks_exact(outputs.max(1)).map(Labels::margin_of).collect();
        let margin = agreed(&peaks, &heights, self.margin_within);
        let kept: Vec<usize> =
            (0..peaks.len()).filter(|&i| (heights[i].0 - margin).abs() <= self.margin_within * margin).collect();
        let most = kept.iter().map(|&i| peaks[i].votes).max().unwrap_or(1) as f64;
        let samples: Vec<f64> = kept.iter().flat_map(|&i| flat[i * d..(i + 1) * d].iter().copied()).collect();
        let samples = Tensor::from_f64(&samples, &network.batch_shape(kept.len()), DType::F64)?;
        let others: Vec<f64> = (0..peaks.len())
            .filter(|i| !kept.contains(i))
            .flat_map(|i| flat[i * d..(i + 1) * d].iter().copied())
            .collect();
        let mut found = Reconstruction::finished(samples, 0.0, false);
        found.dropped = Some(Tensor::from_f64(&others, &network.batch_shape(peaks.len() - kept.len()), DType::F64)?);
        found.confidence = kept.iter().map(|&i| peaks[i].votes as f64 / most).collect();
        found.labels = Some(kept.iter().map(|&i| heights[i].1).collect());
        found.iterations = draws;
        found.notes.push(format!(
            "{} points where kinks of {} units meet, {} of them on the margin of {margin:.3}",
            peaks.len(),
            kinks.offset.len(),
            kept.len()
        ));
        found.stop = if draws < self.draws { Stop::Interrupted } else { Stop::IterationsUsed };
        Ok(found)
    }
}

/// The kinks of the first layer, as n·x + o = 0 with n of length 1.
struct Lines {
    normal: Vec<Vec<f64>>,
    offset: Vec<f64>,
    /// How far out most of them pass.
    scale: f64,
}

impl Lines {
    fn of(model: &Model) -> Result<Self, AttackError> {
        let no = |reason: String, hint: &str| AttackError::NotApplicable { attack: NAME, reason, hint: hint.into() };
        let layers = perceptron(&model.network).unwrap_or_default();
        let Some(first) = layers.first().filter(|layer| layer.bias && layer.activation == Some(Activation::Relu))
        else {
            let reason = "the network does not begin with a fully connected layer with a bias, and ReLU";
            return Err(no(reason.into(), "kinks that do not pass through the origin are needed"));
        };
        let (weight, bias) = first.parameters(&model.theta)?;
        let d = weight.ncols();
        if d > DIMENSIONS {
            let reason = format!("records have {d} dimensions, more than {DIMENSIONS}");
            return Err(no(reason, "`kkt` and `unmix` are for those"));
        }
        let length = |unit: usize| (0..d).map(|k| weight[(unit, k)].powi(2)).sum::<f64>().sqrt();
        let units = weight.nrows();
        let mean = ((0..units).map(|unit| length(unit).powi(2)).sum::<f64>() / units.max(1) as f64).sqrt();
        let alive: Vec<usize> =
            (0..units).filter(|&unit| length(unit) > (ALIVE * mean).max(f64::MIN_POSITIVE)).collect();
        if alive.len() <= d {
            return Err(no(format!("only {} units of the first layer are alive", alive.len()), "train it further"));
        }
        let offset: Vec<f64> = alive.iter().map(|&unit| bias[unit] / length(unit)).collect();
        let mut sizes: Vec<f64> = offset.iter().map(|offset| offset.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let scale = sizes[(sizes.len() * 9) / 10].max(f64::MIN_POSITIVE);
        let normal = alive.iter().map(|&unit| (0..d).map(|k| weight[(unit, k)] / length(unit)).collect()).collect();
        Ok(Self { normal, offset, scale })
    }

    fn dimensions(&self) -> usize {
        self.normal.first().map_or(0, Vec::len)
    }

    fn distance(&self, unit: usize, point: &[f64]) -> f64 {
        (self.normal[unit].iter().zip(point).map(|(n, x)| n * x).sum::<f64>() + self.offset[unit]).abs()
    }

    /// The point nearest to the kinks of these units, if they are not nearly parallel.
    fn meet(&self, units: &[usize]) -> Option<Vec<f64>> {
        let d = self.dimensions();
        if units.len() < d {
            return None;
        }
        let normals = Mat::from_fn(units.len(), d, |row, k| self.normal[units[row]][k]);
        let offsets = Mat::from_fn(units.len(), 1, |row, _| -self.offset[units[row]]);
        let qr = normals.qr();
        let least = (0..d).map(|k| qr.R()[(k, k)].abs()).fold(f64::INFINITY, f64::min);
        if least < 1e-2 {
            return None;
        }
        let point = qr.solve_lstsq(offsets);
        Some((0..d).map(|k| point[(k, 0)]).collect())
    }

    fn through(&self, point: &[f64], within: f64) -> Vec<usize> {
        (0..self.offset.len()).filter(|&unit| self.distance(unit, point) < within).collect()
    }
}

/// A point and the number of kinks through it.
struct Peak {
    at: Vec<f64>,
    votes: usize,
}

impl Kinks {
    /// Where the kinks of random units meet, with the number of kinks through each; and how
    /// often was drawn until it was done or stopped.
    fn meetings(&self, kinks: &Lines, session: &mut Session<'_>) -> (Vec<Peak>, usize) {
        const PART: usize = 1000;
        let (d, count) = (kinks.dimensions(), kinks.offset.len());
        let (mut found, mut done) = (Vec::new(), 0);
        for part in 0..self.draws.div_ceil(PART) {
            let mut stream: Stream = session.stream("draws", part as u64);
            for _ in 0..PART.min(self.draws - part * PART) {
                let units: Vec<usize> = (0..d).map(|_| stream.below(count)).collect();
                let Some(at) = kinks.meet(&units) else { continue };
                if at.iter().map(|x| x * x).sum::<f64>().sqrt() < OUT * kinks.scale {
                    let votes = kinks.through(&at, self.tolerance * kinks.scale).len();
                    found.push(Peak { at, votes });
                }
            }
            done = ((part + 1) * PART).min(self.draws);
            if session.tick(Tick { iteration: done, total: self.draws, loss: None }).is_break() {
                break;
            }
        }
        (found, done)
    }

    /// The points most kinks pass through, each once, moved to where those kinks meet best.
    fn peaks(&self, kinks: &Lines, mut points: Vec<Peak>) -> Vec<Peak> {
        points.sort_by_key(|point| std::cmp::Reverse(point.votes));
        let least = self.keep_above * points.first().map_or(0, |peak| peak.votes) as f64;
        let near = |a: &[f64], b: &[f64]| {
            let square: f64 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
            square.sqrt() < self.merge_within * kinks.scale
        };
        let mut peaks: Vec<Peak> = Vec::new();
        for point in points {
            if peaks.len() >= PEAKS || (point.votes as f64) < least {
                break;
            }
            if peaks.iter().any(|peak| near(&peak.at, &point.at)) {
                continue;
            }
            let units = kinks.through(&point.at, self.tolerance * kinks.scale);
            let at = kinks.meet(&units).filter(|at| near(at, &point.at)).unwrap_or(point.at);
            peaks.push(Peak { at, votes: point.votes });
        }
        peaks
    }

    fn check(&self) -> Result<(), AttackError> {
        if self.draws == 0 {
            return Err(AttackError::setting("draws", 0, "must be 1 or more"));
        }
        all_positive([("tolerance", self.tolerance), ("margin_within", self.margin_within)])?;
        if self.keep_above > 1.0 {
            return Err(AttackError::setting("keep_above", self.keep_above, "must lie between 0 and 1"));
        }
        none_negative([("merge_within", self.merge_within), ("keep_above", self.keep_above)])?;
        Ok(())
    }
}

/// The size of the output on which most votes agree.
fn agreed(peaks: &[Peak], heights: &[(f64, usize)], within: f64) -> f64 {
    let votes = |height: f64| -> usize {
        let near = heights.iter().zip(peaks).filter(|((other, _), _)| (other - height).abs() <= within * height);
        near.map(|(_, peak)| peak.votes).sum()
    };
    let best = heights.iter().map(|(height, _)| *height).max_by_key(|&height| votes(height));
    best.unwrap_or(0.0)
}
