//! What a run directory says about how it was made and how it is judged.

use afterimage_attacks::AnyAttack;
use serde::{Deserialize, Serialize};

use crate::plan::{Plan, ScorePlan, parse_with_usual_score};
use crate::run_dir::RunDir;
use crate::{AuditError, Result};

const PLAN: &str = "plan.toml";
const ATTACK: &str = "attack.toml";

/// The attack of a run and the rules of its score: part of a plan, or, where
/// an observation was attacked without one, all there is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// Seed of every random number.
    pub seed: u64,
    /// The attack.
    pub attack: AnyAttack,
    /// What counts as rebuilt.
    pub score: ScorePlan,
}

impl Rules {
    /// For an attack without a plan: its usual criterion.
    pub fn usual(attack: &AnyAttack, seed: u64) -> Result<Self> {
        #[derive(Serialize)]
        struct Bare<'a> {
            seed: u64,
            attack: &'a AnyAttack,
        }
        let text = toml::to_string(&Bare { seed, attack });
        let text = text.map_err(|error| AuditError::plan("attack", error.to_string(), "report this"))?;
        parse_with_usual_score(&text, &[])
    }

    /// The rules of a run directory, with `score.key=value` changes on top.
    pub fn read(dir: &RunDir, changes: &[String]) -> Result<Self> {
        if dir.has(PLAN) {
            let Plan { seed, attack, score, .. } = Plan::read(&dir.file(PLAN), changes)?;
            return Ok(Self { seed, attack, score });
        }
        let path = dir.file(ATTACK);
        let text = std::fs::read_to_string(&path)
            .map_err(|error| AuditError::file(&path, format!("cannot be read: {error}")))?;
        parse_with_usual_score(&text, changes)
    }

    /// Writes them for a run without a plan.
    pub fn write(&self, dir: &RunDir) -> Result<()> {
        dir.write(ATTACK, self.to_toml()?.as_bytes())
    }

    fn to_toml(&self) -> Result<String> {
        toml::to_string(self).map_err(|error| AuditError::plan("score", error.to_string(), "report this"))
    }

    /// Everything the run depends on, every default written out.
    pub fn text(&self, dir: &RunDir) -> Result<String> {
        if dir.has(PLAN) { Plan::read(&dir.file(PLAN), &[])?.to_toml() } else { self.to_toml() }
    }
}
