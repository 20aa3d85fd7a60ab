//! Findings as SARIF 2.1.0, which code-scanning services read.

use serde_json::{Value, json};

use crate::findings::Findings;
use crate::verdict::Verdict;

/// One log with a result for each run.
pub fn sarif(runs: &[&Findings]) -> Value {
    let rules: Vec<Value> = [
        (Verdict::Reconstructed, "Training records were rebuilt from what is shared"),
        (Verdict::Traces, "What is shared carries information about its training records"),
        (Verdict::Inconclusive, "The audit cannot tell"),
        (Verdict::NotFound, "These attacks rebuilt nothing"),
        (Verdict::NotApplicable, "No attack fits"),
    ]
    .into_iter()
    .map(|(verdict, text)| json!({ "id": verdict.name(), "shortDescription": { "text": text } }))
    .collect();
    let results: Vec<Value> = runs
        .iter()
        .map(|findings| {
            let level = match findings.verdict {
                Verdict::Reconstructed => "error",
                Verdict::Traces => "warning",
                Verdict::Inconclusive => "note",
                Verdict::NotFound | Verdict::NotApplicable => "none",
            };
            // A level other than none belongs to results of the kind `fail`.
            let kind = if level == "none" { "informational" } else { "fail" };
            json!({
                "ruleId": findings.verdict.name(),
                "level": level,
                "kind": kind,
                "message": { "text": format!("{}: {}", findings.attack, findings.sentence) },
                "fingerprints": { "modelSha256/v1": findings.model_sha256, "planSha256/v1": findings.plan_sha256 },
                "properties": {
                    "attack": findings.attack,
                    "recovered": findings.recovered,
                    "members": findings.members,
                    "controlRecovered": findings.control_recovered,
                    "controls": findings.controls,
                    "pValue": findings.p_value,
                },
            })
        })
        .collect();
    json!({
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": { "name": "afterimage", "version": env!("CARGO_PKG_VERSION"), "rules": rules } },
            "results": results,
        }],
    })
}
