//! One's own model, from a folder to a report: does the import compute what the model does, which attacks
//! fit it, and what do they bring back?

mod audit;
mod belongs;
mod certify;
mod fit;
mod folder;
mod plans;
mod probe;
mod series;
mod tries;
mod update;

pub use audit::{Noted, Outcome, Request, audit};
pub use fit::{Fit, Fitting, fits};
pub use folder::{Exported, Preprocessing, Training};
pub use probe::{Checked, Compared, TOLERANCE, check};
pub use update::{Meaning, Update};
