//! What users read, as it stands: error texts, what a run says, how reports are laid out.
//!
//! Help texts stand in docs/reference/commands.md, which `reference.rs` holds to the code. A change here is meant to be looked
//! at: `INSTA_UPDATE=always cargo test -p afterimage --test snapshots`, then read the difference.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::path::Path;

use common::{afterimage, plan, run};

/// What a command says, without what differs from run to run.
fn said(arguments: &[&str], folder: &Path) -> String {
    let output = afterimage(arguments, folder);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let shown: Vec<&str> = arguments.iter().map(|word| word.rsplit('/').next().unwrap_or(word)).collect();
    let text = format!("$ afterimage {}\n{out}{err}exit {}\n", shown.join(" "), output.status.code().unwrap());
    let folder = folder.canonicalize().unwrap();
    let plans = plan().replace("analytic.toml", "");
    text.replace(&format!("{}/", folder.display()), "").replace(&plans, "")
}

#[test]
fn errors() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan();
    fs::write(folder.path().join("cut.bin"), [0; 100]).unwrap();
    fs::write(folder.path().join("words.safetensors"), b"not tensors").unwrap();
    let cases: &[&[&str]] = &[
        &["run", "absent.toml"],
        &["run", &plan, "--set", "data.membres=2"],
        &["run", &plan, "--set", "data.members=many"],
        &["run", &plan, "--set", "data.source=cut.bin"],
        &["run", &plan, "--set", "data.source=builtin:dogs"],
        &["run", &plan, "--set", "data.members=40", "--out", "forty"],
        &["run", &plan, "--set", "attack={ kind = \"kkt\" }"],
        &["run", &plan, "--device", "cuda:0"],
        &["run", "--resume", "absent"],
        &["attack", "analytik", "--observation", "words.safetensors"],
        &["attack", "analytic", "--observation", "words.safetensors"],
        &["check", "absent"],
        &["audit", "absent"],
        &["explain", "nothing"],
        &["purge", "absent"],
        &["demo", "--resume", "absent"],
        &["rum", "plan.toml"],
        &["run", &plan, "--fail-above", "2"],
    ];
    let all: Vec<String> = cases.iter().map(|arguments| said(arguments, folder.path())).collect();
    insta::assert_snapshot!(all.join("\n"));
}

#[test]
fn what_a_run_says() {
    let folder = tempfile::tempdir().unwrap();
    let said = said(&["run", &plan(), "--out", "run"], folder.path());
    // Defences are measured unasked where the run was quick: that is up to the clock.
    let lines: Vec<&str> = said.lines().filter(|line| !line.starts_with("defence: ")).collect();
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn explanations() {
    let folder = tempfile::tempdir().unwrap();
    let all = [said(&["list"], folder.path()), said(&["explain", "exact"], folder.path())];
    insta::assert_snapshot!(all.join("\n"));
}

/// Headings, heads of tables and captions of a page, in their order.
fn structure(page: &str) -> String {
    let mut lines = Vec::new();
    for (tag, indent) in
        [("h1", ""), ("h2", "  "), ("h3", "    "), ("th", "      | "), ("figcaption", "      figure: ")]
    {
        let mut from = 0;
        while let Some(start) = page[from..].find(&format!("<{tag}")).map(|start| from + start) {
            let Some(end) = page[start..].find(&format!("</{tag}>")).map(|end| start + end) else { break };
            from = end;
            // `<th` is also how `<thead` begins.
            if !page[start + 1 + tag.len()..].starts_with(['>', ' ']) {
                from = start + 1;
                continue;
            }
            let mut inside = true;
            let words: String = page[start + 1..end]
                .chars()
                .filter(|letter| {
                    let was = inside;
                    match letter {
                        '<' => inside = true,
                        '>' => inside = false,
                        _ => {}
                    }
                    !was && !inside && *letter != '>'
                })
                .collect();
            lines.push((start, format!("{indent}{words}")));
        }
    }
    lines.sort();
    let time = |line: &str| line.split(", 20").next().unwrap_or(line).to_owned();
    let mut text: Vec<String> = lines.iter().map(|(_, line)| time(line)).collect();
    text.dedup();
    text.join("\n")
}

#[test]
fn how_reports_are_laid_out() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, _) = run(folder.path(), "run", &[]);
    // On a busy machine they are not measured unasked.
    assert!(afterimage(&["defences", "run"], folder.path()).status.success());
    assert!(afterimage(&["report", "run", "run", "--out", "both"], folder.path()).status.success());
    let page = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(dir.join("report.html").is_file());
    let pages = ["run/report.html", "run/report-public.html", "both/report.html"];
    let all: Vec<String> = pages.iter().map(|name| format!("{name}\n{}", structure(&page(name)))).collect();
    insta::assert_snapshot!(all.join("\n\n"));
}
