//! The victim's architecture, as a plan writes it.

use afterimage_nn::zoo::{
    Below, Bias, Convnet, Depth, EfficientnetLite, FcAutoencoder, Lenet, LenetVariant, Mlp, Nonlinearity, Probe,
    Resnet, Stem, TiedAutoencoder, Unet,
};
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
    /// LeNet-5, or the LeNet of the gradient-leakage papers, on images.
    Lenet {
        /// Number of outputs.
        outputs: usize,
        /// Which of the two.
        #[serde(default)]
        variant: LenetVariant,
        /// What every hidden width is multiplied with.
        #[serde(default = "unit")]
        width: f64,
        /// What follows each hidden layer.
        #[serde(default = "relu")]
        activation: Nonlinearity,
        /// How parameters start.
        #[serde(default = "pytorch")]
        init: Init,
    },
    /// Eight normalised convolutions and a linear layer: the ConvNet of "Inverting gradients".
    Convnet {
        /// Number of outputs.
        outputs: usize,
        /// Channels of the first convolution.
        #[serde(default = "channels")]
        width: usize,
        /// Whether convolutions are normalised.
        #[serde(default = "yes")]
        batch_norm: bool,
        /// How parameters start.
        #[serde(default = "pytorch")]
        init: Init,
    },
    /// A residual network with torchvision's names.
    Resnet {
        /// Number of outputs.
        outputs: usize,
        /// 18, 34 or 50.
        depth: Depth,
        /// `imagenet` or `cifar`: how an image enters.
        #[serde(default)]
        stem: Stem,
        /// Channels of the first stage.
        #[serde(default = "channels")]
        width: usize,
        /// How parameters start.
        #[serde(default = "pytorch")]
        init: Init,
    },
    /// EfficientNet-Lite0 with the names of its PyTorch package.
    EfficientnetLite {
        /// Number of outputs.
        outputs: usize,
        /// How parameters start.
        #[serde(default = "pytorch")]
        init: Init,
    },
    /// A U-shaped autoencoder on images.
    Unet {
        /// Channels of each level.
        #[serde(default = "levels")]
        channels: Vec<usize>,
        /// Channels of the middle, its narrowest place; twice the last level's if not said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        middle: Option<usize>,
        /// Convolutions of each level on either way, and of the middle.
        #[serde(default = "two")]
        convolutions: usize,
        /// What follows each convolution.
        #[serde(default = "leaky")]
        activation: Nonlinearity,
        /// Whether one follows the last convolution too.
        #[serde(default = "yes")]
        last_activation: bool,
        /// Whether levels are joined by transposed convolutions.
        #[serde(default)]
        transposed: bool,
        /// Whether what a level had on the way down is handed across to the way up.
        #[serde(default = "yes")]
        across: bool,
        /// How parameters start.
        #[serde(default = "pytorch")]
        init: Init,
    },
    /// Layers as in a network description.
    Layers {
        /// How parameters start.
        #[serde(default = "pytorch")]
        init: Init,
        /// How those of one layer do, if otherwise: its name and its start.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        init_of: Option<(String, Init)>,
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

fn unit() -> f64 {
    1.0
}

fn channels() -> usize {
    64
}

fn levels() -> Vec<usize> {
    vec![64, 128]
}

fn two() -> usize {
    2
}

fn yes() -> bool {
    true
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
    /// Widths of the hidden layers, where they are a list.
    pub fn hidden(&self) -> Option<&[usize]> {
        match self {
            NetworkPlan::Mlp { hidden, .. } => Some(hidden),
            _ => None,
        }
    }

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
            NetworkPlan::Lenet { outputs, variant, width, activation, init } => {
                let (outputs, variant, width, activation) = (*outputs, *variant, *width, *activation);
                let network = Lenet { input: shape.to_vec(), outputs, variant, width, activation };
                (network.spec(), (*init).into())
            }
            NetworkPlan::Convnet { outputs, width, batch_norm, init } => {
                let (outputs, width, batch_norm) = (*outputs, *width, *batch_norm);
                (Convnet { input: shape.to_vec(), outputs, width, batch_norm }.spec(), (*init).into())
            }
            NetworkPlan::Resnet { outputs, depth, stem, width, init } => {
                let (outputs, depth, stem, width) = (*outputs, *depth, *stem, *width);
                (Resnet { input: shape.to_vec(), outputs, depth, stem, width }.spec(), (*init).into())
            }
            NetworkPlan::EfficientnetLite { outputs, init } => {
                (EfficientnetLite::new(shape, *outputs).spec(), (*init).into())
            }
            NetworkPlan::Unet {
                channels,
                middle,
                convolutions,
                activation,
                last_activation,
                transposed,
                across,
                init,
            } => {
                let network = Unet {
                    input: shape.to_vec(),
                    channels: channels.clone(),
                    middle: *middle,
                    convolutions: *convolutions,
                    activation: *activation,
                    last_activation: *last_activation,
                    transposed: *transposed,
                    across: *across,
                };
                (network.spec(), (*init).into())
            }
            NetworkPlan::Layers { spec, init, init_of } => {
                let start = InitSpec::from(*init);
                let start = init_of.iter().fold(start, |start, (layer, init)| start.with(layer, *init));
                (spec.clone(), start)
            }
        }
    }
}
