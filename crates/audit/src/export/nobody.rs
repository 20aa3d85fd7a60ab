//! The parts of a report on an observation whose records nobody gave: what is proven, and what it looks like.

use maud::{Markup, html};

use super::html::Pictures;
use super::picture;
use crate::findings::Findings;

/// What is proven of what came back; there is nothing to count it against.
pub(super) fn results(findings: &Findings) -> Markup {
    html! {
        ul class="facts" {
            li { b { (findings.proven) " of " (findings.candidates) } span { "candidates that provably reproduce what was shared" } }
        }
        p { "There were no records to compare with, so that nothing is scored here. What is proven needs no control: computed again from these candidates, what was shared comes out. What is not proven may be anything." }
        p { "With the records at hand, " code { "afterimage score RUN --truth RECORDS --controls OTHERS" } " says which of them these are." }
    }
}

/// What came back, proven candidates first.
pub(super) fn gallery(pictures: &Pictures) -> Markup {
    let image = |pixels: &[f64]| picture::brightened(pixels, &pictures.shape, picture::brightness(pixels));
    let drawn: Vec<(bool, String)> =
        pictures.alone.iter().filter_map(|(proven, pixels)| Some((*proven, image(pixels)?))).collect();
    html! { @if !drawn.is_empty() {
        h2 { "What came back" }
        ul class="pairs" { @for (place, (proven, image)) in drawn.iter().enumerate() {
            li { figure {
                img src=(image) alt=(format!("candidate {}", place + 1));
                figcaption { "candidate " (place + 1) @if *proven { ", proven" } @else { ", not proven" } }
            } }
        } }
    } }
}
