//! The directory of a run: private, complete, and enough to go on from.
//!
//! ```text
//! plan.toml (attack.toml of an attack without a plan)  provenance.json  models/
//! observation.safetensors  truth.safetensors  trace.jsonl  checkpoint/
//! timing.json  reconstruction.safetensors  twin/  findings.json
//! defences.json  findings.sarif  samples.csv  model-card.md  report.html  report-public.html
//! ```
//!
//! While a victim is trained, `training-….safetensors` holds how far that is.
//!
//! That of a sweep has `sweep.toml`, `trials/` while it runs, `sweep.csv` and `sweep.json` too.
//! That of a figure: `plan.toml`, `provenance.json`, `models/`, `cells.jsonl`, `pictures-*.json`,
//! `figure.json`, `figure.csv` and both reports. That of a distillation: `distill.toml`,
//! `rows.jsonl`, `sets/`, `distillation.json`; of an onion: `onion.toml`, `layers.jsonl`,
//! `onion.json`, `onion.csv`; each with `provenance.json` and `report.html`. That of an audit: `audit.toml`, a
//! directory for each attack, `summary.json` and the report over them. That of a policy: `policy.toml`,
//! `cells.jsonl`, `policy.json`, `policy.csv`. That of a demonstration: `demo.toml`, a directory for each run,
//! `demo.json`, `strip.png` and the report over them.
//!
//! Every file appears whole or not at all; what is there tells how far a run got.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use afterimage_nn::io::write_atomically;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{AuditError, Result};

/// What an audit of one's own model was asked for.
pub const AUDIT: &str = "audit.toml";

/// What a demonstration was asked for.
pub const DEMO: &str = "demo.toml";

/// Says that the records of a directory were removed.
pub(crate) const PURGED: &str = "purged";

/// What the folder of an attack of an audit ends with while it is made once more, until the other is judged.
pub(crate) const TRY_EARLIER: &str = ".earlier";

/// What one ends with that the clock ended, and that goes on when there is time.
pub(crate) const TRY_LONGER: &str = ".longer";

/// What one ends with that is being removed.
pub(crate) const TRY_DISCARDED: &str = ".discarded";

/// A run directory that exists.
#[derive(Debug, Clone)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// Makes the directory, readable by its owner alone. Fails if it holds anything.
    pub fn create(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let wrong = |problem: String| AuditError::file(&path, problem);
        if path.exists() {
            let empty = fs::read_dir(&path).map_err(|error| wrong(error.to_string()))?.next().is_none();
            if !empty {
                return Err(wrong("is not empty; choose another directory (what was begun there goes on with `--resume`, where a command has it)".into()));
            }
        }
        fs::create_dir_all(&path).map_err(|error| wrong(format!("cannot be made: {error}")))?;
        private(&path, 0o700)?;
        let dir = Self { path };
        // Reconstructions are personal data: they do not belong into a repository.
        dir.write(".gitignore", b"*\n")?;
        Ok(dir)
    }

    /// Opens the directory of an earlier run.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let holds = |file: &str| path.join(file).is_file();
        if holds("plan.toml") || holds("attack.toml") {
            return Ok(Self { path });
        }
        // They are read, gone on with and reported by a command of their own.
        let problem = match ["distill", "onion", "policy"].iter().find(|command| holds(&format!("{command}.toml"))) {
            Some(command) if holds(PURGED) => format!("was made by `afterimage {command}` and purged"),
            Some(command) => {
                format!("was made by `afterimage {command}`: `afterimage {command} --resume` makes its page again")
            }
            None if holds(AUDIT) || holds(DEMO) => "holds several runs: name one of the directories inside it".into(),
            None if !path.exists() => "does not exist: give the directory that a run ended by naming".into(),
            None => "is not the directory of a run: it holds no plan.toml and no attack.toml".into(),
        };
        Err(AuditError::file(&path, problem))
    }

    /// The runs of an audit or a demonstration; none of another directory.
    pub fn runs_inside(&self) -> Result<Vec<Self>> {
        if !self.has(AUDIT) && !self.has(DEMO) {
            return Ok(Vec::new());
        }
        let wrong = |error: std::io::Error| AuditError::file(&self.path, format!("cannot be listed: {error}"));
        let mut runs = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(wrong)? {
            let path = entry.map_err(wrong)?.path();
            runs.extend(path.is_dir().then_some(Self { path }));
        }
        Ok(runs)
    }

    /// The other tries of an attack of an audit, beside the one that stands.
    pub fn other_tries(&self) -> Vec<Self> {
        let named = |ending: &&str| {
            let mut name = self.path.file_name().map(ToOwned::to_owned).unwrap_or_default();
            name.push(ending);
            self.path.with_file_name(name)
        };
        let places = [TRY_EARLIER, TRY_LONGER, TRY_DISCARDED].iter().map(named);
        places.filter(|path| path.is_dir()).map(|path| Self { path }).collect()
    }

    /// Whether it is one of them.
    pub fn is_other_try(&self) -> bool {
        let name = self.path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        [TRY_EARLIER, TRY_LONGER, TRY_DISCARDED].iter().any(|ending| name.ends_with(ending))
    }

    /// Opens what any command made.
    pub fn any(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        match ["distill.toml", "onion.toml", "policy.toml", AUDIT, DEMO].iter().any(|file| path.join(file).is_file()) {
            true => Ok(Self { path }),
            false => Self::open(path),
        }
    }

    /// Fails if its records were removed: what it went on from is gone.
    pub fn not_purged(&self) -> Result<()> {
        if self.has(PURGED) {
            return Err(AuditError::file(&self.path, "was purged: what it would go on from is gone; begin anew"));
        }
        Ok(())
    }

    /// Opens a directory that holds this file, which says what was to be done in it.
    pub fn holding(path: impl Into<PathBuf>, file: &str) -> Result<Self> {
        let path = path.into();
        if path.join(file).is_file() {
            let dir = Self { path };
            return dir.not_purged().map(|()| dir);
        }
        Err(AuditError::file(&path, format!("cannot be gone on with: it holds no {file}")))
    }

    /// Fails if it is the directory of a figure, which has numbers but no verdict.
    pub fn not_a_figure(&self) -> Result<()> {
        if self.has("cells.jsonl") {
            let problem = "is a figure, not a run: `afterimage run --resume` with it makes its page again";
            return Err(AuditError::file(&self.path, problem));
        }
        Ok(())
    }

    /// A directory inside, made if it is not there.
    pub fn inside(&self, name: &str) -> Result<Self> {
        let path = self.path.join(name);
        fs::create_dir_all(&path).map_err(|error| AuditError::file(&path, format!("cannot be made: {error}")))?;
        private(&path, 0o700)?;
        Ok(Self { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Whether a file is there.
    pub fn has(&self, name: &str) -> bool {
        self.file(name).is_file()
    }

    /// Writes a file whole, readable by its owner alone.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        write_atomically(self.file(name), bytes)?;
        self.seal(name)
    }

    /// Makes a file readable by its owner alone.
    pub fn seal(&self, name: &str) -> Result<()> {
        private(&self.file(name), 0o600)
    }

    /// Writes a value as JSON for people and programs.
    pub fn write_json(&self, name: &str, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(value)
            .map_err(|error| AuditError::file(&self.file(name), error.to_string()))?;
        self.write(name, format!("{text}\n").as_bytes())
    }

    /// Reads what [`write_json`](Self::write_json) wrote.
    pub fn read_json<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let path = self.file(name);
        let wrong = |problem: String| AuditError::file(&path, problem);
        let text = fs::read_to_string(&path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
        serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))
    }

    /// Adds a line to a file that grows.
    pub fn append(&self, name: &str, line: &str) -> Result<()> {
        let path = self.file(name);
        let wrong = |error: std::io::Error| AuditError::file(&path, format!("cannot be written: {error}"));
        let fresh = !path.exists();
        let mut file = fs::OpenOptions::new().create(true).append(true).open(&path).map_err(wrong)?;
        writeln!(file, "{line}").map_err(wrong)?;
        if fresh { self.seal(name) } else { Ok(()) }
    }

    /// The lines of a file that grows, as values. A line that a kill cut short is none, and is taken away.
    pub fn read_lines<T: DeserializeOwned>(&self, name: &str) -> Result<Vec<T>> {
        let text = match fs::read(self.file(name)) {
            // A kill may cut a letter in two.
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(AuditError::file(&self.file(name), format!("cannot be read: {error}"))),
        };
        let read = |line: &str| serde_json::from_str::<T>(line).ok().map(|value| (value, format!("{line}\n")));
        let (values, lines): (Vec<T>, String) = text.lines().filter_map(read).unzip();
        if lines != text {
            self.write(name, lines.as_bytes())?;
        }
        Ok(values)
    }

    /// Removes a file if it is there.
    pub fn remove(&self, name: &str) -> Result<()> {
        gone(&self.file(name), fs::remove_file(self.file(name)))
    }

    /// Removes the files whose name this is true of.
    pub fn remove_where(&self, chosen: impl Fn(&str) -> bool) -> Result<()> {
        let wrong = |error: std::io::Error| AuditError::file(&self.path, format!("cannot be listed: {error}"));
        for entry in fs::read_dir(&self.path).map_err(wrong)? {
            let path = entry.map_err(wrong)?.path();
            if path.file_name().is_some_and(|name| chosen(&name.to_string_lossy())) {
                gone(&path, fs::remove_file(&path))?;
            }
        }
        Ok(())
    }

    /// Removes the directory with all it holds.
    pub fn discard(self) -> Result<()> {
        gone(&self.path, fs::remove_dir_all(&self.path))
    }

    /// Gives a folder inside another name.
    pub fn rename_folder(&self, from: &str, to: &str) -> Result<()> {
        let wrong = |error| AuditError::file(&self.file(from), format!("cannot be renamed to {to}: {error}"));
        fs::rename(self.file(from), self.file(to)).map_err(wrong)
    }

    /// Removes a folder with all it holds, if it is there.
    pub fn remove_folder(&self, name: &str) -> Result<()> {
        gone(&self.file(name), fs::remove_dir_all(self.file(name)))
    }
}

/// Whether something is gone now, or was not there before.
fn gone(path: &Path, removed: std::io::Result<()>) -> Result<()> {
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(AuditError::file(path, format!("cannot be removed: {error}")))
        }
        _ => Ok(()),
    }
}

#[cfg(unix)]
fn private(path: &Path, mode: u32) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(|error| AuditError::file(path, format!("cannot be made private: {error}")))
}

#[cfg(not(unix))]
fn private(_: &Path, _: u32) -> Result<()> {
    Ok(())
}
