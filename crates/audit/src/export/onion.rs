//! Records taken away layer by layer, as a page: accuracy, and what became easy to rebuild
//! (figure 6 of Loo et al., 2023).

use maud::{Markup, PreEscaped, html};

use super::analysis::legend;
use super::figure::class;
use super::page::{bare_page, short};
use super::plot::{self, Axes, Line};
use super::quoted;
use crate::onion::{Layer, Onion, Rule};

/// The page.
pub fn onion_page(onion: &Onion, date: &str) -> String {
    let title = "Taking away who is easy to rebuild";
    let content = html! {
        h1 { "Afterimage onion, " (date) }
        h2 class="title" { (title) }
        p { "After each training the records nearest to a candidate of the attack are taken away, or as many at random; \
            then a new network is trained on the rest. Accuracy in percent on " (onion.tested) " records that none of them saw." }
        div class="scroll" { (table(onion)) }
        (accuracies(onion))
        (curves(onion))
        footer { (crate::tool()) ". Names of records are in onion.json." }
    };
    bare_page(title, &content)
}

fn table(onion: &Onion) -> Markup {
    html! { table {
        thead { tr { th { "taken away by" } th { "records" } th { "width" } th { "accuracy, %" } th { "beyond every test control" }
            th { "median " (onion.metric) } th { "of those taken away" } th { "attack, s" } } }
        tbody { @for layer in &onion.layers { tr {
            th scope="row" { (layer.rule.name()) } td { (layer.records) }
            td { @match layer.width { Some(width) => { (width) } None => { "–" } } }
            td { (format!("{:.1}", 100.0 * layer.accuracy)) }
            @if layer.errors.is_empty() { td { "–" } td { "–" } td { "–" } td { "–" } } @else {
                td { (layer.beyond) }
                td { (median(&layer.errors)) }
                td { (median(&layer.removed_errors)) }
                td { (format!("{:.0}", layer.seconds)) }
            }
        } } }
    } }
}

/// Of values in order.
fn median(sorted: &[f64]) -> String {
    sorted.get(sorted.len() / 2).map_or("–".to_owned(), |value| short(*value))
}

/// What the records that went were worth.
fn accuracies(onion: &Onion) -> Markup {
    let mut rules: Vec<Rule> = Vec::new();
    for layer in &onion.layers {
        if !rules.contains(&layer.rule) {
            rules.push(layer.rule);
        }
    }
    let classes: Vec<String> = (0..rules.len()).map(class).collect();
    let points = |rule: &Rule| {
        let own = onion.layers.iter().filter(|layer| layer.rule == *rule);
        own.map(|layer| (layer.records as f64, 100.0 * layer.accuracy)).collect()
    };
    let lines: Vec<Line<'_>> =
        rules.iter().zip(&classes).map(|(rule, class)| Line { name: "", class, points: points(rule) }).collect();
    html! {
        h2 { "Accuracy" }
        (legend(rules.iter().enumerate().map(|(index, rule)| (index, format!("taken away by {}", rule.name())))))
        (PreEscaped(plot::chart("Accuracy against records left", &Axes::new(["records left", "% told right"], [false, false]), &lines)))
    }
}

/// One reconstruction curve a round.
fn curves(onion: &Onion) -> Markup {
    let attacked: Vec<&Layer> = onion.layers.iter().filter(|layer| !layer.errors.is_empty()).collect();
    let classes: Vec<String> = (0..attacked.len()).map(class).collect();
    let points =
        |layer: &Layer| layer.errors.iter().enumerate().map(|(place, error)| ((place + 1) as f64, *error)).collect();
    let lines: Vec<Line<'_>> =
        attacked.iter().zip(&classes).map(|(layer, class)| Line { name: "", class, points: points(layer) }).collect();
    html! {
        h2 { "Reconstruction curves" }
        p { "How far the nearest candidate is from each record, nearest first. If others became easy with the easiest \
            gone, the curves of later rounds start as low." }
        (legend(attacked.iter().enumerate().map(|(index, layer)| (index, format!("{} records", layer.records)))))
        (PreEscaped(plot::chart("Reconstruction curves", &Axes::new(["record", &onion.metric], [false, false]), &lines)))
    }
}

/// One line for each training.
pub fn onion_csv(onion: &Onion) -> String {
    let mut text = String::from("rule,round,records,width,accuracy,beyond,seconds,removed\n");
    for layer in &onion.layers {
        let width = layer.width.map(|width| width.to_string()).unwrap_or_default();
        let (rule, removed) = (layer.rule.name(), quoted(&layer.removed.join(" ")));
        text.push_str(&format!(
            "{rule},{},{},{width},{:.6},{},{:.1},{removed}\n",
            layer.round, layer.records, layer.accuracy, layer.beyond, layer.seconds
        ));
    }
    text
}
