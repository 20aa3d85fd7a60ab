//! The part of a report about labels that were read off a gradient.

use maud::{Markup, html};

use super::page::short;
use crate::LabelsRead;

/// How many are right, beside what chance has right: all there is where no record was rebuilt.
pub(super) fn results(read: LabelsRead) -> Markup {
    let LabelsRead { members, right, by_chance, p_value } = read;
    html! {
        ul class="facts" {
            li { b { (right) " of " (members) } span { "labels of the batch, in no order, read off its gradient" } }
            li { b { (short(by_chance)) } span { "labels that a batch drawn from the controls' labels has in common with those, on average" } }
        }
        p { "Chance of having as many in common: p = " (short(p_value)) ". Which record has which label is not told, and no record was rebuilt." }
    }
}

/// The same in a line, where records were rebuilt too.
pub(super) fn line(read: LabelsRead) -> Markup {
    let LabelsRead { members, right, by_chance, p_value } = read;
    html! { p { "Labels of the batch, in no order: " (right) " of " (members) " right; a batch drawn from the controls' labels has " (short(by_chance)) " in common with them on average (p = " (short(p_value)) ")." } }
}
