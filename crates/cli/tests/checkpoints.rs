//! Two checkpoints: audits, their figures, what the owner knows before, and distillation.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::path::Path;

use common::afterimage;
use serde_json::Value;

const PLAN: &str = r#"
[data]
source = "builtin:digits"
members = 6
controls = 40
balanced = true
relabel = "odd-even"
subtract_mean = "scalar"
[network]
kind = "mlp"
hidden = [300, 60]
outputs = 1
init = "lecun-normal"
[victim]
kind = "classifier"
loss = "half-squared"
share = "checkpoints"
[victim.train]
epochs = 2000
update = { kind = "sgd", lr = 1e-3, momentum = 0.9 }
stop_loss = 1e-6
[attack]
kind = "ntk"
[score]
metrics = ["l2"]
criterion = { metric = "l2", below = 1.5 }
alignments = ["greedy"]
[compute]
dtype = "f64"
"#;

fn ran(folder: &Path, arguments: &[&str]) -> (String, String) {
    let output = afterimage(arguments, folder);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn records_come_back_from_two_checkpoints_and_their_owner_was_warned() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("plan.toml"), PLAN).unwrap();
    ran(folder.path(), &["run", "plan.toml", "--out", "r"]);
    let run = folder.path().join("r");
    let findings = json(&run.join("findings.json"));
    common::follows(&findings, "findings.schema.json").unwrap();
    assert_eq!((findings["verdict"].as_str(), findings["recovered"].as_u64()), (Some("reconstructed"), Some(6)));
    // To rounding, not to the likeness that is asked for.
    let scores = findings["metrics"]["l2"]["members"].as_array().unwrap();
    assert!(scores.iter().all(|score| score.as_f64().unwrap() < 0.05), "{scores:?}");
    let alpha = findings["exposure"]["alpha"].as_array().unwrap();
    assert!(alpha.len() == 6 && alpha.iter().all(|alpha| alpha.as_f64().unwrap() > 0.0));
    assert!(findings["exposure"]["kernel_distance"].as_f64().unwrap() > 0.0);
    let report = fs::read_to_string(run.join("report.html")).unwrap();
    assert!(report.contains("Who was exposed before training"));

    // The same |α| before anything is trained.
    let (table, said) = ran(folder.path(), &["exposure", "plan.toml"]);
    let told: Vec<f64> = table.lines().skip(1).map(|line| line.split(',').nth(1).unwrap().parse().unwrap()).collect();
    let mut known: Vec<f64> = alpha.iter().map(|alpha| alpha.as_f64().unwrap()).collect();
    known.sort_by(|a, b| b.total_cmp(a));
    assert_eq!(told.len(), 6);
    assert!(told.iter().zip(&known).all(|(a, b)| (a - b).abs() < 1e-5 * b), "{told:?} {known:?}");
    assert!(said.contains("nothing was trained or attacked"));
}

#[test]
fn figures_of_checkpoints_analyse_their_runs() {
    let folder = tempfile::tempdir().unwrap();
    let figure = r#"
        [figure]
        title = "By records"
        x = "records"
        seeds = 2
        points = [{ x = 4, set = ["data.members=4"] }, { x = 6, set = ["data.members=6"] }]
        [[figure.curves]]
        name = "standard"
        [[figure.curves]]
        name = "linearised"
        set = ["victim.train.dynamics=linearised"]
    "#;
    let search = "zeros = false\nrestarts = 1\niterations = 60\n[score]";
    let plan = PLAN.replace("[score]", search).replace("hidden = [300, 60]", "hidden = [64, 64]");
    fs::write(folder.path().join("plan.toml"), format!("{figure}\n{plan}")).unwrap();
    ran(folder.path(), &["run", "plan.toml", "--out", "f"]);
    let figure = json(&folder.path().join("f/figure.json"));
    common::follows(&figure, "figure.schema.json").unwrap();
    let analyses = figure["analyses"].as_array().unwrap();
    assert_eq!(analyses.len(), 8);
    for analysis in analyses {
        let members = if analysis["point"] == 0 { 4 } else { 6 };
        assert_eq!(analysis["pairs"].as_array().unwrap().len(), members);
        assert_eq!(analysis["exposure"]["alpha"].as_array().unwrap().len(), members);
    }
    let report = fs::read_to_string(folder.path().join("f/report.html")).unwrap();
    for part in ["Reconstruction curves", "Kernel distance against mean error", "|α| against error"] {
        assert!(report.contains(part), "{part}");
    }
}

const DISTILL: &str = r#"
[data]
source = "builtin:digits"
members = 40
controls = 100
balanced = true
relabel = "odd-even"
subtract_mean = "scalar"
[network]
kind = "mlp"
hidden = [64, 64]
outputs = 1
init = "lecun-normal"
[distill]
sizes = [4, 6]
iterations = 150
lr = 0.02
search = { iterations = 60, restarts = 1 }
teacher = { epochs = 300, update = { kind = "sgd", lr = 1e-3, momentum = 0.9 } }
retrain = { epochs = 300, update = { kind = "sgd", lr = 1e-3, momentum = 0.9 } }
[compute]
dtype = "f64"
"#;

#[test]
fn records_are_distilled_kept_and_learnt_from() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("plan.toml"), DISTILL).unwrap();
    let (printed, _) = ran(folder.path(), &["distill", "plan.toml", "--out", "d", "--json"]);
    let table: Value = serde_json::from_str(&printed).unwrap();
    common::follows(&table, "distillation.schema.json").unwrap();
    let rows = table["rows"].as_array().unwrap();
    // All records once, and four methods at two sizes.
    assert_eq!(rows.len(), 9);
    let infinite = |method: &str| {
        let own = rows.iter().find(|row| row["method"] == method && row["size"] != 4).unwrap();
        own["accuracy"]["infinite"].as_f64().unwrap()
    };
    assert!(infinite("rkip") > 0.55 && infinite("full") > 0.6, "{rows:#?}");
    let dir = folder.path().join("d");
    for kind in ["npz", "png", "safetensors"] {
        assert!(dir.join(format!("sets/kip-4-1.{kind}")).is_file(), "{kind}");
    }
    assert!(fs::read_to_string(dir.join("report.html")).unwrap().contains("Against size"));
    // What is done is not done again, and a resumed one ends the same.
    let before = fs::read(dir.join("rows.jsonl")).unwrap();
    let (again, _) = ran(folder.path(), &["distill", "--resume", "d", "--json"]);
    assert_eq!(again, printed);
    assert_eq!(fs::read(dir.join("rows.jsonl")).unwrap(), before);
    // It is no run; its sets can be removed all the same, and are not made again unasked.
    let said = |arguments: &[&str]| String::from_utf8_lossy(&afterimage(arguments, folder.path()).stderr).into_owned();
    assert!(said(&["report", "d"]).contains("afterimage distill --resume"));
    ran(folder.path(), &["purge", "d"]);
    assert!(dir.join("distillation.json").exists());
    assert!(!dir.join("sets").exists() && !dir.join("report.html").exists());
    assert!(said(&["distill", "--resume", "d"]).contains("was purged"));
}

#[test]
fn distillations_that_make_no_sense_say_so() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("plan.toml"), DISTILL).unwrap();
    let refused = |change: &str| {
        let output = afterimage(&["distill", "plan.toml", "--set", change, "--out", "x"], folder.path());
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refused("distill.sizes=[41]").contains("41 records cannot stand for 40"));
    assert!(refused("distill.methods=[]").contains("methods"));
    assert!(refused("distill.methods=[\"kipp\"]").contains("did you mean `kip`"));
    assert!(refused("distill.lr=0").contains("distill.lr"));
    assert!(refused("data.relabel=\"none\"").contains("relabel"));
    assert!(!folder.path().join("x").exists());
}

#[test]
fn the_easiest_to_rebuild_are_taken_away() {
    let folder = tempfile::tempdir().unwrap();
    let onion = "[onion]\nrounds = 3\nremove = 2\nwidth = 60.0\nlr = 2e-4\n";
    let plan = PLAN
        .replace("members = 6", "members = 8")
        .replace("kind = \"ntk\"", "kind = \"ntk\"\nzeros = false\niterations = 30");
    fs::write(folder.path().join("plan.toml"), format!("{plan}{onion}")).unwrap();
    let (_, said) = ran(folder.path(), &["onion", "plan.toml", "--out", "o"]);
    assert!(said.contains("beyond every test control"), "{said}");
    let dir = folder.path().join("o");
    let all = json(&dir.join("onion.json"));
    common::follows(&all, "onion.schema.json").unwrap();
    let layers = all["layers"].as_array().unwrap();
    let of = |rule: &str| layers.iter().filter(|layer| layer["rule"] == rule).cloned().collect::<Vec<Value>>();
    for rule in ["reconstruction", "random"] {
        let own = of(rule);
        let records: Vec<u64> = own.iter().map(|layer| layer["records"].as_u64().unwrap()).collect();
        assert_eq!(records, [8, 6, 4], "{rule}");
        let gone: Vec<&str> =
            own.iter().flat_map(|layer| layer["removed"].as_array().unwrap()).map(|id| id.as_str().unwrap()).collect();
        let mut once = gone.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!((gone.len(), once.len()), (4, 4), "nobody is taken away twice, nor after the last round");
        assert!(own.iter().all(|layer| layer["accuracy"].as_f64().unwrap() > 0.4));
    }
    let attacked = of("reconstruction");
    assert_eq!(attacked[0]["width"], 170, "60 times the root of 8");
    let errors = attacked[0]["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 8);
    assert!(errors.is_sorted_by_key(|error| error.as_f64()), "nearest first");
    let page = fs::read_to_string(dir.join("report.html")).unwrap();
    assert!(page.contains("Reconstruction curves") && page.contains("taken away by random"));
    assert!(fs::read_to_string(dir.join("onion.csv")).unwrap().starts_with("rule,round,records"));
    // Nothing is done twice: a page that is gone is made again from the rounds that are there.
    fs::remove_file(dir.join("report.html")).unwrap();
    let before = fs::read_to_string(dir.join("layers.jsonl")).unwrap();
    ran(folder.path(), &["onion", "--resume", "o"]);
    assert_eq!(fs::read_to_string(dir.join("layers.jsonl")).unwrap(), before);
    assert!(dir.join("report.html").exists());
    ran(folder.path(), &["purge", "o"]);
    assert!(dir.join("report.html").exists(), "it shows numbers alone");
}
