//! A paragraph for the model's card.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::findings::Findings;

/// What can be said of a model in its card: numbers, no record.
pub fn model_card(runs: &[&Findings]) -> String {
    let mut text = String::from("## Training-data reconstruction\n\n");
    for findings in runs {
        let Findings { attack, observation, recovered, members, control_recovered, controls, .. } = findings;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "- **{}** (`{attack}` on {observation}). {}",
            findings.verdict.headline(),
            findings.sentence
        );
        let _ = writeln!(
            text,
            "  Members rebuilt: {recovered} of {members} (95 % interval {:.1} % to {:.1} %). Controls that came back as \
             well: {control_recovered} of {controls}. Identified among {} records: {} of {members}.",
            100.0 * findings.interval.low,
            100.0 * findings.interval.high,
            findings.identification.pool,
            findings.identification.hits,
        );
        if !findings.rules_fixed {
            let _ = writeln!(text, "  The rule for that was chosen after the attack had run.");
        }
    }
    if let Some(findings) = runs.first() {
        let models: BTreeSet<&str> = runs.iter().filter_map(|run| run.model_sha256.get(..16)).collect();
        let models: Vec<String> = models.iter().map(|model| format!("`{model}`")).collect();
        let _ = writeln!(
            text,
            "\nAudited with {}; model {}. A result is a lower bound: other attacks may bring back more.",
            findings.tool,
            models.join(", ")
        );
    }
    text
}
