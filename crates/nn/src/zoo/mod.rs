//! Functions of a few numbers that return network descriptions.

mod autoencoder;
mod convnet;
mod efficientnet;
mod features;
mod layers;
mod lenet;
mod mlp;
mod probe;
mod resnet;
mod unet;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use autoencoder::{FcAutoencoder, TiedAutoencoder};
pub use convnet::Convnet;
pub use efficientnet::EfficientnetLite;
pub use features::{ALEXNET_TAPS, VGG16_TAPS, alexnet_features, vgg16_features};
pub use lenet::{Lenet, LenetVariant};
pub use mlp::{Bias, Mlp};
pub use probe::{Below, BelowWeights, Probe};
pub use resnet::{Depth, Resnet, Stem};
pub use unet::Unet;

use layers::Layers;

use crate::activation::split_parameter;
use crate::spec::LayerKind;
use crate::{Activation, Error, Result};

/// What stands between two layers: an [`Activation`], or a PReLU with one learned slope.
///
/// Written as the activation's text, or `"prelu"`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Nonlinearity {
    /// A fixed function.
    Fixed(Activation),
    /// A PReLU.
    Prelu,
}

impl Nonlinearity {
    /// The layer.
    pub fn layer(self) -> LayerKind {
        match self {
            Nonlinearity::Fixed(function) => LayerKind::Activation { function },
            Nonlinearity::Prelu => LayerKind::Prelu { slopes: 1 },
        }
    }
}

impl From<Activation> for Nonlinearity {
    fn from(activation: Activation) -> Self {
        Nonlinearity::Fixed(activation)
    }
}

impl fmt::Display for Nonlinearity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Nonlinearity::Fixed(activation) => activation.fmt(f),
            Nonlinearity::Prelu => f.write_str("prelu"),
        }
    }
}

impl From<Nonlinearity> for String {
    fn from(nonlinearity: Nonlinearity) -> String {
        nonlinearity.to_string()
    }
}

impl TryFrom<String> for Nonlinearity {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl FromStr for Nonlinearity {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match split_parameter(text)? {
            ("prelu", None) => Ok(Nonlinearity::Prelu),
            ("prelu", Some(_)) => Err(Error::Parse {
                what: "activation `prelu`".into(),
                problem: "takes no parameter: its slope is learned".into(),
            }),
            _ => text.parse().map(Nonlinearity::Fixed),
        }
    }
}
