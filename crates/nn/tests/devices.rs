//! One test body, run on every device there is: results agree with the CPU to rounding.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::ops::ControlFlow;

use afterimage_nn::optim::UpdateRule;
use afterimage_nn::train::{Dataset, Recipe};
use afterimage_nn::zoo::{Depth, EfficientnetLite, Mlp, Resnet, Stem, Unet};
use afterimage_nn::{
    Activation, DType, Device, Form, Init, Loss, Matching, Mode, Network, Params, Seed, Steps, Targets, Tensor, Want,
};
use common::{batch, networks, parameters, relative};

/// The CPU (where the body compares it with itself) and, in a build that has
/// it, the first CUDA device.
fn devices() -> Vec<Device> {
    let mut devices = vec![Device::Cpu];
    match Tensor::zeros(&[1], DType::F32, Device::Cuda(0)) {
        Ok(_) => devices.push(Device::Cuda(0)),
        Err(error) => eprintln!("skipped on cuda:0: {error}"),
    }
    devices
}

const PRECISIONS: [(DType, f64); 2] = [(DType::F64, 1e-10), (DType::F32, 2e-4)];

/// Relative to the whole where a parameter has next to no gradient of its own.
fn same_params(name: &str, found: &Params, expected: &Params, tolerance: f64) {
    let floor = (1e-2 * expected.norm_squared().unwrap().sqrt()).max(1e-2);
    for ((parameter, found), expected) in found.iter().zip(expected.values()) {
        let found = found.to_device(Device::Cpu).unwrap();
        let error = relative(&found, &expected.to_dtype(DType::F64).unwrap(), floor);
        assert!(error <= tolerance, "{name}: {parameter} is off by {error:e}");
    }
}

#[test]
fn passes_agree_on_every_device() {
    for device in devices() {
        for (dtype, tolerance) in PRECISIONS {
            for (name, network) in networks() {
                let [theta, target] = ["theta", "v"].map(|key| parameters(&network, key, 0, dtype));
                let [x, c] = [(network.input_shape(), "x"), (network.output_shape(), "c")]
                    .map(|(shape, key)| batch(shape, 4, key, 0).to_dtype(dtype).unwrap());
                let run = |device: Device| {
                    let theta = theta.to_device(device).unwrap();
                    let target = target.to_device(device).unwrap();
                    let [x, c] = [&x, &c].map(|tensor| tensor.to_device(device).unwrap());
                    let mut pass = network.pass(&theta, &x).unwrap();
                    let scales = vec![2.0; theta.values().len()];
                    let residuals = pass.residual(Seed::Fixed(c.clone()), &target, &scales).unwrap();
                    let along = pass.along(&residuals.direction).unwrap();
                    let gradients = pass.backward(Seed::Fixed(c), Want::Both).unwrap();
                    let tensors = [pass.outputs(), &along.inputs, &along.outputs, &gradients.inputs.unwrap()]
                        .map(|tensor| tensor.to_device(Device::Cpu).unwrap());
                    (tensors, residuals.direction, gradients.weights.unwrap())
                };
                let name = format!("{name} in {dtype} on {device}");
                let (expected, found) = (run(Device::Cpu), run(device));
                for (found, expected) in found.0.iter().zip(&expected.0) {
                    let error = relative(found, &expected.to_dtype(DType::F64).unwrap(), 1e-2);
                    assert!(error <= tolerance, "{name}: off by {error:e}");
                }
                same_params(&name, &found.1, &expected.1, tolerance);
                same_params(&name, &found.2, &expected.2, tolerance);
            }
        }
    }
}

#[test]
fn large_products_with_a_bias_agree_on_every_device() {
    // So many outputs that a device adds the bias in the product's own kernel.
    let network = Network::new(Mlp::new(16, &[2048], 4).spec()).unwrap();
    let theta = parameters(&network, "theta", 0, DType::F32);
    let x = batch(network.input_shape(), 1024, "x", 0).to_dtype(DType::F32).unwrap();
    let expected = network.forward(&theta, &x).unwrap().to_dtype(DType::F64).unwrap();
    for device in devices() {
        let (theta, x) = (theta.to_device(device).unwrap(), x.to_device(device).unwrap());
        let found = network.forward(&theta, &x).unwrap().to_device(Device::Cpu).unwrap();
        let error = relative(&found, &expected, 1e-2);
        assert!(error <= 2e-4, "{device}: off by {error:e}");
    }
}

#[test]
fn matching_agrees_in_every_form_on_every_device() {
    for (dtype, tolerance) in PRECISIONS {
        for (name, network) in networks() {
            let [theta, target] = ["theta", "v"].map(|key| parameters(&network, key, 0, dtype));
            let scales: Vec<f64> = (0..theta.values().len()).map(|p| 1.0 + p as f64).collect();
            // Other candidates the second time: what a device repeats is not the answer but the work.
            let draws = [0, 1].map(|draw| {
                [(network.input_shape(), "x"), (network.output_shape(), "c")]
                    .map(|(shape, key)| batch(shape, 4, key, draw).to_dtype(dtype).unwrap())
            });
            let forms = |device| [Form::Explicit, Form::Gram].map(|form| [false, true].map(|own| (device, form, own)));
            for (device, form, own) in devices().into_iter().flat_map(forms).flatten() {
                let on = theta.to_device(device).unwrap();
                // Weights that are their own target know what a layer made with them.
                let (target, toward) = match own {
                    true => (&theta, on.clone()),
                    false => (&target, target.to_device(device).unwrap()),
                };
                let mut matching = Matching::new(&network, &on, &toward, &scales, form).unwrap();
                for [x, c] in &draws {
                    let mut pass = network.pass(&theta, x).unwrap();
                    let residuals = pass.residual(Seed::Fixed(c.clone()), target, &scales).unwrap();
                    let along = pass.along(&residuals.direction).unwrap();
                    let [x, c] = [x, c].map(|tensor| tensor.to_device(device).unwrap());
                    let found = matching.evaluate(&x, &c).unwrap();
                    let what = format!("{name} in {dtype} on {device}, {form:?}, own target: {own}");
                    for (found, expected) in
                        [(&found.along.inputs, &along.inputs), (&found.along.outputs, &along.outputs)]
                    {
                        let found = found.to_device(Device::Cpu).unwrap();
                        let error = relative(&found, &expected.to_dtype(DType::F64).unwrap(), 1e-2);
                        assert!(error <= tolerance, "{what}: off by {error:e}");
                    }
                    for (found, expected) in found.squares.iter().zip(&residuals.squares) {
                        assert!(
                            (found - expected).abs() <= tolerance * (1.0 + expected),
                            "{what}: {found}, {expected}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn small_operations_agree_on_every_device() {
    for (dtype, tolerance) in PRECISIONS {
        let [x, y] = ["x", "y"].map(|key| batch(&[2, 5, 6], 3, key, 0).to_dtype(dtype).unwrap());
        let [low, high] = [-0.5, 0.5].map(|bound| Tensor::full(bound, &[2, 5, 6], dtype, Device::Cpu).unwrap());
        let run = |device: Device| -> Vec<Tensor> {
            let [x, y, low, high] = [&x, &y, &low, &high].map(|tensor| tensor.to_device(device).unwrap());
            let rows = |values: Vec<f64>| Tensor::from_vec(values, &[3]).unwrap().to_dtype(dtype).unwrap();
            let mut found = vec![
                x.excess(&low, &high).unwrap(),
                x.signs().unwrap(),
                x.clamp(-0.2, 0.7).unwrap(),
                x.clamp_rows(&low, &high).unwrap(),
                x.combine(0.3, &y, -2.0).unwrap(),
                x.add_rows(&[1.0, -0.5, 3.0], &y).unwrap(),
                Tensor::concat_rows(&[&x, &y]).unwrap().select_rows(&[5, 0, 2]).unwrap(),
                Tensor::full(1.5, &[3], dtype, device).unwrap(),
                rows(x.dot_rows(&y).unwrap()),
                rows(vec![x.dot(&y).unwrap(); 3]),
            ];
            for steps in [Steps::Absolute, Steps::Length, Steps::Squares] {
                let (sum, gradient) = steps.sum(&x, [5, 6]).unwrap();
                found.extend([gradient, rows(vec![sum; 3])]);
            }
            found.iter().map(|tensor| tensor.to_device(Device::Cpu).unwrap()).collect()
        };
        let expected = run(Device::Cpu);
        for device in devices() {
            for (place, (found, expected)) in run(device).iter().zip(&expected).enumerate() {
                let error = relative(found, &expected.to_dtype(DType::F64).unwrap(), 1e-2);
                assert!(error <= tolerance, "operation {place} in {dtype} on {device}: off by {error:e}");
            }
        }
    }
}

#[test]
fn what_is_not_finite_is_named_on_every_device() {
    for device in devices() {
        let network = Network::new(Mlp::new(4, &[8], 1).spec()).unwrap();
        let theta = parameters(&network, "theta", 0, DType::F64).to_device(device).unwrap();
        let c = Tensor::full(1.0, &[2, 1], DType::F64, device).unwrap();
        let bad = Tensor::full(f64::INFINITY, &[2, 4], DType::F64, device).unwrap();
        for form in [Form::Cheaper, Form::Gram] {
            let mut matching = Matching::new(&network, &theta, &theta, &[2.0; 4], form).unwrap();
            let message = matching.evaluate(&bad, &c).unwrap_err().to_string();
            assert!(message.contains("network input"), "{device}: {message}");
        }
        let message = network.forward(&theta, &bad).unwrap_err().to_string();
        assert!(message.contains("network input"), "{device}: {message}");
    }
}

#[test]
fn large_networks_agree_on_every_device() {
    let networks = [
        ("resnet-18", Resnet { stem: Stem::Cifar, ..Resnet::new(Depth::Eighteen, &[3, 32, 32], 10) }.spec()),
        ("efficientnet-lite0", EfficientnetLite::new(&[3, 64, 64], 10).spec()),
    ];
    for (name, spec) in networks {
        for mode in [Mode::Eval, Mode::Train] {
            let network = Network::new(spec.clone()).unwrap().in_mode(mode);
            let theta = network.init(&Init::Kaiming.into(), 1, DType::F64).unwrap();
            let v = network.init(&Init::Kaiming.into(), 2, DType::F64).unwrap();
            let [x, c] = [(network.input_shape(), "x"), (network.output_shape(), "c")]
                .map(|(shape, key)| batch(shape, 4, key, 0));
            let run = |device: Device, dtype: DType| {
                let [theta, v] = [&theta, &v].map(|p| p.to_dtype(dtype).unwrap().to_device(device).unwrap());
                let [x, c] = [&x, &c].map(|t| t.to_dtype(dtype).unwrap().to_device(device).unwrap());
                let along = network.along(&theta, &v, &x, Seed::Fixed(c)).unwrap();
                [along.inputs, along.outputs].map(|tensor| tensor.to_device(Device::Cpu).unwrap())
            };
            let expected = run(Device::Cpu, DType::F64);
            for device in devices() {
                for (found, expected) in run(device, DType::F64).iter().zip(&expected) {
                    let error = relative(found, expected, 1e-2);
                    eprintln!("{name} {mode:?} f64 on {device}: {error:e}");
                    assert!(error <= 1e-9, "{name} {mode:?} on {device}: off by {error:e}");
                }
                // In training a batch's own rounding reaches every ReLU, and some fall on the other side.
                let tolerance = if mode == Mode::Train { 5e-2 } else { 1e-4 };
                for (found, expected) in run(device, DType::F32).iter().zip(&expected) {
                    let error = relative(found, expected, 1e-2);
                    eprintln!("{name} {mode:?} f32 on {device}: {error:e}");
                    assert!(error <= tolerance, "{name} {mode:?} in f32 on {device}: off by {error:e}");
                }
            }
        }
    }
}

#[test]
fn training_agrees_on_every_device() {
    for device in devices() {
        for (dtype, tolerance) in PRECISIONS {
            let network = Network::new(Mlp::new(4, &[8], 3).with_activation(Activation::Tanh).spec()).unwrap();
            let start = parameters(&network, "start", 0, dtype);
            let x = batch(&[4], 9, "train", 0).to_dtype(dtype).unwrap();
            let targets = Targets::Classes((0..9).map(|i| i % 3).collect());
            for update in [UpdateRule::Sgd { lr: 0.1, momentum: 0.9 }, UpdateRule::adam(0.02)] {
                let recipe = Recipe { update, epochs: 20, batch: Some(4), ..Recipe::default() };
                let train = |device: Device| {
                    let data =
                        Dataset { x: x.to_device(device).unwrap(), targets: targets.clone(), loss: Loss::CrossEntropy };
                    let start = start.to_device(device).unwrap();
                    recipe.train(&network, &start, &data, 1, |_| ControlFlow::Continue(())).unwrap().theta
                };
                same_params(&format!("{update:?} {dtype} {device}"), &train(device), &train(Device::Cpu), tolerance);
            }
        }
    }
}

/// What a device repeats as it was recorded: batches of one size, with a smaller one at the end of each epoch.
#[test]
fn training_in_batches_of_squared_losses_agrees_on_every_device() {
    let perceptron = Mlp::new(12, &[8], 12).with_activation(Activation::Tanh).spec();
    let unet = Unet { channels: vec![3, 5], across: false, transposed: true, ..Unet::new(&[1, 4, 4]) };
    for (name, spec) in [("perceptron", perceptron), ("U-Net", unet.spec())] {
        let network = Network::new(spec).unwrap();
        for (dtype, tolerance) in PRECISIONS {
            let start = parameters(&network, "start", 0, dtype).scale(0.3).unwrap();
            let x = batch(network.input_shape(), 9, "train", 0).to_dtype(dtype).unwrap();
            let targets = batch(network.output_shape(), 9, "targets", 0).to_dtype(dtype).unwrap();
            for loss in [Loss::Mse, Loss::HalfSquared] {
                for update in
                    [UpdateRule::Sgd { lr: 1e-3, momentum: 0.9 }, UpdateRule::adam(0.01), UpdateRule::muon(0.01)]
                {
                    let recipe = Recipe { update, epochs: 10, batch: Some(4), weight_decay: 1e-3, ..Recipe::default() };
                    let train = |device: Device| {
                        let targets = Targets::Values(targets.to_device(device).unwrap());
                        let data = Dataset { x: x.to_device(device).unwrap(), targets, loss };
                        let start = start.to_device(device).unwrap();
                        recipe.train(&network, &start, &data, 1, |_| ControlFlow::Continue(())).unwrap()
                    };
                    let expected = train(Device::Cpu);
                    for device in devices() {
                        let found = train(device);
                        let what = format!("{name}, {loss}, {update:?}, {dtype} on {device}");
                        let off = (found.loss - expected.loss).abs();
                        assert!(off <= tolerance * expected.loss, "{what}: {} and {}", found.loss, expected.loss);
                        same_params(&what, &found.theta, &expected.theta, 10.0 * tolerance);
                    }
                }
            }
        }
    }
}
