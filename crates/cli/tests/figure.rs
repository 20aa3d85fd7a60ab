//! Figures: a plan run along an axis, whole and after a kill.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::path::Path;

use common::afterimage;
use serde_json::Value;

const PLAN: &str = r#"
[figure]
title = 'Errors, "small"'
x = "dimension <d>"
seeds = 2
show = "SHOW"
points = [{ x = 10, set = ["data.resize=[3, 3]"] }, { x = 20, set = ["data.resize=[5, 5]"] }]
[[figure.curves]]
name = "published"
set = ["attack.span=moments", "attack.polish=0"]
[[figure.curves]]
name = "polished, <b>ours</b>"
[[figure.curves]]
name = "linear"
set = ["network.activation=identity"]
[data]
source = "builtin:digits"
members = 2
controls = 20
unit_norm = true
relabel = "odd-even"
[network]
kind = "probe"
width = 300
activation = "sigmoid"
[victim]
kind = "federated"
loss = "half-squared"
[attack]
kind = "tensor"
[compute]
dtype = "f64"
"#;

fn figure(folder: &Path, show: &str) -> Value {
    fs::write(folder.join("plan.toml"), PLAN.replace("SHOW", show)).unwrap();
    let output = afterimage(&["run", "plan.toml", "--out", "f", "--json"], folder);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_figure_has_curves_controls_and_what_could_not_be_tried() {
    let folder = tempfile::tempdir().unwrap();
    let figure = figure(folder.path(), "pictures");
    let curves = figure["curves"].as_array().unwrap();
    assert_eq!(curves.len(), 3);
    let mean = |curve: usize, point: usize| curves[curve]["points"][point]["mean"].as_f64();
    assert!(mean(1, 0).unwrap() < 1e-7 && mean(1, 1).unwrap() < 1e-7);
    assert!(mean(0, 0).unwrap() > 1e-3);
    assert_eq!(mean(2, 0), None);
    assert!(curves[2]["points"][0]["obstacles"][0].as_str().unwrap().contains("linear"));
    assert!(curves[1]["points"][0]["control"].as_f64().unwrap() > 0.1);
    assert_eq!(curves[1]["points"][0]["recovered"], 4);
    let page = fs::read_to_string(folder.path().join("f/report.html")).unwrap();
    assert!(page.contains("data:image/png") && page.contains("polished, &lt;b&gt;ours"));
    assert!(
        page.contains("dimension &lt;d&gt;") && page.contains("Errors, &quot;small&quot;") && !page.contains("<d>")
    );
    let public = fs::read_to_string(folder.path().join("f/report-public.html")).unwrap();
    assert!(!public.contains("data:image/png"));
    let table = fs::read_to_string(folder.path().join("f/figure.csv")).unwrap();
    assert_eq!(table.lines().count(), 7);
    common::follows(&figure, "figure.schema.json").unwrap();
    let provenance: Value =
        serde_json::from_slice(&common::bytes(&folder.path().join("f"), "provenance.json")).unwrap();
    common::follows(&provenance, "provenance.schema.json").unwrap();
    // What is for runs says that this is none.
    for command in [&["report", "f"][..], &["score", "f"], &["report", "f", "--out", "c"]] {
        let output = afterimage(command, folder.path());
        let talk = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && talk.contains("is a figure"), "{command:?}: {talk}");
    }
    // Purged, the numbers stay and the pictures go.
    assert!(afterimage(&["purge", "f"], folder.path()).status.success());
    let left: Vec<String> = fs::read_dir(folder.path().join("f"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    assert!(!left.iter().any(|name| name.starts_with("pictures") || name == "report.html"), "{left:?}");
    assert!(left.contains(&"figure.json".to_owned()));
}

#[test]
fn a_figure_may_show_who_is_pointed_to() {
    let folder = tempfile::tempdir().unwrap();
    let figure = figure(folder.path(), "identified");
    let point = &figure["curves"][1]["points"][0];
    assert_eq!((point["mean"].as_f64(), point["seeds"].as_u64()), (Some(1.0), Some(2)));
    assert!(point["control"].as_f64().unwrap() < 0.5);
    common::follows(&figure, "figure.schema.json").unwrap();
    let page = fs::read_to_string(folder.path().join("f/report.html")).unwrap();
    assert!(page.contains("points to them among all members and test controls"), "{page}");
}

#[test]
fn a_figure_goes_on_where_it_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let whole = figure(folder.path(), "curves");
    let dir = folder.path().join("f");
    let cells = fs::read_to_string(dir.join("cells.jsonl")).unwrap();
    // A kill leaves a line cut short.
    let kept: String = cells.lines().take(5).map(|line| format!("{line}\n")).collect();
    fs::write(dir.join("cells.jsonl"), format!("{kept}{{\"curve\": 1, \"po")).unwrap();
    fs::remove_file(dir.join("figure.json")).unwrap();
    let output = afterimage(&["run", "--resume", "f", "--json"], folder.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let again: Value = serde_json::from_slice(&output.stdout).unwrap();
    let values = |figure: &Value| -> Vec<Value> {
        let points = figure["curves"].as_array().unwrap().iter().flat_map(|curve| curve["points"].as_array().unwrap());
        points.flat_map(|point| [point["mean"].clone(), point["control"].clone(), point["members"].clone()]).collect()
    };
    assert_eq!(values(&again), values(&whole));
    // Cells of another plan are not taken for its own.
    let plan = fs::read_to_string(dir.join("plan.toml")).unwrap();
    fs::write(dir.join("plan.toml"), plan.replace("width = 300", "width = 310")).unwrap();
    let output = afterimage(&["run", "--resume", "f", "--json"], folder.path());
    let other: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_ne!(values(&other), values(&whole));
    let gate = afterimage(&["run", "plan.toml", "--out", "g", "--fail-on", "traces"], folder.path());
    assert!(String::from_utf8_lossy(&gate.stderr).contains("has no verdict") && !folder.path().join("g").exists());
}

#[test]
fn a_figure_that_cannot_be_made_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    for (from, to, words) in [
        ("seeds = 2", "seeds = 0", "figure.seeds"),
        ("attack.polish=0", "attack.polsih=0", "did you mean `polish`"),
        ("[5, 5]", "[0, 5]", "size"),
        ("x = \"dimension <d>\"", "", "missing"),
    ] {
        fs::write(folder.path().join("plan.toml"), PLAN.replace("SHOW", "curves").replace(from, to)).unwrap();
        let output = afterimage(&["run", "plan.toml", "--out", "bad"], folder.path());
        let talk = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && talk.contains(words), "{from} -> {to}: {talk}");
        assert!(!folder.path().join("bad").exists());
    }
}

/// Digits from an autoencoder that is trained once: what comes back by mask and method, at two lines.
#[test]
fn what_is_rebuilt_by_mask_and_method() {
    let folder = tempfile::tempdir().unwrap();
    let plan = fs::read_to_string(common::root().join("plans/autoencoder/digits-masks.toml")).unwrap();
    let (head, rest) = plan.split_once("points = [").unwrap();
    let rest = rest.split_once("[data]").unwrap().1;
    let few = r#"
        points = [
            { x = 1, name = "random-50", set = ["victim.degrade.mask=random-50"] },
            { x = 2, name = "stripes", set = ["victim.degrade.mask=stripes"] },
        ]
        curves = [
            { name = "ours", set = ["attack.kind=autoencoder"] },
            { name = "inpainting", set = ["attack.kind=inpaint", "victim.share_mask=true"] },
        ]
        [data]
    "#;
    fs::write(folder.path().join("plan.toml"), format!("{head}{few}{rest}")).unwrap();
    let output = afterimage(&["run", "plan.toml", "--out", "f", "--json", "--set", "data.members=8"], folder.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let figure: Value = serde_json::from_slice(&output.stdout).unwrap();
    common::follows(&figure, "figure.schema.json").unwrap();
    for mask in 0..2 {
        let point = |curve: usize| &figure["curves"][curve]["points"][mask];
        assert!(point(0)["mean"].as_f64().unwrap() >= 0.75, "{}", point(0));
        assert_eq!((&point(0)["control_recovered"], &point(0)["controls"]), (&Value::from(0), &Value::from(100)));
        assert_eq!(point(1)["recovered"], 0, "{}", point(1));
        assert_eq!(point(1)["also"].as_array().unwrap().len(), 4);
        assert!(point(0)["psnr"].as_f64().unwrap() > point(1)["psnr"].as_f64().unwrap() + 20.0);
    }
    // One training, whose model can be loaded by its name.
    let models: Vec<_> = fs::read_dir(folder.path().join("f/models")).unwrap().collect();
    assert_eq!(models.len(), 1);
    assert!(models[0].as_ref().unwrap().path().join("end.safetensors").is_file());
    let page = fs::read_to_string(folder.path().join("f/report-public.html")).unwrap();
    assert!(page.contains("alt=\"the mask stripes\"") && page.contains("stripes: 50.0 % lost"));
    let table = fs::read_to_string(folder.path().join("f/figure.csv")).unwrap();
    assert!(table.lines().next().unwrap().ends_with("recovered_at_1e-3,control_recovered_at_1e-3,psnr"));
    assert!(afterimage(&["purge", "f"], folder.path()).status.success());
    assert!(!folder.path().join("f/models").exists());
}
