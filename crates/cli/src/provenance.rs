//! Where and how a run was made.

use afterimage_audit::pipeline::{Checked, hash};
use afterimage_audit::plan::Plan;
use serde::Serialize;

/// `provenance.json`; docs/schema describes it.
#[derive(Serialize)]
pub(crate) struct Provenance {
    tool: String,
    commit: Option<&'static str>,
    started: String,
    arguments: Vec<String>,
    system: String,
    processor: String,
    threads: usize,
    device: String,
    dtype: String,
    seed: u64,
    plan_sha256: String,
    data_sha256: String,
}

impl Provenance {
    /// Of a run that starts now by this plan, of which `text` is all.
    pub(crate) fn now(plan: &Plan, text: &str, checked: Checked) -> Self {
        Self {
            tool: format!("afterimage {}", env!("CARGO_PKG_VERSION")),
            commit: option_env!("AFTERIMAGE_COMMIT"),
            started: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            arguments: std::env::args().skip(1).collect(),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            processor: processor(),
            threads: if plan.compute.threads == 0 { rayon::current_num_threads() } else { plan.compute.threads },
            device: plan.compute.device.clone(),
            dtype: plan.compute.dtype.to_string(),
            seed: plan.seed,
            plan_sha256: hash(text.as_bytes()),
            data_sha256: checked.data_sha256,
        }
    }
}

/// The processor's own name, where the system tells it.
fn processor() -> String {
    let information = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = information.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned())
}
