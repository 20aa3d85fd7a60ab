//! What a report shows of damaged samples: the mask, the way from each to what came back, and how well the attacker
//! can tell members from others without the truth.

use maud::{Markup, PreEscaped, html};

use super::page::percent;
use super::plot::{self, Axes, Line};
use super::{Pictures, picture};
use crate::separation::Separation;

/// A mask with its name.
#[derive(Debug, Clone, PartialEq)]
pub struct MaskPicture {
    /// Its name.
    pub name: &'static str,
    /// Shape of a record.
    pub shape: Vec<usize>,
    /// 1 for what is kept.
    pub kept: Vec<f64>,
}

impl MaskPicture {
    /// The share of a record that is lost.
    pub fn lost(&self) -> f64 {
        self.kept.iter().filter(|kept| **kept == 0.0).count() as f64 / self.kept.len().max(1) as f64
    }
}

/// Masks, each with its name and what it loses.
pub(super) fn masks(masks: &[MaskPicture]) -> Markup {
    html! { @if !masks.is_empty() {
        h2 { "Masks" }
        p { "Black is lost." }
        ul class="pairs" { @for mask in masks {
            @if let Some(image) = picture::brightened(&mask.kept, &mask.shape, 1.0) {
                li { figure {
                    img src=(image) alt=(format!("the mask {}", mask.name));
                    figcaption { (mask.name) ": " (percent(mask.lost())) " lost" }
                } }
            }
        } }
    } }
}

/// A damaged sample and where the search for it was.
#[derive(Debug, Clone)]
pub struct Way {
    /// Its name.
    pub name: String,
    /// The record.
    pub record: Vec<f64>,
    /// What was left of it.
    pub damaged: Vec<f64>,
    /// (iteration, estimate, what was taken for kept then).
    pub stages: Vec<(usize, Vec<f64>, Option<Vec<f64>>)>,
    /// What came back of it.
    pub found: Vec<f64>,
}

/// The ways of some members: figures 1 and 2 of the paper on autoencoders.
pub(super) fn ways(pictures: &Pictures) -> Markup {
    let Some(first) = pictures.ways.first() else { return html! {} };
    let image = |pixels: &[f64], what: String| {
        html! { @match picture::brightened(pixels, &pictures.shape, 1.0) {
            Some(uri) => img src=(uri) alt=(what);,
            None => span class="none" { "–" },
        } }
    };
    html! {
        h2 { "From what was left to what came back" }
        p { "Members, most exposed first, along the passes of the search" @if first.stages.iter().any(|(_, _, kept)| kept.is_some()) { "; below each estimate what was taken for kept then (white)" } "." }
        div class="scroll" { table class="gallery" {
            thead { tr { th { "original" } th { "damaged" } @for (pass, _, _) in &first.stages { th { "pass " (pass) } } th { "end" } } }
            tbody { @for way in &pictures.ways { tr {
                td { (image(&way.record, format!("{}, original", way.name))) }
                td { (image(&way.damaged, format!("{}, damaged", way.name))) }
                @for (pass, estimate, kept) in &way.stages { td {
                    (image(estimate, format!("{} after pass {pass}", way.name)))
                    @if let Some(kept) = kept { (image(kept, format!("taken for kept of {} after pass {pass}", way.name))) }
                } }
                td { (image(&way.found, format!("{}, rebuilt", way.name))) }
            } } }
        } }
    }
}

/// How well members are told from others without the truth.
pub(super) fn separation(told: Option<&Separation>) -> Markup {
    let Some(told) = told else { return html! {} };
    let line = |points: &[[f64; 2]]| points.iter().map(|point| (point[0], point[1])).collect();
    let lines = [
        Line { name: "confidence", class: "member", points: line(&told.curve) },
        Line { name: "a coin", class: "chance", points: vec![(0.0, 0.0), (1.0, 1.0)] },
    ];
    let axes = Axes::new(["share of others", "share of members"], [false, false]);
    html! {
        h2 { "Members told from others without the truth" }
        p { "The attacker's own confidence in each candidate, computed from the observation alone. A member has more of it than a record that was never trained on in " (percent(told.auc)) " of all pairs (a coin: 50 %); " (percent(told.above_all)) " of the members have more than every other record." }
        (PreEscaped(plot::chart("Members told from others", &axes, &lines)))
    }
}
