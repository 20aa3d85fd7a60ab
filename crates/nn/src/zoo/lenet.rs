//! LeNet and its descendant in the gradient-inversion literature.

use serde::{Deserialize, Serialize};

use super::{Layers, Nonlinearity};
use crate::spec::{LayerKind, NetworkSpec};
use crate::{Activation, Sides};

/// LeNet-5 (LeCun et al., 1998) with a width multiplier, or the LeNet of "Deep leakage
/// from gradients" (Zhu et al., 2019).
///
/// | | layers | names |
/// | --- | --- | --- |
/// | `classic` | conv 5x5 to 6, pool, conv 5x5 to 16, pool, linear 120, 84, outputs; each width times `width` | `conv1`, `conv2`, `fc1`, `fc2`, `fc3` |
/// | `leakage` | four convolutions 5x5 to 12 channels, strides 2, 2, 1, 1, and one linear layer | `body.0` … `body.6`, `fc.0` |
///
/// ```
/// use afterimage_nn::{Network, zoo::Lenet};
/// let network = Network::new(Lenet { width: 2.0, ..Lenet::new(&[1, 28, 28], 10) }.spec())?;
/// assert_eq!(network.parameters()[0].shape, [12, 1, 5, 5]);
/// assert_eq!(network.output_shape(), [10]);
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lenet {
    /// Shape of a sample: `[channels, height, width]`.
    pub input: Vec<usize>,
    /// Number of outputs.
    pub outputs: usize,
    /// Which of the two.
    #[serde(default)]
    pub variant: LenetVariant,
    /// What every hidden width is multiplied with; each keeps at least one channel.
    #[serde(default = "one")]
    pub width: f64,
    /// What follows each hidden layer; the papers use the sigmoid for gradients, ReLU otherwise.
    #[serde(default = "relu")]
    pub activation: Nonlinearity,
}

/// Which LeNet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LenetVariant {
    /// LeNet-5: pooled twice, three linear layers.
    #[default]
    Classic,
    /// The one whose gradients leak: strided convolutions, no pooling.
    Leakage,
}

fn one() -> f64 {
    1.0
}

fn relu() -> Nonlinearity {
    Activation::Relu.into()
}

impl Lenet {
    /// LeNet-5 with ReLU.
    pub fn new(input: &[usize], outputs: usize) -> Self {
        Self { input: input.to_vec(), outputs, variant: LenetVariant::Classic, width: 1.0, activation: relu() }
    }

    /// The LeNet of the gradient-leakage papers, with the sigmoid.
    pub fn leakage(input: &[usize], outputs: usize) -> Self {
        let activation = Activation::Sigmoid.into();
        Self { variant: LenetVariant::Leakage, activation, ..Self::new(input, outputs) }
    }

    /// Its layers.
    pub fn spec(&self) -> NetworkSpec {
        let wide = |channels: usize| ((channels as f64 * self.width).round() as usize).max(1);
        let mut layers = Layers::new(&self.input);
        match self.variant {
            LenetVariant::Classic => {
                // The original pads its 28x28 digits to 32x32; images of that size need none.
                let padding = if self.input.get(1).is_some_and(|&height| height < 32) { 2 } else { 0 };
                for (name, channels, padding) in [("conv1", 6, padding), ("conv2", 16, 0)] {
                    layers.conv(name, wide(channels), 5, 1, padding, true);
                    layers.push(self.activation.layer());
                    layers.push(LayerKind::AvgPool { kernel: 2.into(), stride: None, padding: Sides([0, 0]) });
                }
                layers.push(LayerKind::Flatten {});
                for (name, outputs) in [("fc1", 120), ("fc2", 84)] {
                    layers.linear(name, wide(outputs));
                    layers.push(self.activation.layer());
                }
                layers.linear("fc3", self.outputs);
            }
            LenetVariant::Leakage => {
                for (index, stride) in [2, 2, 1, 1].into_iter().enumerate() {
                    layers.conv(format!("body.{}", 2 * index), wide(12), 5, stride, 2, true);
                    layers.push(self.activation.layer());
                }
                layers.push(LayerKind::Flatten {});
                layers.linear("fc.0", self.outputs);
            }
        }
        layers.finish()
    }
}
