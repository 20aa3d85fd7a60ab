//! EfficientNet-Lite0.

use serde::{Deserialize, Serialize};

use super::Layers;
use crate::spec::{LayerKind, NetworkSpec};
use crate::{Activation, Padding};

/// EfficientNet-Lite0 (Tan & Le, 2019, without squeeze-and-excitation, with ReLU6), with
/// the names of the PyPI package efficientnet-lite-pytorch: `_conv_stem`, `_bn0`,
/// `_blocks.3._expand_conv`, …, `_conv_head`, `_bn1`, `_fc`.
///
/// Images go in as (x − 127) / 128 of 0..255 RGB, 224 pixels high and wide. Padding is
/// TensorFlow's, so other sizes give other margins, as they do there.
///
/// ```
/// use afterimage_nn::{Network, zoo::EfficientnetLite};
/// let network = Network::new(EfficientnetLite::new(&[3, 224, 224], 1000).spec())?;
/// let count: usize = network.parameters().iter().map(|p| p.shape.iter().product::<usize>()).sum();
/// assert_eq!(count, 4_652_008);
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EfficientnetLite {
    /// Shape of a sample: `[3, height, width]`.
    pub input: Vec<usize>,
    /// Number of outputs.
    pub outputs: usize,
}

/// A stage: blocks, kernel, stride of the first, expansion, channels.
const STAGES: [(usize, usize, usize, usize, usize); 7] = [
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
];

/// The normalisation's ε, larger than PyTorch's default.
const EPS: f64 = 1e-3;
/// PyTorch's way of saying TensorFlow's 0.99.
const MOMENTUM: f64 = 0.01;

impl EfficientnetLite {
    /// The network for images of this shape.
    pub fn new(input: &[usize], outputs: usize) -> Self {
        Self { input: input.to_vec(), outputs }
    }

    /// Its layers.
    pub fn spec(&self) -> NetworkSpec {
        let mut layers = Layers::new(&self.input);
        unit(&mut layers, "", "_conv_stem", "_bn0", [32, 3, 2, 1], true);
        let (mut inputs, mut index) = (32, 0);
        for (blocks, kernel, stride, expansion, outputs) in STAGES {
            for block in 0..blocks {
                let stride = if block == 0 { stride } else { 1 };
                inverted(&mut layers, index, inputs, [kernel, stride, expansion, outputs]);
                (inputs, index) = (outputs, index + 1);
            }
        }
        unit(&mut layers, "", "_conv_head", "_bn1", [1280, 1, 1, 1], true);
        layers.named("_avg_pooling", LayerKind::AdaptiveAvgPool { output: 1.into() });
        layers.named("_flatten", LayerKind::Flatten {});
        layers.named("_dropout", LayerKind::Dropout { p: 0.2 });
        layers.linear("_fc", self.outputs);
        layers.finish()
    }
}

/// A convolution of [outputs, kernel, stride, groups], what normalises it, and ReLU6.
fn unit(
    layers: &mut Layers,
    prefix: &str,
    conv: &str,
    norm: &str,
    [outputs, kernel, stride, groups]: [usize; 4],
    active: bool,
) {
    let kind = LayerKind::Conv {
        outputs,
        kernel: kernel.into(),
        stride: stride.into(),
        padding: Padding::SAME,
        dilation: 1.into(),
        groups,
        bias: false,
    };
    layers.named(format!("{prefix}{conv}"), kind);
    layers.named(format!("{prefix}{norm}"), LayerKind::BatchNorm { eps: EPS, momentum: MOMENTUM, affine: true });
    if active {
        layers.named(format!("{prefix}{norm}.relu6"), LayerKind::Activation { function: Activation::Relu6 });
    }
}

/// Expand, convolve each channel, project; and around it the input, where it fits.
fn inverted(layers: &mut Layers, index: usize, inputs: usize, [kernel, stride, expansion, outputs]: [usize; 4]) {
    let (around, prefix) = (layers.last(), format!("_blocks.{index}."));
    let wide = inputs * expansion;
    if expansion != 1 {
        unit(layers, &prefix, "_expand_conv", "_bn0", [wide, 1, 1, 1], true);
    }
    unit(layers, &prefix, "_depthwise_conv", "_bn1", [wide, kernel, stride, wide], true);
    unit(layers, &prefix, "_project_conv", "_bn2", [outputs, 1, 1, 1], false);
    if stride == 1 && inputs == outputs {
        let end = layers.last();
        layers.reading(format!("{prefix}add"), &[&end, &around], LayerKind::Add {});
    }
}
