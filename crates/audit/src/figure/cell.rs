//! One run of a figure, and what of a trial becomes part of it.

use afterimage_attacks::Kind;
use afterimage_nn::Stream;
use serde::{Deserialize, Serialize};

use super::Show;
use crate::Truth;
use crate::align::Alignment;
use crate::exposure::Exposure;
use crate::findings::{Also, label_accuracy};
use crate::metrics::{Direction, Metric};
use crate::plan::ScorePlan;
use crate::score::Scored;
use crate::trial::Trial;

/// One run of a figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Its curve, by place.
    pub curve: usize,
    /// Its point, by place.
    pub point: usize,
    /// Its seed.
    pub seed: u64,
    /// Hash of its plan: a cell of another plan is not taken for this one.
    pub plan_sha256: String,
    /// The members' scores put together; none where a member has no candidate.
    pub value: Option<f64>,
    /// The same of as many controls, paired by the same rule.
    pub control: Option<f64>,
    /// Of a gradient: the same of those members whose own gradients are the smaller ones, and the larger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halves: Option<[f64; 2]>,
    /// With a criterion of squared errors: the mean of −10 log₁₀ of the members' errors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub psnr: Option<f64>,
    /// How many passed other lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<Also>,
    /// Members that passed the criterion.
    pub recovered: usize,
    /// Members.
    pub members: usize,
    /// Test controls that passed it.
    pub control_recovered: usize,
    /// Test controls.
    pub controls: usize,
    /// Seconds the attack took.
    pub seconds: f64,
    /// Why there is no value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
    /// Of two checkpoints: what the owner knew, and how near candidates came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub analysis: Option<Analysis>,
}

/// One run from two checkpoints, record by record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Analysis {
    /// Its curve, by place.
    pub curve: usize,
    /// Its point, by place.
    pub point: usize,
    /// Its seed.
    pub seed: u64,
    /// What the owner knew before training, with its correlation to the errors.
    pub exposure: Exposure,
    /// The score of each member's nearest candidate.
    pub errors: Vec<Option<f64>>,
    /// Distances of the closest pairs, each taken out of the pool: the reconstruction curve.
    pub pairs: Vec<f64>,
}

impl Analysis {
    /// The mean of the reconstruction curve.
    pub fn mean(&self) -> Option<f64> {
        (!self.pairs.is_empty()).then(|| self.pairs.iter().sum::<f64>() / self.pairs.len() as f64)
    }
}

/// Errors below this count as it: a picture that came back to the last bit has no finite PSNR.
const ROUNDING: f64 = 1e-16;

impl Cell {
    /// Before anything is known.
    pub(super) fn empty([curve, point]: [usize; 2], seed: u64, plan_sha256: String, truth: &Truth) -> Self {
        Self {
            curve,
            point,
            seed,
            plan_sha256,
            value: None,
            control: None,
            halves: None,
            psnr: None,
            also: Vec::new(),
            recovered: 0,
            members: truth.members.pixels.rows(),
            control_recovered: 0,
            controls: truth.controls.pixels.rows() / 2,
            seconds: 0.0,
            obstacle: None,
            analysis: None,
        }
    }

    /// The labels that were told rightly.
    pub(super) fn take_labels(&mut self, trial: &Trial, truth: &Truth, seed: u64) {
        let (labels, classes) = (&truth.members.labels, trial.observation.model().network.output_shape());
        let right = label_accuracy(trial.rebuilt.labels.as_deref().unwrap_or_default(), labels);
        (self.value, self.control) = (Some(right), Some(guessed(labels, classes.iter().product(), seed)));
        (self.recovered, self.controls) = ((right * labels.len() as f64).round() as usize, 0);
        self.seconds = trial.seconds;
    }

    /// How near the candidates came.
    pub(super) fn take_scores(&mut self, trial: &Trial, truth: &Truth, show: Show, rules: &ScorePlan) {
        let Trial { rebuilt, scored, seconds, exposure, observation } = trial;
        let metric = rules.criterion.metric;
        let paired = scored.alignments.get(&Alignment::Optimal).and_then(|by| by.get(&metric));
        (self.recovered, self.control_recovered) = (scored.count.recovered, scored.count.control_recovered);
        (self.controls, self.seconds) = (scored.count.controls, *seconds);
        self.also = scored.also(rules);
        let mut each = paired.map(|scores| scores.members.clone()).unwrap_or_default();
        let hits =
            |hits: &[bool]| -> Vec<Option<f64>> { hits.iter().map(|hit| Some(if *hit { 1.0 } else { 0.0 })).collect() };
        (self.value, self.control) = match show {
            Show::Identified => {
                each = hits(&scored.identified);
                (mean(&each), mean(&hits(&scored.control_identified)))
            }
            Show::Recovered => {
                let share = |count: usize, all: usize| (all > 0).then(|| count as f64 / all as f64);
                (share(self.recovered, self.members), share(self.control_recovered, self.controls))
            }
            _ => {
                let together = |values: &[Option<f64>]| together(values, metric.better());
                let both = paired.map(|scores| (together(&scores.members), together(&scores.control)));
                both.unwrap_or_default()
            }
        };
        self.psnr = (metric == Metric::Mse).then(|| psnr(scored)).flatten();
        self.halves = halves(&each, truth.driven.as_deref().filter(|_| observation.kind() == Kind::Gradient));
        if self.value.is_none() {
            let candidates = rebuilt.samples.rows();
            self.obstacle = Some(format!("{candidates} candidates for {} members", self.members));
        }
        self.analysis = exposure.as_ref().map(|exposure| {
            let errors = scored.metrics.get(&metric).map(|scores| scores.members.clone()).unwrap_or_default();
            let greedy = scored.alignments.get(&Alignment::Greedy).and_then(|by| by.get(&metric));
            let mut pairs: Vec<f64> =
                greedy.map(|scores| scores.members.iter().flatten().copied().collect()).unwrap_or_default();
            pairs.sort_by(f64::total_cmp);
            let exposure = exposure.clone().beside(&errors);
            Analysis { curve: self.curve, point: self.point, seed: self.seed, exposure, errors, pairs }
        });
    }
}

/// Mean of −10 log₁₀ of the members' squared errors.
fn psnr(scored: &Scored) -> Option<f64> {
    let decibels = |error: &Option<f64>| error.map(|error| -10.0 * error.max(ROUNDING).log10());
    mean(&scored.metrics.get(&Metric::Mse)?.members.iter().map(decibels).collect::<Vec<_>>())
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
