//! Scoring what an attack brought back; several runs together; the files other programs read.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fmt::Write;
use std::fs;
use std::path::Path;

use afterimage_audit::Truth;
use afterimage_nn::Tensor;
use afterimage_nn::io::TensorFile;
use common::{afterimage, bytes, follows, run};
use serde_json::Value;

fn json(dir: &Path, name: &str) -> Value {
    serde_json::from_slice(&bytes(dir, name)).unwrap()
}

fn csv(path: &Path, pixels: &Tensor) {
    let row = pixels.row_len();
    let mut text: String = (0..row).map(|column| format!("p{column},")).collect();
    text.push_str("label\n");
    for record in pixels.to_f64_vec().unwrap().chunks_exact(row) {
        record.iter().for_each(|value| write!(text, "{value},").unwrap());
        text.push_str("0\n");
    }
    fs::write(path, text).unwrap();
}

#[test]
fn an_attack_is_scored_with_records_it_never_saw() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, expected) = run(folder.path(), "run", &[]);
    let observation = dir.join("observation.safetensors").display().to_string();
    let attack = |out: &str| {
        let output = afterimage(&["attack", "analytic", "--observation", &observation, "--out", out], folder.path());
        let talk = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && talk.contains("afterimage score"), "{talk}");
    };
    let score = |arguments: &[&str]| {
        let output = afterimage(arguments, folder.path());
        let talk = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{talk}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    // By the truth file of the run.
    attack("whole");
    let truth = dir.join("truth.safetensors");
    let findings = score(&["score", "whole", "--truth", truth.to_str().unwrap(), "--json"]);
    let same = ["verdict", "recovered", "control_recovered", "p_value", "identification", "metrics", "model_sha256"];
    for key in same {
        assert_eq!(findings[key], expected[key], "{key}");
    }
    assert!(folder.path().join("whole/report.html").exists());
    // By tables of members and controls, as an owner has them.
    let records = Truth::read(&truth).unwrap();
    csv(&folder.path().join("members.csv"), &records.members.pixels);
    csv(&folder.path().join("others.csv"), &records.controls.pixels);
    attack("tables");
    let tables = score(&["score", "tables", "--truth", "members.csv", "--controls", "others.csv", "--json"]);
    assert_eq!((&tables["verdict"], &tables["recovered"]), (&Value::from("reconstructed"), &Value::from(1)));
    // Other rules are possible, and are written down as what they are.
    let changed = ["score", "run", "--set", "score.criterion={ metric = \"psnr\", above = 200.0 }", "--json"];
    let findings = score(&changed);
    assert_eq!(findings["recovered"], 0);
    assert_eq!(findings["rules_fixed"], false);
    assert_ne!(findings["plan_sha256"], expected["plan_sha256"]);
    let page = String::from_utf8(bytes(&dir, "report.html")).unwrap();
    assert!(page.contains("psnr above 200.0") && page.contains("chosen after the attack ran"));
    for key in ["seed=9", "attack={ kind = \"model-inversion\" }", "data.source=/secret.csv"] {
        let output = afterimage(&["score", "run", "--set", key], folder.path());
        let talk = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && talk.contains("no rule of the score"), "{talk}");
    }
    // Gates work here too; what is missing is named.
    attack("bare");
    let gated = ["score", "tables", "--fail-on", "reconstructed"];
    assert_eq!(afterimage(&gated, folder.path()).status.code(), Some(3));
    for (arguments, part) in [
        (&["score", "bare"][..], "holds no truth"),
        (&["score", "bare", "--truth", "members.csv"], "--controls"),
        (&["score", "bare", "--truth", "members.csv", "--controls", "absent.csv"], "absent.csv"),
    ] {
        let output = afterimage(arguments, folder.path());
        let talk = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && talk.contains(part), "{talk}");
    }
    assert!(!folder.path().join("bare/truth.safetensors").exists());
    // Records that do not fit change nothing.
    fs::write(folder.path().join("small.csv"), "a,b,label\n1,0,0\n").unwrap();
    let before = bytes(&folder.path().join("tables"), "truth.safetensors");
    let wrong = ["score", "tables", "--truth", "small.csv", "--controls", "small.csv"];
    assert_eq!(afterimage(&wrong, folder.path()).status.code(), Some(1));
    assert_eq!(bytes(&folder.path().join("tables"), "truth.safetensors"), before);
}

#[test]
fn a_file_of_records_alone_is_read_through_the_observations_preprocessing() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, _) = run(folder.path(), "run", &["--set", "data.subtract_mean=channel"]);
    let mut file = TensorFile::read(dir.join("truth.safetensors")).unwrap();
    file.tensors.retain(|name, _| !name.starts_with("preprocess"));
    file.write(folder.path().join("records.safetensors")).unwrap();
    let output = afterimage(&["score", "run", "--truth", "records.safetensors", "--json"], folder.path());
    let findings: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&findings["verdict"], &findings["recovered"]), (&Value::from("reconstructed"), &Value::from(1)));
}

#[test]
fn labels_that_were_read_off_are_scored_beside_chance() {
    let folder = tempfile::tempdir().unwrap();
    let more = ["--set", "data.members=8", "--set", "attack={ kind = \"labels\" }"];
    let (dir, findings) = run(folder.path(), "run", &more);
    let read = &findings["labels"];
    assert_eq!(
        (&findings["verdict"], &read["right"], &read["members"]),
        (&"traces".into(), &8.into(), &8.into()),
        "{read}"
    );
    assert!(read["by_chance"].as_f64().unwrap() < 8.0 && read["p_value"] == findings["p_value"]);
    assert!(findings["sentence"].as_str().unwrap().starts_with("8 of 8 labels of the batch"), "{findings}");
    follows(&findings, "findings.schema.json").unwrap();
    let page = String::from_utf8(bytes(&dir, "report.html")).unwrap();
    assert!(page.contains("read off its gradient") && !page.contains("members rebuilt"));
    // An attack without a plan, scored afterwards, says the same, and how that was asked for.
    let observation = dir.join("observation.safetensors").display().to_string();
    assert!(
        afterimage(&["attack", "labels", "--observation", &observation, "--out", "alone"], folder.path())
            .status
            .success()
    );
    let truth = dir.join("truth.safetensors").display().to_string();
    let output = afterimage(&["score", "alone", "--truth", &truth, "--json"], folder.path());
    let scored: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&scored["verdict"], &scored["labels"]), (&findings["verdict"], read));
    let alone = folder.path().join("alone");
    follows(&json(&alone, "provenance.json"), "provenance.schema.json").unwrap();
    let page = String::from_utf8(bytes(&alone, "report.html")).unwrap();
    assert!(page.contains("afterimage attack labels") && page.contains("afterimage score alone --truth"));
}

#[test]
fn what_correction_takes_away_is_gone_from_every_form() {
    let folder = tempfile::tempdir().unwrap();
    let (first, mut findings) = run(folder.path(), "first", &[]);
    // A lucky one among others: p = 0.006 alone, nothing after correction over three.
    findings["certified"] = Value::from(false);
    findings["p_value"] = Value::from(0.006);
    fs::write(first.join("findings.json"), findings.to_string()).unwrap();
    let unlucky = ["--set", "data.members=3", "--set", "victim.share_batch_size=false", "--set", "data.controls=40"];
    run(folder.path(), "second", &unlucky);
    run(folder.path(), "third", &unlucky);
    let output = afterimage(&["report", "first", "second", "third", "--out", "all"], folder.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let all = folder.path().join("all");
    assert_eq!(json(&all, "summary.json")["verdict"], "inconclusive");
    let sarif = json(&all, "summary.sarif");
    assert!(sarif["runs"][0]["results"].as_array().unwrap().iter().all(|result| result["level"] == "note"), "{sarif}");
    assert!(!String::from_utf8(bytes(&all, "model-card.md")).unwrap().contains("RECONSTRUCTED"));
}

#[test]
fn runs_are_judged_together_and_files_follow_their_schemas() {
    let folder = tempfile::tempdir().unwrap();
    let (first, findings) = run(folder.path(), "first", &[]);
    let (second, mixed) =
        run(folder.path(), "second", &["--set", "data.members=3", "--set", "victim.share_batch_size=false"]);
    assert_eq!(mixed["verdict"], "inconclusive");
    for dir in [&first, &second] {
        follows(&json(dir, "findings.json"), "findings.schema.json").unwrap();
        follows(&json(dir, "provenance.json"), "provenance.schema.json").unwrap();
    }
    // The schemas can fail.
    for (key, wrong) in [("verdict", Value::from("fine")), ("p_value", Value::from(2)), ("sample_ids", Value::Null)] {
        let mut broken = findings.clone();
        broken[key] = wrong;
        assert!(follows(&broken, "findings.schema.json").is_err(), "{key}");
    }
    let output = afterimage(&["report", "second", "first", "--out", "both"], folder.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let both = folder.path().join("both");
    let summary = json(&both, "summary.json");
    follows(&summary, "summary.schema.json").unwrap();
    assert_eq!(summary["verdict"], "reconstructed");
    assert_eq!(
        (&summary["runs"][0]["verdict"], &summary["runs"][1]["verdict"]),
        (&Value::from("reconstructed"), &Value::from("inconclusive"))
    );
    // Two runs: the smaller p-value counts twice.
    let p = summary["runs"][0]["p_value"].as_f64().unwrap();
    assert_eq!(summary["runs"][0]["p_corrected"].as_f64().unwrap(), 2.0 * p);
    let sarif = json(&both, "summary.sarif");
    let levels: Vec<&str> =
        sarif["runs"][0]["results"].as_array().unwrap().iter().map(|r| r["level"].as_str().unwrap()).collect();
    assert_eq!(levels, ["error", "note"]);
    let page = |name: &str| String::from_utf8(bytes(&both, name)).unwrap();
    assert!(page("report.html").contains("RECONSTRUCTED") && page("report.html").contains("report.html\">analytic"));
    // Links lead from where the page lies: folders may be moved together.
    assert!(page("report.html").contains("href=\"../first/report.html\"") && !page("report.html").contains("file://"));
    let public = page("report-public.html");
    assert!(!public.contains(folder.path().to_str().unwrap()) && !public.contains("data:image"));
    assert!(page("model-card.md").contains("**RECONSTRUCTED** (`analytic` on a gradient)"));
    assert_eq!(json(&first, "findings.sarif")["runs"][0]["results"][0]["level"], "error");
}

#[test]
fn features_and_pairings_are_scored_when_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let more = [
        "--set",
        "score.identify=features",
        "--set",
        "score.alignments=[\"optimal\", \"greedy\", \"voting\"]",
        "--set",
        "score.metrics=[\"fft2d\", \"registered-psnr\"]",
        "--set",
        "score.also=[1e-3, 0.0]",
        "--set",
        "data.controls=20",
    ];
    let (_, findings) = run(folder.path(), "run", &more);
    assert_eq!(findings["identification"]["space"], "features");
    assert_eq!(findings["identification"]["hits"], 1);
    let passes: Vec<u64> = (0..2).map(|line| findings["also"][line]["recovered"].as_u64().unwrap()).collect();
    assert_eq!(passes, [1, 0]);
    let near = |pairing: &str, metric: &str| findings["alignments"][pairing][metric]["members"][0].as_f64().unwrap();
    assert!(near("optimal", "mse") < 1e-8 && near("greedy", "l2") < 1e-3 && near("voting", "ssim3") > 0.5);
    assert_eq!(findings["alignments"]["greedy"]["l2"]["control"].as_array().unwrap().len(), 1);
    assert!(findings["metrics"]["fft2d"]["members"][0].as_f64().unwrap() < 1e-6);
    assert!(findings["metrics"]["registered-psnr"]["members"][0].as_f64().unwrap() > 100.0);
}
