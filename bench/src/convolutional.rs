//! Convolutions, and gradient matching on convolutional networks: `convolutional.py` has the same.

use std::collections::BTreeMap;

use afterimage_nn::zoo::{Convnet, Depth, EfficientnetLite, Lenet, Resnet, Stem};
use afterimage_nn::{
    DType, Device, Init, LayerKind, LayerSpec, Loss, Mode, Network, NetworkSpec, Objective, Params, Reduction, Result,
    Seed, Targets, Tensor, Want,
};

use crate::problem::uniform_of;

const BATCH: usize = 8;

/// FNV-1a: a stream for each name.
fn stream(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

fn tensor(name: &str, shape: &[usize], dtype: DType, f: impl Fn(f64) -> f64) -> Result<Tensor> {
    let data: Vec<f64> = uniform_of(stream(name), shape.iter().product()).map(f).collect();
    Tensor::from_f64(&data, shape, dtype)
}

/// Every parameter and running statistic by its name and shape.
fn fill(network: &Network, dtype: DType) -> Result<Params> {
    let fresh = network.init(&Init::Pytorch.into(), 1, dtype)?;
    let value = |name: &str, shape: &[usize]| {
        let fan_in: usize = shape.iter().skip(1).product();
        tensor(name, shape, dtype, |u| match shape {
            _ if name.ends_with("running_var") => 1.0 + 0.5 * u,
            _ if name.ends_with("running_mean") || name.ends_with("bias") => 0.1 * u,
            [_] => 1.0 + 0.2 * u,
            _ => u * (6.0 / fan_in as f64).sqrt(),
        })
    };
    let named = fresh.state().map(|(name, like)| Ok((name.to_owned(), value(name, like.shape())?)));
    network.params(named.collect::<Result<BTreeMap<_, _>>>()?, dtype, Device::Cpu)
}

/// One convolution of the stages of a ResNet-18.
pub(crate) struct Convolved {
    network: Network,
    theta: Params,
    x: Tensor,
    g: Tensor,
    forward: bool,
}

impl Convolved {
    /// `conv-64`, `conv-64/forward`, …
    pub(crate) fn new(case: &str, dtype: DType, device: Device) -> Result<Option<Self>> {
        let (name, part) = case.split_once('/').unwrap_or((case, ""));
        let (channels, side) = match name {
            "conv-64" => (64, 32),
            "conv-128" => (128, 16),
            "conv-256" => (256, 8),
            "conv-512" => (512, 4),
            _ => return Ok(None),
        };
        let layers = vec![LayerSpec::new(LayerKind::conv(channels, 3, 1, 1, false))];
        let network = Network::new(NetworkSpec { input: vec![channels, side, side], layers })?;
        let w = tensor("w", &[channels, channels, 3, 3], dtype, |u| 0.05 * u)?;
        let theta = network.params([("0.weight".to_owned(), w)].into(), dtype, device)?;
        let shape = network.batch_shape(BATCH);
        let [x, g] = [tensor("x", &shape, dtype, |u| u)?, tensor("g", &shape, dtype, |u| u)?];
        let (x, g) = (x.to_device(device)?, g.to_device(device)?);
        Ok(Some(Self { network, theta, x, g, forward: part == "forward" }))
    }

    /// The output, or both gradients.
    pub(crate) fn run(&self) -> Result<Vec<Tensor>> {
        if self.forward {
            return Ok(vec![self.network.forward(&self.theta, &self.x)?]);
        }
        let gradients = self.network.backward(&self.theta, &self.x, &self.g, Want::Both)?;
        Ok(gradients.inputs.into_iter().chain(gradients.weights.map(|w| w.values()[0].clone())).collect())
    }
}

/// One iteration of gradient matching on a network for images of 32 pixels.
pub(crate) struct GradientMatching {
    network: Network,
    theta: Params,
    x: Tensor,
    objective: Objective,
    target: Params,
    scales: Vec<f64>,
}

impl GradientMatching {
    /// `lenet`, `convnet`, `resnet18` or `efficientnet`.
    pub(crate) fn new(case: &str, [batch, side]: [usize; 2], dtype: DType, device: Device) -> Result<Option<Self>> {
        let image = [3, side, side];
        let stem = if side > 64 { Stem::Imagenet } else { Stem::Cifar };
        let (spec, mode) = match case {
            "lenet" => (Lenet::leakage(&image, 10).spec(), Mode::Eval),
            "convnet" => (Convnet::new(&image, 10).spec(), Mode::Train),
            "resnet18" => (Resnet { stem, ..Resnet::new(Depth::Eighteen, &image, 10) }.spec(), Mode::Train),
            "efficientnet" => (EfficientnetLite::new(&image, 10).spec(), Mode::Train),
            _ => return Ok(None),
        };
        let network = Network::new(spec)?.in_mode(mode);
        let theta = fill(&network, dtype)?;
        let target = theta.iter().map(|(name, like)| {
            Ok((name.to_owned(), tensor(&format!("target/{name}"), like.shape(), dtype, |u| 0.01 * u)?))
        });
        let target = network.params(target.collect::<Result<_>>()?, dtype, device)?;
        let x = tensor("x", &network.batch_shape(batch), dtype, |u| u)?.to_device(device)?;
        let classes = Targets::Classes((0..batch).map(|i| i * 3 % 10).collect());
        let objective = Objective::new(Loss::CrossEntropy, Reduction::Mean, classes);
        let scales = vec![2.0; theta.values().len()];
        Ok(Some(Self { network, theta: theta.to_device(device)?, x, objective, target, scales }))
    }

    /// Loss and its gradient in x.
    pub(crate) fn iterate(&self) -> Result<(f64, Tensor)> {
        let mut pass = self.network.pass(&self.theta, &self.x)?;
        let residuals = pass.residual(Seed::Loss(self.objective.clone()), &self.target, &self.scales)?;
        let along = pass.along(&residuals.direction)?;
        Ok((residuals.squares.iter().sum(), along.inputs))
    }
}
