//! Records from weights alone: recovery where the answer is known, and what is said
//! where there is none.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::ops::ControlFlow;

use afterimage_attacks::kkt::{DualRule, Form, Kkt, Rule};
use afterimage_attacks::unmix::Unmix;
use afterimage_attacks::{
    AnyAttack, AttackError, Kinks, Model, Observation, Quiet, Reconstruction, Session, WeightsSeen,
};
use afterimage_nn::optim::UpdateRule;
use afterimage_nn::train::{Dataset, Recipe};
use afterimage_nn::zoo::{Bias, FcAutoencoder, Mlp};
use afterimage_nn::{Activation, DType, Init, Loss, Network, NetworkSpec, Params, Seed, Stream, Targets, Tensor, Want};

fn homogeneous(hidden: &[usize]) -> Mlp {
    Mlp { bias: Bias::First, ..Mlp::new(2, hidden, 1) }
}

/// A classifier of points, trained far past zero error.
fn trained(mlp: &Mlp, points: &[[f64; 2]], signs: &[f64]) -> (Network, Params) {
    let network = Network::new(mlp.spec()).unwrap();
    let start = network.init(&mlp.small_first_layer(Init::Pytorch, 1e-2), 3, DType::F64).unwrap();
    let x = Tensor::from_f64(points.as_flattened(), &[points.len(), 2], DType::F64).unwrap();
    let targets = Targets::Values(Tensor::from_f64(signs, &[signs.len(), 1], DType::F64).unwrap());
    let data = Dataset { x, targets, loss: Loss::Logistic };
    let recipe = Recipe {
        update: UpdateRule::Sgd { lr: 0.02, momentum: 0.9 },
        epochs: 20_000,
        normalised: true,
        stop_loss: Some(1e-60),
        ..Recipe::default()
    };
    let trained = recipe.train(&network, &start, &data, 1, &mut |_| ControlFlow::Continue(())).unwrap();
    (network, trained.theta)
}

fn seen(network: Network, theta: Params) -> Observation {
    Observation::Weights(WeightsSeen { model: Model { network, theta, loss: Some(Loss::Logistic), preprocess: None } })
}

fn run(observation: &Observation, attack: &Kkt, seed: u64) -> Result<Reconstruction, AttackError> {
    AnyAttack::Kkt(attack.clone()).run(observation, &mut Session::new(seed, &mut Quiet))
}

fn run_any(observation: &Observation, attack: AnyAttack) -> Result<Reconstruction, AttackError> {
    attack.run(observation, &mut Session::new(1, &mut Quiet))
}

/// The kinks of fifty units meet at the six points they were trained on, and the labels are theirs.
#[test]
fn six_points_come_back_from_fifty_units() {
    let points: Vec<[f64; 2]> =
        (0..6).map(|i| f64::from(i) * std::f64::consts::FRAC_PI_3).map(|angle| [angle.cos(), angle.sin()]).collect();
    let (network, theta) = trained(&homogeneous(&[50]), &points, &[1.0, -1.0, 1.0, -1.0, 1.0, -1.0]);
    let found = run_any(&seen(network, theta), AnyAttack::Kinks(Kinks::default())).unwrap();
    let labels = found.labels.unwrap();
    let candidates = found.samples.to_f64_vec().unwrap();
    for (index, point) in points.iter().enumerate() {
        let off = |at: &[f64]| (at[0] - point[0]).hypot(at[1] - point[1]);
        let (nearest, at) =
            candidates.chunks_exact(2).enumerate().min_by(|a, b| off(a.1).total_cmp(&off(b.1))).unwrap();
        assert!(off(at) < 0.02, "point {index}: {at:?} of {candidates:?}");
        assert_eq!(labels[nearest], (index + 1) % 2);
    }
    assert!(found.samples.rows() <= 8, "{} points", found.samples.rows());
    // Nothing is within such a tolerance: nothing is found, and nothing breaks.
    let strict = Kinks { tolerance: 1e-18, draws: 100, ..Kinks::default() };
    let (network, theta) = trained(&homogeneous(&[50]), &points[..2], &[1.0, -1.0]);
    assert!(run_any(&seen(network, theta), AnyAttack::Kinks(strict)).is_ok());
}

/// Eight random records of sixty dimensions, from the first layer of their classifier.
#[test]
fn records_are_unmixed_from_the_first_layer() {
    let (n, d) = (8, 60);
    let mlp = Mlp { bias: Bias::First, ..Mlp::new(d, &[200, 100], 1) };
    let network = Network::new(mlp.spec()).unwrap();
    let start = network.init(&mlp.small_first_layer(Init::Pytorch, 1e-4), 3, DType::F64).unwrap();
    let x = Stream::new(7, "records", 0).normal_tensor(0.5, &[n, d], DType::F64).unwrap();
    let signs: Vec<f64> = (0..n).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
    let targets = Targets::Values(Tensor::from_f64(&signs, &[n, 1], DType::F64).unwrap());
    let data = Dataset { x: x.clone(), targets, loss: Loss::Logistic };
    let recipe = Recipe {
        update: UpdateRule::Sgd { lr: 0.02, momentum: 0.9 },
        epochs: 5000,
        normalised: true,
        stop_loss: Some(1e-5),
        ..Recipe::default()
    };
    let theta = recipe.train(&network, &start, &data, 1, |_| ControlFlow::Continue(())).unwrap().theta;
    let found = run_any(&seen(network, theta), AnyAttack::Unmix(Unmix::default())).unwrap();
    let (truth, candidates) = (x.to_f64_vec().unwrap(), found.samples.to_f64_vec().unwrap());
    let best: Vec<f64> =
        truth.chunks_exact(d).map(|x| candidates.chunks_exact(d).map(|c| cosine(x, c)).fold(0.0, f64::max)).collect();
    assert!(best.iter().all(|cosine| *cosine > 0.8), "{best:?}");
    // Random records stay strangers: two independent directions of sixty dimensions.
    let others = Stream::new(8, "others", 0).normal_tensor(0.5, &[n, d], DType::F64).unwrap().to_f64_vec().unwrap();
    let best = others.chunks_exact(d).map(|x| candidates.chunks_exact(d).map(|c| cosine(x, c)).fold(0.0, f64::max));
    assert!(best.fold(0.0, f64::max) < 0.6);
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// At the support vectors of a linear classifier, with its own multipliers, the
/// residual is nothing: x = (±a, b) has the largest margin along the first axis.
#[test]
fn the_conditions_hold_where_they_must() {
    // Φ(w; x) = w·x with w = (1, 0): λ = 1/2 each at (1, b) and (−1, b).
    let linear: NetworkSpec =
        NetworkSpec::from_toml("input = [2]\nlayers = [{ kind = \"linear\", outputs = 1, bias = false }]").unwrap();
    let network = Network::new(linear).unwrap();
    let named = [("0.weight".to_owned(), Tensor::from_vec(vec![1.0, 0.0], &[1, 2]).unwrap())].into();
    let theta = network.params(named, DType::F64, theta_device()).unwrap();
    let x = Tensor::from_vec(vec![1.0, 0.7, -1.0, 0.7], &[2, 2]).unwrap();
    let c = Tensor::from_vec(vec![0.5, -0.5], &[2, 1]).unwrap();
    let mut pass = network.pass(&theta, &x).unwrap();
    let residual = pass.residual(Seed::Fixed(c), &theta, &[1.0]).unwrap();
    assert!(residual.squares[0] < 1e-20);
    // And yet nothing can be said of records from such a sum.
    let error = run(&seen(network, theta), &Kkt::default(), 1).unwrap_err().to_string();
    assert!(error.contains("not identifiable from a linear model"), "{error}");
}

fn theta_device() -> afterimage_nn::Device {
    afterimage_nn::Device::Cpu
}

/// Φ(aθ) = a³Φ(θ) and ⟨θ, ∇Φ⟩ = 3Φ for three layers, with a bias in the first alone.
#[test]
fn three_layers_are_homogeneous_of_degree_three() {
    let network = Network::new(homogeneous(&[30, 20]).spec()).unwrap();
    let theta = network.init(&Init::Pytorch.into(), 5, DType::F64).unwrap();
    let x = Stream::new(1, "x", 0).normal_tensor(1.0, &[6, 2], DType::F64).unwrap();
    let f = network.forward(&theta, &x).unwrap().to_f64_vec().unwrap();
    let scaled = network.forward(&theta.scale(1.7).unwrap(), &x).unwrap().to_f64_vec().unwrap();
    for (f, scaled) in f.iter().zip(&scaled) {
        assert!((scaled - 1.7_f64.powi(3) * f).abs() < 1e-12);
    }
    for (i, f) in f.iter().enumerate() {
        let one = x.slice_rows(i..i + 1).unwrap();
        let seed = Tensor::from_vec(vec![1.0], &[1, 1]).unwrap();
        let gradient = network.backward(&theta, &one, &seed, Want::Weights).unwrap().weights.unwrap();
        let product: f64 = theta.values().iter().zip(gradient.values()).map(|(a, b)| a.dot(b).unwrap()).sum();
        assert!((product - 3.0 * f).abs() < 1e-12);
    }
}

#[test]
fn every_form_lowers_its_loss() {
    let points = [[1.0, 0.2], [-0.3, 0.9]];
    let (network, theta) = trained(&homogeneous(&[30]), &points, &[1.0, -1.0]);
    let observation = seen(network, theta);
    let short = Kkt { candidates: Some(6), iterations: 300, lr: 1e-3, range: Some([-1.0, 1.0]), ..Kkt::default() };
    for attack in [
        Kkt { form: Form::Released, ..short.clone() },
        Kkt { form: Form::Published, lr: 1e-5, lr_lambda: 1e-5, ..short.clone() },
        Kkt { free_signs: true, ..short.clone() },
        Kkt { duals: DualRule::Projected, optimizer: Rule::Adam, ..short.clone() },
        Kkt { optimizer: Rule::Lbfgs, iterations: 30, duals: DualRule::Projected, ..short.clone() },
        Kkt { row_space: true, candidates: None, ..short.clone() },
        Kkt { alpha: 0.0, layer_weights: [("0".to_owned(), 2.0)].into(), ..short.clone() },
    ] {
        let trace = run(&observation, &attack, 1).unwrap().trace;
        let (first, last) = (trace.first().unwrap().loss, trace.last().unwrap().loss);
        assert!(last < first, "{attack:?}: {first} to {last}");
    }
    // Several classes.
    let three = Network::new(Mlp::new(2, &[20], 3).spec()).unwrap();
    let theta = three.init(&Init::Pytorch.into(), 2, DType::F64).unwrap();
    let found = run(&seen(three, theta), &short, 1).unwrap();
    assert_eq!(found.labels.unwrap(), [0, 1, 2, 0, 1, 2]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let ae = Network::new(FcAutoencoder { depth: 2, width: 8, ..FcAutoencoder::new(&[6]) }.spec()).unwrap();
    let theta = ae.init(&Init::Pytorch.into(), 2, DType::F64).unwrap();
    let model = Model { network: ae, theta, loss: Some(Loss::Mse), preprocess: None };
    let error = run(&Observation::Weights(WeightsSeen { model }), &Kkt::default(), 1).unwrap_err().to_string();
    assert!(error.contains("autoencoder"), "{error}");
    let network = Network::new(Mlp::new(2, &[4], 1).with_activation(Activation::Relu).spec()).unwrap();
    let theta = network.init(&Init::Pytorch.into(), 2, DType::F64).unwrap();
    let observation = seen(network, theta);
    for (attack, reason) in [
        (AnyAttack::Kinks(Kinks::default()), "ReLU"),
        (AnyAttack::Unmix(Unmix { dimensions: Some(0), ..Unmix::default() }), "dimensions"),
        (AnyAttack::Unmix(Unmix { candidates: Some(0), ..Unmix::default() }), "candidates"),
        (AnyAttack::Unmix(Unmix { spread: [0.5, 0.0], ..Unmix::default() }), "spread"),
        (AnyAttack::Kinks(Kinks { tolerance: -1.0, ..Kinks::default() }), "tolerance"),
        (AnyAttack::Kinks(Kinks { keep_above: 2.0, ..Kinks::default() }), "keep_above"),
    ] {
        let mlp = Mlp { bias: Bias::None, ..Mlp::new(2, &[4], 1) };
        let network = Network::new(mlp.spec()).unwrap();
        let theta = network.init(&Init::Pytorch.into(), 2, DType::F64).unwrap();
        let error = run_any(&seen(network, theta), attack).unwrap_err().to_string();
        assert!(error.contains(reason), "{reason}: {error}");
    }
    for (wrong, name) in [
        (Kkt { candidates: Some(0), ..Kkt::default() }, "candidates"),
        (Kkt { lr: 0.0, ..Kkt::default() }, "lr"),
        (Kkt { free_signs: true, duals: DualRule::Projected, ..Kkt::default() }, "duals"),
        (Kkt { sigma: f64::NAN, ..Kkt::default() }, "sigma"),
        (Kkt { range_weight: -1.0, ..Kkt::default() }, "range_weight"),
        (Kkt { layer_weights: [("0".to_owned(), -1.0)].into(), ..Kkt::default() }, "layer_weights"),
        (Kkt { range: Some([1.0, 0.0]), ..Kkt::default() }, "range"),
        (Kkt { layer_weights: [("5".to_owned(), 1.0)].into(), ..Kkt::default() }, "layer_weights"),
    ] {
        let error = run(&observation, &wrong, 1).unwrap_err().to_string();
        assert!(error.contains(name), "{name}: {error}");
    }
}
