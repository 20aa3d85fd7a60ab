//! Parity of the convolutional zoo with PyTorch: `golden/convolutional/make.py` made the numbers.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;

use afterimage_nn::io::TensorFile;
use afterimage_nn::zoo::{
    Convnet, Depth, Lenet, LenetVariant, Nonlinearity, Resnet, Stem, Unet, alexnet_features, vgg16_features,
};
use afterimage_nn::{
    Activation, DType, Device, Init, Loss, Mode, Network, NetworkSpec, Objective, Params, Reduction, Seed, Targets,
    Tensor, Want,
};
use common::relative;

const SAMPLES: usize = 4;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/convolutional")
}

/// SplitMix64 of (name, index), mapped to [-1, 1): `make.py` has the same.
fn uniform(name: &str, count: usize) -> Vec<f64> {
    let key = name
        .bytes()
        .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3));
    let draw = |index: u64| {
        let mut z = index.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(key);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        (z >> 40) as f64 / (1_u64 << 24) as f64 * 2.0 - 1.0
    };
    (1..=count as u64).map(draw).collect()
}

fn tensor(name: &str, shape: &[usize], dtype: DType, f: impl Fn(f64) -> f64) -> Tensor {
    let data: Vec<f64> = uniform(name, shape.iter().product()).into_iter().map(f).collect();
    Tensor::from_f64(&data, shape, dtype).unwrap()
}

/// Every parameter and running statistic by its name and shape.
fn fill(network: &Network, dtype: DType) -> Params {
    let value = |name: &str, shape: &[usize]| {
        let fan_in: usize = shape.iter().skip(1).product();
        let map: Box<dyn Fn(f64) -> f64> = match shape {
            _ if name.ends_with("running_var") => Box::new(|u| 1.0 + 0.5 * u),
            _ if name.ends_with("running_mean") || name.ends_with("bias") => Box::new(|u| 0.1 * u),
            [1] => Box::new(|u| 0.25 + 0.1 * u),
            [_] => Box::new(|u| 1.0 + 0.2 * u),
            _ => Box::new(move |u| u * (6.0 / fan_in as f64).sqrt()),
        };
        (name.to_owned(), tensor(name, shape, dtype, map))
    };
    let fresh = network.init(&Init::Pytorch.into(), 1, dtype).unwrap();
    let named: BTreeMap<String, Tensor> = fresh.state().map(|(name, like)| value(name, like.shape())).collect();
    network.params(named, dtype, Device::Cpu).unwrap()
}

fn network(case: &str) -> Network {
    let sigmoid: Nonlinearity = Activation::Sigmoid.into();
    let spec = match case.trim_end_matches("-train").trim_end_matches("-eval") {
        "lenet" => Lenet { width: 0.5, activation: sigmoid, ..Lenet::new(&[1, 28, 28], 10) }.spec(),
        "lenet-leakage" => {
            let variant = LenetVariant::Leakage;
            Lenet { width: 0.5, activation: sigmoid, variant, ..Lenet::new(&[3, 16, 16], 10) }.spec()
        }
        "convnet" => Convnet { width: 3, ..Convnet::new(&[3, 18, 18], 10) }.spec(),
        "resnet-18" => Resnet { width: 3, stem: Stem::Cifar, ..Resnet::new(Depth::Eighteen, &[3, 16, 16], 10) }.spec(),
        "resnet-50" => Resnet { width: 2, ..Resnet::new(Depth::Fifty, &[3, 64, 64], 10) }.spec(),
        "unet" => {
            let activation = Activation::Softplus { beta: 1.0 }.into();
            Unet { channels: vec![3, 5], activation, ..Unet::new(&[3, 12, 12]) }.spec()
        }
        "unet-transposed" => {
            let (channels, activation) = (vec![3, 4], Nonlinearity::Prelu);
            Unet { channels, activation, transposed: true, ..Unet::new(&[3, 8, 8]) }.spec()
        }
        other => panic!("no network for {other}"),
    };
    let mode = if case == "convnet" || case.ends_with("-train") { Mode::Train } else { Mode::Eval };
    Network::new(spec).unwrap().in_mode(mode)
}

const CASES: [&str; 9] = [
    "lenet",
    "lenet-leakage",
    "convnet",
    "resnet-18-train",
    "resnet-18-eval",
    "resnet-50-train",
    "resnet-50-eval",
    "unet",
    "unet-transposed",
];

fn check(golden: &TensorFile, case: &str, dtype: DType, tolerance: f64) {
    let network = network(case);
    let theta = fill(&network, dtype);
    let target = network
        .params(
            theta
                .iter()
                .map(|(name, like)| {
                    let value = tensor(&format!("{case}/target/{name}"), like.shape(), dtype, |u| 0.1 * u);
                    (name.to_owned(), value)
                })
                .collect(),
            dtype,
            Device::Cpu,
        )
        .unwrap();
    let draw = golden.integers[&format!("{case}/draw")].values[0];
    let x = tensor(&format!("{case}/x/{draw}"), &network.batch_shape(SAMPLES), dtype, |u| u);
    // A bias before a normalisation has no gradient but rounding: held against the whole gradient.
    let prefix = format!("{case}/grad/");
    let whole = golden.tensors.iter().filter(|(key, _)| key.starts_with(&prefix));
    let floor = 1e-2 * whole.map(|(_, gradient)| gradient.dot(gradient).unwrap()).sum::<f64>().sqrt();
    let same = |found: &Tensor, key: String| {
        let expected = golden.tensors.get(&key).unwrap_or_else(|| panic!("golden file lacks {key}"));
        let error = relative(found, expected, if key.starts_with(&prefix) { floor } else { 1e-3 });
        assert!(error <= tolerance, "{key} in {dtype}: relative error {error:e}");
    };
    let mut pass = network.pass(&theta, &x).unwrap();
    same(pass.outputs(), format!("{case}/outputs"));

    let (loss, targets) = match *pass.outputs().shape() {
        [samples, _] => (Loss::CrossEntropy, Targets::Classes((0..samples).map(|i| i * 3 % 10).collect())),
        ref shape => (Loss::Mse, Targets::Values(tensor(&format!("{case}/y"), shape, dtype, |u| u))),
    };
    let objective = Objective::new(loss, Reduction::Mean, targets);
    let value = objective.value(pass.outputs()).unwrap();
    same(&Tensor::from_vec(vec![value], &[1]).unwrap(), format!("{case}/loss"));
    let gradients = pass.backward(Seed::Loss(objective.clone()), Want::Weights).unwrap().weights.unwrap();
    for (name, gradient) in gradients.iter() {
        same(gradient, format!("{case}/grad/{name}"));
    }
    let scales = vec![2.0; theta.values().len()];
    let residuals = pass.residual(Seed::Loss(objective), &target, &scales).unwrap();
    let distance: f64 = residuals.squares.iter().sum();
    same(&Tensor::from_vec(vec![distance], &[1]).unwrap(), format!("{case}/distance"));
    same(&pass.along(&residuals.direction).unwrap().inputs, format!("{case}/outer"));

    let prefix = format!("{case}/buffer/");
    let buffers = golden.tensors.keys().filter(|key| key.starts_with(&prefix)).count();
    if buffers > 0 {
        let after = network.tracked(&theta, &pass.statistics().unwrap()).unwrap();
        assert_eq!(after.buffers().len(), buffers);
        for buffer in after.buffers() {
            same(&buffer.value, format!("{prefix}{}", buffer.name));
        }
    }
}

#[test]
fn agrees_with_pytorch_in_double_precision() {
    let golden = TensorFile::read(folder().join("golden.safetensors")).unwrap();
    for case in CASES {
        check(&golden, case, DType::F64, 1e-9);
    }
}

#[test]
fn agrees_with_pytorch_in_single_precision() {
    let golden = TensorFile::read(folder().join("golden.safetensors")).unwrap();
    for case in CASES {
        // Fifty-three normalisations of 16 numbers and up: PyTorch itself is 6e-5 off its own double precision there.
        let tolerance = if case == "resnet-50-train" { 5e-4 } else { 1e-4 };
        check(&golden, case, DType::F32, tolerance);
    }
}

#[test]
fn state_dicts_of_torchvision_have_the_same_names_and_shapes() {
    let listed = std::fs::read_to_string(folder().join("torchvision.txt")).unwrap();
    let image = [3, 224, 224];
    let resnet = |depth| Resnet::new(depth, &image, 1000).spec();
    let ours: [(&str, NetworkSpec); 5] = [
        ("resnet18", resnet(Depth::Eighteen)),
        ("resnet34", resnet(Depth::ThirtyFour)),
        ("resnet50", resnet(Depth::Fifty)),
        ("alexnet", alexnet_features(&image)),
        ("vgg16", vgg16_features(&image)),
    ];
    for (name, spec) in ours {
        let network = Network::new(spec).unwrap();
        let theta = network.init(&Init::Pytorch.into(), 1, DType::F32).unwrap();
        let mut found: Vec<String> =
            theta.state().map(|(key, value)| format!("{name} {key} {:?}", value.shape())).collect();
        let mut expected: Vec<&str> = listed.lines().filter(|line| line.split(' ').next() == Some(name)).collect();
        found.sort_unstable();
        expected.sort_unstable();
        assert!(!expected.is_empty());
        assert_eq!(found, expected);
    }
}
