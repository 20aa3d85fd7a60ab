//! Networks a server sends out to read samples from the gradients that come back.

use serde::{Deserialize, Serialize};

use crate::spec::{LayerKind, LayerSpec, NetworkSpec};
use crate::{Activation, Init, InitSpec};

/// f(x) = M + Σ_j a_j σ(w_j · h(x)) with a_j = 1/m and w_j of N(0, I): the
/// two-layer network of Wang et al. (2023), h the identity, or the deep one of
/// their algorithm 2, h what the layers below carry upwards.
///
/// ```
/// use afterimage_nn::{Activation, DType, Network, Tensor, zoo::{Below, Probe}};
/// // Algorithm 2 with ReLU: the layer below hands on the positive and the negative part.
/// let probe = Probe { below: Some(Below::new(1, Activation::Relu)), ..Probe::new(3, 4, Activation::Tanh) };
/// let network = Network::new(probe.spec())?;
/// let theta = network.init(&probe.init(), 1, DType::F64)?;
/// let names: Vec<_> = network.parameters().iter().map(|p| p.name.as_str()).collect();
/// assert_eq!(names, ["below.0.weight", "hidden.weight", "output.weight", "output.bias"]);
/// // At x = 0 tanh gives nothing: only the bias M is left.
/// let f = network.forward(&theta, &Tensor::from_vec(vec![0.0; 3], &[1, 3])?)?;
/// assert_eq!(f.to_f64_vec()?, [30.0]);
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    /// Shape of a sample; anything but `[features]` is flattened first.
    pub input: Vec<usize>,
    /// m.
    pub width: usize,
    /// σ.
    pub activation: Activation,
    /// M, the bias of the output: with it, residues share a sign (their remark 1).
    #[serde(default = "thirty")]
    pub bias: f64,
    /// What carries the input upwards, if the network is deep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<Below>,
}

fn thirty() -> f64 {
    30.0
}

/// The layers below the last hidden one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Below {
    /// How many.
    pub layers: usize,
    /// What follows each.
    pub activation: Activation,
    /// What their weights are.
    #[serde(default)]
    pub weights: BelowWeights,
    /// Their width; 0 is what the input needs to pass unharmed. Piecewise linear layers that
    /// keep their input whole are always twice as wide as it.
    #[serde(default)]
    pub width: usize,
}

impl Below {
    /// So many layers that keep their input whole.
    pub fn new(layers: usize, activation: Activation) -> Self {
        Self { layers, activation, weights: BelowWeights::Identity, width: 0 }
    }
}

/// What the weights below the last hidden layer are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BelowWeights {
    /// Chosen by a server that wants the input kept whole.
    #[default]
    Identity,
    /// Of N(0, 1/inputs), as at the start of an honest training.
    Random,
}

impl Probe {
    /// The two-layer network on rows of features, with M = 30.
    pub fn new(features: usize, width: usize, activation: Activation) -> Self {
        Self { input: vec![features], width, activation, bias: thirty(), below: None }
    }

    /// Whether the layers below hand on positive and negative parts apart.
    fn mirrors(&self) -> bool {
        let identity = |below: &Below| below.weights == BelowWeights::Identity && below.layers > 0;
        self.below.as_ref().is_some_and(|below| {
            identity(below) && matches!(below.activation, Activation::Relu | Activation::LeakyRelu { .. })
        })
    }

    fn features(&self) -> usize {
        // Saturating: a shape too large to exist is for the type check to name.
        self.input.iter().fold(1_usize, |product, &side| product.saturating_mul(side))
    }

    /// Its layers.
    pub fn spec(&self) -> NetworkSpec {
        let mut layers = Vec::new();
        if self.input.len() != 1 {
            layers.push(LayerSpec::new(LayerKind::Flatten {}));
        }
        let mut linear = |name: String, outputs: usize, bias: bool, function: Option<Activation>| {
            layers.push(LayerSpec::new(LayerKind::Linear { outputs, bias }).named(name));
            layers.extend(function.map(|function| LayerSpec::new(LayerKind::Activation { function })));
        };
        if let Some(below) = self.below {
            let features = self.features();
            let width = match (below.width, below.weights) {
                _ if self.mirrors() => features.saturating_mul(2),
                (0, BelowWeights::Identity) => features,
                (0, BelowWeights::Random) => features.saturating_mul(4),
                (width, _) => width,
            };
            for layer in 0..below.layers {
                linear(format!("below.{layer}"), width, false, Some(below.activation));
            }
        }
        linear("hidden".into(), self.width, false, Some(self.activation));
        linear("output".into(), 1, true, None);
        NetworkSpec { input: self.input.clone(), layers }
    }

    /// How its parameters start.
    pub fn init(&self) -> InitSpec {
        let hidden = if self.mirrors() { Init::MirroredNormal } else { Init::Normal { std: 1.0 } };
        let mut init = InitSpec::from(hidden)
            .with("output.weight", Init::Constant { value: 1.0 / self.width.max(1) as f64 })
            .with("output.bias", Init::Constant { value: self.bias });
        for layer in 0..self.below.map_or(0, |below| below.layers) {
            let random = self.below.is_some_and(|below| below.weights == BelowWeights::Random);
            let start = match layer {
                _ if random => Init::FanIn,
                0 if self.mirrors() => Init::MirroredEye,
                _ => Init::Eye,
            };
            init = init.with(format!("below.{layer}"), start);
        }
        init
    }
}
