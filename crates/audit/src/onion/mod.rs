//! Layer by layer: records that are easy to rebuild are taken away, and the network is trained
//! and attacked again without them.
//!
//! Loo et al. (2023), section 6.2 and figures 6 and 21: with the easiest records gone others
//! become easy (the privacy onion of Carlini et al., 2022), so that taking away who is exposed
//! protects nobody else; and test accuracy says what those records were worth, beside records
//! taken away at random.

mod plan;
mod run;

pub use plan::{OnionPlan, Rule};
pub use run::{check, run};

use serde::{Deserialize, Serialize};

/// One training of one rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    /// By what records are taken away.
    pub rule: Rule,
    /// Trainings of this rule before it.
    pub round: usize,
    /// Hash of the plan and of who was gone: a layer of another plan is not taken for one of this.
    pub plan_sha256: String,
    /// Records it was trained on.
    pub records: usize,
    /// Units of its hidden layers.
    pub width: Option<usize>,
    /// Share of controls that the network tells right.
    pub accuracy: f64,
    /// How far the nearest candidate is from each record, nearest first; of rules that attack.
    pub errors: Vec<f64>,
    /// Records beyond every test control.
    pub beyond: usize,
    /// Records taken away after it.
    pub removed: Vec<String>,
    /// How far the nearest candidate was from each of those, where that is known.
    pub removed_errors: Vec<f64>,
    /// Seconds of the attack.
    pub seconds: f64,
}

/// All of them: `onion.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Onion {
    /// Number of the schema.
    pub schema: u32,
    /// Name and version of the program.
    pub tool: String,
    /// The metric of errors.
    pub metric: String,
    /// Records that accuracy was measured on.
    pub tested: usize,
    /// One for each rule and round.
    pub layers: Vec<Layer>,
}
