//! What would have stopped a leak: defences of a run, and policies for federated clients.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;

use common::{afterimage, bytes, follows, root, run};
use serde_json::Value;

#[test]
fn a_quick_run_measures_its_defences() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, _) = run(folder.path(), "run", &[]);
    let measured: Value = serde_json::from_slice(&bytes(&dir, "defences.json")).unwrap();
    follows(&measured, "defences.schema.json").unwrap();
    let row = |part: &str| {
        let rows = measured["rows"].as_array().unwrap();
        rows.iter()
            .find(|row| row["defence"].as_str().unwrap().contains(part))
            .unwrap_or_else(|| panic!("no {part}"))
            .clone()
    };
    // One sample alone comes back whatever its gradient is scaled to, and not from one that is all noise.
    assert_eq!((&row("none")["recovered"], &row("clipped")["recovered"]), (&1.into(), &1.into()));
    assert_eq!((&row("noise as large")["recovered"], &row("4 times as many")["recovered"]), (&0.into(), &0.into()));
    assert!(row("4 times as many")["obstacle"].as_str().unwrap().contains("the batch has 4 samples"));
    for page in ["report.html", "report-public.html"] {
        let page = String::from_utf8(bytes(&dir, page)).unwrap();
        assert!(page.contains("noise as large as the gradient") && page.contains("Measured: the same attack"));
    }
    let again = afterimage(&["defences", dir.to_str().unwrap(), "--budget", "20s", "--json"], folder.path());
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(again["rows"][0], measured["rows"][0]);
}

#[test]
fn a_policy_is_a_table_that_resumes() {
    let folder = tempfile::tempdir().unwrap();
    let plan = root().join("plans/federated/policy.toml").display().to_string();
    let small = [
        "policy.batches=[1, 2]",
        "policy.steps=[1]",
        "policy.clients=[1]",
        "policy.clip=[0.0]",
        "policy.noise=[0.0, 10.0]",
        "policy.records=4",
        "policy.rounds=100",
        "policy.attacks=[{ kind = \"exact\", searches = 10 }]",
    ];
    let out = folder.path().join("policy").display().to_string();
    let mut arguments = vec!["policy", &plan, "--out", &out, "--json"];
    small.iter().for_each(|change| arguments.extend(["--set", change]));
    let output = afterimage(&arguments, folder.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let policy: Value = serde_json::from_slice(&output.stdout).unwrap();
    follows(&policy, "policy.schema.json").unwrap();
    let cells = policy["cells"].as_array().unwrap();
    let count = |cell: &Value| (cell["recovered"].as_u64().unwrap(), cell["members"].as_u64().unwrap());
    assert_eq!(cells.iter().map(count).collect::<Vec<_>>(), [(4, 4), (0, 4), (4, 4), (0, 4)]);
    assert!(cells[2]["accuracy"].as_f64().unwrap() > 0.3, "{policy}");
    // Without its last cell it goes on to the same numbers.
    let lines = fs::read_to_string(folder.path().join("policy/cells.jsonl")).unwrap();
    let kept: Vec<&str> = lines.lines().take(3).collect();
    fs::write(folder.path().join("policy/cells.jsonl"), kept.join("\n") + "\n").unwrap();
    let again = afterimage(&["policy", "--resume", &out, "--json"], folder.path());
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(count(&again["cells"][3]), count(&cells[3]));
    assert_eq!(again["cells"][3]["accuracy"], cells[3]["accuracy"]);
    let page = fs::read_to_string(folder.path().join("policy/report.html")).unwrap();
    assert!(page.contains("the most accurate: a batch of"), "the page answers the question");
}
