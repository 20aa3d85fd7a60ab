//! The convolutional network that gradient-inversion papers compare on.

use serde::{Deserialize, Serialize};

use super::Layers;
use crate::spec::{LayerKind, NetworkSpec};
use crate::{Activation, Sides};

/// Eight convolutions 3x3 with batch normalisation and ReLU, pooled 3x3 after the sixth
/// and the eighth, and one linear layer: the "ConvNet" of "Inverting gradients" (Geiping
/// et al., 2020), with its names `conv0`, `bn0`, … `conv7`, `bn7`, `linear`.
///
/// ```
/// use afterimage_nn::{Network, zoo::Convnet};
/// let network = Network::new(Convnet::new(&[3, 32, 32], 10).spec())?;
/// assert_eq!(network.output_shape(), [10]);
/// assert_eq!(network.buffer_names().count(), 16);
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Convnet {
    /// Shape of a sample: `[channels, height, width]`, at least 9 pixels high and wide.
    pub input: Vec<usize>,
    /// Number of outputs.
    pub outputs: usize,
    /// Channels of the first convolution; the others have two and four times as many.
    #[serde(default = "channels")]
    pub width: usize,
    /// Whether convolutions are normalised.
    #[serde(default = "yes")]
    pub batch_norm: bool,
}

fn channels() -> usize {
    64
}

fn yes() -> bool {
    true
}

impl Convnet {
    /// Sixty-four channels, as the paper's ConvNet64, with batch normalisation.
    pub fn new(input: &[usize], outputs: usize) -> Self {
        Self { input: input.to_vec(), outputs, width: channels(), batch_norm: true }
    }

    /// Its layers.
    pub fn spec(&self) -> NetworkSpec {
        let pool = || LayerKind::MaxPool { kernel: 3.into(), stride: None, padding: Sides([0, 0]) };
        let mut layers = Layers::new(&self.input);
        for (index, factor) in [1, 2, 2, 4, 4, 4, 4, 4].into_iter().enumerate() {
            // Saturating: a width too large to exist is for the type check to name.
            layers.conv(format!("conv{index}"), self.width.saturating_mul(factor), 3, 1, 1, true);
            if self.batch_norm {
                layers.named(format!("bn{index}"), LayerKind::batch_norm());
            }
            layers.named(format!("relu{index}"), LayerKind::Activation { function: Activation::Relu });
            match index {
                5 => layers.named("pool0", pool()),
                7 => layers.named("pool1", pool()),
                _ => {}
            }
        }
        layers.named("flatten", LayerKind::Flatten {});
        layers.linear("linear", self.outputs);
        layers.finish()
    }
}
