//! A section that one command reads in a plan, and the plan without it.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{changed_table, typed};
use crate::{AuditError, Result};

/// The text of a plan.
pub(crate) fn text_of(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| AuditError::file(path, format!("cannot be read: {error}")))
}

/// The section of this name, if there is one, and the text of the rest.
pub(crate) fn taken<T: DeserializeOwned>(text: &str, changes: &[String], name: &str) -> Result<(Option<T>, String)> {
    let mut table = changed_table(text, changes)?;
    let section = table.remove(name).map(|section| typed(section, Some(name))).transpose()?;
    Ok((section, toml::to_string(&table).map_err(|error| unexpected(&error))?))
}

/// The whole plan again.
pub(crate) fn put<T: Serialize>(section: &T, name: &str, base: &str) -> Result<String> {
    let mut table: toml::Table = toml::from_str(base).map_err(|error| unexpected(&error))?;
    table.insert(name.into(), toml::Value::try_from(section).map_err(|error| unexpected(&error))?);
    toml::to_string(&table).map_err(|error| unexpected(&error))
}

fn unexpected(error: &dyn std::fmt::Display) -> AuditError {
    AuditError::plan("plan", error.to_string(), "report this")
}
