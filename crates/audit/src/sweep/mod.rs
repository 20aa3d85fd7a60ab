//! Random search over an attack's settings, judged without the truth.
//!
//! Trials at random settings are run for a few iterations; those that explain
//! most go on to the next round with more, and what the last round found is
//! merged into one reconstruction, which is scored as any other. Which trials go on
//! is decided by how much of the weights they
//! [`explain`](afterimage_attacks::explained) alone; [`confidence`](afterimage_attacks::confidence)
//! in single candidates decides between those that are alike. What a choice
//! by the truth would have given stands in the table as what it is, the oracle's.

mod plan;
mod run;

pub use plan::{Range, Ranges, SweepPlan};
pub use run::{Row, Table, run};
