//! One's own model, as a newcomer audits it: exported from PyTorch, checked, attacked, judged.
//!
//! `golden/trial` is recorded; where Python has PyTorch (`AFTERIMAGE_PYTHON`, or `python3`), the trial is made anew too.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{afterimage, bytes, follows, root};
use serde_json::Value;

fn trial() -> PathBuf {
    root().join("golden/trial")
}

fn talk(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Audits a model of a trial; the directory and the summary.
fn audit(trial: &Path, model: &str, members: &str, controls: &str, out: &Path, more: &[&str]) -> (Output, Value) {
    let text = |path: PathBuf| path.display().to_string();
    let (model, members, controls) = (text(trial.join(model)), text(trial.join(members)), text(trial.join(controls)));
    let out = out.display().to_string();
    let arguments = ["audit", &model, "--members", &members, "--controls", &controls, "--out", &out, "--json"];
    let output = afterimage(&[&arguments, more].concat(), trial);
    let summary = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", talk(&output)));
    follows(&summary, "summary.schema.json").unwrap();
    (output, summary)
}

/// What the trial must end in, of folders that were recorded or made anew.
fn verdicts(trial: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let out = |name: &str| folder.path().join(name);
    let (_, leaky) = audit(trial, "leaky", "batch-8.npz", "controls.npz", &out("leaky"), &[]);
    assert_eq!(leaky["verdict"], "reconstructed", "{leaky}");
    assert_eq!(leaky["runs"][0]["attack"], "exact");
    assert_eq!((&leaky["runs"][0]["recovered"], &leaky["runs"][0]["control_recovered"]), (&8.into(), &0.into()));
    let facts = leaky["import"].to_string();
    assert!(
        facts.contains("outputs of 8 samples: the same to") && facts.contains("shows 8 independent samples"),
        "{facts}"
    );
    assert!(leaky["not_run"].to_string().contains("the batch has 8 samples"), "analytic says why not");

    let (_, noisy) = audit(trial, "noisy", "batch-32.npz", "controls.npz", &out("noisy"), &["--budget", "30s"]);
    assert_eq!(noisy["verdict"], "not-found", "{noisy}");
    assert!(noisy["sentence"].as_str().unwrap().contains("rebuilt 8 of 8 on a twin built to leak"), "{noisy}");

    let (_, remembered) = audit(trial, "autoencoder", "members-20.npz", "clipped.npz", &out("autoencoder"), &[]);
    assert_eq!(remembered["verdict"], "reconstructed", "{remembered}");
    let (_, lenet) = audit(trial, "lenet", "batch-1.npz", "controls.npz", &out("lenet"), &["--budget", "60s"]);
    assert_eq!(lenet["verdict"], "reconstructed", "{lenet}");
    assert_eq!(lenet["runs"][0]["attack"], "gradinversion");
}

#[test]
fn the_recorded_trial_ends_as_it_should() {
    verdicts(&trial());
}

#[test]
fn a_trial_made_anew_ends_as_it_should() {
    let python = std::env::var("AFTERIMAGE_PYTHON").unwrap_or_else(|_| "python3".into());
    let has_torch = Command::new(&python).args(["-c", "import torch, numpy"]).output();
    if !has_torch.is_ok_and(|output| output.status.success()) {
        eprintln!("passed over: {python} has no torch and numpy; set AFTERIMAGE_PYTHON to one that has");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // What cannot be written is named, with its place and what to do.
    let program = "import torch.nn as nn, torch, afterimage_export as a\n\
        for last in nn.GELU(), nn.LogSoftmax(1), nn.LSTM(4, 4):\n\
        \x20try: a.export(nn.Sequential(nn.Linear(4, 4), last), 'never', torch.zeros(2, 4))\n\
        \x20except a.Unsupported as error: print(error)\n";
    let assets = root().join("crates/cli/assets");
    let refused = Command::new(&python).args(["-c", program]).env("PYTHONPATH", assets).output().unwrap();
    let refused = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert!(refused.contains("`1` is a GELU, which is not known") && refused.contains("what to do:"), "{refused}");
    assert!(refused.contains("give the logits") && refused.contains("`1` is a LSTM: recurrent"), "{refused}");
    let program = "import torch.nn as nn, torch, afterimage_export as a\n\
        x, one = torch.rand(4, 4), lambda *more: nn.Sequential(nn.Linear(4, 1), *more)\n\
        deep = nn.Sequential(nn.Linear(4, 3))\n\
        def tried(model, **more):\n\
        \x20try: a.export(model, 'never', x, **more)\n\
        \x20except ValueError as error: print(error)\n\
        tried(one(), labels=torch.ones(4))\n\
        tried(one(nn.Sigmoid()), labels=torch.ones(4), loss='logistic')\n\
        tried(deep, gradient={n: None for n, _ in deep.named_parameters()}, batch_size=4)\n\
        tried(deep, before={'0.weight': torch.zeros(4, 3), '0.bias': torch.zeros(3)})\n\
        tried(deep, before={'0.weight': torch.zeros(3, 4)})\n";
    let assets = root().join("crates/cli/assets");
    let refused = Command::new(&python).args(["-c", program]).env("PYTHONPATH", assets).output().unwrap();
    let refused = String::from_utf8_lossy(&refused.stdout).into_owned();
    for part in [
        "the model has one output: say loss=\"logistic\"",
        "the model ends with a sigmoid",
        "gradient has no numbers for '0.weight' (None)",
        "before has '0.weight' of shape (4, 3), and the model of (3, 4)",
        "before has no '0.bias'",
    ] {
        assert!(refused.contains(part), "no `{part}` in {refused}");
    }
    let made = Command::new(python).arg(trial().join("make.py")).arg(folder.path()).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    verdicts(folder.path());
}

/// A copy of a model's folder that a test may spoil.
fn copied(model: &str, to: &Path) -> PathBuf {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(trial().join(model)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
    to.to_owned()
}

#[test]
fn wrong_constants_of_normalisation_are_named_and_nothing_is_claimed() {
    let folder = tempfile::tempdir().unwrap();
    let model = copied("leaky", &folder.path().join("model"));
    fs::write(model.join("preprocessing.toml"), "range = [0.0, 1.0]\nmean = [0.1307]\nstd = [0.9]\n").unwrap();
    let check = afterimage(&["check", model.to_str().unwrap()], folder.path());
    assert_eq!(check.status.code(), Some(1));
    assert!(talk(&check).contains("error: normalisation: `mean`, `std` and `range` of"), "{}", talk(&check));
    let out = folder.path().join("out");
    let data = |name: &str| trial().join(name).display().to_string();
    let (members, controls) = (data("batch-8.npz"), data("controls.npz"));
    let arguments = ["audit", "model", "--members", &members, "--controls", &controls, "--out", out.to_str().unwrap()];
    let output = afterimage(&[&arguments[..], &["--json", "--fail-on", "reconstructed"]].concat(), folder.path());
    assert_eq!(output.status.code(), Some(4), "a gate was asked for and nobody can tell: {}", talk(&output));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["verdict"], "inconclusive");
    assert!(summary["sentence"].as_str().unwrap().contains("normalisation"), "{summary}");
    assert!(String::from_utf8(bytes(&out, "report.html")).unwrap().contains("INCONCLUSIVE"));
}

#[test]
fn check_shows_a_table_with_reasons() {
    let check = afterimage(&["check", "leaky"], &trial());
    assert!(check.status.success(), "{}", talk(&check));
    let text = talk(&check);
    for part in [
        "probe: outputs of 8 samples: the same to",
        "probe: gradient of their loss: the same to",
        "exact          yes",
        "kkt            no",
    ] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    let json = afterimage(&["check", "leaky", "--json"], &trial());
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(json["obstacle"].is_null() && json["attacks"].as_array().unwrap().len() == 10, "{json}");
}

#[test]
fn what_is_missing_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let model = trial().join("autoencoder").display().to_string();
    let data = trial().join("members-20.npz").display().to_string();
    for (place, more, part) in [
        (0, &[][..], "give the records that it was trained on with --members"),
        (1, &["--members", &data][..], "give 400 records of the same kind"),
    ] {
        let out = folder.path().join(place.to_string()).display().to_string();
        let output = afterimage(&[&["audit", &model, "--out", &out][..], more].concat(), folder.path());
        assert!(output.status.success() && talk(&output).contains(part), "{}", talk(&output));
    }
    // A control that is a member is none.
    let out = folder.path().join("same").display().to_string();
    let output = afterimage(&["audit", &model, "--members", &data, "--controls", &data, "--out", &out], folder.path());
    assert_eq!(output.status.code(), Some(1));
    assert!(talk(&output).contains("20 of its records are in"), "{}", talk(&output));
    assert!(!folder.path().join("same").exists(), "an audit that never began leaves nothing behind");
    let output = afterimage(&["audit", "nowhere", "--members", &data], folder.path());
    assert!(talk(&output).contains("hint: `afterimage init pytorch`"), "{}", talk(&output));
}

#[test]
fn an_update_without_truth_is_judged_by_proof_alone() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let model = trial().join("leaky").display().to_string();
    let output = afterimage(&["audit", &model, "--out", out.to_str().unwrap(), "--json"], folder.path());
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", talk(&output)));
    follows(&summary, "summary.schema.json").unwrap();
    assert_eq!(summary["verdict"], "reconstructed", "{summary}");
    assert!(summary["sentence"].as_str().unwrap().contains("provably reproduce"), "{summary}");
    assert!(summary["import"].to_string().contains("shows 8 independent samples"));
    assert_eq!(summary["runs"][0]["proven"], 8);
    // Its page has what came back, and no numbers of nobody.
    let page = String::from_utf8(bytes(&out.join("exact"), "report.html")).unwrap();
    assert!(page.contains("8 of 8") && page.matches("data:image").count() == 8 && !page.contains("0 of 0"), "{page}");
    let public = String::from_utf8(bytes(&out.join("exact"), "report-public.html")).unwrap();
    assert!(public.contains("8 of 8") && !public.contains("data:image"));
    assert!(!String::from_utf8(bytes(&out, "report.html")).unwrap().contains("0 of 0"));
    // Members without controls are not counted, and do not keep what proves itself from being run.
    let members = trial().join("batch-8.npz").display().to_string();
    let out = folder.path().join("members");
    let alone = ["audit", &model, "--members", &members, "--out", out.to_str().unwrap(), "--json"];
    let output = afterimage(&alone, folder.path());
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", talk(&output)));
    assert_eq!(summary["verdict"], "reconstructed", "{summary}");
    assert!(talk(&output).contains("without controls there is nothing to compare them with"), "{}", talk(&output));
    let model = trial().join("noisy").display().to_string();
    let out = folder.path().join("noisy");
    let brief = ["audit", &model, "--out", out.to_str().unwrap(), "--json", "--budget", "20s"];
    let output = afterimage(&brief, folder.path());
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", talk(&output)));
    assert_eq!(summary["verdict"], "inconclusive", "{summary}");
}

/// What is proven is in the gradient, whoever the members that were given are.
#[test]
fn proof_outweighs_members_that_are_others() {
    let folder = tempfile::tempdir().unwrap();
    // Negatives of the batch: nobody's records, in a file as NumPy saves it.
    let batch = afterimage_nn::io::TensorFile::read(trial().join("batch-8.npz")).unwrap();
    let negatives = batch.tensors["x"].map(|value| 1.0 - value).unwrap().to_f64_vec().unwrap();
    let header = format!("{:<117}\n", "{'descr': '<f8', 'fortran_order': False, 'shape': (8, 1, 8, 8), }");
    let mut file = [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes()].concat();
    negatives.iter().for_each(|value| file.extend(value.to_le_bytes()));
    fs::write(folder.path().join("others.npy"), file).unwrap();
    let others = folder.path().join("others.npy").display().to_string();
    // A budget that gradinversion is not waited for.
    let (_, summary) =
        audit(&trial(), "leaky", &others, "controls.npz", &folder.path().join("out"), &["--budget", "4s"]);
    assert_eq!(summary["verdict"], "reconstructed", "{summary}");
    let exact = summary["runs"].as_array().unwrap().iter().find(|run| run["attack"] == "exact").unwrap();
    assert_eq!((&exact["recovered"], &exact["proven"]), (&0.into(), &8.into()), "{summary}");
    assert!(exact["sentence"].as_str().unwrap().contains("None of the 8 members is among them"), "{summary}");
}

/// What is wrong with the data is an error, not a verdict.
#[test]
fn groups_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("groups.csv"), "group\n1\n2\n").unwrap();
    let data = |name: &str| trial().join(name).display().to_string();
    let (model, members, controls) = (data("leaky"), data("batch-8.npz"), data("controls.npz"));
    let arguments =
        ["audit", &model, "--members", &members, "--controls", &controls, "--groups", "groups.csv", "--out", "out"];
    let output = afterimage(&arguments, folder.path());
    assert_eq!(output.status.code(), Some(1), "{}", talk(&output));
    assert!(talk(&output).contains("names 2 groups"), "{}", talk(&output));
    assert!(!folder.path().join("out").exists());
}

#[test]
fn what_a_budget_cut_short_is_said_and_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let (output, brief) =
        audit(&trial(), "lenet", "batch-1.npz", "controls.npz", &folder.path().join("out"), &["--budget", "1s"]);
    // By its plan, or by the clock.
    let cut = &brief["shortened"][0];
    assert!(cut["attack"] == "gradinversion" && cut["made"].as_u64() < cut["usual"].as_u64(), "{brief}");
    // On a fast machine a second is enough: then there is nothing to advise.
    assert_eq!(
        talk(&output).contains("Next: give it more time"),
        brief["verdict"] == "inconclusive" || brief["verdict"] == "traces",
        "{}",
        talk(&output)
    );
    let resumed = afterimage(&["audit", "--resume", "out", "--budget", "2m", "--json"], folder.path());
    let summary: Value = serde_json::from_slice(&resumed.stdout).unwrap_or_else(|_| panic!("{}", talk(&resumed)));
    assert_eq!(summary["verdict"], "reconstructed", "{summary}");
}

#[test]
fn a_gradient_whose_batch_size_nobody_told_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let model = copied("leaky", &folder.path().join("model"));
    let text = fs::read_to_string(model.join("training.toml")).unwrap();
    let untold: String =
        text.lines().filter(|line| !line.starts_with("batch_size")).map(|line| format!("{line}\n")).collect();
    assert_ne!(untold, text);
    fs::write(model.join("training.toml"), untold).unwrap();
    let check = afterimage(&["check", model.to_str().unwrap()], folder.path());
    assert!(talk(&check).contains("the gradient shows 8 samples (`exact` and"), "{}", talk(&check));
}

#[test]
fn audits_resume_are_purged_and_trip_gates() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let (output, first) =
        audit(&trial(), "leaky", "batch-8.npz", "controls.npz", &out, &["--fail-on", "reconstructed"]);
    assert_eq!(output.status.code(), Some(3), "{}", talk(&output));
    // Everything is there: the report alone is made again.
    let again = afterimage(&["audit", "--resume", out.to_str().unwrap(), "--json"], folder.path());
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(again["runs"], first["runs"]);
    // Pages of an audit's runs are made again by its name; all of them can be judged once more.
    let arguments = ["report", "out", "--out", "both"];
    let reported = afterimage(&arguments, folder.path());
    assert!(reported.status.success() && talk(&reported).contains("RECONSTRUCTED"), "{}", talk(&reported));
    let both: Value = serde_json::from_slice(&bytes(&folder.path().join("both"), "summary.json")).unwrap();
    assert_eq!((&both["not_run"], &both["import"]), (&first["not_run"], &first["import"]));
    // One run alone leaves its pictures on the page above.
    let inner = afterimage(&["purge", out.join("exact").to_str().unwrap()], folder.path());
    let above =
        format!("pages of the whole may still show them: afterimage purge {}", out.canonicalize().unwrap().display());
    assert!(inner.status.success() && talk(&inner).contains(&above), "{}", talk(&inner));
    let purged = afterimage(&["purge", out.to_str().unwrap()], folder.path());
    assert!(purged.status.success() && !talk(&purged).contains("pages of the whole"), "{}", talk(&purged));
    for secret in ["truth.safetensors", "reconstruction.safetensors", "observation.safetensors", "report.html"] {
        assert!(!out.join("exact").join(secret).exists(), "{secret} is left");
    }
    assert!(out.join("summary.json").exists() && out.join("exact/findings.json").exists());
    let after = afterimage(&["audit", "--resume", out.to_str().unwrap()], folder.path());
    assert!(talk(&after).contains("was purged"), "{}", talk(&after));
    // Nothing that is published names a label of the batch: it says how many are right.
    let labels = first["runs"].as_array().unwrap().iter().find(|run| run["attack"] == "labels").unwrap();
    assert_eq!((&labels["labels"]["right"], &labels["verdict"]), (&8.into(), &"traces".into()), "{first}");
}

#[test]
fn a_folder_that_changed_is_not_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let model = copied("leaky", &folder.path().join("model"));
    let (out, data) = (folder.path().join("out"), |name: &str| trial().join(name).display().to_string());
    let (members, controls) = (data("batch-8.npz"), data("controls.npz"));
    let arguments = ["audit", "model", "--members", &members, "--controls", &controls, "--out", out.to_str().unwrap()];
    assert!(afterimage(&arguments, folder.path()).status.success());
    fs::write(model.join("training.toml"), "batch_size = 200\n").unwrap();
    let resumed = afterimage(&["audit", "--resume", out.to_str().unwrap()], folder.path());
    assert!(talk(&resumed).contains("was changed since this audit was begun"), "{}", talk(&resumed));
}

#[test]
fn saved_updates_become_gradients() {
    let folder = tempfile::tempdir().unwrap();
    // The weights after one step along the shared gradient, as a client would send them back.
    let model = trial().join("leaky");
    let weights = afterimage_nn::io::TensorFile::read(model.join("weights.safetensors")).unwrap();
    let gradient = afterimage_nn::io::TensorFile::read(model.join("gradient.safetensors")).unwrap();
    let mut after = weights.clone();
    for (name, value) in &mut after.tensors {
        *value = value.combine(1.0, &gradient.tensors[name], -0.5).unwrap();
    }
    let sent = folder.path().join("sent.safetensors");
    after.write(&sent).unwrap();
    let made = folder.path().join("observed");
    let (model, made_text) = (model.display().to_string(), made.display().to_string());
    let arguments = ["init", "federated", &model, "--update", sent.to_str().unwrap(), "--lr", "0.5"];
    let output = afterimage(&[&arguments[..], &["--batch-size", "8", "--out", &made_text]].concat(), folder.path());
    assert!(output.status.success(), "{}", talk(&output));
    let found = afterimage_nn::io::TensorFile::read(made.join("gradient.safetensors")).unwrap();
    for (name, value) in &gradient.tensors {
        let off = value.combine(1.0, &found.tensors[name], -1.0).unwrap();
        assert!(off.dot(&off).unwrap() < 1e-8 * value.dot(value).unwrap().max(1e-6), "{name}");
    }
    let check = afterimage(&["check", &made_text], folder.path());
    assert!(check.status.success() && talk(&check).contains("exact          yes"), "{}", talk(&check));
    // What is taken for weights and is none is doubted.
    let arguments = ["init", "federated", ".", "--update", "gradient.safetensors", "--lr", "0.5", "--out"];
    let doubted = folder.path().join("doubted").display().to_string();
    let output = afterimage(&[&arguments[..], &[&doubted]].concat(), Path::new(&model));
    assert!(talk(&output).contains("warning:") && talk(&output).contains("--sent gradient"), "{}", talk(&output));
    // Weights that were rounded to half precision on the way hide much of so small a step.
    let mut rounded = weights.clone();
    for (name, value) in &mut rounded.tensors {
        let half = |value: f64| f64::from(f32::from_bits((value as f32).to_bits() & !0x1fff));
        *value = value.combine(1.0, &gradient.tensors[name], -0.01).unwrap().map(half).unwrap();
    }
    rounded.write(&sent).unwrap();
    let coarse = folder.path().join("coarse").display().to_string();
    let arguments = ["init", "federated", &model, "--update", sent.to_str().unwrap(), "--lr", "0.01", "--out", &coarse];
    let output = afterimage(&arguments, folder.path());
    assert!(talk(&output).contains("weights of 11 significant bits: rounding them makes up"), "{}", talk(&output));
    // Nothing learnt is no update.
    let same = ["init", "federated", &model, "--update", "weights.safetensors", "--lr", "0.5", "--out", "elsewhere"];
    let output = afterimage(&same, Path::new(&model));
    assert!(talk(&output).contains("nothing was learnt"), "{}", talk(&output));
}

#[test]
fn the_printed_script_is_the_one_that_made_the_trial() {
    let printed = afterimage(&["init", "pytorch"], &trial());
    assert_eq!(printed.stdout, fs::read(root().join("crates/cli/assets/afterimage_export.py")).unwrap());
}

/// What the attacks would take for granted, and nobody told or somebody turned round.
#[test]
fn gradients_of_an_unknown_mode_and_with_their_sign_turned_are_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let model = copied("lenet", &folder.path().join("model"));
    let check = || talk(&afterimage(&["check", model.to_str().unwrap()], folder.path()));
    let (mode, sign) = ("is taken to have used its running statistics", "looks as if its sign were turned");
    assert!(!check().contains(mode) && !check().contains(sign), "{}", check());
    let text = fs::read_to_string(model.join("training.toml")).unwrap();
    let untold: String =
        text.lines().filter(|line| !line.starts_with("mode")).map(|line| format!("{line}\n")).collect();
    assert_ne!(untold, text);
    fs::write(model.join("training.toml"), untold).unwrap();
    assert!(check().contains(mode) && !check().contains(sign), "{}", check());
    fs::write(model.join("training.toml"), text).unwrap();
    let path = model.join("gradient.safetensors");
    let mut gradient = afterimage_nn::io::TensorFile::read(&path).unwrap();
    gradient.tensors.values_mut().for_each(|value| *value = value.map(|slope| -slope).unwrap());
    gradient.write(&path).unwrap();
    assert!(check().contains(sign) && !check().contains(mode), "{}", check());
}

/// The owner has the members: what is said of their gradient can be checked before anything is attacked.
#[test]
fn a_gradient_is_held_against_that_of_the_members() {
    let folder = tempfile::tempdir().unwrap();
    let said = |model: &Path, members: &str, out: &str| {
        let place = folder.path().join(out);
        let path = model.display().to_string();
        let data = |name: &str| trial().join(name).display().to_string();
        let (members, controls) = (data(members), data("controls.npz"));
        let arguments =
            ["audit", &path, "--members", &members, "--controls", &controls, "--budget", "3s", "--json", "--out"];
        let output = afterimage(&[&arguments[..], &[place.to_str().unwrap()]].concat(), folder.path());
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", talk(&output)));
        (summary["sentence"].as_str().unwrap().to_owned(), summary["import"].to_string())
    };
    let turn = |model: &Path, factor: f64| {
        let path = model.join("gradient.safetensors");
        let mut gradient = afterimage_nn::io::TensorFile::read(&path).unwrap();
        gradient.tensors.values_mut().for_each(|value| *value = value.map(|slope| factor * slope).unwrap());
        gradient.write(&path).unwrap();
    };
    let model = copied("leaky", &folder.path().join("larger"));
    turn(&model, 3.0);
    let (_, import) = said(&model, "batch-8.npz", "as-large");
    assert!(import.contains("but for its size, which is 3.000 times theirs"), "{import}");
    // Eight of ten classes may fall either way: only the members tell.
    turn(&model, -1.0);
    let (sentence, _) = said(&model, "batch-8.npz", "turned");
    assert!(sentence.contains("its sign was turned") && sentence.contains("cannot tell"), "{sentence}");
    // Of a network that was normalised by its batch, the other mode is another gradient.
    let model = copied("lenet", &folder.path().join("mode"));
    let (_, import) = said(&model, "batch-1.npz", "eval");
    assert!(
        import.contains("the gradient is that of the members (cosine 1.0000, size 1.000 times theirs)"),
        "{import}"
    );
    let text = fs::read_to_string(model.join("training.toml")).unwrap().replace("mode = \"eval\"", "mode = \"train\"");
    fs::write(model.join("training.toml"), text).unwrap();
    let (sentence, _) = said(&model, "batch-1.npz", "train");
    assert!(sentence.contains("set mode = \"eval\" in training.toml"), "{sentence}");
}

/// Records without labels: a twin takes classes in turn, and the owner is told.
#[test]
fn a_twin_of_records_without_labels_has_several_classes() {
    let trial = root().join("golden/trial");
    let folder = tempfile::tempdir().unwrap();
    let strip = |name: &str| {
        let file = std::fs::File::open(trial.join(name)).unwrap();
        let mut archive = zip::ZipArchive::new(file).unwrap();
        let mut written = zip::ZipWriter::new(std::fs::File::create(folder.path().join(name)).unwrap());
        written.raw_copy_file(archive.by_name("x.npy").unwrap()).unwrap();
        written.finish().unwrap();
        folder.path().join(name).display().to_string()
    };
    let (members, controls) = (strip("batch-32.npz"), strip("controls.npz"));
    let noisy = trial.join("noisy").display().to_string();
    let arguments =
        ["audit", &noisy, "--members", &members, "--controls", &controls, "--budget", "20s", "--out", "told"];
    let output = afterimage(&arguments, folder.path());
    let talk = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && talk.contains("the records carry no labels"), "{talk}");
    let plan = std::fs::read_to_string(folder.path().join("told/exact/plan.toml")).unwrap();
    assert!(plan.contains("twin_classes = 10"), "{plan}");
    // More records than the batch had would only dilute what is counted.
    let output = afterimage(&["audit", &noisy, "--members", &controls, "--controls", &members], folder.path());
    let talk = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && talk.contains("the batch behind the gradient had 32"), "{talk}");
}

/// Where the controls alone are prepared otherwise, it is not the members that are blamed.
#[test]
fn of_members_and_controls_those_in_another_range_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (220, 1, 8, 8), }";
    let header = format!("{header:<117}\n");
    let mut array = b"\x93NUMPY\x01\x00".to_vec();
    array.extend((header.len() as u16).to_le_bytes());
    array.extend(header.as_bytes());
    array.extend((0..220 * 64).flat_map(|i| ((i * 37 % 256) as f32).to_le_bytes()));
    let path = folder.path().join("loud.npz");
    let mut archive = zip::ZipWriter::new(fs::File::create(&path).unwrap());
    archive.start_file("x.npy", zip::write::SimpleFileOptions::default()).unwrap();
    std::io::Write::write_all(&mut archive, &array).unwrap();
    archive.finish().unwrap();

    let trial = root().join("golden/trial");
    let [model, members] = ["leaky", "batch-8.npz"].map(|name| trial.join(name).display().to_string());
    let controls = path.display().to_string();
    let arguments = ["audit", &model, "--members", &members, "--controls", &controls, "--budget", "5s", "--out", "out"];
    let output = afterimage(&arguments, folder.path());
    assert_eq!(output.status.code(), Some(1), "{}", talk(&output));
    assert!(talk(&output).contains("loud.npz: prepared as preprocessing.toml says"), "{}", talk(&output));
}
