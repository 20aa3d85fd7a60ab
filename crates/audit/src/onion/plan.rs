//! What is taken away, as a plan writes it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::plan::{Plan, section};
use crate::{AuditError, Result};

/// By what records are taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The easiest to rebuild.
    Reconstruction,
    /// Any.
    Random,
}

impl Rule {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Rule::Reconstruction => "reconstruction",
            Rule::Random => "random",
        }
    }
}

/// The section `[onion]` of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OnionPlan {
    /// Trainings of each rule.
    pub rounds: usize,
    /// Records taken away after each.
    pub remove: usize,
    /// The rules.
    pub by: Vec<Rule>,
    /// As many of each label, as far as that goes.
    pub balanced: bool,
    /// Hidden layers are this many times √n wide, for n records; as the plan says if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<f64>,
    /// The learning rate is n times this; the plan's own if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,
}

impl Default for OnionPlan {
    fn default() -> Self {
        let by = vec![Rule::Reconstruction, Rule::Random];
        Self { rounds: 5, remove: 20, by, balanced: true, width: None, lr: None }
    }
}

impl OnionPlan {
    /// The section and the text of the plan it repeats.
    pub fn read(path: &Path, changes: &[String]) -> Result<(Self, String)> {
        Self::parse(&section::text_of(path)?, changes)
    }

    /// The same from text.
    pub fn parse(text: &str, changes: &[String]) -> Result<(Self, String)> {
        let (onion, rest) = section::taken::<Self>(text, changes, "onion")?;
        let onion = onion.unwrap_or_default();
        onion.check(&Plan::parse(&rest, &[])?)?;
        Ok((onion, rest))
    }

    /// The whole plan again.
    pub fn to_toml(&self, base: &str) -> Result<String> {
        section::put(self, "onion", base)
    }

    fn check(&self, plan: &Plan) -> Result<()> {
        let wrong = |key: &str, problem: String, hint: &str| Err(AuditError::plan(key, problem, hint));
        if self.rounds == 0 || self.by.is_empty() {
            return wrong("onion.rounds", "nothing would be trained".into(), "give rounds and rules");
        }
        let taken = self.remove.saturating_mul(self.rounds - 1);
        if self.remove == 0 || taken >= plan.data.members {
            let problem = format!("{} of {} records would be taken away", taken, plan.data.members);
            return wrong("onion.remove", problem, "leave some, and take at least one away each time");
        }
        if plan.data.controls == 0 {
            return wrong("data.controls", "is 0: nothing to measure accuracy on".into(), "ask for some");
        }
        for (key, value) in [("onion.width", self.width), ("onion.lr", self.lr)] {
            if value.is_some_and(|value| !(value > 0.0 && value.is_finite())) {
                return wrong(key, format!("is {}", value.unwrap_or(0.0)), "give a positive number");
            }
        }
        Ok(())
    }

    /// Units of the hidden layers for so many records.
    pub(super) fn width_for(&self, records: usize) -> Option<usize> {
        self.width.map(|width| (width * (records as f64).sqrt()).round().max(1.0) as usize)
    }

    /// The plan for so many records.
    pub(super) fn plan(&self, base: &str, records: usize) -> Result<Plan> {
        let plan = Plan::parse(base, &[])?;
        let mut changes = Vec::new();
        if let Some(width) = self.width_for(records) {
            let layers = plan.network.hidden().map(<[usize]>::len).ok_or_else(|| {
                let hint = "leave it out, or use an mlp";
                AuditError::plan("onion.width", "the network has no list of hidden layers", hint)
            })?;
            changes.push(format!("network.hidden={:?}", vec![width; layers]));
        }
        if let Some(lr) = self.lr {
            changes.push(format!("victim.train.update.lr={:e}", lr * records as f64));
        }
        if changes.is_empty() { Ok(plan) } else { Plan::parse(base, &changes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = r#"
        [data]
        source = "builtin:digits"
        members = 30
        controls = 60
        [network]
        kind = "mlp"
        hidden = [10, 10]
        outputs = 1
        [victim]
        kind = "classifier"
        loss = "half-squared"
        share = "checkpoints"
        [victim.train]
        update = { kind = "sgd", lr = 1e-3, momentum = 0.9 }
        [attack]
        kind = "ntk"
        [score]
        metrics = ["l2"]
        criterion = { metric = "l2", below = 1.5 }
        [onion]
        rounds = 3
        remove = 10
        width = 4.0
        lr = 1e-4
    "#;

    #[test]
    fn width_and_learning_rate_follow_the_records() {
        let (onion, base) = OnionPlan::parse(PLAN, &[]).unwrap();
        let plan = onion.plan(&base, 25).unwrap();
        assert_eq!(plan.network.hidden(), Some(&[20, 20][..]));
        assert!(plan.to_toml().unwrap().contains("lr = 0.0025"));
        let again = OnionPlan::parse(&onion.to_toml(&base).unwrap(), &[]).unwrap();
        assert_eq!(again.0, onion);
    }

    #[test]
    fn mistakes_are_named() {
        let wrong = |from: &str, to: &str| OnionPlan::parse(&PLAN.replace(from, to), &[]).unwrap_err().to_string();
        assert!(wrong("remove = 10", "remove = 15").contains("onion.remove"));
        assert!(wrong("rounds = 3", "rounds = 0").contains("onion.rounds"));
        assert!(wrong("width = 4.0", "width = -1.0").contains("onion.width"));
        assert!(wrong("rounds = 3", "round = 3").contains("did you mean `rounds`"));
        assert!(wrong("controls = 60", "controls = 0").contains("data.controls"));
    }
}
