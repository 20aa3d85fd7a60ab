//! What each setting of federated clients lets through, and what it costs: one table.

use maud::{Markup, html};

use super::page::{bare_page, percent};
use crate::policy::{Cell, Policy};

/// The page.
pub fn policy_page(policy: &Policy, date: &str) -> String {
    let title = "What to ask of clients";
    let content = html! {
        h1 { "Afterimage policy, " (date) }
        h2 class="title" { (title) }
        (answer(policy))
        h2 { "Least noise from which on nothing came back" }
        p { "For each way to share and each batch. Noise is that of each client, in units of its update's root mean square." }
        div class="scroll" { (table(&policy.enough())) }
        h2 { "Every setting" }
        p { "Attacks: " (policy.attacks.join(", ")) ". A record counts as rebuilt if one of them has " (policy.criterion) ". Accuracy on " (policy.tested) " records that nobody trained on." }
        div class="scroll" { (table(&policy.cells.iter().collect::<Vec<_>>())) }
        h2 { "What this does not show" }
        p { "These are proxy data and these attacks, with these settings: a lower bound on what leaks. Intervals are of 95 % for the records that were attacked." }
        footer { (policy.tool) }
    };
    bare_page(title, &content)
}

fn answer(policy: &Policy) -> Markup {
    let most = policy.cells.iter().map(|cell| cell.accuracy).fold(0.0, f64::max);
    html! { @match policy.best() {
        Some(cell) => p {
            "Of the settings at which nothing came back, the most accurate: a batch of " b { (cell.setting.batch) } ", noise " b { (cell.setting.noise) }
            @if cell.setting.clip > 0.0 { ", clipped to " b { (cell.setting.clip) } }
            ", " (cell.setting.steps) " steps, " (cell.setting.clients) " clients averaged: 0 of " (cell.members) " (at most " (percent(cell.interval().1)) "), accuracy "
            b { (percent(cell.accuracy)) } ". The most accurate setting of all has " (percent(most)) "."
        },
        None => p { "Something came back at every setting. Ask for more noise, larger batches or more clients." },
    } }
}

fn table(cells: &[&Cell]) -> Markup {
    let heads =
        ["batch", "steps", "clients", "clipped to", "noise", "rebuilt", "95 % interval", "controls", "accuracy"];
    html! { table data-sortable {
        thead { tr { @for head in heads { th { button { (head) } } } } }
        tbody { @for cell in cells {
            @let (low, high) = cell.interval();
            tr {
                td data-value=(cell.setting.batch) { (cell.setting.batch) }
                td data-value=(cell.setting.steps) { (cell.setting.steps) }
                td data-value=(cell.setting.clients) { (cell.setting.clients) }
                td data-value=(cell.setting.clip) { @if cell.setting.clip > 0.0 { (cell.setting.clip) } @else { "–" } }
                td data-value=(cell.setting.noise) { (cell.setting.noise) }
                td data-value=(cell.recovered as f64 / cell.members.max(1) as f64) { (cell.recovered) " of " (cell.members) }
                td data-value=(low) { (percent(low)) " to " (percent(high)) }
                td data-value=(cell.control_recovered) { (cell.control_recovered) " of " (cell.controls) }
                td data-value=(cell.accuracy) { (percent(cell.accuracy)) }
            }
        } }
    } }
}

/// One line for each setting.
pub fn policy_csv(policy: &Policy) -> String {
    let mut text = String::from(
        "batch,steps,clients,clip,noise,recovered,members,low,high,control_recovered,controls,accuracy,seconds\n",
    );
    for cell in &policy.cells {
        let (setting, (low, high)) = (cell.setting, cell.interval());
        text.push_str(&format!(
            "{},{},{},{},{},{},{},{low:.4},{high:.4},{},{},{:.4},{:.2}\n",
            setting.batch,
            setting.steps,
            setting.clients,
            setting.clip,
            setting.noise,
            cell.recovered,
            cell.members,
            cell.control_recovered,
            cell.controls,
            cell.accuracy,
            cell.seconds
        ));
    }
    text
}
