//! What an attacker sees: the four kinds of leak, as values and as files.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use afterimage_nn::io::{Integers, TensorFile};
use afterimage_nn::{DType, Device, Loss, Network, NetworkSpec, Params, Reduction, Targets, Tensor};
use serde::{Deserialize, Serialize};

use crate::client::{Client, Words};
use crate::{AttackError, Preprocess};

/// A kind of leak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Kind {
    /// The final parameters.
    Weights,
    /// Two checkpoints.
    WeightPair,
    /// A batch gradient.
    Gradient,
    /// An autoencoder and damaged samples.
    Degraded,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Weights => "final weights",
            Kind::WeightPair => "two checkpoints",
            Kind::Gradient => "a gradient",
            Kind::Degraded => "an autoencoder with damaged samples",
        })
    }
}

/// A network with the parameters that are known, and what is known of its training.
#[derive(Debug, Clone)]
pub struct Model {
    /// The architecture.
    pub network: Network,
    /// The parameters θ.
    pub theta: Params,
    /// The loss it is trained with, if known.
    pub loss: Option<Loss>,
    /// How inputs are prepared, if known.
    pub preprocess: Option<Preprocess>,
}

/// Final weights.
#[derive(Debug, Clone)]
pub struct WeightsSeen {
    /// The trained model.
    pub model: Model,
}

/// Two or more checkpoints of one training run.
#[derive(Debug, Clone)]
pub struct PairSeen {
    /// The last one.
    pub model: Model,
    /// The first one, θ₀.
    pub before: Params,
    /// Those between them, in the order of training; often none.
    pub between: Vec<Params>,
}

/// A gradient of a batch, with what else the client shares.
#[derive(Debug, Clone)]
pub struct GradientSeen {
    /// The model the gradient was taken of.
    pub model: Model,
    /// ∂L/∂θ.
    pub gradient: Params,
    /// Mean or sum over the batch, if known.
    pub reduction: Option<Reduction>,
    /// Number of samples, if known.
    pub batch_size: Option<usize>,
    /// Their labels, if known.
    pub labels: Option<Targets>,
    /// What else is known of how the client came to it.
    pub client: Client,
}

/// An autoencoder and damaged samples: some from its training, some perhaps not.
#[derive(Debug, Clone)]
pub struct DegradedSeen {
    /// The autoencoder.
    pub model: Model,
    /// The damaged samples, one a row, in the scaling of network inputs.
    pub degraded: Tensor,
    /// What survived (1) and what was lost (0), in the shape of one sample, if known.
    pub mask: Option<Tensor>,
    /// The kernel of a blur, of odd height and width, if there is one; what was blurred has no mask.
    pub blur: Option<Tensor>,
    /// Standard deviation of the noise, if known; 0 for none.
    pub noise: Option<f64>,
}

/// Everything an attack is given.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Observation {
    /// Final weights.
    Weights(WeightsSeen),
    /// Two checkpoints.
    WeightPair(PairSeen),
    /// A batch gradient.
    Gradient(GradientSeen),
    /// An autoencoder and damaged samples.
    Degraded(DegradedSeen),
}

/// One kind of observation, taken out of an [`Observation`].
pub trait View: Sized {
    /// Which kind.
    const KIND: Kind;
    /// It, if the observation is of that kind.
    fn of(observation: &Observation) -> Option<&Self>;
}

macro_rules! view {
    ($seen:ident, $variant:ident) => {
        impl View for $seen {
            const KIND: Kind = Kind::$variant;
            fn of(observation: &Observation) -> Option<&Self> {
                match observation {
                    Observation::$variant(seen) => Some(seen),
                    _ => None,
                }
            }
        }
    };
}
view!(WeightsSeen, Weights);
view!(PairSeen, WeightPair);
view!(GradientSeen, Gradient);
view!(DegradedSeen, Degraded);

/// What an observation file says in words; what the attacker does not know is absent.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    kind: Kind,
    network: NetworkSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    loss: Option<Loss>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reduction: Option<Reduction>,
    #[serde(skip_serializing_if = "Option::is_none")]
    batch_size: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    range: Option<[f64; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    noise: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client: Option<Words>,
}

/// The largest batch that is believed.
const LARGEST_BATCH: usize = 1_000_000;
/// Prefix of a gradient's tensors in a file.
const GRADIENT: &str = "grad";
/// Prefix of an earlier checkpoint's.
const BEFORE: &str = "theta0";

/// Prefix of those of a checkpoint between the first and the last.
fn between_prefix(place: usize) -> String {
    format!("between{place}")
}

impl Observation {
    /// Which kind it is.
    pub fn kind(&self) -> Kind {
        match self {
            Observation::Weights(_) => Kind::Weights,
            Observation::WeightPair(_) => Kind::WeightPair,
            Observation::Gradient(_) => Kind::Gradient,
            Observation::Degraded(_) => Kind::Degraded,
        }
    }

    /// The model that is seen.
    pub fn model(&self) -> &Model {
        match self {
            Observation::Weights(seen) => &seen.model,
            Observation::WeightPair(seen) => &seen.model,
            Observation::Gradient(seen) => &seen.model,
            Observation::Degraded(seen) => &seen.model,
        }
    }

    /// What is seen and known, one fact a line, in words for a report.
    pub fn facts(&self) -> Vec<String> {
        let model = self.model();
        let mut facts = vec![format!("the network and its {} parameters", model.theta.count())];
        let known = |what: &str, value: Option<String>| match value {
            Some(value) => format!("{what}: {value}"),
            None => format!("{what}: not known to the attacker"),
        };
        facts.push(known("the loss", model.loss.map(|loss| loss.to_string())));
        facts.push(match &model.preprocess {
            Some(_) => "how inputs are prepared (range and mean)".into(),
            None => "how inputs are prepared: not known to the attacker".into(),
        });
        match self {
            Observation::Weights(_) => {}
            Observation::WeightPair(seen) => {
                facts.push("an earlier checkpoint of the same training".into());
                match seen.between.len() {
                    0 => {}
                    1 => facts.push("one more between the two".into()),
                    more => facts.push(format!("{more} more between the two")),
                }
            }
            Observation::Gradient(seen) => {
                facts.push("the gradient of one batch in every parameter".into());
                facts.push(known("the size of the batch", seen.batch_size.map(|size| size.to_string())));
                let labels = seen.labels.as_ref().map(|_| "shared by the client".to_owned());
                facts.push(known("the labels", labels));
                let normalises = model.network.buffer_names().next().is_some();
                facts.extend(seen.client.facts(normalises));
            }
            Observation::Degraded(seen) => {
                facts.push(format!("{} damaged samples", seen.degraded.rows()));
                let mask = seen.mask.as_ref().map(|_| "known for every element".to_owned());
                facts.push(known("which elements were lost", mask));
                facts.extend(seen.blur.as_ref().map(|kernel| format!("the kernel of the blur: {:?}", kernel.shape())));
                facts.push(known("the noise", seen.noise.map(|sigma| format!("standard deviation {sigma}"))));
            }
        }
        facts
    }

    /// Writes a safetensors file: `theta.*`, `theta0.*`, `between0.*` …, `grad.*`,
    /// `preprocess.*`, `labels` or `targets`, `statistics.*` and `after.*` of a client,
    /// `degraded`, `mask` and `blur`, and the rest as metadata.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), AttackError> {
        let path = path.as_ref();
        Ok(self.file().map_err(|problem| of_file(path, problem))?.write(path)?)
    }

    /// The same with its tensors on a device.
    ///
    /// ```
    /// use afterimage_attacks::{Model, Observation, WeightsSeen};
    /// use afterimage_nn::{Device, DType, Init, Network, zoo::Mlp};
    /// let network = Network::new(Mlp::new(3, &[8], 1).spec())?;
    /// let theta = network.init(&Init::Pytorch.into(), 1, DType::F32)?;
    /// let model = Model { network, theta, loss: None, preprocess: None };
    /// let seen = Observation::Weights(WeightsSeen { model }).to_device(Device::Cpu)?;
    /// assert_eq!(seen.model().theta.count(), 41);
    /// # Ok::<(), afterimage_attacks::AttackError>(())
    /// ```
    pub fn to_device(&self, device: Device) -> Result<Self, AttackError> {
        // What a file holds is all there is of it.
        Self::from_file(self.file()?, device)
    }

    fn file(&self) -> Result<TensorFile, AttackError> {
        let mut file = TensorFile::default();
        let model = self.model();
        // A gradient has no running statistics; weights without theirs would be half of a model.
        let mut put = |prefix: &str, params: &Params| {
            let values: Vec<(&str, &Tensor)> =
                if prefix == GRADIENT { params.iter().collect() } else { params.state().collect() };
            file.tensors.extend(values.into_iter().map(|(name, value)| (format!("{prefix}.{name}"), value.clone())));
        };
        put("theta", &model.theta);
        let (mut reduction, mut batch_size, mut noise, mut client) = (None, None, None, None);
        match self {
            Observation::Weights(_) => {}
            Observation::WeightPair(seen) => {
                put(BEFORE, &seen.before);
                for (place, between) in seen.between.iter().enumerate() {
                    put(&between_prefix(place), between);
                }
            }
            Observation::Degraded(seen) => {
                noise = seen.noise;
                file.tensors.insert("degraded".into(), seen.degraded.clone());
                for (name, part) in [("mask", &seen.mask), ("blur", &seen.blur)] {
                    file.tensors.extend(part.clone().map(|part| (name.to_owned(), part)));
                }
            }
            Observation::Gradient(seen) => {
                put(GRADIENT, &seen.gradient);
                (reduction, batch_size) = (seen.reduction, seen.batch_size);
                client = Some(seen.client.write(&mut file));
                match &seen.labels {
                    None => {}
                    Some(Targets::Values(values)) => drop(file.tensors.insert("targets".into(), values.clone())),
                    Some(Targets::Classes(classes)) => {
                        let values = classes.iter().map(|&class| class as i64).collect();
                        file.integers.insert("labels".into(), Integers { shape: vec![classes.len()], values });
                    }
                }
            }
        }
        if let Some(preprocess) = &model.preprocess {
            let constants = [("preprocess.mean", &preprocess.mean), ("preprocess.std", &preprocess.std)];
            for (name, constant) in constants {
                file.tensors.extend(constant.clone().map(|constant| (name.to_owned(), constant)));
            }
        }
        let text = Text {
            kind: self.kind(),
            network: model.network.spec().clone(),
            loss: model.loss,
            reduction,
            batch_size,
            range: model.preprocess.as_ref().map(|preprocess| preprocess.range),
            noise,
            client,
        };
        let wrong = |error: serde_json::Error| AttackError::File { file: String::new(), problem: error.to_string() };
        let text = serde_json::to_string(&text).map_err(wrong)?;
        file.metadata.insert("observation".into(), text);
        Ok(file)
    }

    /// Reads what [`write`](Self::write) wrote; parameters are checked against the network.
    pub fn read(path: impl AsRef<Path>, device: Device) -> Result<Self, AttackError> {
        let path = path.as_ref();
        let file = TensorFile::read(path)?;
        Self::from_file(file, device).map_err(|problem| of_file(path, problem))
    }

    fn from_file(mut file: TensorFile, device: Device) -> Result<Self, AttackError> {
        let wrong = |problem: String| AttackError::File { file: String::new(), problem };
        let text = file
            .metadata
            .get("observation")
            .ok_or_else(|| wrong("holds no observation, only tensors: observation.safetensors of a run's directory is one (`afterimage audit` on an exported \
                     folder makes them), docs/files.md says how to write one".into()))?;
        let text: Text = serde_json::from_str(text).map_err(|error| wrong(format!("metadata: {error}")))?;
        let network = Network::new(text.network)?;
        let take = |file: &mut TensorFile, prefix: &str| {
            let mut named = BTreeMap::new();
            file.tensors.retain(|name, value| {
                match name.strip_prefix(prefix).and_then(|name| name.strip_prefix('.')) {
                    Some(name) => named.insert(name.to_owned(), value.clone()).is_some(),
                    None => true,
                }
            });
            let dtype = named.values().next().map_or(DType::F32, Tensor::dtype);
            if let Some(missing) = network.buffer_names().find(|name| prefix != GRADIENT && !named.contains_key(*name))
            {
                return Err(wrong(format!(
                    "{prefix}.{missing} is missing: running statistics belong to the weights; save the whole state dict"
                )));
            }
            network.params(named, dtype, device).map_err(|error| wrong(format!("{prefix}: {error}")))
        };
        let theta = take(&mut file, "theta")?;
        let rest = match text.kind {
            Kind::Weights | Kind::Degraded => None,
            Kind::WeightPair => Some(take(&mut file, BEFORE)?),
            Kind::Gradient => Some(take(&mut file, GRADIENT)?),
        };
        let mut between = Vec::new();
        while file.tensors.keys().any(|name| name.starts_with(&format!("{}.", between_prefix(between.len())))) {
            between.push(take(&mut file, &between_prefix(between.len()))?);
        }
        let preprocess = text.range.map(|range| Preprocess {
            range,
            mean: file.tensors.remove("preprocess.mean"),
            std: file.tensors.remove("preprocess.std"),
        });
        let model = Model { network, theta, loss: text.loss, preprocess };
        Ok(match (text.kind, rest) {
            (Kind::WeightPair, Some(before)) => Observation::WeightPair(PairSeen { model, before, between }),
            (Kind::Gradient, Some(gradient)) => {
                let labels = match (file.integers.remove("labels"), file.tensors.remove("targets")) {
                    (Some(labels), _) => {
                        let classes: Result<Vec<usize>, _> =
                            labels.values.iter().map(|&y| usize::try_from(y)).collect();
                        Some(Targets::Classes(classes.map_err(|_| wrong("a label is negative".into()))?))
                    }
                    (None, values) => values.map(Targets::Values),
                };
                let (reduction, batch_size) = (text.reduction, text.batch_size);
                if let Some(size) = batch_size.filter(|size| *size > LARGEST_BATCH) {
                    return Err(wrong(format!("a batch of {size} samples is more than anybody shares a gradient of")));
                }
                let words = text.client.unwrap_or_default();
                let client = Client::read(words, &mut file, &model.network, &model.theta)?;
                Observation::Gradient(GradientSeen { model, gradient, reduction, batch_size, labels, client })
            }
            (Kind::Degraded, _) => {
                let degraded =
                    file.tensors.remove("degraded").ok_or_else(|| wrong("has no tensor `degraded`".into()))?;
                let (mask, blur) = (file.tensors.remove("mask"), file.tensors.remove("blur"));
                let sample = model.network.input_shape();
                if degraded.shape().get(1..) != Some(sample) {
                    return Err(wrong(format!("`degraded` has shape {:?}, samples {sample:?}", degraded.shape())));
                }
                if let Some(mask) = mask.as_ref().filter(|mask| mask.shape() != sample) {
                    return Err(wrong(format!("`mask` has shape {:?}, samples {sample:?}", mask.shape())));
                }
                if let Some(kernel) = blur.as_ref().filter(|kernel| kernel.shape().len() != 2) {
                    return Err(wrong(format!("`blur` has shape {:?}, and is no kernel", kernel.shape())));
                }
                degraded.check_finite("degraded")?;
                Observation::Degraded(DegradedSeen { model, degraded, mask, blur, noise: text.noise })
            }
            _ => Observation::Weights(WeightsSeen { model }),
        })
    }
}

/// What is wrong with an observation, said of its file.
fn of_file(path: &Path, problem: AttackError) -> AttackError {
    match problem {
        AttackError::File { problem, .. } => failed(path, problem),
        other => failed(path, other.to_string()),
    }
}

fn failed(path: &Path, problem: String) -> AttackError {
    AttackError::File { file: path.display().to_string(), problem }
}
