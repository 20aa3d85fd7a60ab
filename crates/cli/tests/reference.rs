//! docs/reference is made from the code, and stays what the code says.
//!
//! `AFTERIMAGE_WRITE=1 cargo test -p afterimage --test reference` writes it anew.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;
#[path = "reference/keys.rs"]
mod keys;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;

use afterimage_attacks::{AnyAttack, Card, RowSpace};
use common::{afterimage, root};
use keys::{Declared, plain};

const MADE: &str =
    "<!-- Made by `AFTERIMAGE_WRITE=1 cargo test -p afterimage --test reference`; edit the code instead. -->\n\n";

/// Every page, by its name under docs/reference.
fn pages() -> BTreeMap<String, String> {
    let mut pages = BTreeMap::from([("commands.md".to_owned(), commands()), ("plans.md".to_owned(), plans())]);
    let cards = AnyAttack::all().into_iter().map(|attack| (attack.card(), attack.needs().to_string()));
    for (card, needs) in cards.chain([(RowSpace::CARD, "any observation".to_owned())]) {
        pages.insert(format!("attacks/{}.md", card.name), attack(&card, &needs));
    }
    pages
}

/// What `--help` says of every command.
fn commands() -> String {
    let help = |words: &[&str]| {
        let words: Vec<&str> = words.iter().copied().chain(["--help"]).collect();
        let output = afterimage(&words, &root());
        assert!(output.status.success(), "{words:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let first = help(&[]);
    let mut text = format!("# Commands\n\n{MADE}```text\n{}\n```\n", first.trim());
    let names = first.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = names.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    for name in names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help") {
        write!(text, "\n## {name}\n\n```text\n{}\n```\n", help(&[name]).trim()).unwrap();
        if name == "init" {
            write!(text, "\n```text\n{}\n```\n", help(&[name, "federated"]).trim()).unwrap();
        }
    }
    text
}

/// An attack: its card, then the comment at the head of its file.
fn attack(card: &Card, needs: &str) -> String {
    let mut text = format!("# `{}`\n\n{MADE}{}\n\n", card.name, card.summary);
    let facts = [
        ("Sees", needs),
        ("The attacker", card.attacker),
        ("How it works", card.method),
        ("What it needs", card.needs),
        ("What it cannot do", card.limits),
        ("Published", card.citation),
    ];
    for (title, body) in facts {
        writeln!(text, "**{title}.** {}\n", words(body)).unwrap();
    }
    if !card.parameters.is_empty() {
        text.push_str("## Settings\n\n| key | default | range | |\n| --- | --- | --- | --- |\n");
        for setting in card.parameters {
            let cell = |text: &str| words(text).replace('|', "\\|");
            let (default, range) = (cell(setting.default), cell(setting.range));
            writeln!(text, "| `{}` | `{default}` | {range} | {} |", setting.name, cell(setting.purpose)).unwrap();
        }
        text.push('\n');
    }
    text.push_str("## What would have stopped it\n\n");
    card.defences.iter().for_each(|defence| writeln!(text, "- {}", words(defence)).unwrap());
    let file = card.name.replace('-', "_");
    let places = [format!("{file}.rs"), format!("{file}/mod.rs"), format!("baselines/{file}.rs")];
    let source = places.iter().find_map(|place| fs::read_to_string(root().join("crates/attacks/src").join(place)).ok());
    let source = source.unwrap_or_else(|| panic!("{file}: none of {places:?}"));
    let comment: Vec<&str> = source.lines().map_while(|line| line.strip_prefix("//!")).collect();
    let comment: Vec<&str> = comment.iter().map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    writeln!(text, "\n## In full\n\n{}", plain(&comment.join("\n"))).unwrap();
    text
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Every section of a plan.
fn plans() -> String {
    let mut declared = Declared::default();
    for file in [
        "audit/src/plan/mod.rs",
        "audit/src/plan/network.rs",
        "audit/src/plan/victim.rs",
        "audit/src/criterion.rs",
        "audit/src/score.rs",
        "audit/src/align.rs",
        "audit/src/metrics/mod.rs",
        "audit/src/data/split.rs",
        "audit/src/figure/plan.rs",
        "audit/src/sweep/plan.rs",
        "audit/src/policy/plan.rs",
        "audit/src/onion/plan.rs",
        "audit/src/distill/plan.rs",
        "attacks/src/client.rs",
        "nn/src/train/recipe.rs",
        "nn/src/train/schedule.rs",
        "nn/src/train/gauss_newton.rs",
        "nn/src/optim/mod.rs",
        "nn/src/loss.rs",
        "nn/src/network.rs",
        "nn/src/init.rs",
        "nn/src/activation.rs",
        "nn/src/zoo/mod.rs",
        "nn/src/zoo/mlp.rs",
        "nn/src/zoo/lenet.rs",
        "nn/src/zoo/resnet.rs",
        "nn/src/zoo/probe.rs",
    ] {
        declared.read(&root().join("crates").join(file));
    }
    let mut text = format!(
        "# Plans\n\n{MADE}A plan is a TOML file with a section for each part of a run. `--set section.key=value` changes a key; \
         a run writes down its plan with every default filled in. The settings of `[attack]` are on the attack's own page, and \
         `afterimage explain NAME` prints them. Complete examples are under `plans/`.\n\nAt the top: `seed`, of every random \
         number (default `1`).\n"
    );
    // Types that are text, and say how they are written.
    let written = ["Activation", "Nonlinearity", "Init", "Criterion"];
    let sections = [
        ("`[data]`", "DataPlan"),
        ("split", "Order"),
        ("relabel", "Relabel"),
        ("subtract_mean", "MeanKind"),
        ("normalise", "Normalise"),
        ("`[network]`", "NetworkPlan"),
        ("activation", "Activation"),
        ("activation or PReLU", "Nonlinearity"),
        ("init", "Init"),
        ("bias of mlp", "Bias"),
        ("below of probe", "Below"),
        ("`[victim]`, kind = \"classifier\"", "ClassifierPlan"),
        ("share", "Shared"),
        ("rounding", "Rounding"),
        ("`[victim]`, kind = \"federated\"", "FederatedPlan"),
        ("population", "Population"),
        ("share_statistics", "SharedStatistics"),
        ("defence", "Defence"),
        ("local", "LocalTraining"),
        ("`[victim]`, kind = \"autoencoder\"", "AutoencoderPlan"),
        ("degrade", "Degrade"),
        ("mask", "Mask"),
        ("train, pretrain", "Recipe"),
        ("update", "UpdateRule"),
        ("schedule", "Schedule"),
        ("dynamics", "Dynamics"),
        ("gauss_newton", "GaussNewton"),
        ("loss", "Loss"),
        ("`[score]`", "ScorePlan"),
        ("criterion", "Criterion"),
        ("metrics", "Metric"),
        ("alignments", "Alignment"),
        ("`[compute]`", "ComputePlan"),
        ("`[figure]`: a plan that is run at several settings", "FigurePlan"),
        ("points", "PointPlan"),
        ("curves", "CurvePlan"),
        ("show", "Show"),
        ("`[sweep]`, for `afterimage sweep`", "SweepPlan"),
        ("ranges", "Range"),
        ("`[policy]`, for `afterimage policy`", "PolicyPlan"),
        ("`[onion]`, for `afterimage onion`", "OnionPlan"),
        ("`[distill]`, for `afterimage distill`", "Settings"),
    ];
    declared.sections = sections.iter().map(|(title, name)| (name.to_string(), title.to_string())).collect();
    for (title, name) in sections {
        let level = if title.starts_with("`[") { "##" } else { "###" };
        let told = match written.contains(&name) {
            true => declared.spellings(name),
            false => format!("{}\n\n{}", declared.opening(name), declared.section(name)),
        };
        write!(text, "\n{level} {title}\n\n{told}").unwrap();
    }
    text
}

#[test]
fn the_reference_is_what_the_code_says() {
    let folder = root().join("docs/reference");
    let pages = pages();
    if std::env::var("AFTERIMAGE_WRITE").is_ok() {
        fs::create_dir_all(folder.join("attacks")).unwrap();
        pages.iter().for_each(|(name, text)| fs::write(folder.join(name), text).unwrap());
    }
    let how = "AFTERIMAGE_WRITE=1 cargo test -p afterimage --test reference";
    for (name, text) in &pages {
        let there = fs::read_to_string(folder.join(name)).unwrap_or_default();
        let line = there.lines().zip(text.lines()).position(|(a, b)| a != b).map_or(0, |line| line + 1);
        assert!(
            there == *text,
            "docs/reference/{name} has drifted from the code, from line {line} on; write it anew: {how}"
        );
    }
    let kept = fs::read_dir(folder.join("attacks")).unwrap().count();
    assert_eq!(kept, pages.len() - 2, "a page of an attack that is gone");
}

#[test]
fn every_field_of_findings_is_described() {
    let text = fs::read_to_string(root().join("docs/schema/findings.schema.json")).unwrap();
    let schema: serde_json::Value = serde_json::from_str(&text).unwrap();
    for (field, about) in schema["properties"].as_object().unwrap() {
        assert!(about["description"].is_string(), "{field} has no description");
    }
}

#[test]
fn the_defaults_that_cards_tell_are_those_of_the_code() {
    for attack in AnyAttack::all() {
        let told = attack.card();
        let settings = toml::Table::try_from(&attack).unwrap();
        for parameter in told.parameters {
            // What is absent by default is told in words.
            let Some(value) = settings.get(parameter.name) else { continue };
            let same = match (value, parameter.default.parse::<f64>()) {
                (toml::Value::Float(value), Ok(told)) => *value == told,
                (toml::Value::Integer(value), Ok(told)) => *value as f64 == told,
                (value, _) => value.to_string().trim_matches('"') == parameter.default.trim_matches('"'),
            };
            assert!(same, "{}.{}: the code has {value}, the card {}", told.name, parameter.name, parameter.default);
        }
        let known: Vec<&str> = told.parameters.iter().map(|parameter| parameter.name).collect();
        for key in settings.keys().filter(|key| *key != "kind") {
            assert!(known.contains(&key.as_str()), "{}: the card does not tell of `{key}`", told.name);
        }
    }
}
