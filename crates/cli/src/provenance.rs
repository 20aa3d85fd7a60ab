//! Where and how a run was made.

use afterimage_audit::distill::DistillPlan;
use afterimage_audit::pipeline::{Checked, hash};
use afterimage_audit::plan::Plan;
use afterimage_audit::rules::Rules;
use serde::Serialize;

/// Version and commit, as `--version` says them.
pub(crate) const VERSION: &str = env!("AFTERIMAGE_VERSION");

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
    dtype: Option<String>,
    seed: u64,
    plan_sha256: Option<String>,
    data_sha256: Option<String>,
}

impl Provenance {
    /// Of a run that starts now by this plan, of which `text` is all.
    pub(crate) fn now(plan: &Plan, text: &str, checked: Checked) -> Self {
        let threads = if plan.compute.threads == 0 { rayon::current_num_threads() } else { plan.compute.threads };
        Self {
            threads,
            dtype: Some(plan.compute.precision()),
            plan_sha256: Some(hash(text.as_bytes())),
            data_sha256: Some(checked.data_sha256),
            ..Self::here(plan.seed, &plan.compute.device)
        }
    }

    /// Of a figure; `plan` is that of its first run.
    pub(crate) fn of_figure(plan: &Plan, text: &str) -> Self {
        let dtype = Some(plan.compute.precision());
        Self { dtype, plan_sha256: Some(hash(text.as_bytes())), ..Self::here(plan.seed, &plan.compute.device) }
    }

    /// Of a distillation.
    pub(crate) fn of_distillation(plan: &DistillPlan, text: &str) -> Self {
        let dtype = Some(plan.compute.precision());
        Self { dtype, plan_sha256: Some(hash(text.as_bytes())), ..Self::here(plan.seed, &plan.compute.device) }
    }

    /// Of a demonstration, which has several plans.
    pub(crate) fn of_demo() -> Self {
        Self::here(1, "cpu")
    }

    /// Of an audit, whose runs have plans of their own, or none.
    pub(crate) fn of_audit(seed: u64) -> Self {
        Self::here(seed, "cpu")
    }

    /// Of an attack on an observation, which has neither plan nor data.
    pub(crate) fn of_attack(rules: &Rules, device: &str) -> Self {
        Self::here(rules.seed, device)
    }

    fn here(seed: u64, device: &str) -> Self {
        Self {
            tool: afterimage_audit::tool(),
            commit: option_env!("AFTERIMAGE_COMMIT"),
            started: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            arguments: std::env::args().skip(1).collect(),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            processor: processor(),
            threads: rayon::current_num_threads(),
            device: device.to_owned(),
            dtype: None,
            seed,
            plan_sha256: None,
            data_sha256: None,
        }
    }
}

/// The processor's own name, where the system tells it.
fn processor() -> String {
    let information = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = information.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned())
}
