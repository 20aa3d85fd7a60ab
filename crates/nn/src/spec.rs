//! Networks as text: the only way to build one.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::{Activation, Error, Padding, Result, Sides};

/// A network as a list of layers, readable and writable as TOML.
///
/// Layers are listed from input to output. Each reads the one before it unless
/// it names others in `inputs` (`"input"` is the network's own input); the last
/// one is the output. A layer without a `name` is called by its place in the
/// list, as in PyTorch's `nn.Sequential`.
///
/// ```
/// use afterimage_nn::{Network, NetworkSpec};
/// let spec: NetworkSpec = NetworkSpec::from_toml(r#"
///     input = [1, 28, 28]
///     layers = [
///         { kind = "flatten" },
///         { name = "fc1", kind = "linear", outputs = 32 },
///         { kind = "activation", function = "softplus(10)" },
///         { name = "fc2", kind = "linear", outputs = 32 },
///         { kind = "add", inputs = ["fc1", "fc2"] },
///         { name = "head", kind = "linear", outputs = 10, bias = false },
///     ]
/// "#)?;
/// let network = Network::new(spec)?;
/// assert_eq!(network.output_shape(), [10]);
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkSpec {
    /// Shape of one sample: `[features]` or `[channels, height, width]`.
    pub input: Vec<usize>,
    /// The layers, input first.
    pub layers: Vec<LayerSpec>,
}

impl NetworkSpec {
    /// Reads a spec; the message of an error points at the line.
    pub fn from_toml(text: &str) -> Result<Self> {
        toml::from_str(text).map_err(|error| Error::Parse { what: "network".into(), problem: error.to_string() })
    }

    /// Writes a spec.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string(self).map_err(|error| Error::Parse { what: "network".into(), problem: error.to_string() })
    }
}

/// One layer of a [`NetworkSpec`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayerSpec {
    /// Prefix of its parameters' names; its place in the list if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Layers it reads; the one before it if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<String>,
    /// What it does.
    #[serde(flatten)]
    pub kind: LayerKind,
}

impl LayerSpec {
    /// A layer named by its place that reads the one before it.
    pub fn new(kind: LayerKind) -> Self {
        Self { name: None, inputs: Vec::new(), kind }
    }

    /// The same layer with a name.
    pub fn named(self, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// The same layer reading others.
    pub fn reading(self, inputs: &[&str]) -> Self {
        Self { inputs: inputs.iter().map(|&input| input.into()).collect(), ..self }
    }
}

// Derived, `flatten` would swallow misspelt keys; so the two common keys are
// taken out first and the rest must fit the kind exactly.
impl<'de> Deserialize<'de> for LayerSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        use serde::de::Error as _;
        let mut table = BTreeMap::<String, toml::Value>::deserialize(deserializer)?;
        let name = table.remove("name").map(String::deserialize).transpose().map_err(D::Error::custom)?;
        let inputs = table.remove("inputs").map(Vec::deserialize).transpose().map_err(D::Error::custom)?;
        let rest: toml::Table = table.into_iter().collect();
        let kind = LayerKind::deserialize(rest).map_err(|error| D::Error::custom(error.message()))?;
        Ok(Self { name, inputs: inputs.unwrap_or_default(), kind })
    }
}

/// What a layer does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum LayerKind {
    /// y = x Wᵀ + b
    Linear {
        /// Number of outputs.
        outputs: usize,
        /// Whether there is a b.
        #[serde(default = "yes")]
        bias: bool,
    },
    /// y = x W + b with the weight of a `linear` layer above
    TiedLinear {
        /// Name of that layer.
        to: String,
        /// Whether there is a b of its own.
        #[serde(default = "yes")]
        bias: bool,
    },
    /// y = φ(x)
    Activation {
        /// φ, such as `"relu"` or `"softplus(10)"`.
        function: Activation,
    },
    /// y = max(x, 0) + a min(x, 0) with learned a
    Prelu {
        /// 1, or the number of channels.
        #[serde(default = "one")]
        slopes: usize,
    },
    /// Every sample as one row
    Flatten {},
    /// The sum of its inputs
    Add {},
    /// Its inputs joined along the channels
    Concat {},
    /// y = w ⋆ x + b, as `nn.Conv2d`
    Conv {
        /// Channels that come out.
        outputs: usize,
        /// Height and width of a kernel.
        kernel: Sides,
        /// Steps between two places of the kernel.
        #[serde(default = "sides_of_one")]
        stride: Sides,
        /// Zeros around the image, or `"same"`.
        #[serde(default)]
        padding: Padding,
        /// Distance between neighbouring weights.
        #[serde(default = "sides_of_one")]
        dilation: Sides,
        /// Parts that channels are cut into; as many as channels is depthwise.
        #[serde(default = "one")]
        groups: usize,
        /// Whether there is a b.
        #[serde(default = "yes")]
        bias: bool,
    },
    /// y = wᵀ ⋆ x + b, as `nn.ConvTranspose2d`
    ConvTranspose {
        /// Channels that come out.
        outputs: usize,
        /// Height and width of a kernel.
        kernel: Sides,
        /// Steps between two places of the kernel in the output.
        #[serde(default = "sides_of_one")]
        stride: Sides,
        /// Pixels cut off around the output.
        #[serde(default = "sides_of_none")]
        padding: Sides,
        /// Pixels added after the output: less than a step (PyTorch also takes less than the dilation).
        #[serde(default = "sides_of_none")]
        output_padding: Sides,
        /// Distance between neighbouring weights.
        #[serde(default = "sides_of_one")]
        dilation: Sides,
        /// Parts that channels are cut into.
        #[serde(default = "one")]
        groups: usize,
        /// Whether there is a b.
        #[serde(default = "yes")]
        bias: bool,
    },
    /// y = γ (x − μ) / √(σ² + ε) + β for each channel, as `nn.BatchNorm2d` and `nn.BatchNorm1d`
    BatchNorm {
        /// ε.
        #[serde(default = "small")]
        eps: f64,
        /// How far a batch moves the running statistics.
        #[serde(default = "tenth")]
        momentum: f64,
        /// Whether there are γ and β.
        #[serde(default = "yes")]
        affine: bool,
    },
    /// The largest of each window
    MaxPool {
        /// Height and width of a window.
        kernel: Sides,
        /// Steps between windows; the kernel's size if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stride: Option<Sides>,
        /// Pixels around the image, which are never the largest.
        #[serde(default = "sides_of_none")]
        padding: Sides,
    },
    /// The mean of each window
    AvgPool {
        /// Height and width of a window.
        kernel: Sides,
        /// Steps between windows; the kernel's size if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stride: Option<Sides>,
        /// Zeros around the image, which count in the mean.
        #[serde(default = "sides_of_none")]
        padding: Sides,
    },
    /// The mean of as many windows as asked for
    AdaptiveAvgPool {
        /// Height and width of the output.
        output: Sides,
    },
    /// Every pixel as a block of itself
    Upsample {
        /// Height and width of a block.
        factor: Sides,
    },
    /// y = x: never applied, in training neither
    Dropout {
        /// Share that somebody's training dropped.
        #[serde(default = "half")]
        p: f64,
    },
}

impl LayerKind {
    /// A convolution with square kernels, of one group and without dilation.
    pub fn conv(outputs: usize, kernel: usize, stride: usize, padding: usize, bias: bool) -> Self {
        let (kernel, stride, padding) = (kernel.into(), stride.into(), padding.into());
        LayerKind::Conv { outputs, kernel, stride, padding, dilation: sides_of_one(), groups: 1, bias }
    }

    /// Batch normalisation with PyTorch's constants.
    pub fn batch_norm() -> Self {
        LayerKind::BatchNorm { eps: small(), momentum: tenth(), affine: true }
    }
}

fn sides_of_one() -> Sides {
    1.into()
}

fn sides_of_none() -> Sides {
    0.into()
}

fn small() -> f64 {
    1e-5
}

fn tenth() -> f64 {
    0.1
}

fn half() -> f64 {
    0.5
}

fn yes() -> bool {
    true
}

fn one() -> usize {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toml_round_trips() {
        let spec = NetworkSpec {
            input: vec![4],
            layers: vec![
                LayerSpec::new(LayerKind::Linear { outputs: 3, bias: false }).named("enc"),
                LayerSpec::new(LayerKind::Activation { function: Activation::LeakyRelu { slope: 0.2 } }),
                LayerSpec::new(LayerKind::Prelu { slopes: 3 }),
                LayerSpec::new(LayerKind::TiedLinear { to: "enc".into(), bias: true }),
                LayerSpec::new(LayerKind::Add {}).reading(&["3", "input"]),
            ],
        };
        assert_eq!(NetworkSpec::from_toml(&spec.to_toml().unwrap()).unwrap(), spec);
        // One of each on images, every default written out and read back.
        let text = r#"
            input = [3, 8, 8]
            layers = [
                { kind = "conv", outputs = 4, kernel = [3, 1], padding = "same" },
                { kind = "conv", outputs = 4, kernel = 3, padding = [1, 2], stride = 2 },
                { kind = "conv-transpose", outputs = 2, kernel = 2, stride = 2 },
                { kind = "batch-norm" },
                { kind = "max-pool", kernel = 2, stride = 1 },
                { kind = "avg-pool", kernel = 2 },
                { kind = "upsample", factor = [1, 2] },
                { kind = "adaptive-avg-pool", output = 1 },
                { kind = "dropout" },
            ]"#;
        let spec = NetworkSpec::from_toml(text).unwrap();
        assert_eq!(NetworkSpec::from_toml(&spec.to_toml().unwrap()).unwrap(), spec);
        assert!(crate::Network::new(spec).is_ok());
    }

    #[test]
    fn wrong_keys_kinds_and_types_are_named() {
        for (layer, part) in [
            (r#"{ kind = "linear", output = 3 }"#, "unknown field `output`, expected `outputs` or `bias`"),
            (r#"{ kind = "linaer", outputs = 3 }"#, "unknown variant `linaer`"),
            (r#"{ kind = "linear", outputs = -3 }"#, "integer `-3`"),
            (r#"{ kind = "linear", outputs = "3" }"#, "string \"3\""),
            (r#"{ kind = "flatten", outputs = 3 }"#, "unknown field `outputs`"),
            (r#"{ outputs = 3 }"#, "missing field `kind`"),
            (r#"{ kind = "activation", function = "rellu" }"#, "did you mean `relu`"),
        ] {
            let error = NetworkSpec::from_toml(&format!("input = [4]\nlayers = [{layer}]")).unwrap_err().to_string();
            assert!(error.contains(part), "{layer}: {error}");
        }
        assert!(NetworkSpec::from_toml("input = [4]\nlayer = []").unwrap_err().to_string().contains("`layer`"));
    }
}
