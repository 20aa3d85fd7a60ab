//! The grid of a policy, as a plan writes it.

use std::path::Path;

use afterimage_attacks::AnyAttack;
use afterimage_nn::Mode;
use serde::{Deserialize, Serialize};

use crate::plan::{Plan, VictimPlan, section};
use crate::{AuditError, Result};

/// The section `[policy]` of a plan: what is varied, all of it with all of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyPlan {
    /// Samples of a client's batch.
    pub batches: Vec<usize>,
    /// Steps at the client.
    #[serde(default = "one")]
    pub steps: Vec<usize>,
    /// Clients whose updates are averaged before anybody sees them.
    #[serde(default = "one")]
    pub clients: Vec<usize>,
    /// Noise at each client, in units of its update's root mean square.
    #[serde(default = "none")]
    pub noise: Vec<f64>,
    /// Largest norm of an update; 0 for any.
    #[serde(default = "none")]
    pub clip: Vec<f64>,
    /// Attacks; a record counts as rebuilt if one of them rebuilds it. The plan's own if empty.
    #[serde(default)]
    pub attacks: Vec<AnyAttack>,
    /// Rounds that are attacked in each cell at least, with seeds that count up from the plan's own.
    #[serde(default = "three")]
    pub seeds: usize,
    /// Records that are attacked in each cell at least: of small batches more rounds are.
    #[serde(default)]
    pub records: usize,
    /// Rounds of the training that accuracy is measured after.
    #[serde(default = "rounds")]
    pub rounds: usize,
    /// Learning rate of that training, at the client and at the server.
    #[serde(default = "lr")]
    pub lr: f64,
}

fn one() -> Vec<usize> {
    vec![1]
}

fn none() -> Vec<f64> {
    vec![0.0]
}

fn three() -> usize {
    3
}

fn rounds() -> usize {
    200
}

fn lr() -> f64 {
    0.1
}

/// One setting of a client.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// Samples of a client's batch.
    pub batch: usize,
    /// Steps at the client.
    pub steps: usize,
    /// Clients that are averaged.
    pub clients: usize,
    /// Noise at each.
    pub noise: f64,
    /// Largest norm; 0 for any.
    pub clip: f64,
}

impl PolicyPlan {
    /// The section and the text of the plan it varies.
    pub fn read(path: &Path, changes: &[String]) -> Result<(Self, String)> {
        Self::parse(&section::text_of(path)?, changes)
    }

    /// The same from text.
    pub fn parse(text: &str, changes: &[String]) -> Result<(Self, String)> {
        let (policy, rest) = section::taken::<Self>(text, changes, "policy")?;
        let policy = policy.ok_or_else(|| {
            AuditError::plan("policy", "is missing", "add a section [policy]; plans/federated/policy.toml is one")
        })?;
        policy.check(&Plan::parse(&rest, &[])?)?;
        Ok((policy, rest))
    }

    /// The whole plan again.
    pub fn to_toml(&self, base: &str) -> Result<String> {
        section::put(self, "policy", base)
    }

    fn check(&self, plan: &Plan) -> Result<()> {
        let wrong = |key: &str, problem: &str, hint: &str| Err(AuditError::plan(key, problem, hint));
        let VictimPlan::Federated(client) = &plan.victim else {
            return wrong("victim.kind", "a policy is for clients of federated learning", "use kind = \"federated\"");
        };
        if client.local.is_some() || client.defence != Default::default() || client.clients != 1 {
            let problem = "says something that the grid is to say";
            return wrong("victim", problem, "leave out victim.local, victim.defence and victim.clients");
        }
        if client.gradient.is_some() || client.mode == Mode::Train {
            let problem = "a policy is made on proxy data, with batch normalisation by its running statistics";
            return wrong("victim", problem, "leave out victim.gradient and victim.mode");
        }
        for (key, values) in [("batches", &self.batches), ("steps", &self.steps), ("clients", &self.clients)] {
            if values.is_empty() || values.contains(&0) {
                return wrong(&format!("policy.{key}"), "needs numbers of 1 or more", "such as [1, 8]");
            }
        }
        for (key, values) in [("noise", &self.noise), ("clip", &self.clip)] {
            if values.is_empty() || values.iter().any(|value| !(*value >= 0.0 && value.is_finite())) {
                return wrong(&format!("policy.{key}"), "needs numbers of 0 or more", "such as [0.0, 0.1]");
            }
        }
        if self.seeds == 0 || !(self.lr > 0.0 && self.lr.is_finite()) {
            return wrong("policy.seeds", "nothing would be attacked, or learnt", "give seeds and a positive lr");
        }
        Ok(())
    }

    /// Every setting, in the order of the lists.
    pub fn settings(&self) -> Vec<Setting> {
        let mut all = Vec::new();
        for &steps in &self.steps {
            for &clients in &self.clients {
                for &clip in &self.clip {
                    for &batch in &self.batches {
                        all.extend(self.noise.iter().map(|&noise| Setting { batch, steps, clients, noise, clip }));
                    }
                }
            }
        }
        all
    }

    /// Rounds of a setting that are attacked.
    pub(super) fn attacked(&self, setting: Setting) -> usize {
        self.seeds.max(self.records.div_ceil(setting.batch * setting.clients))
    }

    /// The plan of a setting, with another seed.
    pub(super) fn plan(&self, base: &str, setting: Setting, seed: usize) -> Result<Plan> {
        let Setting { batch, steps, clients, noise, clip } = setting;
        let first = Plan::parse(base, &[])?.seed;
        let mut changes = vec![
            format!("seed={}", first.wrapping_add(seed as u64)),
            format!("data.members={}", batch * clients),
            format!("victim.clients={clients}"),
            format!("victim.defence.noise={noise:?}"),
        ];
        if steps > 1 {
            changes.push(format!("victim.local={{ steps = {steps}, lr = {:?} }}", self.lr));
        }
        if clip > 0.0 {
            changes.push(format!("victim.defence.clip={clip:?}"));
        }
        Plan::parse(base, &changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = r#"
        [data]
        source = "builtin:digits-8x8"
        members = 1
        [network]
        kind = "mlp"
        hidden = [32]
        outputs = 10
        [victim]
        kind = "federated"
        [attack]
        kind = "exact"
        [policy]
        batches = [1, 4]
        noise = [0.0, 1.0]
        clip = [0.0, 0.5]
        steps = [1, 3]
    "#;

    #[test]
    fn every_setting_is_a_plan() {
        let (policy, base) = PolicyPlan::parse(PLAN, &[]).unwrap();
        let settings = policy.settings();
        assert_eq!(settings.len(), 16);
        assert_eq!(policy.attacked(settings[0]), 3);
        assert_eq!(PolicyPlan { records: 10, ..policy.clone() }.attacked(settings[0]), 10);
        let plan = policy.plan(&base, settings[15], 2).unwrap();
        let text = plan.to_toml().unwrap();
        for part in ["members = 4", "seed = 3", "noise = 1.0", "clip = 0.5", "steps = 3"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(PolicyPlan::parse(&policy.to_toml(&base).unwrap(), &[]).unwrap().0, policy);
    }

    #[test]
    fn mistakes_are_named() {
        let wrong = |from: &str, to: &str| PolicyPlan::parse(&PLAN.replace(from, to), &[]).unwrap_err().to_string();
        assert!(wrong("batches = [1, 4]", "batches = []").contains("policy.batches"));
        assert!(wrong("noise = [0.0, 1.0]", "noise = [-1.0]").contains("policy.noise"));
        assert!(wrong("clip = [0.0, 0.5]", "clips = [1.0]").contains("did you mean `clip`"));
        assert!(wrong("[policy]", "[polity]").contains("policy"));
        assert!(wrong("kind = \"federated\"", "kind = \"classifier\"").contains("victim.kind"));
    }
}
