//! What tests of the program share.
#![allow(dead_code, clippy::unwrap_used, clippy::panic, unreachable_pub)]

pub mod browser;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn afterimage(arguments: &[&str], folder: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_afterimage")).args(arguments).current_dir(folder).output().unwrap()
}

pub fn plan() -> String {
    root().join("plans/analytic.toml").display().to_string()
}

/// Runs the plan with more arguments; the directory and the findings.
pub fn run(folder: &Path, name: &str, more: &[&str]) -> (PathBuf, Value) {
    let out = folder.join(name);
    let plan = plan();
    let out_text = out.display().to_string();
    let arguments: Vec<&str> =
        ["run", &plan, "--out", &out_text, "--json"].into_iter().chain(more.iter().copied()).collect();
    let output = afterimage(&arguments, folder);
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{talk}");
    (out, serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("standard output is not JSON: {error}")))
}

pub fn bytes(dir: &Path, name: &str) -> Vec<u8> {
    fs::read(dir.join(name)).unwrap()
}

/// Findings without what may differ between equal runs.
pub fn timeless(mut findings: Value) -> Value {
    findings["seconds"] = Value::Null;
    findings
}

/// The attack's settings in a plan, with changes on top, as `key=value`.
pub fn attack_settings(plan: &str, changes: &[&str]) -> Vec<String> {
    let text = fs::read_to_string(root().join(format!("plans/{plan}.toml"))).unwrap();
    let section = text.split("[attack]").nth(1).unwrap_or_default().split("\n[").next().unwrap_or_default();
    let written = section.lines().filter(|line| line.contains('=') && !line.starts_with("kind")).map(str::to_owned);
    let changed = changes.iter().filter_map(|change| change.strip_prefix("attack.")).map(str::to_owned);
    written.chain(changed).collect()
}

/// Fails unless a value follows a schema of docs/schema, which knows all of its fields.
pub fn follows(value: &Value, schema: &str) -> Result<(), String> {
    let schema: Value = serde_json::from_slice(&bytes(&root().join("docs/schema"), schema)).unwrap();
    jsonschema::validate(&schema, value).map_err(|error| format!("{error} at {}", error.instance_path()))?;
    match undescribed(value, &schema, &schema) {
        Some(field) => Err(format!("the schema does not know {field}")),
        None => Ok(()),
    }
}

/// A field that a schema does not describe: readers may ignore it, whoever writes the schema may not.
fn undescribed(value: &Value, schema: &Value, all: &Value) -> Option<String> {
    let referred = schema["$ref"].as_str().and_then(|place| all.pointer(place.trim_start_matches('#')));
    let schema = referred.unwrap_or(schema);
    match value {
        Value::Object(fields) if schema["properties"].is_object() => fields.iter().find_map(|(name, value)| {
            let described = [&schema["properties"][name], &schema["additionalProperties"]];
            let about = described.into_iter().find(|about| about.is_object());
            about.map_or(Some(name.clone()), |about| {
                undescribed(value, about, all).map(|field| format!("{name}.{field}"))
            })
        }),
        Value::Array(values) => values.iter().find_map(|value| undescribed(value, &schema["items"], all)),
        _ => None,
    }
}
