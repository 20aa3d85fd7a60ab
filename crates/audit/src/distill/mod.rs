//! Dataset distillation: few records that stand for many.
//!
//! Loo et al. (2023), section 7: rebuilding fewer records than there were is distilling
//! them. With T the records, S the distilled ones, K a neural tangent kernel and
//! α = K⁻¹ y,
//!
//! ```text
//! KIP   ½ ‖y_T − K_TS K_SS⁻¹ y_S‖²                           (Nguyen et al., 2021)
//! RKIP  ½ (α_SᵀK_SS α_S − 2 α_TᵀK_TS α_S + α_TᵀK_TT α_T)     (their Recon-KIP)
//! ```
//!
//! RKIP is the loss of the `ntk` attack in a network of infinite width; RKIP-finite is that
//! attack itself, on a network of finite width that was trained on T, with fewer candidates
//! than records. This module sees the records: it is no attack.

mod kernel;
mod objective;
mod plan;
mod retrain;
mod run;

pub use kernel::Kernel;
pub(crate) use kernel::solved;
pub use objective::{Kip, Rkip};
pub use plan::{DistillPlan, KernelKind, Method, Settings};
pub use retrain::Accuracy;
pub use run::{Distilled, Row, Table, check, run};
