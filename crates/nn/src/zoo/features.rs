//! The convolutional parts of classifiers that perceptual distances are measured in.

use super::Layers;
use crate::spec::{LayerKind, NetworkSpec};
use crate::{Activation, Sides};

fn relu() -> LayerKind {
    LayerKind::Activation { function: Activation::Relu }
}

fn pool(kernel: usize) -> LayerKind {
    LayerKind::MaxPool { kernel: kernel.into(), stride: Some(2.into()), padding: Sides([0, 0]) }
}

/// torchvision's `alexnet.features` without its last pooling, for images of this shape;
/// the ReLU layers, whose outputs LPIPS compares, are [`ALEXNET_TAPS`].
///
/// ```
/// use afterimage_nn::{Network, zoo::{ALEXNET_TAPS, alexnet_features}};
/// let network = Network::new(alexnet_features(&[3, 64, 64]))?;
/// assert_eq!(network.parameters()[2].name, "features.3.weight");
/// assert_eq!(network.output_shape()[0], 256);
/// assert_eq!(ALEXNET_TAPS.len(), 5);
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
pub fn alexnet_features(input: &[usize]) -> NetworkSpec {
    let mut layers = Layers::new(input);
    for (index, outputs, kernel, stride, padding) in
        [(0, 64, 11, 4, 2), (3, 192, 5, 1, 2), (6, 384, 3, 1, 1), (8, 256, 3, 1, 1), (10, 256, 3, 1, 1)]
    {
        layers.conv(format!("features.{index}"), outputs, kernel, stride, padding, true);
        layers.named(format!("features.{}", index + 1), relu());
        if index < 6 {
            layers.named(format!("features.{}", index + 2), pool(3));
        }
    }
    layers.finish()
}

/// The layers of [`alexnet_features`] that LPIPS compares.
pub const ALEXNET_TAPS: [&str; 5] = ["features.1", "features.4", "features.7", "features.9", "features.11"];

/// torchvision's `vgg16.features` without its last pooling; see [`VGG16_TAPS`].
pub fn vgg16_features(input: &[usize]) -> NetworkSpec {
    let mut layers = Layers::new(input);
    let mut index = 0;
    let stages: [&[usize]; 5] = [&[64, 64], &[128, 128], &[256; 3], &[512; 3], &[512; 3]];
    for (stage, widths) in stages.into_iter().enumerate() {
        if stage > 0 {
            layers.named(format!("features.{index}"), pool(2));
            index += 1;
        }
        for &outputs in widths {
            layers.conv(format!("features.{index}"), outputs, 3, 1, 1, true);
            layers.named(format!("features.{}", index + 1), relu());
            index += 2;
        }
    }
    layers.finish()
}

/// The layers of [`vgg16_features`] that LPIPS compares.
pub const VGG16_TAPS: [&str; 5] = ["features.3", "features.8", "features.15", "features.22", "features.29"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Network;

    #[test]
    fn layers_have_torchvisions_numbers() {
        for (spec, taps, last) in [
            (alexnet_features(&[3, 64, 64]), ALEXNET_TAPS, "features.10.bias"),
            (vgg16_features(&[3, 64, 64]), VGG16_TAPS, "features.28.bias"),
        ] {
            for tap in taps {
                let layer = spec.layers.iter().find(|layer| layer.name.as_deref() == Some(tap));
                assert_eq!(layer.map(|layer| layer.kind.clone()), Some(relu()), "{tap}");
            }
            let network = Network::new(spec).unwrap();
            assert_eq!(network.parameters().last().unwrap().name, last);
        }
    }
}
