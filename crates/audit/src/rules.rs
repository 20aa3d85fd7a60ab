//! What a run directory says about how it was made and how it is judged.

use afterimage_attacks::AnyAttack;
use serde::{Deserialize, Serialize};

use crate::plan::{Plan, ScorePlan, parse_with_usual_score};
use crate::run_dir::RunDir;
use crate::{AuditError, Result};

const PLAN: &str = "plan.toml";
const ATTACK: &str = "attack.toml";
const SCORE: &str = "score.toml";

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

    /// Those of a plan.
    pub fn of(plan: &Plan) -> Self {
        Self { seed: plan.seed, attack: plan.attack.clone(), score: plan.score.clone() }
    }

    /// The rules a run was attacked by.
    pub fn read(dir: &RunDir) -> Result<Self> {
        if dir.has(PLAN) {
            return Ok(Self::of(&Plan::read(&dir.file(PLAN), &[])?));
        }
        Self::parse(dir, ATTACK)
    }

    /// The rules a run was judged by last: its own, or those it was scored again by.
    pub fn read_judged(dir: &RunDir) -> Result<Self> {
        if dir.has(SCORE) { Self::parse(dir, SCORE) } else { Self::read(dir) }
    }

    fn parse(dir: &RunDir, name: &str) -> Result<Self> {
        let path = dir.file(name);
        let text = std::fs::read_to_string(&path)
            .map_err(|error| AuditError::file(&path, format!("cannot be read: {error}")))?;
        parse_with_usual_score(&text, &[])
    }

    /// The same with `score.key=value` changes; what was attacked and how cannot be changed any more.
    pub fn changed(&self, changes: &[String]) -> Result<Self> {
        if let Some(change) = changes.iter().find(|change| !change.trim_start().starts_with("score.")) {
            let problem = format!("`{change}` is no rule of the score");
            return Err(AuditError::plan("--set", problem, "write --set score.criterion=…, or run again"));
        }
        parse_with_usual_score(&self.to_toml()?, changes)
    }

    /// Writes them for an attack without a plan.
    pub fn write(&self, dir: &RunDir) -> Result<()> {
        dir.write(ATTACK, self.to_toml()?.as_bytes())
    }

    /// Writes them as those a run was scored again by.
    pub(crate) fn write_judged(&self, dir: &RunDir) -> Result<()> {
        dir.write(SCORE, self.to_toml()?.as_bytes())
    }

    /// Forgets rules a run was scored again by.
    pub(crate) fn forget_judged(dir: &RunDir) -> Result<()> {
        dir.remove(SCORE)
    }

    fn to_toml(&self) -> Result<String> {
        toml::to_string(self).map_err(|error| AuditError::plan("score", error.to_string(), "report this"))
    }

    /// Everything the run depends on, every default written out.
    pub fn text(&self, dir: &RunDir) -> Result<String> {
        if !dir.has(PLAN) {
            return self.to_toml();
        }
        let plan = Plan::read(&dir.file(PLAN), &[])?;
        Plan { score: self.score.clone(), ..plan }.to_toml()
    }
}
