//! The program as its users call it.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::path::Path;

use common::{afterimage, bytes, plan, run, timeless};
use serde_json::Value;

#[test]
fn the_plan_ends_in_reconstructed() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, findings) = run(folder.path(), "run", &["--seed", "1"]);
    assert_eq!(findings["verdict"], "reconstructed");
    assert_eq!((&findings["recovered"], &findings["members"]), (&Value::from(1), &Value::from(1)));
    assert_eq!((&findings["control_recovered"], &findings["controls"]), (&Value::from(0), &Value::from(200)));
    let kept: Value = serde_json::from_slice(&bytes(&dir, "findings.json")).unwrap();
    assert_eq!(kept, findings);
    let samples = String::from_utf8(bytes(&dir, "samples.csv")).unwrap();
    assert!(samples.starts_with("id,recovered,mse,psnr,ssim\n") && samples.contains(",true,"), "{samples}");
    let plan = String::from_utf8(bytes(&dir, "plan.toml")).unwrap();
    assert!(plan.contains("share_preprocessing = true"), "every default is written out: {plan}");
    assert_eq!(bytes(&dir, ".gitignore"), b"*\n");
}

#[test]
fn reports_are_made_from_files_and_the_public_one_names_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, findings) = run(folder.path(), "run", &[]);
    let page = |name: &str| String::from_utf8(bytes(&dir, name)).unwrap();
    let (report, public) = (page("report.html"), page("report-public.html"));
    let sections = [
        "What was shared",
        "The attacker",
        "Results",
        "Records, most exposed first",
        "Pictures",
        "Scores of members and controls",
        "What this does not show",
        "What to change",
        "Reproduce",
        "signature",
    ];
    let places: Vec<usize> =
        sections.iter().map(|section| report.find(section).unwrap_or_else(|| panic!("no {section}"))).collect();
    assert!(places.is_sorted(), "{places:?}");
    assert!(report.contains(findings["sentence"].as_str().unwrap()) && report.contains("data:image/png;base64,"));
    let id = format!(">{}<", findings["sample_ids"][0].as_str().unwrap());
    assert!(report.contains(&id));
    for secret in ["data:image", &id, "builtin:photos", "plans/", folder.path().to_str().unwrap()] {
        assert!(!public.contains(secret), "the public report holds {secret}");
    }
    for page in [&report, &public] {
        let outside = ["http://", "https://", "src=\"//", "@import", "url("];
        assert!(outside.iter().all(|address| !page.contains(address)), "a report asks nobody for anything");
        for word in ["safe ", " safe", "anonymous", "compliant", "low risk"] {
            assert!(!page.contains(word), "{word}");
        }
    }
    fs::remove_file(dir.join("report.html")).unwrap();
    assert!(afterimage(&["report", dir.to_str().unwrap()], folder.path()).status.success());
    assert_eq!(page("report.html"), report);
}

#[test]
fn a_purged_run_keeps_its_numbers_and_no_record() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, _) = run(folder.path(), "run", &[]);
    assert!(afterimage(&["purge", dir.to_str().unwrap()], folder.path()).status.success());
    let mut left: Vec<String> =
        fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    let expected = [
        ".gitignore",
        "defences.json",
        "findings.json",
        "findings.sarif",
        "model-card.md",
        "plan.toml",
        "provenance.json",
        "purged",
        "report-public.html",
        "samples.csv",
        "timing.json",
    ];
    assert_eq!(left, expected);
    // Twice is as good as once, and the report can still be made, without pictures.
    assert!(afterimage(&["purge", dir.to_str().unwrap()], folder.path()).status.success());
    assert!(afterimage(&["report", dir.to_str().unwrap()], folder.path()).status.success());
    assert!(!String::from_utf8(bytes(&dir, "report.html")).unwrap().contains("data:image/png"));
    // What was removed on purpose does not come back by itself.
    let resumed = afterimage(&["run", "--resume", dir.to_str().unwrap()], folder.path());
    assert!(String::from_utf8_lossy(&resumed.stderr).contains("was purged"));
}

#[cfg(unix)]
#[test]
fn a_run_is_readable_by_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (dir, _) = run(folder.path(), "run", &[]);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    for entry in fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), if path.is_dir() { 0o700 } else { 0o600 }, "{}", path.display());
    }
}

#[test]
fn the_same_seed_gives_the_same_bits_on_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let (one, first) = run(folder.path(), "one", &["--seed", "7", "--set", "compute.threads=1"]);
    let (two, second) = run(folder.path(), "two", &["--seed", "7", "--set", "compute.threads=2"]);
    for file in ["observation.safetensors", "truth.safetensors", "reconstruction.safetensors"] {
        assert_eq!(bytes(&one, file), bytes(&two, file), "{file}");
    }
    assert_eq!(first["metrics"], second["metrics"]);
    let (_, again) = run(folder.path(), "again", &["--seed", "7", "--set", "compute.threads=1"]);
    assert_eq!(timeless(first.clone()), timeless(again));
    let (_, other) = run(folder.path(), "other", &["--seed", "8"]);
    assert_ne!(first["sample_ids"], other["sample_ids"]);
}

/// Every attack, small: (name, plan, settings).
const SMALL: [(&str, &str, &[&str]); 14] = [
    ("analytic", "analytic", &[]),
    ("exact", "exact/mnist-8", &["data.members=5", "data.controls=20", "network.hidden=[128, 32]"]),
    ("tensor", "tensor/polish-784", &["data.source=synthetic:sphere:30", "data.members=3", "network.width=400"]),
    (
        "kkt",
        "kkt/photos-20",
        &[
            "data.members=4",
            "data.controls=20",
            "data.resize=[8, 8]",
            "network.hidden=[64, 64]",
            "attack.iterations=40",
        ],
    ),
    (
        "unmix",
        "unmix/photos-20",
        &[
            "data.members=4",
            "data.controls=20",
            "data.resize=[8, 8]",
            "network.hidden=[64, 64]",
            "attack.iterations=40",
        ],
    ),
    (
        "weight-rows",
        "weight-rows",
        &["data.members=4", "data.controls=20", "data.resize=[8, 8]", "network.hidden=[64]"],
    ),
    (
        "gradinversion",
        "gradinversion/dlg-lenet",
        &[
            "data.source=builtin:photos",
            "data.controls=20",
            "data.resize=[16, 16]",
            "attack.optimiser=adam",
            "attack.iterations=12",
            "attack.group_weight=0.01",
            "attack.tv_weight=0.01",
        ],
    ),
    ("kinks", "kkt/circle", &["network.hidden=[60, 60]", "attack.draws=2000"]),
    (
        "model-inversion",
        "model-inversion",
        &["data.members=6", "data.controls=20", "data.resize=[8, 8]", "network.hidden=[64]", "attack.iterations=40"],
    ),
    (
        "autoencoder",
        "autoencoder/digits-20",
        &["data.members=5", "data.controls=20", "network.width=64", "victim.train.epochs=60", "attack.passes=6"],
    ),
    (
        "autoencoder",
        "autoencoder/digits-20",
        &[
            "data.members=5",
            "data.controls=20",
            "network.width=64",
            "victim.train.epochs=60",
            "attack.method=admm",
            "attack.passes=6",
        ],
    ),
    (
        "autoencoder",
        "autoencoder/digits-20",
        &[
            "data.members=5",
            "data.controls=20",
            "network.width=64",
            "victim.train.epochs=60",
            "victim.degrade={ mask = \"none\", blur = 0.8, noise = 0.01 }",
            "attack.passes=6",
        ],
    ),
    (
        "inpaint",
        "autoencoder/digits-20",
        &["data.members=5", "data.controls=20", "network.width=64", "victim.train.epochs=60", "attack.kind=inpaint"],
    ),
    (
        "ae-iterations",
        "ae-iterations",
        &["data.members=5", "data.controls=20", "network.width=64", "victim.train.epochs=60"],
    ),
];

/// Runs a plan by its name, small; the directory.
fn run_small(folder: &Path, plan: &str, out: &str, settings: &[&str]) -> std::path::PathBuf {
    let plan = common::root().join(format!("plans/{plan}.toml")).display().to_string();
    let mut arguments = vec!["run", &plan, "--out", out, "--seed", "5"];
    settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
    let output = afterimage(&arguments, folder);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    folder.join(out)
}

#[test]
fn no_attack_needs_the_truth_or_a_number_of_threads() {
    for (name, plan, settings) in SMALL {
        let folder = tempfile::tempdir().unwrap();
        let threads = |count: &'static str| [settings, &[count][..]].concat();
        let dir = run_small(folder.path(), plan, "one", &threads("compute.threads=1"));
        let two = run_small(folder.path(), plan, "two", &threads("compute.threads=2"));
        for file in ["observation.safetensors", "reconstruction.safetensors", "samples.csv"] {
            assert_eq!(bytes(&dir, file), bytes(&two, file), "{name}: {file} by one and by two threads");
        }
        // The observation alone, in an empty directory, the truth deleted.
        let empty = folder.path().join("empty");
        fs::create_dir(&empty).unwrap();
        fs::copy(dir.join("observation.safetensors"), empty.join("o.safetensors")).unwrap();
        let expected = bytes(&dir, "reconstruction.safetensors");
        fs::remove_dir_all(&dir).unwrap();
        fs::remove_dir_all(&two).unwrap();
        let mut arguments = vec!["attack", name, "--observation", "o.safetensors", "--out", "out", "--seed", "5"];
        let own: Vec<String> = common::attack_settings(plan, settings);
        own.iter().for_each(|setting| arguments.extend(["--set", setting]));
        let output = afterimage(&arguments, &empty);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(bytes(&empty.join("out"), "reconstruction.safetensors"), expected, "{name}");
    }
}

/// The label of one photograph, as its own step.
#[test]
fn labels_are_read_off_an_observation() {
    let folder = tempfile::tempdir().unwrap();
    let settings = ["data.source=builtin:photos", "data.controls=20", "data.resize=[16, 16]", "attack.iterations=1"];
    let dir = run_small(folder.path(), "gradinversion/dlg-lenet", "run", &settings);
    let observation = dir.join("observation.safetensors").display().to_string();
    let output = afterimage(&["attack", "labels", "--observation", &observation, "--out", "labels"], folder.path());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && told.contains("1 labels, in labels"), "{told}");
    let truth = afterimage_audit::Truth::read(dir.join("truth.safetensors")).unwrap();
    assert!(told.contains(&format!("by the gradient: {}\n", truth.members.labels[0])), "{told}");
}

/// Ten small photographs from the weights of their classifier alone, training included.
#[test]
fn weights_alone_give_photographs_back() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [
        "data.members=10",
        "data.resize=[16, 16]",
        "network.hidden=[300, 300]",
        "attack.candidates=20",
        "attack.iterations=600",
        "compute.dtype=f32",
    ];
    let dir = run_small(folder.path(), "kkt/photos-20", "kkt", &settings);
    let findings: Value = serde_json::from_slice(&bytes(&dir, "findings.json")).unwrap();
    assert_eq!(findings["verdict"], "reconstructed", "{}", findings["sentence"]);
    let scores = &findings["alignments"]["voting"]["ssim3"];
    let values =
        |side: &str| -> Vec<f64> { scores[side].as_array().unwrap().iter().filter_map(Value::as_f64).collect() };
    let best = values("control").into_iter().fold(0.0, f64::max);
    let beyond = values("members").into_iter().filter(|score| *score > best).count();
    assert!(beyond >= 7, "{beyond} of 10 beyond the best control");
}

/// What a layer inside the network read comes back, and is not called a record.
#[test]
fn inputs_of_an_inner_layer_are_said_to_be_such() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [
        "data.members=3",
        "data.controls=40",
        "network.hidden=[256, 256, 32]",
        "attack.layer=\"3\"",
        "compute.dtype=f64",
    ];
    let dir = run_small(folder.path(), "exact/mnist-8", "inner", &settings);
    let findings: Value = serde_json::from_slice(&bytes(&dir, "findings.json")).unwrap();
    assert_eq!(findings["layer"], "3");
    assert!(findings["sentence"].as_str().unwrap().contains("not about the record itself"));
    common::follows(&findings, "findings.schema.json").unwrap();
}

#[test]
fn an_attack_that_does_not_apply_is_a_verdict() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan();
    let arguments = ["run", &plan, "--out", "x", "--set", "data.members=4", "--json", "--fail-on", "traces"];
    let output = afterimage(&arguments, folder.path());
    assert_eq!(output.status.code(), Some(4), "{}", String::from_utf8_lossy(&output.stderr));
    let findings: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&findings["verdict"], &findings["stop"]),
        (&Value::from("not-applicable"), &Value::from("not-applicable"))
    );
    assert!(findings["reasons"][0].as_str().unwrap().contains("the batch has 4 samples"));
    assert!(folder.path().join("x/report.html").exists());
}

#[test]
fn gates_set_the_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan();
    let code = |more: &[&str]| {
        let arguments: Vec<&str> = ["run", &plan].into_iter().chain(more.iter().copied()).collect();
        afterimage(&arguments, folder.path()).status.code()
    };
    assert_eq!(code(&["--out", "a", "--fail-on", "reconstructed"]), Some(3));
    assert_eq!(code(&["--out", "b", "--fail-above", "0.01"]), Some(3));
    assert_eq!(code(&["--out", "c", "--fail-above", "0.5"]), Some(0));
    assert_eq!(code(&["--out", "d", "--fail-on", "sometimes"]), Some(2));
    assert_eq!(code(&[]), Some(0));
    let runs: Vec<_> = fs::read_dir(folder.path().join("runs")).unwrap().collect();
    assert_eq!(runs.len(), 1, "a run without --out has a directory of its own");
}

#[test]
fn preprocessing_the_attacker_does_not_know_is_undone_by_the_audit() {
    let folder = tempfile::tempdir().unwrap();
    for mean in ["scalar", "channel", "pixel"] {
        let mean_set = format!("data.subtract_mean={mean}");
        let hidden = ["--set", &mean_set, "--set", "victim.share_preprocessing=false"];
        let (_, findings) = run(folder.path(), mean, &hidden);
        assert_eq!((&findings["verdict"], &findings["recovered"]), (&Value::from("reconstructed"), &Value::from(1)));
        let shared = findings["shared"].to_string();
        assert!(shared.contains("how inputs are prepared: not known"), "{shared}");
    }
}

#[test]
fn nothing_found_says_nothing_without_a_twin_that_leaks() {
    // A batch of four comes back as a mixture. The twin fares no better, so the run cannot tell.
    let folder = tempfile::tempdir().unwrap();
    let mixed = ["--set", "data.members=4", "--set", "victim.share_batch_size=false"];
    let (dir, findings) = run(folder.path(), "run", &mixed);
    assert_eq!((&findings["verdict"], &findings["recovered"]), (&Value::from("inconclusive"), &Value::from(0)));
    assert_eq!(
        findings["positive_control"],
        serde_json::json!({ "members": 4, "recovered": 0, "verdict": "inconclusive" })
    );
    assert!(findings["sentence"].as_str().unwrap().contains("of a twin it rebuilt 0 of 4 records"), "{findings}");
    assert!(findings["warnings"][0].as_str().unwrap().contains("the batch held more than one"));
    // The twin is made of controls: it holds no member.
    let twin = bytes(&dir.join("twin"), "truth.safetensors");
    assert_ne!(twin, bytes(&dir, "truth.safetensors"));
    let plan = plan();
    let gated: Vec<&str> = ["run", &plan, "--out", "gated", "--fail-on", "traces"].into_iter().chain(mixed).collect();
    assert_eq!(afterimage(&gated, folder.path()).status.code(), Some(4));
}

#[test]
fn attacks_are_listed_and_explained() {
    let folder = tempfile::tempdir().unwrap();
    let list = String::from_utf8(afterimage(&["list"], folder.path()).stdout).unwrap();
    for line in list.lines() {
        let name = line.split_whitespace().next().unwrap();
        let output = afterimage(&["explain", name], folder.path());
        let text = String::from_utf8(output.stdout).unwrap();
        for part in ["How it works", "What it cannot do", "Settings", "Published"] {
            assert!(text.contains(part), "{name}: {text}");
        }
    }
    assert!(list.contains("analytic"));
}

#[test]
fn the_row_space_tells_how_many_samples_and_which() {
    let folder = tempfile::tempdir().unwrap();
    let plan = common::root().join("plans/exact/mnist-8.toml").display().to_string();
    let arguments = ["run", &plan, "--out", "run", "--set", "data.controls=40"];
    assert!(afterimage(&arguments, folder.path()).status.success());
    let all: Vec<&str> =
        "attack rowspace --observation run/observation.safetensors --candidates builtin:digits".split(' ').collect();
    let output = afterimage(&all, folder.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["samples"], 8);
    assert!(found["gap"].as_f64().unwrap() < 1e-4);
    let trace = String::from_utf8(bytes(&folder.path().join("run"), "trace.jsonl")).unwrap();
    assert!(trace.lines().count() > 1, "the search leaves a trace: {trace}");
    let findings: Value = serde_json::from_slice(&bytes(&folder.path().join("run"), "findings.json")).unwrap();
    let members: Vec<&str> = findings["sample_ids"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
    for candidate in found["candidates"].as_array().unwrap() {
        let (id, residual) = (candidate["id"].as_str().unwrap(), candidate["residual"].as_f64().unwrap());
        assert_eq!(residual < 1e-3, members.contains(&id), "{id}: {residual}");
        assert_eq!(candidate["inside"], members.contains(&id), "{id}");
    }
    // The truth of a run will do: its members.
    let mut words = all;
    words[5] = "run/truth.safetensors";
    let output = afterimage(&words, folder.path());
    let talk = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(talk.contains("8 of 8 candidates inside"), "{talk}");
}
