//! `train`: what `run` begins with, by itself.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;

use common::{afterimage, bytes, root, timeless};
use serde_json::Value;

const SMALL: [&str; 8] = [
    "--set",
    "victim.train.epochs=60",
    "--set",
    "data.controls=20",
    "--set",
    "data.members=4",
    "--set",
    "attack.kind=\"ae-iterations\"",
];

#[test]
fn a_victim_is_made_attacked_later_and_loaded_by_another_plan() {
    let folder = tempfile::tempdir().unwrap();
    let plan = root().join("plans/autoencoder/digits-20.toml").display().to_string();
    let call = |arguments: &[&str]| {
        let output = afterimage(arguments, folder.path());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (String::from_utf8_lossy(&output.stderr).into_owned(), output.stdout)
    };
    let (talk, _) = call(&[&["train", &plan, "--out", "trained"][..], &SMALL].concat());
    assert!(talk.contains("weights.safetensors") && talk.contains("run --resume"), "{talk}");
    let trained = folder.path().join("trained");
    assert!(!trained.join("reconstruction.safetensors").exists() && !trained.join("findings.json").exists());
    let weights = bytes(&trained, "weights.safetensors");

    // Attacked later, it is what `run` finds.
    let (_, whole) = call(&[&["run", &plan, "--out", "whole", "--json"][..], &SMALL].concat());
    let (_, later) = call(&["run", "--resume", "trained", "--json"]);
    let findings = |json: &[u8]| timeless(serde_json::from_slice::<Value>(json).unwrap());
    assert_eq!(findings(&later), findings(&whole));
    // Whoever goes on with what is done is told so.
    let (talk, again) = call(&["run", "--resume", "trained", "--json"]);
    assert!(talk.contains("it was finished before"), "{talk}");
    assert_eq!(findings(&again), findings(&whole));
    // And going on with the training changes nothing.
    call(&["train", "--resume", "trained"]);
    assert_eq!(bytes(&trained, "weights.safetensors"), weights);

    // Another plan of the same network takes its weights.
    let load = [
        &["run", &plan, "--out", "loaded", "--json", "--set", "victim.weights=\"trained/weights.safetensors\""][..],
        &SMALL,
    ];
    let (_, loaded) = call(&load.concat());
    assert_eq!(findings(&loaded)["model_sha256"], findings(&whole)["model_sha256"]);

    call(&["purge", "trained"]);
    assert!(!trained.join("weights.safetensors").exists());
}

#[test]
fn plans_that_cannot_be_followed_are_named_by_their_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("mine.toml"), "[data]\nsource = \"builtin:digits\"\nmembrs = 3\n").unwrap();
    for command in ["run", "train", "sweep", "distill", "onion", "policy", "exposure"] {
        let output = afterimage(&[command, "mine.toml"], folder.path());
        let talk = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && talk.contains("error: mine.toml, "), "{command}: {talk}");
    }
    let figure = root().join("plans/autoencoder/digits-masks.toml").display().to_string();
    let output = afterimage(&["train", &figure, "--out", "x"], folder.path());
    assert!(String::from_utf8_lossy(&output.stderr).contains("is the plan of a figure"));
    assert!(!folder.path().join("x").exists());
}
