//! The first thing a new user runs.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::browser::Browser;
use common::{afterimage, bytes, follows};
use serde_json::Value;

#[test]
fn the_demo_shows_every_leak_and_a_defence() {
    let folder = tempfile::tempdir().unwrap();
    let output = afterimage(&["demo", "--quick", "--out", "shown", "--json"], folder.path());
    let talk = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{talk}");
    let demo: Value = serde_json::from_slice(&output.stdout).unwrap();
    let dir = folder.path().join("shown");
    follows(&demo, "demo.schema.json").unwrap();
    assert_eq!(demo, serde_json::from_slice::<Value>(&bytes(&dir, "demo.json")).unwrap());

    // Every run by its own findings: records come back, but where the gradient is noisy.
    let mut seen = std::collections::BTreeSet::new();
    for run in demo["runs"].as_array().unwrap() {
        let name = run["name"].as_str().unwrap();
        let findings: Value = serde_json::from_slice(&bytes(&dir.join(name), "findings.json")).unwrap();
        follows(&findings, "findings.schema.json").unwrap();
        seen.insert(findings["observation"].as_str().unwrap().to_owned());
        if name == "defended" {
            assert_eq!((&findings["verdict"], &findings["recovered"]), (&"not-found".into(), &0.into()), "{findings}");
            assert!(findings["positive_control"]["recovered"].as_u64().unwrap() > 0);
        } else {
            assert_eq!(findings["verdict"], "reconstructed", "{name}: {}", findings["sentence"]);
            assert!(findings["recovered"].as_u64().unwrap() > 0);
        }
    }
    assert_eq!(seen.len(), 4, "every kind of leak: {seen:?}");
    assert_eq!(demo["labels"]["right"], demo["labels"]["members"]);
    assert_eq!(demo["row_space"]["members_inside"], demo["row_space"]["members"]);
    assert_eq!(demo["row_space"]["controls_inside"], 0);
    let accuracy = |key: &str| demo["cost"][key].as_f64().unwrap();
    assert!(accuracy("undefended") > 0.9 && accuracy("defended") > 0.8, "{}", demo["cost"]);
    for word in ["report: shown/report.html", "afterimage init pytorch", "afterimage audit"] {
        assert!(talk.contains(word), "{word} in {talk}");
    }
    assert!(bytes(&dir, "strip.png").starts_with(b"\x89PNG"));

    // What is done is not done again; the same page comes out.
    let page = bytes(&dir, "report.html");
    let again = afterimage(&["demo", "--resume", "shown"], folder.path());
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    assert!(!String::from_utf8_lossy(&again.stderr).contains("attack …"), "nothing is attacked twice");
    assert_eq!(bytes(&dir, "report.html"), page);
    looked_at(&dir);

    // Of a leak that was stopped in between, the time before counts too.
    let lines = std::fs::read_to_string(dir.join("runs.jsonl")).unwrap();
    let (done, last) = lines.trim_end().rsplit_once('\n').unwrap();
    let last: Value = serde_json::from_str(last).unwrap();
    std::fs::write(dir.join("runs.jsonl"), format!("{done}\n")).unwrap();
    std::fs::write(dir.join(last["name"].as_str().unwrap()).join("spent.json"), "1000.0").unwrap();
    assert!(afterimage(&["demo", "--resume", "shown"], folder.path()).status.success());
    let whole: Value = serde_json::from_slice(&bytes(&dir, "demo.json")).unwrap();
    assert!(whole["seconds"].as_f64().unwrap() > 1000.0, "{}", whole["seconds"]);

    // Numbers stay, records go.
    assert!(afterimage(&["purge", "shown"], folder.path()).status.success());
    let gone =
        ["strip.png", "report.html", "exact/truth.safetensors", "exact/report.html", "ntk/reconstruction.safetensors"];
    assert!(gone.iter().all(|file| !dir.join(file).exists()) && dir.join("demo.json").exists());
}

/// Every picture is there and shown at a whole multiple of its size; nothing is asked of anybody.
fn looked_at(dir: &std::path::Path) {
    let Some(mut browser) = Browser::find() else { return };
    let page = dir.join("report.html").canonicalize().unwrap();
    browser.open(&page);
    assert_eq!(browser.evaluate("document.title"), "Afterimage: What came back");
    let sharp = "[...document.images].every(image => image.complete && image.naturalWidth > 0 \
                 && image.clientWidth % image.naturalWidth === 0)";
    assert_eq!(browser.evaluate(sharp), true);
    assert!(browser.evaluate("document.images.length").as_u64().unwrap() > 60);
    let links = "[...document.querySelectorAll('a')].every(link => link.hash \
                 ? document.getElementById(link.hash.slice(1)) !== null : link.href.endsWith('/report.html'))";
    assert_eq!(browser.evaluate(links), true);
    browser.fits_a_phone();
    browser.was_quiet(&page);
}
