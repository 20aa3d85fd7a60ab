//! Trains, attacks, takes away, and again.

use std::collections::HashSet;

use afterimage_attacks::{Model, Tick};
use afterimage_nn::{Device, Stream};

use super::{Layer, Onion, OnionPlan, Rule};
use crate::accuracy::Test;
use crate::data::in_turn;
use crate::export::{onion_csv, onion_page};
use crate::pipeline::{Watcher, hash};
use crate::plan::{ClassifierPlan, Plan, VictimPlan};
use crate::run_dir::RunDir;
use crate::score::Scored;
use crate::trial::Trial;
use crate::truth::Truth;
use crate::victim::{Draw, Victim};
use crate::{AuditError, Criterion, Result};

const LAYERS: &str = "layers.jsonl";

/// Fails, before anything is written, if the plan of the first or the last round cannot be
/// followed; gives that of the first.
pub fn check(onion: &OnionPlan, base: &str) -> Result<Plan> {
    let members = Plan::parse(base, &[])?.data.members;
    crate::pipeline::check(&onion.plan(base, members - (onion.rounds - 1) * onion.remove)?)?;
    let first = onion.plan(base, members)?;
    crate::pipeline::check(&first)?;
    if !matches!(&first.victim, VictimPlan::Classifier(ClassifierPlan { weights: None, .. })) {
        let problem = "must be a classifier that is trained by the plan: who is taken away must not be in it";
        return Err(AuditError::plan("victim", problem, "use kind = \"classifier\" without weights"));
    }
    if first.compute.device()? != Device::Cpu {
        return Err(AuditError::plan("compute.device", "onions are made on the processor", "leave it out"));
    }
    if Draw::new(&first.data, first.seed)?.controls() == 0 {
        let hint = "ask for fewer members, or give more data";
        return Err(AuditError::plan("data.controls", "there are none to measure accuracy on", hint));
    }
    Ok(first)
}

/// Goes on from wherever the directory says it got to; `date` is written on the page. `None` if it was asked to stop.
pub fn run(
    onion: &OnionPlan,
    base: &str,
    date: &str,
    dir: &RunDir,
    watcher: &mut dyn Watcher,
) -> Result<Option<Onion>> {
    let (earlier, mut layers) = (dir.read_lines::<Layer>(LAYERS)?, Vec::new());
    let first = Plan::parse(base, &[])?;
    let draw = Draw::new(&first.data, first.seed)?;
    for &rule in &onion.by {
        let mut removed: HashSet<String> = HashSet::new();
        for round in 0..onion.rounds {
            let left = draw.without(&removed);
            let plan = onion.plan(base, left.members())?;
            let mut gone: Vec<&str> = removed.iter().map(String::as_str).collect();
            gone.sort_unstable();
            let plan_sha256 = hash(format!("{}{}", onion.to_toml(&plan.to_toml()?)?, gone.join("\n")).as_bytes());
            let own = |layer: &&Layer| (layer.rule, layer.round, &layer.plan_sha256) == (rule, round, &plan_sha256);
            let layer = match earlier.iter().find(own) {
                Some(done) => done.clone(),
                None => {
                    let number = layers.len();
                    watcher.stage(&format!("{}, round {} of {}", rule.name(), round + 1, onion.rounds));
                    let total = onion.by.len() * onion.rounds;
                    if watcher.tick(Tick { iteration: number, total, loss: None }).is_break() {
                        return Ok(None);
                    }
                    let round = Round { onion, rule, round, plan: &plan };
                    let Some(layer) = round.made(left, plan_sha256.clone(), watcher)? else {
                        return Ok(None);
                    };
                    let line = serde_json::to_string(&layer)
                        .map_err(|error| AuditError::file(dir.path(), error.to_string()))?;
                    dir.append(LAYERS, &line)?;
                    layer
                }
            };
            removed.extend(layer.removed.iter().cloned());
            layers.push(layer);
        }
    }
    watcher.stage("report");
    let metric = first.score.criterion.metric.name().to_owned();
    let tested = draw.controls();
    let onion = Onion { schema: 1, tool: crate::tool(), metric, tested, layers };
    dir.write_json("onion.json", &onion)?;
    dir.write("onion.csv", onion_csv(&onion).as_bytes())?;
    dir.write("report.html", onion_page(&onion, date).as_bytes())?;
    Ok(Some(onion))
}

/// One training.
struct Round<'a> {
    onion: &'a OnionPlan,
    rule: Rule,
    round: usize,
    plan: &'a Plan,
}

impl Round<'_> {
    /// `None` if it was stopped.
    fn made(&self, draw: Draw, plan_sha256: String, watcher: &mut dyn Watcher) -> Result<Option<Layer>> {
        let victim = Victim::among(self.plan, draw)?;
        let truth = victim.truth().clone();
        let mut layer = Layer {
            rule: self.rule,
            round: self.round,
            plan_sha256,
            records: truth.members.pixels.rows(),
            width: self.onion.width_for(truth.members.pixels.rows()),
            accuracy: 0.0,
            errors: Vec::new(),
            beyond: 0,
            removed: Vec::new(),
            removed_errors: Vec::new(),
            seconds: 0.0,
        };
        let mut errors = Vec::new();
        let order = match self.rule {
            Rule::Reconstruction => {
                let Some(trial) = Trial::of(self.plan, victim, watcher)? else { return Ok(None) };
                layer.accuracy = accuracy(trial.observation.model(), &truth)?;
                layer.seconds = trial.seconds;
                let criterion = self.plan.score.criterion;
                (errors, layer.beyond) = nearness(&trial.scored, criterion);
                let mut order: Vec<usize> = (0..errors.len()).collect();
                order.sort_by(|&a, &b| criterion.metric.better().compare(errors[a], errors[b]));
                layer.errors = order.iter().filter_map(|&place| errors[place]).collect();
                order
            }
            Rule::Random => {
                let Some((observation, _)) = victim.leak(&mut |tick| watcher.tick(tick))? else { return Ok(None) };
                layer.accuracy = accuracy(observation.model(), &truth)?;
                Stream::new(self.plan.seed, "onion", self.round as u64).permutation(truth.ids.len())
            }
        };
        // After the last round nothing is left to be trained without them.
        if self.round + 1 < self.onion.rounds {
            let gone = chosen(&order, &truth.members.labels, self.onion.remove, self.onion.balanced);
            layer.removed = gone.iter().map(|&place| truth.ids[place].clone()).collect();
            layer.removed_errors = gone.iter().filter_map(|&place| *errors.get(place)?).collect();
            layer.removed_errors.sort_by(f64::total_cmp);
        }
        Ok(Some(layer))
    }
}

/// The score of each member's nearest candidate, and how many are beyond every test control.
fn nearness(scored: &Scored, criterion: Criterion) -> (Vec<Option<f64>>, usize) {
    let Some(scores) = scored.metrics.get(&criterion.metric) else { return (Vec::new(), 0) };
    let better = criterion.metric.better();
    let best = scores.control.iter().copied().min_by(|&a, &b| better.compare(a, b)).flatten();
    let beyond = scores.members.iter().flatten().filter(|&&score| best.is_none_or(|best| better.better(score, best)));
    (scores.members.clone(), beyond.count())
}

/// The share of controls that a model tells right.
fn accuracy(model: &Model, truth: &Truth) -> Result<f64> {
    let x = truth.preprocess.apply(&truth.controls.pixels)?.to_dtype(model.theta.dtype())?;
    let x = x.reshape(&model.network.batch_shape(x.rows()))?;
    let test = Test { x, labels: truth.controls.labels.clone() };
    test.accuracy(|x| Ok(model.network.forward(&model.theta, x)?))
}

/// The first so many of an order; if balanced, as many of each label as the others.
fn chosen(order: &[usize], labels: &[usize], count: usize, balanced: bool) -> Vec<usize> {
    let order = if balanced { &in_turn(order, labels)[..] } else { order };
    order.iter().copied().take(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_of_each_label_go() {
        let labels = [1, 1, 1, 0, 0, 1];
        assert_eq!(chosen(&[5, 2, 1, 0, 4, 3], &labels, 4, true), [4, 5, 3, 2]);
        assert_eq!(chosen(&[5, 2, 1, 0, 4, 3], &labels, 4, false), [5, 2, 1, 0]);
        assert_eq!(chosen(&[5, 2, 1, 0, 4, 3], &labels, 9, true).len(), 6);
    }
}
