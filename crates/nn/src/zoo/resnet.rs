//! Residual networks.

use serde::{Deserialize, Serialize};

use super::Layers;
use crate::spec::{LayerKind, NetworkSpec};
use crate::{Activation, Error, Sides};

/// A residual network (He et al., 2016) with torchvision's names, so that its state
/// dicts load: `conv1`, `bn1`, `layer1.0.conv1`, …, `layer4.1.downsample.0`, `fc`.
///
/// ```
/// use afterimage_nn::{Network, zoo::{Depth, Resnet, Stem}};
/// let network = Network::new(Resnet::new(Depth::Eighteen, &[3, 224, 224], 1000).spec())?;
/// let count: usize = network.parameters().iter().map(|p| p.shape.iter().product::<usize>()).sum();
/// assert_eq!(count, 11_689_512);
/// let small = Resnet { stem: Stem::Cifar, ..Resnet::new(Depth::Eighteen, &[3, 32, 32], 10) };
/// assert_eq!(Network::new(small.spec())?.output_shape(), [10]);
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resnet {
    /// Shape of a sample: `[channels, height, width]`.
    pub input: Vec<usize>,
    /// Number of outputs.
    pub outputs: usize,
    /// 18, 34 or 50.
    pub depth: Depth,
    /// How an image enters.
    #[serde(default)]
    pub stem: Stem,
    /// Channels of the first stage.
    #[serde(default = "channels")]
    pub width: usize,
}

/// The depths there are, written as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "usize", into = "usize")]
pub enum Depth {
    /// ResNet-18: eight blocks of two convolutions.
    Eighteen,
    /// ResNet-34: sixteen blocks of two convolutions.
    ThirtyFour,
    /// ResNet-50: sixteen bottlenecks of three convolutions.
    Fifty,
}

impl TryFrom<usize> for Depth {
    type Error = Error;

    fn try_from(depth: usize) -> Result<Self, Error> {
        match depth {
            18 => Ok(Depth::Eighteen),
            34 => Ok(Depth::ThirtyFour),
            50 => Ok(Depth::Fifty),
            other => {
                let (value, expected) = (other.to_string(), "must be 18, 34 or 50".into());
                Err(Error::Setting { setting: "depth of a residual network", value, expected })
            }
        }
    }
}

impl From<Depth> for usize {
    fn from(depth: Depth) -> usize {
        match depth {
            Depth::Eighteen => 18,
            Depth::ThirtyFour => 34,
            Depth::Fifty => 50,
        }
    }
}

/// The first layers of a residual network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stem {
    /// A 7x7 convolution of stride 2 and a pooling of stride 2, for images of 224 pixels.
    #[default]
    Imagenet,
    /// A 3x3 convolution of stride 1, for images of 32 pixels.
    Cifar,
}

fn channels() -> usize {
    64
}

impl Resnet {
    /// The network for ImageNet.
    pub fn new(depth: Depth, input: &[usize], outputs: usize) -> Self {
        Self { input: input.to_vec(), outputs, depth, stem: Stem::Imagenet, width: channels() }
    }

    /// Blocks of each stage, and whether they are bottlenecks.
    fn stages(&self) -> ([usize; 4], bool) {
        match self.depth {
            Depth::Eighteen => ([2, 2, 2, 2], false),
            Depth::ThirtyFour => ([3, 4, 6, 3], false),
            Depth::Fifty => ([3, 4, 6, 3], true),
        }
    }

    /// Its layers.
    pub fn spec(&self) -> NetworkSpec {
        let mut layers = Layers::new(&self.input);
        match self.stem {
            Stem::Imagenet => normalised(&mut layers, "conv1", "bn1", self.width, 7, 2, 3),
            Stem::Cifar => normalised(&mut layers, "conv1", "bn1", self.width, 3, 1, 1),
        }
        layers.named("relu", relu());
        if self.stem == Stem::Imagenet {
            let (kernel, stride) = (3.into(), Some(2.into()));
            layers.named("maxpool", LayerKind::MaxPool { kernel, stride, padding: Sides([1, 1]) });
        }
        let (stages, bottleneck) = self.stages();
        let expansion = if bottleneck { 4 } else { 1 };
        let mut inputs = self.width;
        for (stage, blocks) in stages.into_iter().enumerate() {
            // Saturating: a width too large to exist is for the type check to name.
            let width = self.width.saturating_mul(1 << stage);
            for block in 0..blocks {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                let shortcut = stride != 1 || inputs != width.saturating_mul(expansion);
                let name = format!("layer{}.{block}", stage + 1);
                residual_block(&mut layers, &name, width, stride, bottleneck, shortcut);
                inputs = width.saturating_mul(expansion);
            }
        }
        layers.named("avgpool", LayerKind::AdaptiveAvgPool { output: 1.into() });
        layers.named("flatten", LayerKind::Flatten {});
        layers.linear("fc", self.outputs);
        layers.finish()
    }
}

fn relu() -> LayerKind {
    LayerKind::Activation { function: Activation::Relu }
}

/// A convolution without bias, and what normalises it.
fn normalised(
    layers: &mut Layers,
    conv: &str,
    norm: &str,
    outputs: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
) {
    layers.conv(conv, outputs, kernel, stride, padding, false);
    layers.named(norm, LayerKind::batch_norm());
}

/// relu(branch(x) + shortcut(x)), the stride on the first 3x3 convolution.
fn residual_block(layers: &mut Layers, name: &str, width: usize, stride: usize, bottleneck: bool, shortcut: bool) {
    let input = layers.last();
    let part = |part: &str| format!("{name}.{part}");
    let outputs = if bottleneck { width.saturating_mul(4) } else { width };
    let branch: &[(usize, usize, usize)] = if bottleneck {
        &[(width, 1, 1), (width, 3, stride), (outputs, 1, 1)]
    } else {
        &[(width, 3, stride), (width, 3, 1)]
    };
    for (index, &(outputs, kernel, stride)) in branch.iter().enumerate() {
        if index > 0 {
            layers.named(part(&format!("relu{index}")), relu());
        }
        let (conv, norm) = (part(&format!("conv{}", index + 1)), part(&format!("bn{}", index + 1)));
        normalised(layers, &conv, &norm, outputs, kernel, stride, kernel / 2);
    }
    let end = layers.last();
    let around = if shortcut {
        let conv = LayerKind::conv(outputs, 1, stride, 0, false);
        layers.reading(part("downsample.0"), &[&input], conv);
        layers.named(part("downsample.1"), LayerKind::batch_norm());
        layers.last()
    } else {
        input
    };
    layers.reading(part("add"), &[&end, &around], LayerKind::Add {});
    layers.named(part("relu"), relu());
}
