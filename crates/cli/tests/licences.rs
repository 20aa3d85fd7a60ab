//! What the program is made of may be given away with it: every dependency's licence is on the list of deny.toml.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::process::Command;

use common::root;
use serde_json::Value;

/// Whether an expression of licences can be met by those that are allowed.
fn allowed(expression: &str, list: &[&str]) -> bool {
    // Older crates write a stroke for OR.
    let expression = expression.replace(" / ", " OR ").replace('/', " OR ");
    let (mut depth, mut ors, mut ands) = (0_i32, Vec::new(), Vec::new());
    for (place, letter) in expression.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ if depth == 0 && expression[place..].starts_with(" OR ") => ors.push(place),
            _ if depth == 0 && expression[place..].starts_with(" AND ") => ands.push(place),
            _ => {}
        }
    }
    let parts = |places: &[usize], word: &str| -> Vec<String> {
        let mut from = 0;
        let mut parts = Vec::new();
        for &place in places {
            parts.push(expression[from..place].to_owned());
            from = place + word.len();
        }
        parts.push(expression[from..].to_owned());
        parts
    };
    if !ors.is_empty() {
        return parts(&ors, " OR ").iter().any(|part| allowed(part, list));
    }
    if !ands.is_empty() {
        return parts(&ands, " AND ").iter().all(|part| allowed(part, list));
    }
    match expression.trim().strip_prefix('(').and_then(|inner| inner.strip_suffix(')')) {
        Some(inner) => allowed(inner, list),
        None => list.contains(&expression.trim()),
    }
}

#[test]
fn every_dependency_may_be_given_away() {
    let deny: toml::Table = toml::from_str(&std::fs::read_to_string(root().join("deny.toml")).unwrap()).unwrap();
    let list: Vec<&str> =
        deny["licenses"]["allow"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let target = ["--filter-platform", "x86_64-unknown-linux-gnu"];
    let metadata = ["metadata", "--format-version", "1", "--locked", "--offline"];
    let output = Command::new(env!("CARGO")).args(metadata).args(target).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 50);
    for package in packages {
        let (name, licence) = (&package["name"], package["license"].as_str().unwrap_or("none"));
        assert!(allowed(licence, &list), "{name}: `{licence}` is not in deny.toml");
        let source = package["source"].as_str().unwrap_or("path");
        assert!(source == "path" || source.starts_with("registry+"), "{name} comes from {source}");
    }
}

#[test]
fn expressions_of_licences_are_read() {
    let list = ["MIT", "Unicode-3.0"];
    for (expression, fits) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("MIT/Apache-2.0", true),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
        ("(MIT OR Apache-2.0) AND GPL-3.0", false),
        ("MIT AND (GPL-3.0 OR Apache-2.0)", false),
    ] {
        assert_eq!(allowed(expression, &list), fits, "{expression}");
    }
}
