//! The numbers of a run, in the form other programs read (schema 1).

use std::cmp::Ordering;
use std::collections::BTreeMap;

use afterimage_attacks::labels::Turned;
use afterimage_attacks::{GradientSeen, Kind, Observation, Reconstruction, Stop};
use afterimage_nn::{Network, Tensor};
use serde::{Deserialize, Serialize};

use crate::LabelsRead;
use crate::Truth;
use crate::align::Alignment;
use crate::defences::RECOGNISABLE;
use crate::exposure::Exposure;
use crate::learnt::Learnt;
use crate::metrics::{Direction, Metric};
use crate::plan::ScorePlan;
use crate::score::{ByMetric, Named, Scored, Space};
use crate::separation::Separation;
use crate::statistics::clopper_pearson;
use crate::verdict::{Count, Evidence, LEVEL, PositiveControl, Verdict};

/// Number of the schema that [`Findings`] follows; a removal raises it.
pub const SCHEMA: u32 = 1;

/// A criterion as it was applied.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Applied {
    /// What was measured.
    pub metric: Metric,
    /// Where the line was.
    pub threshold: f64,
    /// Which side of it passes.
    pub better: Direction,
}

/// An interval for the share of members that can be rebuilt.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Confidence level.
    pub level: f64,
}

impl Interval {
    /// The Clopper–Pearson interval of k in n.
    pub(crate) fn of(k: usize, n: usize) -> Self {
        let (low, high) = clopper_pearson(k, n, LEVEL);
        Self { low, high, level: LEVEL }
    }
}

/// How many members are recognised among a stated pool.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Identification {
    /// Where the nearest is looked for.
    pub space: Space,
    /// Members that are nearest, of the whole pool, to their candidate.
    pub hits: usize,
    /// Members and test controls together.
    pub pool: usize,
    /// Test controls that the same rule identifies: what chance gives.
    pub control_hits: usize,
    /// Interval for the share of hits.
    pub interval: Interval,
}

/// What passes another line than the criterion's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Also {
    /// The line.
    pub threshold: f64,
    /// Members beyond it.
    pub recovered: usize,
    /// Test controls beyond it.
    pub control_recovered: usize,
}

/// What a run found. Arrays are in truth order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Name and version of the program.
    pub tool: String,
    /// The verdict.
    pub verdict: Verdict,
    /// The sentence that says it.
    pub sentence: String,
    /// Why.
    pub reasons: Vec<String>,
    /// The attack.
    pub attack: String,
    /// What was seen.
    pub observation: Kind,
    /// What it holds, one fact a line.
    pub shared: Vec<String>,
    /// Seed of the run.
    pub seed: u64,
    /// Wall-clock time of the attack.
    pub seconds: f64,
    /// Iterations of the attack.
    pub iterations: usize,
    /// Hash of the observed parameters.
    pub model_sha256: String,
    /// Hash of the plan with every default written out.
    pub plan_sha256: String,
    /// Members.
    pub members: usize,
    /// Controls that test.
    pub controls: usize,
    /// When a record counts as rebuilt.
    pub criterion: Applied,
    /// Members that do.
    pub recovered: usize,
    /// Controls that do.
    pub control_recovered: usize,
    /// Fisher's one-sided p.
    pub p_value: f64,
    /// Expected share of false finds among the members that can be named.
    pub fdr: f64,
    /// Members that can be named one by one.
    pub named: usize,
    /// Members and controls below a mean squared error of 1e-2, wherever the criterion's line is, if that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recognisable: Option<(usize, usize)>,
    /// What the attack rebuilt, whoever it is.
    #[serde(default)]
    pub candidates: usize,
    /// Of these, how many provably reproduce what was shared.
    #[serde(default)]
    pub proven: usize,
    /// Whether all of them do.
    pub certified: bool,
    /// Whether the criterion was fixed before the attack ran.
    pub rules_fixed: bool,
    /// What kept the run from a positive control.
    pub obstacles: Vec<String>,
    /// Whether a clock ended the run: its attack, or that on the twin.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub out_of_time: bool,
    /// Other lines that were asked for, with what passes them.
    pub also: Vec<Also>,
    /// Interval for the share of members that can be rebuilt.
    pub interval: Interval,
    /// Members that their candidates point to among everybody.
    pub identification: Identification,
    /// The same attack on a twin built to leak.
    pub positive_control: Option<PositiveControl>,
    /// Share of labels recovered, if labels were.
    pub label_accuracy: Option<f64>,
    /// Of a gradient, the same in numbers, beside what chance has right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<LabelsRead>,
    /// The layer whose inputs were rebuilt, if those were and not the records themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
    /// Share of members whose nearest candidate came with their label, if labels were recovered.
    #[serde(default)]
    pub label_matches: Option<f64>,
    /// Names of the members.
    pub sample_ids: Vec<String>,
    /// Scores by metric.
    pub metrics: ByMetric,
    /// Scores by pairing and metric, for figures.
    #[serde(default)]
    pub alignments: BTreeMap<Alignment, ByMetric>,
    /// How exposed each member was before training, where two checkpoints are seen: the owner's own view.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exposure: Option<Exposure>,
    /// How well a classifier whose weights were shared learnt: the owner's own view.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learnt: Option<Learnt>,
    /// Of damaged samples: how well the attacker's confidence tells members from others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub separation: Option<Separation>,
    /// Why the attack ended.
    pub stop: Stop,
    /// What else should be known.
    pub warnings: Vec<String>,
}

/// What findings are put together from, beside the score.
pub struct Circumstances<'a> {
    /// The attack's name.
    pub attack: &'a str,
    /// What was seen.
    pub observation: &'a Observation,
    /// Seed of the run.
    pub seed: u64,
    /// Wall-clock time of the attack.
    pub seconds: f64,
    /// Hash of the observed parameters.
    pub model_sha256: String,
    /// Hash of the plan.
    pub plan_sha256: String,
    /// The twin's outcome.
    pub positive_control: Option<PositiveControl>,
    /// Why the run cannot tell, if something kept it from telling.
    pub obstacles: Vec<String>,
    /// Why the attack does not apply, if it does not.
    pub not_applicable: Option<String>,
    /// How exposed each member was before training.
    pub exposure: Option<Exposure>,
    /// How well a classifier learnt.
    pub learnt: Option<Learnt>,
}

/// Fewest test controls for a run without finds to mean anything: half of 200
/// controls, or of as many as members.
pub(crate) fn controls_needed(members: usize) -> usize {
    members.div_ceil(2).max(100)
}

impl Findings {
    /// Puts findings together and decides the verdict.
    pub fn new(
        about: Circumstances<'_>,
        reconstruction: &Reconstruction,
        truth: &Truth,
        scored: &Scored,
        rules: &ScorePlan,
    ) -> Self {
        let criterion = rules.criterion;
        let candidates = reconstruction.certified.len();
        let proven = reconstruction.certified.iter().filter(|certified| **certified).count();
        let certified = candidates > 0 && proven == candidates;
        // Without anybody to compare with, there is nothing to count.
        let count = (scored.count.members > 0).then_some(scored.count);
        // Labels that the client shared were not read off.
        let of_batch =
            count.is_some() && matches!(about.observation, Observation::Gradient(GradientSeen { labels: None, .. }));
        let read = reconstruction.labels.as_ref().filter(|_| of_batch);
        let labels = read.map(|found| LabelsRead::of(found, truth));
        let alone = labels.filter(|_| reconstruction.samples.rows() == 0);
        let evidence = Evidence {
            count,
            labels: alone,
            p_value: alone.map(|labels| labels.p_value),
            named: Some(scored.named),
            certified: certified || count.is_none() && proven > 0,
            positive_control: about.positive_control,
            controls_needed: controls_needed(scored.count.members),
            obstacles: about.obstacles.clone(),
            not_applicable: about.not_applicable,
        };
        let decision = evidence.decide();
        let p_value = evidence.p_value.unwrap_or_else(|| scored.count.p_value());
        // Of values in other units, or of what a layer reads, so small an error says nothing.
        let unit = || reconstruction.layer.is_none() && in_unit(&truth.members.pixels).unwrap_or(false);
        let recognisable = scored.metrics.get(&Metric::Mse).filter(|_| unit()).map(|scores| {
            let count = |scores: &[Option<f64>]| scores.iter().flatten().filter(|mse| **mse < RECOGNISABLE).count();
            (count(&scores.members), count(&scores.control))
        });
        let mut sentence = decision.sentence(&evidence);
        if criterion.threshold.is_none() && decision.verdict == Verdict::Reconstructed && !certified {
            sentence += &beyond_chance(scored.count, recognisable);
        }
        if matches!(about.observation, Observation::Degraded(_)) && decision.verdict <= Verdict::Traces {
            sentence +=
                " The attacker is taken to have damaged copies of the records: the network alone gives nobody back.";
        }
        let hits = scored.identified.iter().filter(|identified| **identified).count();
        let pool = scored.count.members + scored.count.controls;
        let matches = |found: &Vec<usize>| {
            let right = |(near, label): (&Option<usize>, &usize)| near.and_then(|near| found.get(near)) == Some(label);
            let count = scored.nearest.iter().zip(&truth.members.labels).filter(|pair| right(*pair)).count();
            count as f64 / truth.members.labels.len().max(1) as f64
        };
        let label_matches = reconstruction.labels.as_ref().map(matches);
        let label_accuracy = reconstruction.labels.as_ref().map(|found| label_accuracy(found, &truth.members.labels));
        Self {
            schema: SCHEMA,
            tool: crate::tool(),
            sentence: of_layer(reconstruction.layer.as_deref(), sentence),
            layer: reconstruction.layer.clone(),
            verdict: decision.verdict,
            reasons: decision.reasons,
            attack: about.attack.into(),
            observation: about.observation.kind(),
            shared: about.observation.facts(),
            seed: about.seed,
            seconds: about.seconds,
            iterations: reconstruction.iterations,
            model_sha256: about.model_sha256,
            plan_sha256: about.plan_sha256,
            members: scored.count.members,
            controls: scored.count.controls,
            criterion: Applied {
                metric: criterion.metric,
                threshold: scored.threshold,
                better: criterion.metric.better(),
            },
            recovered: scored.count.recovered,
            control_recovered: scored.count.control_recovered,
            p_value,
            fdr: scored.named.fdr,
            named: scored.named.count,
            recognisable,
            candidates,
            proven,
            certified,
            rules_fixed: true,
            obstacles: about.obstacles,
            out_of_time: false,
            also: scored.also(rules),
            interval: Interval::of(scored.count.recovered, scored.count.members),
            identification: Identification {
                space: if reconstruction.layer.is_some() { Space::Pixels } else { rules.identify },
                hits,
                pool,
                control_hits: scored.control_identified.iter().filter(|identified| **identified).count(),
                interval: Interval::of(hits, scored.count.members),
            },
            positive_control: about.positive_control,
            label_accuracy,
            labels,
            label_matches,
            sample_ids: truth.ids.clone(),
            metrics: scored.metrics.clone(),
            alignments: scored.alignments.clone(),
            exposure: about.exposure.map(|exposure| match scored.metrics.get(&criterion.metric) {
                Some(scores) => {
                    // Of likenesses, the less the farther.
                    let sign = if criterion.metric.better() == Direction::Below { 1.0 } else { -1.0 };
                    exposure.beside(&scores.members.iter().map(|s| s.map(|s| sign * s)).collect::<Vec<_>>())
                }
                None => exposure,
            }),
            learnt: about.learnt,
            separation: (truth.damaged.as_ref())
                .and_then(|damaged| Separation::of(&reconstruction.confidence, &damaged.places))
                .filter(|_| reconstruction.confidence.iter().any(|sure| *sure > 0.0)),
            stop: reconstruction.stop,
            warnings: (smaller_twin(about.positive_control, scored.count.members).into_iter())
                .chain(reconstruction.notes.iter().cloned())
                .chain(dropped_out(&about.observation.model().network))
                .chain(of_gradient(about.observation))
                .collect(),
        }
    }
}

impl Findings {
    /// Whether labels were read off and nothing was rebuilt.
    pub fn labels_alone(&self) -> bool {
        self.labels.is_some() && self.candidates == 0
    }

    /// The score of a member by a metric.
    pub fn score(&self, metric: Metric, member: usize) -> Option<f64> {
        self.metrics.get(&metric)?.members.get(member).copied().flatten()
    }

    /// Whether a member was rebuilt.
    pub fn rebuilt(&self, member: usize) -> bool {
        let Applied { metric, threshold, better } = self.criterion;
        self.score(metric, member).is_some_and(|score| better.better(score, threshold))
    }

    /// Members in the order of their exposure, most exposed first.
    pub fn most_exposed(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.members).collect();
        order.sort_by(|&a, &b| self.criterion.compare(self.criterion_score(a), self.criterion_score(b)));
        order
    }

    /// The score of a member by the criterion.
    pub fn criterion_score(&self, member: usize) -> Option<f64> {
        self.score(self.criterion.metric, member)
    }

    /// Distances of the closest pairs, closest first, of members and of as many
    /// controls: the reconstruction curve.
    pub fn curve(&self) -> Option<(Vec<f64>, Vec<f64>)> {
        let scores = self.alignments.get(&Alignment::Greedy)?.get(&Metric::L2)?;
        let sorted = |values: &[Option<f64>]| {
            let mut values: Vec<f64> = values.iter().flatten().copied().collect();
            values.sort_by(f64::total_cmp);
            values
        };
        Some((sorted(&scores.members), sorted(&scores.control)))
    }

    /// What the verdict followed from, with another p-value where attacks were run together.
    pub fn evidence(&self, p_value: Option<f64>) -> Evidence {
        let Self { recovered, members, control_recovered, controls, .. } = *self;
        Evidence {
            count: (members > 0).then_some(Count { recovered, members, control_recovered, controls }),
            p_value,
            named: Some(Named { count: self.named, fdr: self.fdr }),
            certified: self.certified || members == 0 && self.proven > 0,
            labels: self.labels.filter(|_| self.labels_alone()),
            positive_control: self.positive_control,
            controls_needed: controls_needed(members),
            obstacles: self.obstacles.clone(),
            not_applicable: None,
        }
    }
}

/// Whether a value is from 0 to 1, to rounding.
pub(crate) fn from_zero_to_one(value: f64) -> bool {
    (-1e-3..=1.001).contains(&value)
}

/// Whether all values are, looked at a few records at a time: there may be many.
fn in_unit(records: &Tensor) -> afterimage_nn::Result<bool> {
    for start in (0..records.rows()).step_by(256) {
        let some = records.slice_rows(start..records.rows().min(start + 256))?.to_f64_vec()?;
        if !some.into_iter().all(from_zero_to_one) {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Applied {
    /// Better scores first; a record without a score last.
    pub fn compare(&self, a: Option<f64>, b: Option<f64>) -> Ordering {
        self.better.compare(a, b)
    }
}

/// A sentence about records, said of what a layer reads of them if it is one about that.
pub(crate) fn of_layer(layer: Option<&str>, sentence: String) -> String {
    match layer {
        None => sentence,
        Some(layer) => {
            format!("This is about what layer `{layer}` reads of each record, not about the record itself. {sentence}")
        }
    }
}

/// 1 − Σ |difference of the two histograms| / 2n, at least 0.
/// The share of labels that two lists have in common, in any order.
pub(crate) fn label_accuracy(found: &[usize], truth: &[usize]) -> f64 {
    let mut histogram: BTreeMap<usize, i64> = BTreeMap::new();
    found.iter().for_each(|label| *histogram.entry(*label).or_default() += 1);
    truth.iter().for_each(|label| *histogram.entry(*label).or_default() -= 1);
    let difference: i64 = histogram.values().map(|count| count.abs()).sum();
    (1.0 - difference as f64 / (2 * truth.len().max(1)) as f64).max(0.0)
}

/// What a line that controls set does and does not say.
fn beyond_chance(count: Count, recognisable: Option<(usize, usize)>) -> String {
    let alike = recognisable.map_or(String::new(), |(members, controls)| {
        format!(
            ": {members} of {} members and {controls} of {} controls have a mean squared error below 1e-2",
            count.members, count.controls
        )
    });
    format!(
        " The line is where 99 % of the held-back controls fall: closer than chance, which need not be alike{alike}."
    )
}

/// That a twin had fewer records, which are easier to rebuild, if it had.
fn smaller_twin(twin: Option<PositiveControl>, members: usize) -> Option<String> {
    let twin = twin.filter(|twin| twin.members < members && twin.verdict == Verdict::Reconstructed)?;
    Some(format!(
        "the twin was made of {} records and this of {members}: the attack works on this network, and may fail here for their number \
         alone",
        twin.members
    ))
}

/// What should be known of a gradient: that its sign may be turned, and what batch normalisation is taken to have done.
pub(crate) fn of_gradient(observation: &Observation) -> Vec<String> {
    let Observation::Gradient(seen) = observation else { return Vec::new() };
    let untold = seen.client.mode.is_none() && seen.model.network.buffer_names().next().is_some();
    let normalised = untold.then(|| {
        "batch normalisation is taken to have used its running statistics: a gradient of model.train() is another one, \
         and attacks on it may find less than they could (in training.toml, mode = \"train\" or \"eval\" says which)"
            .to_owned()
    });
    Turned::of(seen).map(|turned| turned.to_string()).into_iter().chain(normalised).collect()
}

/// What a network's dropout means for the comparison of gradients, if it has any.
pub(crate) fn dropped_out(network: &Network) -> Option<String> {
    let layers: Vec<&str> = network.dropouts().collect();
    let named = layers.join(", ");
    (!layers.is_empty()).then(|| {
        format!(
            "dropout (layer {named}) is never applied here, in training neither: weights and gradients that somebody \
             made with it on are others, and attacks on those may find less than they could"
        )
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::run_dir::RunDir;
    use crate::testing::{SMALL_PLAN, Silent};

    #[test]
    fn labels_that_were_shared_are_not_read_off() {
        let place = tempfile::tempdir().unwrap();
        for shared in [false, true] {
            let plan = Plan::parse(SMALL_PLAN, &[format!("victim.share_labels={shared}")]).unwrap();
            let dir = RunDir::create(place.path().join(shared.to_string())).unwrap();
            dir.write("plan.toml", plan.to_toml().unwrap().as_bytes()).unwrap();
            let findings = crate::pipeline::run(&plan, &dir, &mut Silent).unwrap().unwrap();
            assert_eq!(findings.labels.is_none(), shared, "shared: {shared}");
        }
    }

    #[test]
    fn label_accuracy_compares_histograms() {
        assert_eq!(label_accuracy(&[1, 2, 3], &[3, 2, 1]), 1.0);
        assert_eq!(label_accuracy(&[1, 1, 3, 4], &[1, 2, 3, 4]), 0.75);
        assert_eq!(label_accuracy(&[7, 7], &[1, 2]), 0.0);
    }
}
