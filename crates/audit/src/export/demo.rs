//! What a demonstration shows: every leak with what came back of it, on one page.

use maud::{Markup, PreEscaped, html};

use super::page::{bare_page, measured, percent, short};
use super::{Pictures, classifier, picture};
use crate::demo::{Demo, Run, Scene};
use crate::findings::Findings;
use crate::metrics::Direction;
use crate::verdict::Verdict;

/// One run and what there is to see of it.
pub struct Shown<'a> {
    /// What it shows.
    pub scene: &'a Scene,
    /// Its numbers in short.
    pub run: &'a Run,
    /// All of its numbers.
    pub findings: Findings,
    /// Records beside what was rebuilt of them.
    pub pictures: Pictures,
}

/// Members whose pictures are shown of each run.
const SHOWN: usize = 12;
/// Controls.
const CONTROLS: usize = 4;

/// The page.
pub fn demo_page(demo: &Demo, date: &str, shown: &[Shown<'_>]) -> String {
    let title = "What came back";
    let found = demo.runs.iter().filter(|run| run.verdict == Verdict::Reconstructed).count();
    let content = html! {
        h1 { "Afterimage demo, " (date) }
        h2 class="title" { (title) }
        p {
            "Built-in records were given to networks, and what somebody might share of those was attacked: "
            (demo.runs.len()) " leaks in " (short(demo.seconds)) " s on this machine, training included. From " b { (found) } " of them records were rebuilt."
            @if demo.quick { " This is the short version." }
        }
        (table(shown))
        p { "Controls are records of the same kind that the network never saw; they are held to the same test, and say what chance gives." }
        @for shown in shown { (scene(demo, shown)) }
        (readings(demo))
        (reading_on())
        footer { (demo.tool) ". Audit only what you own or are authorised to audit." }
    };
    bare_page(title, &content)
}

/// All runs, one a line.
fn table(shown: &[Shown<'_>]) -> Markup {
    html! { div class="scroll whole" { table id="runs" data-sortable {
        thead { tr { @for name in ["leak", "attack", "verdict", "rebuilt", "controls", "seconds", "report"] { th { button { (name) } } } } }
        tbody { @for Shown { scene, run, .. } in shown { tr {
            td { a href=(format!("#{}", scene.name)) { (scene.title) } }
            td { (run.attack) }
            td { (run.verdict.headline()) }
            td data-value=(run.recovered) { (run.recovered) " of " (run.members) }
            td data-value=(run.control_recovered) { (run.control_recovered) " of " (run.controls) }
            td data-value=(run.seconds) { (format!("{:.1}", run.seconds)) }
            td { a href=(format!("{}/report.html", scene.name)) { "open" } }
        } } }
    } } }
}

/// One leak: who has what, what came back, and what chance looks like.
fn scene(demo: &Demo, shown: &Shown<'_>) -> Markup {
    let Shown { scene, run, findings, pictures } = shown;
    let criterion = &findings.criterion;
    let side = if criterion.better == Direction::Below { "below" } else { "above" };
    html! {
        h2 id=(scene.name) { (scene.title) }
        p { (coded(scene.lead)) }
        p class=(format!("says {}", run.verdict.name())) { strong { (run.verdict.headline()) } " " (run.sentence) }
        @if let Some(plane) = &pictures.plane {
            p { "Large dots are the records, crosses what came back, small dots what the search gave up; shaded where the classifier says yes." }
            (PreEscaped(classifier::plane(plane)))
        } @else {
            (strips(run, pictures))
        }
        @if run.verdict != Verdict::Reconstructed { (cost(demo)) }
        p class="soft" {
            "Rebuilt means: " (criterion.metric) " " (side) " " (measured(criterion.threshold, criterion.metric))
            " (" (criterion.metric.meaning()) "); the rule was fixed before the attack ran. "
            "The attack alone took " (short(findings.seconds)) " s. "
            a href=(format!("{}/report.html", scene.name)) { "Its report" } "."
        }
    }
}

/// Records above what was rebuilt of them, and what was left of them between; controls above the candidate nearest to each.
fn strips(run: &Run, pictures: &Pictures) -> Markup {
    let column = |rows: &[(&[f64], &str)]| {
        let scale = rows.first().map_or(1.0, |(record, _)| picture::brightness(record));
        html! { li { @for (pixels, what) in rows { (image(pixels, pictures, scale, what)) } } }
    };
    let damaged = !pictures.ways.is_empty();
    let shown = if damaged { pictures.ways.len() } else { pictures.members.len().min(SHOWN) };
    html! { @if shown > 0 {
        div class="strips" {
            figure {
                ul class="strip" {
                    @for way in &pictures.ways {
                        (column(&[(&way.record, "original"), (&way.damaged, "what was left"), (&way.found, "what came back")]))
                    }
                    @for (_, record, candidate) in pictures.members.iter().take(if damaged { 0 } else { shown }) {
                        (column(&[(record, "original"), (candidate, "nearest candidate")]))
                    }
                }
                figcaption {
                    @if shown < run.members { "The " (shown) " of " (run.members) " with the nearest candidates" } @else { "All " (run.members) ", nearest candidate first" }
                    @if damaged { ": original, what was left of it, what came back." } @else { ": original above, candidate below." }
                }
            }
            @if !pictures.controls.is_empty() { figure {
                ul class="strip" { @for (_, record, candidate) in pictures.controls.iter().take(CONTROLS) {
                    (column(&[(record, "control"), (candidate, "nearest candidate")]))
                } }
                figcaption { "Chance: the " (pictures.controls.len().min(CONTROLS)) " of " (run.controls) " controls that came nearest to a candidate." }
            } }
        }
    } }
}

/// A record at a whole multiple of its size, so that every pixel is a square.
fn image(pixels: &[f64], pictures: &Pictures, scale: f64, what: &str) -> Markup {
    let side = pictures.shape.last().copied().unwrap_or(1).max(1);
    let shown = side * (SIDE / side).max(1);
    html! { @if let Some(uri) = picture::brightened(pixels, &pictures.shape, scale) {
        img src=(uri) width=(shown) height=(shown) alt=(what);
    } }
}

/// About how wide a record is shown.
const SIDE: usize = 64;

/// What the defence costs.
fn cost(demo: &Demo) -> Markup {
    let cost = &demo.cost;
    // Two standard errors of the difference of two shares.
    let spread = |share: f64| share * (1.0 - share) / cost.tested.max(1) as f64;
    let told = 2.0 * (spread(cost.defended) + spread(cost.undefended)).sqrt();
    html! { p {
        "What the noise costs: after " (cost.rounds) " rounds of training with such clients a model tells " b { (percent(cost.defended)) }
        " of " (cost.tested) " records right that nobody trained on, and " b { (percent(cost.undefended)) } " without noise"
        @if (cost.undefended - cost.defended).abs() < told { ", a difference that so many records do not tell from none" } ". "
        code { "afterimage policy" } " weighs batch sizes, steps, clients, clipping and noise against each other."
    } }
}

/// What is told without a search.
fn readings(demo: &Demo) -> Markup {
    let (labels, space) = (&demo.labels, &demo.row_space);
    html! {
        h2 id="readings" { "Read off without a search" }
        p { "Of the first gradient, by linear algebra alone:" }
        ul class="facts" {
            li { b { (labels.right) " of " (labels.members) } span { "labels read off the last layer (" code { "labels" } "); a batch drawn from the controls' labels has " (short(labels.by_chance)) " in common with them on average" } }
            li { b { (space.samples) } span { "samples, as the rank of the first layer's gradient says (" code { "rowspace" } "); there were " (space.members) } }
            li { b { (space.members_inside) " of " (space.members) } span { "members found in the span of that gradient: whoever has a record can tell that it was in the batch" } }
            li { b { (space.controls_inside) " of " (space.controls) } span { "controls found there" } }
        }
    }
}

/// Where to go from here.
fn reading_on() -> Markup {
    html! {
        h2 id="next" { "Next: your own model" }
        p { "Three commands, from a PyTorch checkpoint to a report that somebody can sign:" }
        pre { "afterimage init pytorch > afterimage_export.py   # a script that writes your model as a folder\nafterimage check exported                        # does the import compute what your model does? which attacks fit?\nafterimage audit exported --members train/ --controls held-out/ --budget 10m" }
        ul {
            li { code { "afterimage explain NAME" } " tells what an attack needs and cannot do; " code { "afterimage list" } " has the names." }
            li { code { "afterimage defences RUN" } " measures what would have stopped a leak, on twins." }
            li { code { "afterimage purge DIR" } " removes the records of runs and keeps their numbers." }
        }
        p { "What comes back here is a lower bound: other attacks, more time or more knowledge may bring back more. And these networks are small and trained to leak; yours may leak less, which an audit tells." }
    }
}

/// Text with what stands between backquotes as code.
fn coded(text: &str) -> Markup {
    html! { @for (place, part) in text.split('`').enumerate() { @if place % 2 == 1 { code { (part) } } @else { (part) } } }
}
