//! Sweeps: the same whatever the number of jobs, and after a kill.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{afterimage, bytes, root};
use serde_json::Value;

const SMALL: [&str; 6] = [
    "data.resize=[8, 8]",
    "data.members=6",
    "data.controls=40",
    "network.hidden=[64, 64]",
    "attack.iterations=90",
    "compute.dtype=f32",
];

fn arguments(out: &str, jobs: &str) -> Vec<String> {
    let plan = root().join("plans/kkt/photos-20.toml").display().to_string();
    let mut words: Vec<String> =
        ["sweep", &plan, "--out", out, "--trials", "6", "--jobs", jobs].map(str::to_owned).to_vec();
    SMALL.iter().for_each(|setting| words.extend(["--set".to_owned(), (*setting).to_owned()]));
    words
}

fn swept(folder: &Path, out: &str, jobs: &str) -> PathBuf {
    let words = arguments(out, jobs);
    let output = afterimage(&words.iter().map(String::as_str).collect::<Vec<_>>(), folder);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    folder.join(out)
}

#[test]
fn a_sweep_is_the_same_by_any_number_of_jobs_and_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let one = swept(folder.path(), "one", "1");
    let two = swept(folder.path(), "two", "3");
    let rebuilt = bytes(&one, "reconstruction.safetensors");
    assert_eq!(bytes(&two, "reconstruction.safetensors"), rebuilt);
    let table: Value = serde_json::from_slice(&bytes(&one, "sweep.json")).unwrap();
    let rows = table["rows"].as_array().unwrap();
    // Six trials, then two, then one.
    let count = |round: u64| rows.iter().filter(|row| row["round"] == round).count();
    assert_eq!((count(0), count(1), count(2)), (6, 2, 1));
    assert_eq!(rows.iter().filter(|row| row["kept"] == true).count(), 2 + 1 + 1);
    // Those that explain most go on; what the truth says is named as the oracle's and stands at the end alone.
    let explained: Vec<f64> = rows[..6].iter().map(|row| row["explained"].as_f64().unwrap_or(-1.0)).collect();
    assert!(explained.windows(2).all(|pair| pair[0] >= pair[1]), "{explained:?}");
    assert!(rows[..8].iter().all(|row| row["oracle_recovered"].is_null()));
    assert!(table["oracle_upper_bound"].is_u64());
    assert!(!one.join("trials").exists() && one.join("sweep.csv").is_file() && one.join("findings.json").is_file());

    // Killed once a trial is done; a run is no way to go on.
    let mut child = Command::new(env!("CARGO_BIN_EXE_afterimage"))
        .args(arguments("killed", "1"))
        .current_dir(folder.path())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let killed = folder.path().join("killed");
    for _ in 0..6000 {
        if killed.join("trials/0-0001.json").exists() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!killed.join("sweep.json").exists(), "it was over before it was killed");
    let wrong = afterimage(&["run", "--resume", "killed"], folder.path());
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("sweep --resume"));
    let output = afterimage(&["sweep", "--resume", "killed"], folder.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(bytes(&killed, "reconstruction.safetensors"), rebuilt);
}

#[test]
fn what_cannot_be_swept_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let plan = root().join("plans/analytic.toml").display().to_string();
    let output = afterimage(&["sweep", &plan, "--out", "none"], folder.path());
    assert!(!output.status.success() && !folder.path().join("none").exists());
    let plan = root().join("plans/kkt/photos-20.toml").display().to_string();
    let output = afterimage(&["sweep", &plan, "--out", "none", "--set", "sweep.ranges=mine"], folder.path());
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(words.contains("sweep.ranges") && words.contains("released"), "{words}");
    assert!(!folder.path().join("none").exists());
}

/// Every plan in the repository can be read.
#[test]
fn every_plan_is_a_plan() {
    fn look(folder: &Path, found: &mut usize) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                look(&path, found);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            *found += 1;
            if text.contains("[distill]") {
                afterimage_audit::distill::DistillPlan::parse(&text, &[]).unwrap();
                continue;
            }
            if text.contains("[policy]") {
                afterimage_audit::policy::PolicyPlan::parse(&text, &[]).unwrap();
                continue;
            }
            if text.contains("[onion]") {
                afterimage_audit::onion::OnionPlan::parse(&text, &[]).unwrap();
                continue;
            }
            let figure = afterimage_audit::figure::FigurePlan::parse(&text, &[]).unwrap();
            let base = figure.map_or(text, |(_, base)| base);
            if let Err(error) = afterimage_audit::plan::Plan::parse(&base, &[]) {
                panic!("{}: {error}", path.display());
            }
        }
    }
    let mut found = 0;
    look(&root().join("plans"), &mut found);
    assert!(found > 30, "{found} plans");
}
