//! The frame of every page: one file, nothing from outside.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::metrics::Metric;
use crate::verdict::Verdict;

const STYLE: &str = include_str!("report.css");
const SCRIPT: &str = include_str!("report.js");
const POLICY: &str = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// A whole page around its content, titled by its verdict.
pub(super) fn page(verdict: Verdict, content: &Markup) -> String {
    bare_page(verdict.headline(), content)
}

/// A whole page around its content.
pub(super) fn bare_page(title: &str, content: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width,initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                title { "Afterimage: " (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main { (content) }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string()
}

/// A text whose words between backticks are code.
pub(super) fn prose(text: &str) -> Markup {
    html! { @for (place, part) in text.split('`').enumerate() { @if place % 2 == 1 { code { (part) } } @else { (part) } } }
}

/// The verdict with its sentence, first on every page.
pub(super) fn verdict_box(verdict: Verdict, sentence: &str) -> Markup {
    let class = format!("verdict {}", verdict.name());
    html! { section class=(class) { strong { (verdict.headline()) } p { (prose(sentence)) } } }
}

/// Where somebody signs, and what the page was made with.
pub(super) fn closing(tool: &str) -> Markup {
    html! {
        div class="sign" { div { "Name, role" } div { "Date, signature" } }
        footer { (tool) ". Audit only what you own or are authorised to audit." }
    }
}

/// A number with three significant digits, in the form that reads best.
pub(super) fn short(value: f64) -> String {
    if value == 0.0 {
        "0".into()
    } else if !(1e-2..1e5).contains(&value.abs()) {
        format!("{value:.2e}")
    } else {
        format!("{:.*}", if value.abs() < 10.0 { 3 } else { 1 }, value)
    }
}

/// A score with its unit.
pub(super) fn measured(value: f64, metric: Metric) -> String {
    format!("{}{}", short(value), metric.unit())
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}
