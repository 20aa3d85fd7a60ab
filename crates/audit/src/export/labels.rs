//! The part of a report about labels that were read off a gradient.

use maud::{Markup, html};

use super::page::short;
use crate::LabelsRead;

/// How many are right, beside what a guess has right: all there is where no record was rebuilt.
pub(super) fn results(read: LabelsRead) -> Markup {
    let LabelsRead { members, right, guessed, p_value } = read;
    html! {
        ul class="facts" {
            li { b { (right) " of " (members) } span { "labels of the batch, in no order, read off its gradient" } }
            li { b { (guessed) " of " (members) } span { "labels that a guess has right which divides the batch as controls are divided" } }
        }
        p { "Chance that a batch with labels drawn from those of the controls has as many in common with what was read off: p = " (short(p_value)) ". Which record has which label is not told, and no record was rebuilt." }
    }
}

/// The same in a line, where records were rebuilt too.
pub(super) fn line(read: LabelsRead) -> Markup {
    let LabelsRead { members, right, guessed, p_value } = read;
    html! { p { "Labels of the batch, in no order: " (right) " of " (members) " right; a guess that divides it as controls are divided has " (guessed) " (p = " (short(p_value)) ")." } }
}
