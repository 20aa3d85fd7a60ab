//! One file a command.

pub(crate) mod attack;
pub(crate) mod cards;
pub(crate) mod files;
pub(crate) mod run;

use std::path::PathBuf;

use afterimage_audit::pipeline::hash;
use afterimage_audit::run_dir::RunDir;
use anyhow::Result;

/// The directory asked for, or a new one under `runs/` named by time, attack and plan.
fn directory(out: Option<&PathBuf>, attack: &str, plan: &str) -> Result<RunDir> {
    let path = out.cloned().unwrap_or_else(|| {
        let time = jiff::Timestamp::now().strftime("%Y-%m-%dT%H-%M-%SZ");
        PathBuf::from("runs").join(format!("{time}_{attack}_{}", &hash(plan.as_bytes())[..8]))
    });
    Ok(RunDir::create(path)?)
}

/// Does the work inside a pool of so many threads; 0 is one for each core.
fn in_pool<T: Send>(threads: usize, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build()?.install(work)
}
