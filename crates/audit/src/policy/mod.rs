//! What a federated-learning operator should ask of clients: batch size, steps, averaging, noise and clipping, tried
//! against attacks on proxy data, beside the accuracy they cost.

mod plan;
mod run;

pub use plan::{PolicyPlan, Setting};
pub use run::{check, run};

use serde::{Deserialize, Serialize};

use crate::statistics::clopper_pearson;
use crate::verdict::LEVEL;

/// What one setting gives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The setting.
    pub setting: Setting,
    /// Hash of the plan: a cell of another plan is not taken for one of this.
    pub plan_sha256: String,
    /// Records in all rounds that were attacked.
    pub members: usize,
    /// Those that one of the attacks rebuilt.
    pub recovered: usize,
    /// Controls in all rounds.
    pub controls: usize,
    /// Those that passed the same test.
    pub control_recovered: usize,
    /// Share of records, seen by nobody, that a model trained so tells right.
    pub accuracy: f64,
    /// Seconds of the attacks.
    pub seconds: f64,
}

impl Cell {
    /// 95 % interval for the share of records that can be rebuilt.
    pub fn interval(&self) -> (f64, f64) {
        clopper_pearson(self.recovered, self.members, LEVEL)
    }

    /// Whether something was tested, and nothing came back.
    pub fn quiet(&self) -> bool {
        self.recovered == 0 && self.members > 0
    }
}

/// All of them: `policy.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// Number of the schema.
    pub schema: u32,
    /// Name and version of the program.
    pub tool: String,
    /// Names of the attacks.
    pub attacks: Vec<String>,
    /// When a record counts as rebuilt.
    pub criterion: String,
    /// Records that accuracy was measured on.
    pub tested: usize,
    /// One for each setting.
    pub cells: Vec<Cell>,
}

impl Policy {
    /// Of the settings at which nothing came back, the most accurate; of equals the smallest batch and noise.
    pub fn best(&self) -> Option<&Cell> {
        let order = |cell: &&Cell| (cell.accuracy, -(cell.setting.batch as f64), -cell.setting.noise);
        let compare = |a: &&Cell, b: &&Cell| order(a).partial_cmp(&order(b)).unwrap_or(std::cmp::Ordering::Equal);
        self.cells.iter().filter(|cell| cell.quiet()).max_by(compare)
    }

    /// For each way to share and batch, the cell with the least noise from which on nothing came back.
    pub fn enough(&self) -> Vec<&Cell> {
        let mut found: Vec<&Cell> = Vec::new();
        for cell in &self.cells {
            let same =
                |other: &&Cell| Setting { noise: 0.0, ..other.setting } == Setting { noise: 0.0, ..cell.setting };
            let louder = |other: &&Cell| other.setting.noise >= cell.setting.noise;
            let all_quiet = self.cells.iter().filter(same).filter(louder).all(Cell::quiet);
            let least = |other: &&Cell| other.setting.noise < cell.setting.noise;
            if all_quiet && !found.iter().any(|other| same(other) && least(other)) {
                found.retain(|other| !same(other));
                found.push(cell);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(batch: usize, noise: f64, recovered: usize, accuracy: f64) -> Cell {
        let setting = Setting { batch, steps: 1, clients: 1, noise, clip: 0.0 };
        Cell {
            setting,
            plan_sha256: String::new(),
            members: 10,
            recovered,
            controls: 100,
            control_recovered: 0,
            accuracy,
            seconds: 1.0,
        }
    }

    #[test]
    fn enough_is_the_least_noise_from_which_on_nothing_came_back() {
        let cells = vec![
            cell(1, 0.0, 10, 0.9),
            cell(1, 0.1, 0, 0.8), // by luck: with more noise something came back
            cell(1, 1.0, 2, 0.7),
            cell(1, 10.0, 0, 0.3),
            cell(8, 0.0, 5, 0.95),
            cell(8, 1.0, 0, 0.85),
            cell(8, 10.0, 0, 0.4),
        ];
        let policy =
            Policy { schema: 1, tool: String::new(), attacks: Vec::new(), criterion: String::new(), tested: 1, cells };
        let enough: Vec<(usize, f64)> =
            policy.enough().iter().map(|cell| (cell.setting.batch, cell.setting.noise)).collect();
        assert_eq!(enough, [(1, 10.0), (8, 1.0)]);
        assert_eq!(policy.best().map(|cell| cell.setting.batch), Some(8));
    }
}
