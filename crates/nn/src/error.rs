//! What can go wrong, with the thing named and, where there is one, the way out.

use std::path::PathBuf;

/// Every failure of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor has another shape than the operation needs.
    #[error("{what}: expected shape {expected}, found {found:?}")]
    Shape {
        /// The tensor or operation.
        what: String,
        /// The shape that fits, in words where several do.
        expected: String,
        /// The shape that was given.
        found: Vec<usize>,
    },
    /// Two tensors of one operation differ in number type or device.
    #[error("{what}: expected {expected}, found {found}")]
    Mismatch {
        /// The tensor or operation.
        what: String,
        /// What was needed.
        expected: String,
        /// What was given.
        found: String,
    },
    /// A NaN or an infinity where only numbers make sense.
    #[error("{what}: element {index} is {value}; only finite numbers can be used")]
    NonFinite {
        /// The tensor.
        what: String,
        /// Its place in the flattened tensor.
        index: usize,
        /// NaN, inf or -inf.
        value: f64,
    },
    /// A batch without samples.
    #[error("{what}: the batch is empty")]
    EmptyBatch {
        /// The batch.
        what: String,
    },
    /// A network description that does not type-check.
    #[error("layer {layer}: {problem}\n  hint: {hint}")]
    Spec {
        /// Name of the layer.
        layer: String,
        /// What does not fit, with the shapes.
        problem: String,
        /// What would fit.
        hint: String,
    },
    /// A description that cannot be read.
    #[error("cannot read {what}: {problem}")]
    Parse {
        /// What was being read.
        what: String,
        /// Where and why it stopped.
        problem: String,
    },
    /// A parameter that the network does not have, or lacks.
    #[error("parameter {name}: {problem}\n  hint: {hint}")]
    Parameter {
        /// Name of the parameter.
        name: String,
        /// What is wrong with it.
        problem: String,
        /// What to do.
        hint: String,
    },
    /// Labels that the loss cannot use.
    #[error("label {index}: {problem}")]
    Label {
        /// The sample.
        index: usize,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// A setting outside its range.
    #[error("{setting} = {value}: {expected}")]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// The value given.
        value: String,
        /// What is allowed.
        expected: String,
    },
    /// Training whose loss is no longer a number.
    #[error("training diverged: the loss is {loss} after {epochs} epochs\n  hint: {hint}")]
    Diverged {
        /// Epochs that were completed.
        epochs: usize,
        /// NaN or infinity.
        loss: f64,
        /// What to change.
        hint: String,
    },
    /// A device that is not there, or that this build cannot use.
    #[error("device {device}: {problem}")]
    Device {
        /// The device asked for.
        device: String,
        /// Why it cannot be used and what to do.
        problem: String,
    },
    /// The tensor backend failed (out of memory, driver error).
    #[error("{operation} failed: {problem}")]
    Backend {
        /// What was being computed.
        operation: &'static str,
        /// The backend's own words.
        problem: String,
    },
    /// A matrix decomposition that cannot be had.
    #[error("{operation}: {problem}")]
    Algebra {
        /// The decomposition or solve.
        operation: &'static str,
        /// Why.
        problem: String,
    },
    /// Something wrong with what a file holds.
    #[error("{}: {inner}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong; said in full by this error, and so no source of it.
        inner: Box<Error>,
    },
    /// A file that cannot be opened, read or written.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        problem: String,
    },
}

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Wraps a backend failure; used with `map_err`.
    pub(crate) fn backend(operation: &'static str) -> impl FnOnce(candle_core::Error) -> Error {
        move |error| Error::Backend { operation, problem: error.to_string() }
    }

    /// A shape error.
    pub(crate) fn shape(what: impl Into<String>, expected: impl std::fmt::Debug, found: &[usize]) -> Error {
        Error::Shape { what: what.into(), expected: format!("{expected:?}"), found: found.to_vec() }
    }
}

/// The known name closest to a wrong one, if any is close enough to be meant.
///
/// ```
/// let known = ["weight", "bias"];
/// assert_eq!(afterimage_nn::nearest("wieght", known), Some("weight"));
/// assert_eq!(afterimage_nn::nearest("momentum", known), None);
/// ```
pub fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|name| (edit_distance(wrong, name), name))
        .filter(|(distance, name)| *distance <= 1 + name.chars().count() / 3)
        .min()
        .map(|(_, name)| name)
}

/// Levenshtein distance: insertions, deletions and replacements.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, a) in a.chars().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, &b) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
