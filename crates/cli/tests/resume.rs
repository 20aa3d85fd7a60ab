//! Runs that were killed go on to the bits of runs that were not.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{afterimage, bytes, root, run, timeless};
use serde_json::Value;

#[test]
fn a_run_killed_between_any_two_files_goes_on_to_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, findings) = run(folder.path(), "run", &[]);
    let files = [
        "truth.safetensors",
        "observation.safetensors",
        "timing.json",
        "reconstruction.safetensors",
        "findings.json",
        "samples.csv",
    ];
    // What is finished is judged once more, and says so.
    let again = afterimage(&["run", "--resume", &dir.display().to_string(), "--json"], folder.path());
    assert!(String::from_utf8_lossy(&again.stderr).contains("it was finished before"));
    assert_eq!(timeless(serde_json::from_slice(&again.stdout).unwrap()), timeless(findings.clone()));
    for kept in 0..files.len() {
        let killed = folder.path().join(format!("killed-{kept}"));
        fs::create_dir(&killed).unwrap();
        for file in ["plan.toml"].iter().chain(&files[..kept]) {
            fs::copy(dir.join(file), killed.join(file)).unwrap();
        }
        // What a kill in the middle of writing leaves behind is never taken for a file.
        fs::write(killed.join(format!("{}.123.part", files[kept])), b"half").unwrap();
        let output = afterimage(&["run", "--resume", &killed.display().to_string(), "--json"], folder.path());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let again: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(timeless(again), timeless(findings.clone()), "after {kept} files");
        for file in ["truth.safetensors", "observation.safetensors", "reconstruction.safetensors", "samples.csv"] {
            assert_eq!(bytes(&killed, file), bytes(&dir, file), "{file} after {kept} files");
        }
    }
}

/// A run of the plan with more settings, killed as soon as `ready` holds of its
/// directory; fails if it was over by then.
fn kill_when(plan: &str, folder: &std::path::Path, out: &str, set: &[&str], ready: impl Fn(&std::path::Path) -> bool) {
    let dir = folder.join(out);
    let mut child = Command::new(env!("CARGO_BIN_EXE_afterimage"))
        .args(["run", plan, "--out", out])
        .args(set)
        .current_dir(folder)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while !ready(&dir) {
        assert!(start.elapsed() < Duration::from_secs(120), "never got there");
        assert!(child.try_wait().unwrap().is_none(), "over before it could be killed");
        std::thread::sleep(Duration::from_millis(2));
    }
    // SIGKILL: nothing is saved, nothing is cleaned up.
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!dir.join("findings.json").exists(), "it was over before it was killed");
}

#[test]
fn a_run_killed_in_the_middle_goes_on_to_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let plan = root().join("plans/model-inversion.toml").display().to_string();
    let small = [
        "--set",
        "data.resize=[8, 8]",
        "--set",
        "data.members=8",
        "--set",
        "data.controls=40",
        "--set",
        "network.hidden=[16]",
        "--set",
        "attack.candidates=8",
        "--set",
        "attack.iterations=800",
        "--set",
        "victim.train.epochs=200",
        "--set",
        "compute.checkpoint_seconds=0",
    ];
    let arguments: Vec<&str> = ["run", &plan, "--out", "whole"].into_iter().chain(small).collect();
    let output = afterimage(&arguments, folder.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let whole = folder.path().join("whole");
    let lines = |dir: &std::path::Path| fs::read_to_string(dir.join("trace.jsonl")).unwrap_or_default().lines().count();
    type Moment = Box<dyn Fn(&std::path::Path) -> bool>;
    let training = |dir: &std::path::Path| {
        let names = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().starts_with("training-")).count() > 0
    };
    let moments: [(&str, Moment); 6] = [
        ("planned", Box::new(|dir| dir.join("plan.toml").exists())),
        ("training", Box::new(training)),
        ("begun", Box::new(move |dir| lines(dir) > 0)),
        ("middle", Box::new(move |dir| lines(dir) > 100)),
        ("later", Box::new(move |dir| lines(dir) > 500)),
        ("twin", Box::new(move |dir| lines(&dir.join("twin")) > 50)),
    ];
    for (name, ready) in moments {
        kill_when(&plan, folder.path(), name, &small, ready);
        let dir = folder.path().join(name);
        let resumed = afterimage(&["run", "--resume", name, "--json"], folder.path());
        assert!(resumed.status.success(), "{}", String::from_utf8_lossy(&resumed.stderr));
        for file in ["observation.safetensors", "truth.safetensors", "reconstruction.safetensors", "samples.csv"] {
            assert_eq!(bytes(&dir, file), bytes(&whole, file), "{file} of a run killed: {name}");
        }
        let twin = |dir: &std::path::Path| bytes(&dir.join("twin"), "reconstruction.safetensors");
        assert_eq!(twin(&dir), twin(&whole), "the twin of a run killed: {name}");
        // The trace has no line twice and none missing.
        assert_eq!(bytes(&dir, "trace.jsonl"), bytes(&whole, "trace.jsonl"), "trace of a run killed: {name}");
        let findings = |dir: &std::path::Path| timeless(serde_json::from_slice(&bytes(dir, "findings.json")).unwrap());
        assert_eq!(findings(&dir), findings(&whole));
    }
}

/// Whoever is asked to stop says how to go on, and that it neither ended nor failed.
#[cfg(unix)]
#[test]
fn a_run_that_is_asked_to_stop_ends_with_130() {
    let folder = tempfile::tempdir().unwrap();
    let plan = root().join("plans/model-inversion.toml").display().to_string();
    let child = Command::new(env!("CARGO_BIN_EXE_afterimage"))
        .args(["run", &plan, "--out", "out", "--set", "attack.iterations=1000000"])
        .current_dir(folder.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while !folder.path().join("out/trace.jsonl").exists() {
        assert!(start.elapsed() < Duration::from_secs(120), "never got there");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let talk = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{talk}");
    assert!(talk.contains("go on with: afterimage run --resume out"), "{talk}");
}

#[test]
fn an_attack_without_a_plan_can_be_resumed_too() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, _) = run(folder.path(), "run", &[]);
    let observation = dir.join("observation.safetensors").display().to_string();
    let output = afterimage(&["attack", "analytic", "--observation", &observation, "--out", "a"], folder.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let a = folder.path().join("a");
    let whole = bytes(&a, "reconstruction.safetensors");
    fs::remove_file(a.join("reconstruction.safetensors")).unwrap();
    let output = afterimage(&["attack", "--resume", "a"], folder.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(bytes(&a, "reconstruction.safetensors"), whole);
    assert_eq!(afterimage(&["attack", "--resume", "a", "--set", "x=1"], folder.path()).status.code(), Some(2));
}
