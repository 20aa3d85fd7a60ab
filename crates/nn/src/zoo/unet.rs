//! U-shaped autoencoders.

use serde::{Deserialize, Serialize};

use super::{Layers, Nonlinearity};
use crate::spec::{LayerKind, NetworkSpec};
use crate::{Activation, Sides};

/// The U-Net autoencoder of the autoencoder-recovery paper (its figure C.2 and appendix C):
/// 3x3 convolutions of stride 1 and padding 1, an activation after every one of them,
/// pooled on the way down, upsampled and joined with what was there on the way up.
///
/// The text of the paper gives no numbers of channels; ours are a parameter, doubling
/// from 64, and so is how many convolutions a level has. Names are `down.0.0`, `down.0.1` (two
/// convolutions a level), `middle.0`, `middle.1`, `up.0.0`, … and `out`.
///
/// ```
/// use afterimage_nn::{Network, zoo::Unet};
/// let network = Network::new(Unet { channels: vec![8, 16], ..Unet::new(&[3, 32, 32]) }.spec())?;
/// assert_eq!(network.output_shape(), [3, 32, 32]);
/// let narrow = Unet { across: false, convolutions: 1, middle: Some(32), ..Unet::new(&[3, 32, 32]) };
/// assert_eq!(Network::new(narrow.spec())?.output_shape(), [3, 32, 32]);
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unet {
    /// Shape of a sample, `[channels, height, width]`; both sides divisible by 2 for each level.
    pub input: Vec<usize>,
    /// Channels of each level.
    #[serde(default = "levels")]
    pub channels: Vec<usize>,
    /// Channels of the middle, the narrowest place; twice the last level's if not said.
    #[serde(default)]
    pub middle: Option<usize>,
    /// Convolutions of each level on either way, and of the middle.
    #[serde(default = "two")]
    pub convolutions: usize,
    /// What follows each convolution.
    #[serde(default = "leaky")]
    pub activation: Nonlinearity,
    /// Whether one follows the last convolution too, as the paper says.
    #[serde(default = "yes")]
    pub last_activation: bool,
    /// Whether levels are joined by a transposed convolution instead of nearest upsampling.
    #[serde(default)]
    pub transposed: bool,
    /// Whether what a level had on the way down is handed across to the way up. An autoencoder that
    /// has this learns to give back anything, and stores nobody.
    #[serde(default = "yes")]
    pub across: bool,
}

fn levels() -> Vec<usize> {
    vec![64, 128]
}

fn two() -> usize {
    2
}

fn leaky() -> Nonlinearity {
    Activation::LeakyRelu { slope: 0.01 }.into()
}

fn yes() -> bool {
    true
}

impl Unet {
    /// Two levels of 64 and 128 channels with leaky ReLU.
    pub fn new(input: &[usize]) -> Self {
        Self {
            input: input.to_vec(),
            channels: levels(),
            middle: None,
            convolutions: two(),
            activation: leaky(),
            last_activation: true,
            transposed: false,
            across: true,
        }
    }

    /// Its layers.
    pub fn spec(&self) -> NetworkSpec {
        let mut layers = Layers::new(&self.input);
        let mut skips = Vec::new();
        for (level, &channels) in self.channels.iter().enumerate() {
            self.level(&mut layers, &format!("down.{level}"), channels);
            skips.push((layers.last(), channels));
            let (kernel, padding) = (2.into(), Sides([0, 0]));
            layers.named(format!("pool.{level}"), LayerKind::MaxPool { kernel, stride: None, padding });
        }
        let deepest = self.channels.last().copied().unwrap_or(1);
        self.level(&mut layers, "middle", self.middle.unwrap_or(deepest.saturating_mul(2)));
        for (level, (skip, channels)) in skips.iter().enumerate().rev() {
            let name = format!("widen.{level}");
            if self.transposed {
                let (kernel, stride, none) = (2.into(), 2.into(), Sides([0, 0]));
                let (padding, output_padding, dilation) = (none, none, 1.into());
                let outputs = *channels;
                #[rustfmt::skip]
                let kind = LayerKind::ConvTranspose {
                    outputs, kernel, stride, padding, output_padding, dilation, groups: 1, bias: true,
                };
                layers.named(&name, kind);
            } else {
                layers.named(&name, LayerKind::Upsample { factor: 2.into() });
            }
            if self.across {
                layers.reading(format!("join.{level}"), &[skip, &name], LayerKind::Concat {});
            }
            self.level(&mut layers, &format!("up.{level}"), *channels);
        }
        layers.conv("out", self.input.first().copied().unwrap_or(1), 3, 1, 1, true);
        if self.last_activation {
            layers.named("out.activation", self.activation.layer());
        }
        layers.finish()
    }

    /// The convolutions of one level, each with its activation.
    fn level(&self, layers: &mut Layers, name: &str, channels: usize) {
        for index in 0..self.convolutions {
            layers.conv(format!("{name}.{index}"), channels, 3, 1, 1, true);
            layers.named(format!("{name}.{index}.activation"), self.activation.layer());
        }
    }
}
