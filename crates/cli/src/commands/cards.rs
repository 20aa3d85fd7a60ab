//! `list` and `explain`: what attacks there are.

use std::fmt::Write;
use std::process::ExitCode;

use afterimage_attacks::{AnyAttack, Card, RowSpace};
use afterimage_audit::capitalised;
use anyhow::{Context, Result};

/// Everything there is, with what each needs to see.
fn cards() -> Vec<(Card, String)> {
    let attacks = AnyAttack::all().into_iter().map(|attack| (attack.card(), attack.needs().to_string()));
    attacks.chain([(RowSpace::CARD, "any observation".to_owned())]).collect()
}

/// Their names.
pub(crate) fn names() -> Vec<&'static str> {
    cards().into_iter().map(|(card, _)| card.name).collect()
}

/// The attacks, one a line.
pub(crate) fn list() -> Result<ExitCode> {
    for (Card { name, summary, .. }, needs) in cards() {
        println!("{name:<16} {:<38} {summary}", format!("({needs})"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The attack of this name at its default settings.
pub(crate) fn find(name: &str) -> Result<AnyAttack> {
    let known = AnyAttack::all().into_iter().find(|attack| attack.card().name == name);
    known.with_context(|| format!("there is no attack `{name}`"))
}

/// Everything about one attack.
pub(crate) fn explain(name: &str) -> Result<ExitCode> {
    let known = cards().into_iter().find(|(card, _)| card.name == name);
    let (card, needs) = known.with_context(|| format!("there is no attack `{name}`"))?;
    let mut text = format!("{}: {}\n", card.name, card.summary);
    let needs = format!("{}. {}", capitalised(&needs), card.needs);
    for (title, body) in [
        ("Who the attacker is", card.attacker),
        ("How it works", card.method),
        ("What it needs", &needs),
        ("What it cannot do", card.limits),
    ] {
        write!(text, "\n{title}\n{}\n", wrapped(body, "  "))?;
    }
    writeln!(text, "\nSettings")?;
    if card.parameters.is_empty() {
        writeln!(text, "  none")?;
    }
    for parameter in card.parameters {
        let line =
            format!("{} (default {}; {}): {}", parameter.name, parameter.default, parameter.range, parameter.purpose);
        writeln!(text, "{}", wrapped(&line, "  "))?;
    }
    writeln!(text, "\nWhat would have stopped it")?;
    for defence in card.defences {
        writeln!(text, "{}", wrapped(defence, "  "))?;
    }
    write!(text, "\nPublished\n{}\n", wrapped(card.citation, "  "))?;
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// Words in lines of at most 88 letters.
fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last().map_or(0, String::len);
        if line > 0 && line + word.len() > 88 {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.iter().map(|line| format!("{indent}{line}")).collect::<Vec<_>>().join("\n")
}
