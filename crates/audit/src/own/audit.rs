//! Everything that fits a model, cheapest first, within a budget; and one report over it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::belongs::Belonging;
use super::certify::{certify, read_off};
use super::fit::{Fit, Fitting, fits, observations};
use super::folder::Exported;
use super::plans::Records;
use super::probe::check;
use super::series::Series;
use crate::combined::{About, NotRun, Summary};
use crate::pipeline::{self, Checked, Watcher};
use crate::plan::Plan;
use crate::reporting;
use crate::run_dir::RunDir;
use crate::{AuditError, Result};

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The model's folder.
    pub folder: PathBuf,
    /// Records it was trained on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<PathBuf>,
    /// Records it never saw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controls: Option<PathBuf>,
    /// One group for each record, members first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<PathBuf>,
    /// Seconds that all attacks may take together.
    pub budget: f64,
    /// Seed of every random number.
    pub seed: u64,
    /// Hash of the folder's files, when the audit was begun.
    pub folder_sha256: String,
}

impl Request {
    /// A hash of a folder's files, by name.
    pub fn fingerprint(folder: &Path) -> Result<String> {
        let wrong = |error: std::io::Error| AuditError::file(folder, format!("cannot be read: {error}"));
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(wrong)? {
            let path = entry.map_err(wrong)?.path();
            if path.is_file() {
                let bytes = std::fs::read(&path).map_err(wrong)?;
                files.push(format!("{} {}", path.display(), pipeline::hash(&bytes)));
            }
        }
        files.sort();
        Ok(pipeline::hash(files.join("\n").as_bytes()))
    }
}

/// How an audit ended.
#[derive(Debug)]
pub enum Outcome {
    /// With a verdict.
    Judged(Box<Summary>),
    /// It was stopped, and can be gone on with.
    Stopped,
}

/// Writes down how a run of an audit is made, before it is.
pub type Noted<'a> = dyn FnMut(&Plan, Checked, &RunDir) -> Result<()> + 'a;

/// Audits a model: its probe, then every attack that fits. Runs that were finished before are not run again.
pub fn audit(request: &Request, out: &RunDir, noted: &mut Noted<'_>, watcher: &mut dyn Watcher) -> Result<Outcome> {
    watcher.stage("probe");
    if Request::fingerprint(&request.folder)? != request.folder_sha256 {
        let problem = "was changed since this audit was begun; begin a new one";
        return Err(AuditError::file(&request.folder, problem));
    }
    let exported = Exported::read(&request.folder)?;
    let checked = check(&exported)?;
    let unknown = |reason: &str| -> Result<Outcome> {
        let summary = Summary::inconclusive(reason);
        reporting::publish_summary(&summary, &[], out)?;
        Ok(Outcome::Judged(Box::new(summary)))
    };
    if let Some(obstacle) = &checked.obstacle {
        return unknown(&match exported.probe {
            Some(_) => format!("the imported network does not reproduce its probe: {obstacle}."),
            None => format!("{obstacle}."),
        });
    }
    // What nothing fits needs no records.
    let fitting = fits(&exported, None)?;
    if !fitting.iter().any(|fit| fit.fitting == Fitting::Fits) {
        let about = About { not_run: unfit(&fitting), import: checked.notes, ..About::default() };
        return Ok(Outcome::Judged(Box::new(reporting::combine(&[], about, out)?)));
    }
    let (members, controls) = match (&request.members, &request.controls) {
        (Some(members), Some(controls)) => (members, controls),
        // Proof needs nobody to compare with.
        (members, controls) if exported.gradient.is_some() => {
            let note = members.as_ref().or(controls.as_ref()).map(|_| {
                let (given, missing) = if members.is_some() { ("members", "controls") } else { ("controls", "members") };
                format!("the {given} were not looked at: without {missing} there is nothing to compare them with (--{missing})")
            });
            return certify(&exported, request, note.into_iter().chain(checked.notes).collect(), out, watcher);
        }
        (None, _) => {
            return unknown(
                "there are no members to look for. Do this: give the records that it was trained on with --members.",
            );
        }
        (_, None) => {
            return unknown(
                "there are no controls, so that nobody can say what would have come back by chance. Do this: give 400 \
                 records of the same kind that were never trained on with --controls.",
            );
        }
    };
    let records = Records::read(&exported, members, controls)?;
    // Said now, too: who reads it may mend it before the time is spent.
    checked.notes.iter().chain(&records.notes()).for_each(|note| watcher.warn(note));
    let mut fits = fits(&exported, Some(records.members()))?;
    for fit in fits.iter_mut().filter(|fit| fit.attack.card().name == "labels" && !records.labelled()) {
        fit.fitting =
            Fitting::No("the records carry no labels that those of the gradient could be compared with".into());
    }
    let mut wanted: Vec<&Fit> = fits.iter().filter(|fit| fit.fitting == Fitting::Fits).collect();
    wanted.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let belonging =
        wanted.first().and_then(|fit| records.belonging(&exported, request, fit).transpose()).transpose()?;
    if let Some(Belonging::Wrong(problem)) = &belonging {
        return unknown(&format!("{problem}."));
    }
    let mut series = Series::new(&exported, request, &records, out);
    if !series.run_all(&wanted, noted, watcher)? {
        return Ok(Outcome::Stopped);
    }
    if series.made == 0 {
        watcher.warn(
            "nothing was left to be done: every attack had been judged, and none would be made longer with this budget",
        );
    }
    watcher.stage("report");
    let shortened = series.shortened(&wanted)?;
    let mut not_run = series.not_run;
    not_run.extend(unfit(&fits));
    let mut import: Vec<String> = checked
        .agrees
        .iter()
        .map(|same| format!("{}: the same to {:.1e} of their size", same.what, same.difference))
        .collect();
    import.extend(checked.notes);
    import.extend(belonging.and_then(|belonging| match belonging {
        Belonging::Said(fact) => Some(fact),
        Belonging::Wrong(_) => None,
    }));
    import.extend(records.notes());
    if let Some(batch) =
        exported.training.batch_size.filter(|batch| exported.gradient.is_some() && *batch != records.members())
    {
        import.push(format!("the batch had {batch} samples, and {} members were given", records.members()));
    }
    if exported.autoencodes() {
        import.push(
            "assumed: the attacker also has copies of the records of which half of the values were lost, and knows which; an autoencoder \
             alone rebuilds nobody"
                .into(),
        );
    }
    for observation in observations(&exported)? {
        import.extend(read_off(&observation, !records.labelled()));
    }
    let about = About { not_run, shortened, import };
    Ok(Outcome::Judged(Box::new(reporting::combine(&series.runs, about, out)?)))
}

/// Attacks that do not fit, with the reason; what could be run elsewhere before what never can.
fn unfit(fits: &[Fit]) -> Vec<NotRun> {
    let mut others: Vec<(bool, &Fit, &String)> = (fits.iter())
        .filter_map(|fit| match &fit.fitting {
            Fitting::No(reason) => Some((true, fit, reason)),
            Fitting::Outside(reason) => Some((false, fit, reason)),
            Fitting::Fits => None,
        })
        .collect();
    others.sort_by_key(|(never, ..)| *never);
    others.into_iter().map(|(_, fit, reason)| NotRun::unfit(fit.attack.card().name, reason.as_str())).collect()
}
