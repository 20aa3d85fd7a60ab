//! The victim's architecture, as a plan writes it.

use afterimage_nn::zoo::{Below, Bias, FcAutoencoder, Mlp, Nonlinearity, Probe, TiedAutoencoder};
use afterimage_nn::{Activation, Init, InitSpec, NetworkSpec};
use serde::{Deserialize, Serialize};

/// The victim's architecture: a member of the zoo, or layers written out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum NetworkPlan {
    /// A perceptron on the data's shape.
    Mlp {
        /// Widths of the hidden layers.
        hidden: Vec<usize>,
        /// Number of outputs.
        outputs: usize,
        /// What follows each hidden layer.
        #[serde(default = "relu")]
        activation: Nonlinearity,
        /// Which layers have a bias.
        #[serde(default)]
        bias: Bias,
        /// How parameters start.
        #[serde(default = "pytorch")]
        init: Init,
        /// How those of the first layer do, if otherwise.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        first_init: Option<Init>,
        /// Layers are called `prefix.0`, `prefix.1`, … as in the file that weights are loaded
        /// from; without it by their place, as in `nn.Sequential`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefix: Option<String>,
    },
    /// What a server sends out to read samples from gradients: M + Σ a_j σ(w_j · x), with
    /// a_j = 1/width and w_j of N(0, I), on layers that carry the input upwards if there are any.
    Probe {
        /// Number of units.
        #[serde(default = "units")]
        width: usize,
        /// σ.
        activation: Activation,
        /// M.
        #[serde(default = "thirty")]
        bias: f64,
        /// The layers below.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        below: Option<Below>,
    },
    /// A deep fully connected autoencoder on the data's shape.
    FcAutoencoder {
        /// Number of linear layers.
        #[serde(default = "ten")]
        depth: usize,
        /// Width of every hidden layer.
        #[serde(default = "wide")]
        width: usize,
        /// What follows each hidden layer.
        #[serde(default = "leaky")]
        activation: Nonlinearity,
        /// How parameters start.
        #[serde(default = "pytorch")]
        init: Init,
    },
    /// f(x) = Wᵀ ρ(Wx) on records as rows of numbers.
    TiedAutoencoder {
        /// Width of the code.
        width: usize,
        /// ρ.
        activation: Nonlinearity,
        /// Whether encoder and decoder have biases.
        #[serde(default)]
        bias: bool,
        /// How parameters start.
        #[serde(default = "pytorch")]
        init: Init,
    },
    /// Layers as in a network description.
    Layers {
        /// The description; its input must be the data's shape.
        #[serde(flatten)]
        spec: NetworkSpec,
    },
}

fn relu() -> Nonlinearity {
    Activation::Relu.into()
}

fn leaky() -> Nonlinearity {
    Activation::LeakyRelu { slope: 0.01 }.into()
}

fn units() -> usize {
    5000
}

fn thirty() -> f64 {
    30.0
}

fn ten() -> usize {
    10
}

fn wide() -> usize {
    1024
}

fn pytorch() -> Init {
    Init::Pytorch
}

impl NetworkPlan {
    /// The network for samples of this shape, and its initialiser.
    pub fn build(&self, shape: &[usize]) -> (NetworkSpec, InitSpec) {
        match self {
            NetworkPlan::Mlp { hidden, outputs, activation, bias, init, first_init, prefix } => {
                let (hidden, outputs, activation, bias) = (hidden.clone(), *outputs, *activation, *bias);
                let mlp = Mlp { input: shape.to_vec(), hidden, outputs, activation, bias, prefix: prefix.clone() };
                let start = InitSpec::from(*init);
                let first = first_init.map(|first| start.clone().with(mlp.first_layer(), first));
                (mlp.spec(), first.unwrap_or(start))
            }
            NetworkPlan::Probe { width, activation, bias, below } => {
                let (width, activation, bias, below) = (*width, *activation, *bias, *below);
                let probe = Probe { input: shape.to_vec(), width, activation, bias, below };
                (probe.spec(), probe.init())
            }
            NetworkPlan::FcAutoencoder { depth, width, activation, init } => {
                let (depth, width, activation) = (*depth, *width, *activation);
                let network = FcAutoencoder { input: shape.to_vec(), depth, width, activation };
                (network.spec(), (*init).into())
            }
            NetworkPlan::TiedAutoencoder { width, activation, bias, init } => {
                // Saturating: a shape too large to exist is for the type check to name.
                let features = shape.iter().fold(1_usize, |product, &side| product.saturating_mul(side));
                let network = TiedAutoencoder { features, width: *width, activation: *activation, bias: *bias };
                (network.spec(), (*init).into())
            }
            NetworkPlan::Layers { spec } => (spec.clone(), Init::Pytorch.into()),
        }
    }
}
