//! One page over several runs.

use maud::{Markup, html};

use super::page::{closing, page, prose, short, verdict_box};
use crate::combined::Summary;
use crate::words::counted;

/// The page: the worst verdict, every run with what it found, and where its
/// own report is (`links`, in the order of the summary's runs; none in a copy
/// for the public). What was asked for, names and paths, is for the owner alone.
pub fn combined_page(summary: &Summary, date: &str, links: Option<&[String]>, asked: &[(String, String)]) -> String {
    let several = summary.runs.len();
    let models: std::collections::BTreeSet<&str> = summary.runs.iter().map(|run| run.model_sha256.as_str()).collect();
    let content = html! {
        h1 { "Afterimage audit" @if several > 0 { " of " (counted(several, "run")) } @if !date.is_empty() { ", " (date) } }
        (verdict_box(summary.verdict, &summary.sentence))
        @if !models.is_empty() || !asked.is_empty() {
            h2 { "What was audited" }
            ul {
                @for (name, value) in asked { li { (name) ": " (value) } }
                @for model in &models { li { "Parameters, by the SHA-256 of their names and numbers: " code { (model) } } }
            }
        }
        @if !summary.import.is_empty() { h2 { "The model as it was imported" } ul { @for fact in &summary.import { li { (prose(fact)) } } } }
        @if !summary.runs.is_empty() { (runs(summary, links, models.len() > 1)) }
        @if !summary.shortened.is_empty() {
            h2 { "Attacks that were cut short" }
            ul { @for shortened in &summary.shortened { li { (shortened) } } }
            @if summary.wants_time() { p { "What they did not find, more time might: " code { "afterimage audit --resume DIR --budget TIME" } "." } }
        }
        @if !summary.tried.is_empty() {
            h2 { "Other tries" }
            p { "Of an attack that was made more than once, the try counts that came back with most. The p-value of each try is doubled as often as there were tries before it: whoever tries again may succeed by luck again." }
            ul { @for tried in &summary.tried { li { (tried) } } }
        }
        @if !summary.not_run.is_empty() {
            h2 { "Attacks that were not run" }
            ul { @for other in &summary.not_run { li { b { (other.attack) } ": " (prose(&other.reason)) } } }
        }
        h2 { "What this does not show" }
        p { "A report is a lower bound: other attacks, more time or more knowledge may bring back more." }
        (closing(&summary.tool))
    };
    page(summary.verdict, &content)
}

/// The table of runs, and what each says.
fn runs(summary: &Summary, links: Option<&[String]>, by_model: bool) -> Markup {
    let several = summary.runs.len() > 1;
    html! {
        h2 { "Runs, worst first" }
        label { "Filter " input type="search" data-filter="runs" aria-label="Filter the runs"; }
        div class="scroll" {
            table id="runs" data-sortable {
                thead { tr { th { button { "attack" } } @if by_model { th { button { "model" } } } @for name in ["verdict", "rebuilt", "controls", "recognisable", "p, corrected", "seconds"] {
                    th { button { (name) } }
                } } }
                tbody { @for (index, run) in summary.runs.iter().enumerate() {
                    tr {
                        td { @match links.and_then(|links| links.get(index)) { Some(link) => a href=(link) { (run.attack) }, None => (run.attack) } }
                        @if by_model { td { code { (run.model_sha256.get(..8).unwrap_or_default()) } } }
                        td { (run.verdict.headline()) }
                        @if !run.scored {
                            td data-value="" { "stopped" }
                            @for _ in 0..3 { td data-value="" { "–" } }
                        } @else if let Some(labels) = run.labels {
                            td data-value=(labels.right) { (labels.right) " of " (labels.members) " labels" }
                            td data-value="" { (format!("{:.1} by chance", labels.by_chance)) }
                            td data-value="" { "–" }
                            td data-value=(run.p_corrected) { (short(run.p_corrected)) }
                        } @else if run.members > 0 {
                            td data-value=(run.recovered) { (run.recovered) " of " (run.members) }
                            td data-value=(run.control_recovered) { (run.control_recovered) " of " (run.controls) }
                            @match run.recognisable {
                                Some((members, controls)) => td data-value=(members) { (members) " (controls " (controls) ")" },
                                None => td data-value="" { "–" },
                            }
                            td data-value=(run.p_corrected) { (short(run.p_corrected)) }
                        } @else {
                            td data-value=(run.proven) { (run.proven) " proven" }
                            @for _ in 0..3 { td data-value="" { "–" } }
                        }
                        td data-value=(run.seconds) { @if run.seconds < 0.1 { "< 0.1" } @else { (format!("{:.1}", run.seconds)) } }
                    }
                } }
            }
        }
        @if links.is_some() { p { "The name of an attack leads to its report, with pictures." } }
        @if summary.runs.iter().any(|run| run.recognisable.is_some()) {
            p { "“Recognisable” counts mean squared errors below 1e-2 on values from 0 to 1, wherever the line of “rebuilt” is: a line that controls set may be passed by what is not alike." }
        }
        @if summary.runs.iter().all(|run| run.members == 0) {
            p { "There were no records to compare with: only what proves itself was run." }
        } @else if several {
            p { "Several attacks were tried, so that one of them may succeed by luck: p-values are corrected by Holm's method, and verdicts use the corrected ones. Each run's own is in its report." }
        }
        h2 { "What each run says" }
        @for run in &summary.runs { h3 { (run.attack) ": " (run.verdict.headline()) } p { (prose(&run.sentence)) } }
    }
}
