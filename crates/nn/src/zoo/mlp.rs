//! Multilayer perceptrons.

use serde::{Deserialize, Serialize};

use super::Nonlinearity;
use crate::spec::{LayerKind, LayerSpec, NetworkSpec};
use crate::{Activation, InitSpec};

/// Which layers of a perceptron have a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bias {
    /// Every layer.
    #[default]
    All,
    /// The first alone: then the network is homogeneous in its other layers,
    /// which is what the KKT attack assumes.
    First,
    /// None.
    None,
}

/// A perceptron of any depth and width.
///
/// ```
/// use afterimage_nn::{Network, zoo::{Bias, Mlp}};
/// let mlp = Mlp { bias: Bias::First, ..Mlp::new(784, &[1000, 1000], 1) };
/// let network = Network::new(mlp.spec())?;
/// let names: Vec<_> = network.parameters().iter().map(|p| p.name.as_str()).collect();
/// assert_eq!(names, ["0.weight", "0.bias", "2.weight", "4.weight"]);
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mlp {
    /// Shape of a sample; anything but `[features]` is flattened first.
    pub input: Vec<usize>,
    /// Widths of the hidden layers, first to last.
    pub hidden: Vec<usize>,
    /// Number of outputs.
    pub outputs: usize,
    /// What follows each hidden layer.
    #[serde(default = "relu")]
    pub activation: Nonlinearity,
    /// Which layers have a bias.
    #[serde(default)]
    pub bias: Bias,
    /// Layers are called `prefix.0`, `prefix.1`, …, counting linear layers alone;
    /// without a prefix by their place in the list, activations included, as in
    /// `nn.Sequential`.
    #[serde(default)]
    pub prefix: Option<String>,
}

fn relu() -> Nonlinearity {
    Activation::Relu.into()
}

impl Mlp {
    /// A ReLU perceptron on rows of features, with biases everywhere.
    pub fn new(features: usize, hidden: &[usize], outputs: usize) -> Self {
        Self {
            input: vec![features],
            hidden: hidden.to_vec(),
            outputs,
            activation: relu(),
            bias: Bias::All,
            prefix: None,
        }
    }

    /// The same with another activation.
    pub fn with_activation(self, activation: impl Into<Nonlinearity>) -> Self {
        Self { activation: activation.into(), ..self }
    }

    /// Its layers.
    pub fn spec(&self) -> NetworkSpec {
        let mut layers = Vec::new();
        if self.input.len() != 1 {
            layers.push(LayerSpec::new(LayerKind::Flatten {}));
        }
        for (index, &outputs) in self.hidden.iter().chain([&self.outputs]).enumerate() {
            if index > 0 {
                layers.push(LayerSpec::new(self.activation.layer()));
            }
            let bias = match self.bias {
                Bias::All => true,
                Bias::First => index == 0,
                Bias::None => false,
            };
            let linear = LayerSpec::new(LayerKind::Linear { outputs, bias });
            layers.push(match &self.prefix {
                Some(prefix) => linear.named(format!("{prefix}.{index}")),
                None => linear,
            });
        }
        NetworkSpec { input: self.input.clone(), layers }
    }

    /// The name of its first linear layer, for an [`InitSpec`].
    pub fn first_layer(&self) -> String {
        match &self.prefix {
            Some(prefix) => format!("{prefix}.0"),
            None => usize::from(self.input.len() != 1).to_string(),
        }
    }

    /// `default` with the first layer at N(0, σ²): the KKT paper's small initialisation.
    pub fn small_first_layer(&self, default: impl Into<InitSpec>, std: f64) -> InitSpec {
        default.into().with(self.first_layer(), crate::Init::Normal { std })
    }
}
