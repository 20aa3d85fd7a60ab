//! How a client of federated learning came to the gradient it shares, as far as that is known.

use afterimage_nn::io::{Integers, TensorFile};
use afterimage_nn::{Mode, Network, Params, Statistics};
use serde::{Deserialize, Serialize};

use crate::AttackError;

/// What is known of the client beside its gradient; by default nothing.
#[derive(Debug, Clone, Default)]
pub struct Client {
    /// What batch normalisation divided by.
    pub mode: Option<Mode>,
    /// What each batch normalisation saw of the batch, in the order of the layers.
    pub statistics: Option<Vec<Statistics>>,
    /// The model's parameters with the running statistics that the client sent back.
    pub after: Option<Params>,
    /// Steps of training at the client: its gradient is then (θ_before − θ_after) / (lr · steps).
    pub local: Option<LocalTraining>,
    /// What was done to the gradient.
    pub defence: Option<Defence>,
}

/// Gradient descent at the client before anything is shared.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalTraining {
    /// Steps.
    pub steps: usize,
    /// Learning rate.
    pub lr: f64,
    /// Samples of a step, taken in turn; all of them if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<usize>,
}

impl LocalTraining {
    /// The rows of a batch of so many that a step uses.
    pub fn rows(&self, step: usize, count: usize) -> std::ops::Range<usize> {
        let size = self.batch.unwrap_or(count).clamp(1, count.max(1));
        let start = step % (count / size).max(1) * size;
        start..(start + size).min(count)
    }
}

/// What is done to a gradient before it is shared, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Defence {
    /// Largest norm; a longer gradient is scaled down to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
    /// Standard deviation of Gaussian noise, in units of the gradient's root mean square.
    pub noise: f64,
    /// Whether the unit of the noise is each parameter's own root mean square instead.
    pub noise_by_parameter: bool,
    /// Share of the numbers, the smallest, that are set to 0.
    pub prune: f64,
    /// What numbers are rounded to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantise: Option<Quantise>,
}

impl Defence {
    /// The first number that is out of range: its name, what it is, and what it should be.
    pub fn fault(&self) -> Option<(&'static str, f64, &'static str)> {
        let Self { clip, noise, prune, .. } = *self;
        match clip {
            Some(clip) if !(clip > 0.0 && clip.is_finite()) => {
                return Some(("clip", clip, "give the largest norm, a positive number"));
            }
            _ => {}
        }
        if !(noise >= 0.0 && noise.is_finite()) {
            return Some(("noise", noise, "give a number of at least 0"));
        }
        (!(0.0..1.0).contains(&prune)).then_some((
            "prune",
            prune,
            "give the share that is dropped, at least 0 and below 1",
        ))
    }
}

/// What numbers of a gradient are rounded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantise {
    /// Whole multiples of a 127th of each parameter's largest.
    Int8,
    /// Each parameter's mean size, with the number's sign.
    Sign,
}

/// The part of a client that a file holds in words.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Words {
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<Mode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    local: Option<LocalTraining>,
    #[serde(skip_serializing_if = "Option::is_none")]
    defence: Option<Defence>,
}

/// The most steps at a client that are believed.
const MOST_STEPS: usize = 100_000;

/// Prefix of what batch normalisations saw.
const STATISTICS: &str = "statistics";
/// Prefix of running statistics that were sent back.
const AFTER: &str = "after";

impl Client {
    /// What is known, one fact a line.
    pub(crate) fn facts(&self, normalises: bool) -> Vec<String> {
        let mut facts = Vec::new();
        facts.extend(self.mode.filter(|_| normalises).map(|mode| match mode {
            Mode::Train => "batch normalisation by the batch itself".into(),
            Mode::Eval => "batch normalisation by the running statistics".to_owned(),
        }));
        facts.extend(self.statistics.as_ref().map(|_| "what batch normalisation saw of the batch".into()));
        facts.extend(self.after.as_ref().map(|_| "the running statistics after the batch".into()));
        facts.extend(self.local.map(|local| format!("{} steps at the client, at a rate of {}", local.steps, local.lr)));
        facts.extend(self.defence.filter(|defence| *defence != Defence::default()).map(|defence| {
            let Defence { clip, noise, prune, quantise, .. } = defence;
            let mut done = Vec::new();
            done.extend(clip.map(|clip| format!("clipped to a norm of {clip}")));
            done.extend((noise > 0.0).then(|| format!("noise of {noise} of its size added")));
            done.extend((prune > 0.0).then(|| format!("{:.0} % of it dropped", 100.0 * prune)));
            done.extend(quantise.map(|to| match to {
                Quantise::Int8 => "rounded to eight bits".into(),
                Quantise::Sign => "reduced to signs".to_owned(),
            }));
            format!("what was done to the gradient: {}", done.join(", "))
        }));
        facts
    }

    pub(crate) fn write(&self, file: &mut TensorFile) -> Words {
        for seen in self.statistics.iter().flatten() {
            let name = |part: &str| format!("{STATISTICS}.{}.{part}", seen.layer);
            file.tensors.insert(name("mean"), seen.mean.clone());
            file.tensors.insert(name("variance"), seen.variance.clone());
            file.integers.insert(name("count"), Integers { shape: vec![1], values: vec![seen.count as i64] });
        }
        for buffer in self.after.iter().flat_map(|after| after.buffers().iter()) {
            file.tensors.insert(format!("{AFTER}.{}", buffer.name), buffer.value.clone());
        }
        Words { mode: self.mode, local: self.local, defence: self.defence }
    }

    pub(crate) fn read(
        words: Words,
        file: &mut TensorFile,
        network: &Network,
        theta: &Params,
    ) -> Result<Self, AttackError> {
        let wrong = |problem: String| AttackError::File { file: String::new(), problem };
        let Words { mode, local, defence } = words;
        let possible =
            |local: &LocalTraining| (1..=MOST_STEPS).contains(&local.steps) && local.lr > 0.0 && local.lr.is_finite();
        if let Some(local) = local.filter(|local| !possible(local)) {
            return Err(wrong(format!("{} local steps at a rate of {}", local.steps, local.lr)));
        }
        if let Some((key, value, hint)) = defence.as_ref().and_then(Defence::fault) {
            return Err(wrong(format!("its defence has {key} = {value}; {hint}")));
        }
        let mut statistics = Vec::new();
        for (layer, channels) in network.normalisations() {
            let name = |part: &str| format!("{STATISTICS}.{layer}.{part}");
            let (mean, variance) = (file.tensors.remove(&name("mean")), file.tensors.remove(&name("variance")));
            let (Some(mean), Some(variance)) = (mean, variance) else { continue };
            let count = file.integers.remove(&name("count")).and_then(|count| count.values.first().copied());
            let count = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
            for (part, value) in [("mean", &mean), ("variance", &variance)] {
                if value.shape() != [channels] {
                    return Err(wrong(format!(
                        "{} has shape {:?}, the layer {channels} channels",
                        name(part),
                        value.shape()
                    )));
                }
                value.check_finite(&name(part))?;
            }
            let on = |value: afterimage_nn::Tensor| value.to_dtype(theta.dtype())?.to_device(theta.device());
            statistics.push(Statistics { layer: layer.to_owned(), mean: on(mean)?, variance: on(variance)?, count });
        }
        let layers = network.normalisations().count();
        if !statistics.is_empty() && statistics.len() != layers {
            return Err(wrong(format!("has the statistics of {} of {layers} layers", statistics.len())));
        }
        let mut after = std::collections::BTreeMap::new();
        for name in network.buffer_names() {
            after.extend(file.tensors.remove(&format!("{AFTER}.{name}")).map(|value| (name.to_owned(), value)));
        }
        let after = match after.is_empty() {
            true => None,
            false => {
                after.extend(theta.iter().map(|(name, value)| (name.to_owned(), value.clone())));
                Some(network.params(after, theta.dtype(), theta.device())?)
            }
        };
        Ok(Self { mode, statistics: (!statistics.is_empty()).then_some(statistics), after, local, defence })
    }
}
