//! Audits: what attacks bring back, against the truth and against chance.
//!
//! Data become members and controls ([`data`]); a victim is made of the members
//! and gives an observation and the [`Truth`]; the attack sees the observation
//! alone; members *and* controls are [scored](score()) by the same rule; and
//! the numbers allow one of five [verdicts](verdict::Verdict).

mod accuracy;
pub mod align;
pub mod combined;
mod criterion;
pub mod data;
pub mod defences;
pub mod demo;
pub mod distill;
mod error;
pub mod export;
pub mod exposure;
pub mod figure;
pub mod findings;
mod hooks;
mod labels;
mod learnt;
pub mod metrics;
pub mod onion;
pub mod own;
pub mod pipeline;
pub mod plan;
pub mod policy;
pub mod reporting;
pub mod rules;
pub mod run_dir;
mod score;
mod separation;
pub mod statistics;
pub mod sweep;
#[cfg(test)]
mod testing;
mod trial;
mod truth;
pub mod verdict;
pub mod victim;
mod words;

pub use criterion::Criterion;
pub use error::{AuditError, Result};
pub use labels::LabelsRead;
pub use learnt::Learnt;
pub use metrics::Metric;
pub use score::{ByMetric, FALSE_DISCOVERY, Features, Named, Scored, Scores, Scoring, Space, named, score};
pub use separation::Separation;
pub use truth::{Damaged, Sample, Truth};
pub use words::{capitalised, counted, tool};
