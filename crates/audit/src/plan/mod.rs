//! A plan: everything a run depends on, in one file.

mod network;
pub(crate) mod section;
mod victim;

use std::path::{Path, PathBuf};

use afterimage_attacks::AnyAttack;
use afterimage_nn::{DType, Device, nearest};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use network::NetworkPlan;
pub use victim::{
    AutoencoderPlan, ClassifierPlan, Degrade, FederatedPlan, Mask, Population, Rounding, Shared, SharedStatistics,
    VictimPlan,
};

use crate::align::Alignment;
use crate::data::{Order, Relabel};
use crate::metrics::{Lpips, Metric};
use crate::score::Space;
use crate::{AuditError, Criterion, Result};

/// A run, from data to score. Written out with every default filled in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Seed of every random number.
    #[serde(default = "one")]
    pub seed: u64,
    /// Where records come from.
    pub data: DataPlan,
    /// The victim's architecture.
    pub network: NetworkPlan,
    /// How the victim leaks.
    pub victim: VictimPlan,
    /// The attack.
    pub attack: AnyAttack,
    /// What counts as rebuilt.
    pub score: ScorePlan,
    /// Where it is computed.
    #[serde(default)]
    pub compute: ComputePlan,
}

fn one() -> u64 {
    1
}

/// Where records come from, and who is a member.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataPlan {
    /// `builtin:digits`, `builtin:digits-8x8`, `builtin:photos`, `synthetic:axes:D`, `synthetic:sphere:D`,
    /// `synthetic:circle:N`, or a path.
    pub source: String,
    /// Records the victim is made of.
    pub members: usize,
    /// Records it never sees; half of them calibrate, half test.
    #[serde(default = "controls")]
    pub controls: usize,
    /// Where controls come from, if not from what members do not use of `source`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controls_from: Option<String>,
    /// Records of a twin, if not as many as members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub twin_members: Option<usize>,
    /// Classes that the records of a twin take in turn, where records carry no labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub twin_classes: Option<usize>,
    /// At random by the seed, or the first in file order.
    #[serde(default)]
    pub split: Order,
    /// As many members of each label.
    #[serde(default)]
    pub balanced: bool,
    /// No two members with the same label.
    #[serde(default)]
    pub distinct: bool,
    /// New labels from the data's classes.
    #[serde(default)]
    pub relabel: Relabel,
    /// Another image size, [height, width].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resize: Option<[usize; 2]>,
    /// Values outside this range are brought to its ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<[f64; 2]>,
    /// Whether every record is divided by its length.
    #[serde(default)]
    pub unit_norm: bool,
    /// A csv file with one group for each record (column `group`, or the last).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<PathBuf>,
    /// What is subtracted from the pixels before training: a mean over all records but the members.
    #[serde(default)]
    pub subtract_mean: MeanKind,
    /// A safetensors file whose tensor `mean` is subtracted instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_file: Option<PathBuf>,
    /// Smallest and largest value that a record can have, as the attacker is told; 0 and 1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<[f64; 2]>,
    /// Constants instead, as pretrained networks want them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalise: Option<Normalise>,
}

fn controls() -> usize {
    400
}

/// Constants that make network inputs of pixels in 0 to 1: (pixel − mean) / std.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalise {
    /// One number, or one for each channel.
    pub mean: Vec<f64>,
    /// The same.
    pub std: Vec<f64>,
}

/// Which mean is subtracted; it is taken over all records but the members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeanKind {
    /// None.
    #[default]
    None,
    /// One number for all pixels.
    Scalar,
    /// One for each channel.
    Channel,
    /// One for each pixel.
    Pixel,
}

/// What counts as rebuilt, and what else is measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScorePlan {
    /// Metrics beside the criterion's.
    #[serde(default = "metrics")]
    pub metrics: Vec<Metric>,
    /// The criterion; the attack's usual one if absent.
    pub criterion: Criterion,
    /// Other lines at which passes are counted.
    #[serde(default)]
    pub also: Vec<f64>,
    /// Where identification looks: at pixels, or at the network's last hidden layer.
    #[serde(default)]
    pub identify: Space,
    /// Pairings for figures, beside the nearest candidate that verdicts use.
    #[serde(default = "alignments")]
    pub alignments: Vec<Alignment>,
    /// Weights of the metric `lpips`: LPIPS 0.1 on AlexNet, as safetensors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lpips: Option<PathBuf>,
}

impl ScorePlan {
    /// What is measured beside the criterion's metric: what is listed, `lpips` where it can be, and where controls set the line
    /// the mean squared error, which says what is recognisable.
    pub fn measured(&self) -> Vec<Metric> {
        let lpips = self.lpips.as_ref().map(|_| Metric::Lpips);
        let error = self.criterion.threshold.is_none().then_some(Metric::Mse);
        let more = lpips.into_iter().chain(error).filter(|metric| !self.metrics.contains(metric));
        self.metrics.iter().copied().chain(more).collect()
    }

    /// The network of the metric `lpips` for records of this shape, if its weights are given.
    pub fn lpips(&self, shape: &[usize]) -> Result<Option<Lpips>> {
        let asked = self.metrics.contains(&Metric::Lpips) || self.criterion.metric == Metric::Lpips;
        match &self.lpips {
            Some(path) => Lpips::load(path, shape),
            None if asked => {
                let hint = "set score.lpips to a safetensors file with AlexNet's features and LPIPS's linear heads";
                Err(AuditError::plan("score.metrics", "lpips needs the weights of its network", hint))
            }
            None => Ok(None),
        }
    }
}

fn metrics() -> Vec<Metric> {
    vec![Metric::Mse, Metric::Psnr, Metric::Ssim]
}

fn alignments() -> Vec<Alignment> {
    vec![Alignment::Greedy]
}

/// The criterion that goes with an attack, as a plan writes it.
pub fn usual_criterion(attack: &str) -> &'static str {
    match attack {
        "kkt" | "unmix" | "model-inversion" => r#"{ metric = "ssim3", threshold = "calibrated" }"#,
        "ntk" => r#"{ metric = "mse", below = 2.9e-3 }"#,
        "kinks" => r#"{ metric = "l2", below = 0.1 }"#,
        "gradinversion" => r#"{ metric = "psnr", threshold = "calibrated" }"#,
        "tensor" => r#"{ metric = "l2", below = 1e-3 }"#,
        "autoencoder" | "ae-iterations" | "inpaint" => r#"{ metric = "mse", below = 5e-4 }"#,
        _ => r#"{ metric = "mse", below = 1e-8 }"#,
    }
}

/// Where and in which precision it is computed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ComputePlan {
    /// `cpu` or `cuda:0`.
    pub device: String,
    /// `f32` or `f64`.
    pub dtype: DType,
    /// On a CUDA device, whether products of `f32` may round their factors to TF32: several times as fast, with
    /// relative errors of 1e-3.
    pub tf32: bool,
    /// Threads; 0 is as many as cores.
    pub threads: usize,
    /// Seconds between checkpoints of a long attack.
    pub checkpoint_seconds: u64,
}

impl Default for ComputePlan {
    fn default() -> Self {
        Self { device: "cpu".into(), dtype: DType::F32, tf32: false, threads: 0, checkpoint_seconds: 10 }
    }
}

impl ComputePlan {
    /// The device.
    pub fn device(&self) -> Result<Device> {
        Ok(self.device.parse()?)
    }

    /// Number type and rounding, in words.
    pub fn precision(&self) -> String {
        if self.tf32 { format!("{}, products in TF32", self.dtype) } else { self.dtype.to_string() }
    }

    /// Fails unless this can be computed with, on this machine and by this build.
    pub fn check(&self) -> Result<()> {
        if self.tf32 && (self.device()? == Device::Cpu || self.dtype != DType::F32) {
            let problem = format!("is for f32 on a CUDA device, not for {} on {}", self.dtype, self.device);
            return Err(AuditError::plan("compute.tf32", problem, "leave it out, or set compute.device = \"cuda:0\""));
        }
        Ok(self.device()?.check()?)
    }

    /// From now on this is how products are rounded.
    pub fn prepare(&self) {
        afterimage_nn::allow_tf32(self.tf32);
    }
}

impl Plan {
    /// Reads a plan file with `key=value` changes on top.
    pub fn read(path: &Path, changes: &[String]) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| AuditError::file(path, format!("cannot be read: {error}")))?;
        Self::parse(&text, changes)
    }

    /// Reads a plan with `key=value` changes on top.
    pub fn parse(text: &str, changes: &[String]) -> Result<Self> {
        parse_with_usual_score(text, changes)
    }

    /// The same with an attack that says nothing: what victims are told apart by, none of which depends on it.
    pub(crate) fn without_attack(&self) -> Self {
        let any = AnyAttack::all().into_iter().next();
        Self { attack: any.unwrap_or_else(|| self.attack.clone()), ..self.clone() }
    }

    /// The plan with every default written out.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string(self).map_err(|error| AuditError::plan("plan", error.to_string(), "report this"))
    }
}

/// Reads a plan, or the part of one that judges a run, with changes on top and
/// the attack's usual criterion where there is none.
pub(crate) fn parse_with_usual_score<T: DeserializeOwned>(text: &str, changes: &[String]) -> Result<T> {
    let mut table = changed_table(text, changes)?;
    usual_score(&mut table)?;
    typed(toml::Value::Table(table), None)
}

/// A table as what it stands for; what does not fit is named by its key, below the name of the table's section if it is one.
pub(crate) fn typed<T: DeserializeOwned>(table: toml::Value, section: Option<&str>) -> Result<T> {
    serde_path_to_error::deserialize(table).map_err(|error| {
        let path = error.path().to_string();
        let key = section.map_or(path.clone(), |section| format!("{section}.{path}"));
        explain(&key, error.inner().message())
    })
}

/// A plan's text as a table, with changes on top.
pub(crate) fn changed_table(text: &str, changes: &[String]) -> Result<toml::Table> {
    let mut table: toml::Table =
        toml::from_str(text).map_err(|error| AuditError::plan("syntax", error.to_string(), "see the place above"))?;
    for change in changes {
        set(&mut table, change)?;
    }
    Ok(table)
}

/// An attack with `key=value` changes of its settings.
pub fn change_attack(attack: &AnyAttack, changes: &[String]) -> Result<AnyAttack> {
    const EXPLAIN: &str = "`afterimage explain NAME` lists its settings, with their ranges";
    let wrong = |problem: String| AuditError::plan("attack", problem, EXPLAIN);
    let usual = toml::Table::try_from(attack).map_err(|error| wrong(error.to_string()))?;
    let with = |changes: &[String]| -> Result<AnyAttack> {
        let mut table = usual.clone();
        for change in changes {
            // As it would stand in a plan, too.
            set(&mut table, change.trim().strip_prefix("attack.").unwrap_or(change))?;
        }
        typed(toml::Value::Table(table), None)
    };
    with(changes).map_err(|error| match error {
        // A reader of attacks does not say where it was: the change that is wrong by itself.
        AuditError::Plan { key, problem, .. } if key == "value" => {
            let mut alone = changes.iter().filter(|change| with(std::slice::from_ref(change)).is_err());
            AuditError::plan(
                "--set",
                alone.next().map_or(problem.clone(), |change| format!("`{change}`: {problem}")),
                EXPLAIN,
            )
        }
        other => other,
    })
}

/// Applies `a.b.c=value`; the value is TOML, or else a string.
fn set(table: &mut toml::Table, change: &str) -> Result<()> {
    let wrong =
        |problem: &str| AuditError::plan("--set", format!("`{change}` {problem}"), "write --set data.members=8");
    let (key, value) = change.split_once('=').ok_or_else(|| wrong("has no `=`"))?;
    let value: toml::Value = toml::from_str::<toml::Table>(&format!("value = {value}"))
        .ok()
        .and_then(|mut parsed| parsed.remove("value"))
        .unwrap_or_else(|| toml::Value::String(value.trim().to_owned()));
    let mut parts: Vec<&str> = key.trim().split('.').collect();
    let last = parts.pop().filter(|last| !last.is_empty()).ok_or_else(|| wrong("names no key"))?;
    let mut place = table;
    for part in parts {
        let next = place.entry(part).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        place = next.as_table_mut().ok_or_else(|| wrong(&format!("goes through `{part}`, which is no section")))?;
    }
    place.insert(last.to_owned(), value);
    Ok(())
}

/// Writes the attack's usual criterion into a plan that has none.
fn usual_score(table: &mut toml::Table) -> Result<()> {
    let attack = table.get("attack").and_then(|attack| attack.get("kind")).and_then(toml::Value::as_str);
    let criterion = usual_criterion(attack.unwrap_or_default());
    let score = table.entry("score").or_insert_with(|| toml::Value::Table(toml::Table::new()));
    if score.as_table().is_some_and(|score| !score.contains_key("criterion")) {
        set(table, &format!("score.criterion={criterion}"))?;
    }
    Ok(())
}

/// Turns a reader's message about a key into one that says what was meant.
pub(crate) fn explain(key: &str, message: &str) -> AuditError {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match quoted.split_first() {
        Some((wrong, known)) if message.starts_with("unknown field") || message.starts_with("unknown variant") => {
            let hint = match nearest(wrong, known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known are {}", known.join(", ")),
            };
            // A reader may be at the wrong word, or at the section it is in.
            let place = match key {
                "" | "." => (*wrong).to_owned(),
                key if key.rsplit('.').next() == Some(wrong) => key.to_owned(),
                key if message.starts_with("unknown field") => format!("{key}.{wrong}"),
                key => format!("{key}, {wrong}"),
            };
            AuditError::plan(&place, "there is no such key or value", hint)
        }
        Some((missing, _)) if message.starts_with("missing field") => {
            AuditError::plan(missing, "is missing", format!("add `{missing} = …` to its section"))
        }
        _ => {
            let key = if key.is_empty() || key == "." { "value" } else { key };
            AuditError::plan(key, in_words(message), "docs/reference/plans.md has every key, plans/ has examples")
        }
    }
}

/// A reader's message without the names that programs have for numbers.
fn in_words(message: &str) -> String {
    let kinds =
        [("usize", "a whole number"), ("u64", "a whole number"), ("u32", "a whole number"), ("f64", "a number")];
    kinds.iter().fold(message.to_owned(), |text, (name, words)| {
        text.replace(&format!("expected {name}"), &format!("expected {words}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = r#"
        [data]
        source = "builtin:photos"
        members = 1
        [network]
        kind = "mlp"
        hidden = [64]
        outputs = 10
        [victim]
        kind = "federated"
        [attack]
        kind = "analytic"
        [score]
        criterion = { metric = "mse", below = 1e-8 }
    "#;

    #[test]
    fn settings_of_an_attack_are_changed_as_in_a_plan_too() {
        let exact = AnyAttack::all().into_iter().find(|attack| attack.card().name == "exact").unwrap();
        let changed = |change: &str| change_attack(&exact, &[change.to_owned()]).unwrap();
        assert_eq!(changed("searches=7"), changed("attack.searches = 7"));
        assert_ne!(changed("searches=7"), exact);
        let said = change_attack(&exact, &["seed_x=1".to_owned()]).unwrap_err().to_string();
        assert!(said.contains("seed_x"), "{said}");
        let said = change_attack(&exact, &["searches=abc".to_owned()]).unwrap_err().to_string();
        assert!(said.contains("`searches=abc`") && said.contains("expected a whole number"), "{said}");
    }

    #[test]
    fn defaults_are_written_out_and_read_back() {
        let plan = Plan::parse(PLAN, &[]).unwrap();
        let text = plan.to_toml().unwrap();
        for part in ["seed = 1", "controls = 400", "activation = \"relu\"", "share_labels = false", "tolerance"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(Plan::parse(&text, &[]).unwrap(), plan);
    }

    #[test]
    fn changes_go_on_top() {
        let set = |change: &str| Plan::parse(PLAN, &[change.to_owned()]);
        assert_eq!(set("data.members=8").unwrap().data.members, 8);
        assert_eq!(set("data.source=some/file.npz").unwrap().data.source, "some/file.npz");
        assert_eq!(set("compute.dtype=f64").unwrap().compute.dtype, DType::F64);
        assert!(set("data.members").unwrap_err().to_string().contains("no `=`"));
        assert!(set("seed.x=1").is_err());
        assert_eq!(set("seed=7").unwrap().seed, 7);
        assert!(set("data.members=many").is_err());
    }

    #[test]
    fn mistakes_name_the_key_and_what_was_meant() {
        let change = |from: &str, to: &str| Plan::parse(&PLAN.replace(from, to), &[]).unwrap_err().to_string();
        assert!(change("members = 1", "membres = 1").contains("did you mean `members`?"));
        assert!(change("kind = \"analytic\"", "kind = \"analitic\"").contains("did you mean `analytic`?"));
        assert!(
            change("kind = \"analytic\"", "kind = \"analytic\"\ntolerence = 1").contains("did you mean `tolerance`?")
        );
        assert!(change("members = 1", "").contains("members"));
        let said = change("members = 1", "members = \"one\"");
        assert!(said.contains("data.members") && said.contains("string \"one\", expected a whole number"), "{said}");
        assert!(change("hidden = [64]", "hidden = [64").contains("syntax"));
        assert!(change("metric = \"mse\"", "metric = \"psnr\"").contains("above = NUMBER"));
    }
}
