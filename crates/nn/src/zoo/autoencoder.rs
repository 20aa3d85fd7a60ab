//! Fully connected autoencoders.

use serde::{Deserialize, Serialize};

use super::{Mlp, Nonlinearity};
use crate::Activation;
use crate::spec::{LayerKind, LayerSpec, NetworkSpec};

/// An overparameterised autoencoder of `depth` linear layers, as wide inside
/// as given, with the activation after every layer but the last.
///
/// The papers on memorising autoencoders give depths (10 and 20) but no
/// widths; ours is a parameter, 1024 by default.
///
/// ```
/// use afterimage_nn::{Network, zoo::FcAutoencoder};
/// let network = Network::new(FcAutoencoder { depth: 10, width: 64, ..FcAutoencoder::new(&[3, 8, 8]) }.spec())?;
/// assert_eq!(network.output_shape(), [192]);
/// assert_eq!(network.parameters().len(), 20);
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FcAutoencoder {
    /// Shape of a sample; outputs are its elements as one row.
    pub input: Vec<usize>,
    /// Number of linear layers.
    #[serde(default = "ten")]
    pub depth: usize,
    /// Width of every hidden layer.
    #[serde(default = "wide")]
    pub width: usize,
    /// What follows each hidden layer.
    #[serde(default = "leaky")]
    pub activation: Nonlinearity,
}

fn ten() -> usize {
    10
}

fn wide() -> usize {
    1024
}

fn leaky() -> Nonlinearity {
    Activation::LeakyRelu { slope: 0.01 }.into()
}

impl FcAutoencoder {
    /// Ten layers with leaky ReLU.
    pub fn new(input: &[usize]) -> Self {
        Self { input: input.to_vec(), depth: ten(), width: wide(), activation: leaky() }
    }

    /// Its layers.
    pub fn spec(&self) -> NetworkSpec {
        // Saturating: a shape too large to exist is for the type check to name.
        let features = self.input.iter().fold(1_usize, |product, &side| product.saturating_mul(side));
        let hidden = vec![self.width; self.depth.saturating_sub(1)];
        Mlp { input: self.input.clone(), activation: self.activation, ..Mlp::new(features, &hidden, features) }.spec()
    }
}

/// f(x) = Wᵀ ρ(Wx): the two-layer tied autoencoder of Theorem 1 of the
/// autoencoder-recovery paper, optionally with biases.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TiedAutoencoder {
    /// Length of a sample.
    pub features: usize,
    /// Width of the code.
    pub width: usize,
    /// ρ.
    pub activation: Nonlinearity,
    /// Whether encoder and decoder have biases; the paper's have none.
    #[serde(default)]
    pub bias: bool,
}

impl TiedAutoencoder {
    /// Its layers.
    pub fn spec(&self) -> NetworkSpec {
        let encoder = LayerKind::Linear { outputs: self.width, bias: self.bias };
        let decoder = LayerKind::TiedLinear { to: "encoder".into(), bias: self.bias };
        NetworkSpec {
            input: vec![self.features],
            layers: vec![
                LayerSpec::new(encoder).named("encoder"),
                LayerSpec::new(self.activation.layer()).named("activation"),
                LayerSpec::new(decoder).named("decoder"),
            ],
        }
    }
}
