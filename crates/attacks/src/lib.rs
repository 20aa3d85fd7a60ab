//! Reconstruction attacks: what an attacker sees, and what can be rebuilt from it.
//!
//! This crate depends on `afterimage-nn` alone. Training data, labels that the
//! attacker does not have, and controls live in `afterimage-audit`, which
//! depends on this crate and not the other way round: an attack cannot see the
//! truth, because the compiler does not let it.
//!
//! | to | use |
//! | --- | --- |
//! | say what is seen | [`Observation`] |
//! | run an attack on it | [`AnyAttack::run`] with a [`Session`] |
//! | write one | [`Attack`]; [`WeightedSum`] of [`Term`]s, minimised by [`Descent`] |
//! | know what came back | [`Reconstruction`] |

mod analytic;
mod attack;
pub mod autoencoder;
mod baselines;
mod client;
mod confidence;
mod conjugate;
mod dense;
mod descent;
mod exact;
mod factors;
pub mod gradinversion;
mod kinks;
pub mod kkt;
pub mod labels;
mod margin;
pub mod ntk;
mod objective;
mod observation;
mod preprocess;
mod priors;
mod reconstruction;
pub mod registration;
mod restarts;
mod rowspace;
mod session;
pub mod tensor;
pub mod unmix;

pub use analytic::Analytic;
pub use attack::{AnyAttack, Attack, AttackError, Card, Parameter};
pub use baselines::{AeIterations, Inpaint, ModelInversion, WeightRows};
pub use client::{Client, Defence, LocalTraining, Quantise};
pub use confidence::{ALIKE, confidence, explained, merged};
pub use descent::{Descended, Descent, Evaluation, Keep, Problem, TRACE_POINTS, Variable, checkpoint_iteration};
pub use exact::Exact;
pub use kinks::Kinks;
pub use objective::{Contribution, Term, WeightedSum};
pub use observation::{DegradedSeen, GradientSeen, Kind, Model, Observation, PairSeen, View, WeightsSeen};
pub use preprocess::Preprocess;
pub use priors::{PixelRange, Smoothness, TotalVariation, Variation};
pub use reconstruction::{Reconstruction, Stage, Stop, TracePoint};
pub use rowspace::RowSpace;
pub use session::{Hooks, Quiet, Session, Tick};
pub use tensor::TensorDecomposition;
