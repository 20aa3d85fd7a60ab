//! What is distilled and how, as a plan writes it.

use std::path::Path;

use afterimage_attacks::ntk::Ntk;
use afterimage_nn::train::Recipe;
use serde::{Deserialize, Serialize};

use crate::plan::{ComputePlan, DataPlan, NetworkPlan, changed_table, typed};
use crate::{AuditError, Result};

/// A distillation, from data to accuracies. Written out with every default filled in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DistillPlan {
    /// Seed of every random number.
    #[serde(default = "one")]
    pub seed: u64,
    /// Where records come from: `members` are distilled, accuracy is measured on `controls`.
    pub data: DataPlan,
    /// The network that is trained on what was distilled.
    pub network: NetworkPlan,
    /// How they are distilled.
    pub distill: Settings,
    /// Where it is computed.
    #[serde(default)]
    pub compute: ComputePlan,
}

fn one() -> u64 {
    1
}

/// The section `[distill]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// What stands for the records.
    pub methods: Vec<Method>,
    /// How many records each method may use.
    pub sizes: Vec<usize>,
    /// Repetitions, with seeds that count up from the plan's own.
    pub runs: usize,
    /// The kernel of KIP and RKIP.
    pub kernel: KernelKind,
    /// Hidden layers of the infinitely wide network.
    pub hidden: usize,
    /// Steps of KIP and RKIP.
    pub iterations: usize,
    /// Their learning rate, of Adam.
    pub lr: f64,
    /// Scale of the random start.
    pub sigma: f64,
    /// Added to a kernel's diagonal, beside its mean, wherever it is solved with.
    pub ridge: f64,
    /// How the network is trained on all records: for the row `full`, and for RKIP-finite.
    pub teacher: Recipe,
    /// The attack on that network's weights: RKIP-finite. Its candidates are the size.
    pub search: Ntk,
    /// How networks are trained on few records.
    pub retrain: Recipe,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            methods: vec![Method::Full, Method::Kip, Method::Rkip, Method::RkipFinite, Method::Random],
            sizes: vec![20],
            runs: 1,
            kernel: KernelKind::Infinite,
            hidden: 2,
            iterations: 50_000,
            lr: 1e-3,
            sigma: 0.2,
            ridge: 1e-5,
            teacher: Recipe::default(),
            search: Ntk { restarts: 1, ..Ntk::default() },
            retrain: Recipe::default(),
        }
    }
}

/// What stands for the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// All of them.
    Full,
    /// Kernel inducing points.
    Kip,
    /// Those with the loss of the attack.
    Rkip,
    /// What the attack finds in a network that was trained on all of them.
    RkipFinite,
    /// As many of them at random.
    Random,
}

impl Method {
    /// As plans write it.
    pub fn name(self) -> &'static str {
        match self {
            Method::Full => "full",
            Method::Kip => "kip",
            Method::Rkip => "rkip",
            Method::RkipFinite => "rkip-finite",
            Method::Random => "random",
        }
    }
}

/// Which kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KernelKind {
    /// Of an infinitely wide perceptron.
    #[default]
    Infinite,
    /// Of the plan's network at its start; one output.
    Empirical,
}

impl DistillPlan {
    /// Reads a plan file with `key=value` changes on top.
    pub fn read(path: &Path, changes: &[String]) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| AuditError::file(path, format!("cannot be read: {error}")))?;
        Self::parse(&text, changes)
    }

    /// Reads a plan with `key=value` changes on top.
    pub fn parse(text: &str, changes: &[String]) -> Result<Self> {
        let plan: Self = typed(toml::Value::Table(changed_table(text, changes)?), None)?;
        plan.check()?;
        Ok(plan)
    }

    /// The plan with every default written out.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string(self).map_err(|error| AuditError::plan("plan", error.to_string(), "report this"))
    }

    fn check(&self) -> Result<()> {
        let wrong = |key: &str, problem: String, hint: &str| Err(AuditError::plan(key, problem, hint));
        let Settings { methods, sizes, runs, hidden, lr, sigma, ridge, .. } = &self.distill;
        if methods.is_empty() || *runs == 0 {
            return wrong("distill", "does nothing".into(), "name `methods`, and 1 or more `runs`");
        }
        if let Some(size) = sizes.iter().find(|&&size| size < 2 || size > self.data.members) {
            let problem = format!("{size} records cannot stand for {}", self.data.members);
            return wrong("distill.sizes", problem, "from 2 to data.members");
        }
        if sizes.is_empty() && methods.iter().any(|method| *method != Method::Full) {
            return wrong("distill.sizes", "names no size".into(), "such as [20]");
        }
        if *hidden == 0 {
            return wrong("distill.hidden", "is 0: a linear kernel".into(), "1 or more; the paper has 2");
        }
        for (key, value) in [("distill.lr", lr), ("distill.sigma", sigma)] {
            if !(*value > 0.0 && value.is_finite()) {
                return wrong(key, format!("is {value}"), "give a positive number");
            }
        }
        if !(*ridge >= 0.0 && ridge.is_finite()) {
            return wrong("distill.ridge", format!("is {ridge}"), "0 or more; the paper has 1e-5");
        }
        self.distill.teacher.check()?;
        self.distill.retrain.check()?;
        Ok(())
    }
}
