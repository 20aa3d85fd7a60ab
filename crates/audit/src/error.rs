//! What can go wrong in an audit, with the thing named and the way out.

use std::path::Path;

use afterimage_attacks::AttackError;

/// Every failure of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// Data that cannot be read or used.
    #[error("data {source_name}: {problem}")]
    Data {
        /// The file, folder or built-in name.
        source_name: String,
        /// What is wrong with it, and what would be right.
        problem: String,
    },
    /// A plan that says something impossible.
    #[error("plan, {key}: {problem}\n  hint: {hint}")]
    Plan {
        /// The offending key.
        key: String,
        /// What is wrong.
        problem: String,
        /// What to do.
        hint: String,
    },
    /// A file of a run directory that cannot be used.
    #[error("{file}: {problem}")]
    File {
        /// The file.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// The attack failed.
    #[error(transparent)]
    Attack(#[from] AttackError),
    /// A computation failed.
    #[error(transparent)]
    Nn(#[from] afterimage_nn::Error),
}

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, AuditError>;

impl AuditError {
    /// Data that cannot be used.
    pub(crate) fn data(source: impl std::fmt::Display, problem: impl Into<String>) -> Self {
        AuditError::Data { source_name: source.to_string(), problem: problem.into() }
    }

    /// A plan that cannot be followed.
    pub(crate) fn plan(key: &str, problem: impl Into<String>, hint: impl Into<String>) -> Self {
        AuditError::Plan { key: key.into(), problem: problem.into(), hint: hint.into() }
    }

    /// A file that cannot be used.
    pub(crate) fn file(path: &Path, problem: impl Into<String>) -> Self {
        AuditError::File { file: path.display().to_string(), problem: problem.into() }
    }
}
