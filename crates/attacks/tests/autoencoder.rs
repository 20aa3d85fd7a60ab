//! Recovery from an autoencoder whose fixed points are known: a projection onto a plane.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::ops::ControlFlow;

use afterimage_attacks::autoencoder::{Autoencoder, Damage, MaskStart, Method, blurred};
use afterimage_attacks::{Attack, DegradedSeen, Model, Quiet, Reconstruction, Session, Stop};
use afterimage_nn::optim::UpdateRule;
use afterimage_nn::train::{Dataset, Recipe};
use afterimage_nn::zoo::{Mlp, TiedAutoencoder};
use afterimage_nn::{Activation, DType, Init, Loss, Network, Seed, Stream, Targets, Tensor, Want, linalg};
use common::{StopsOnce, Told};

const D: usize = 8;

/// Two orthonormal vectors with positive sums, and P = u uᵀ + v vᵀ as a network of one linear layer.
fn projection() -> (Model, [Vec<f64>; 2]) {
    let u: Vec<f64> = (0..D).map(|i| 2.0 + (i as f64 * 0.9).sin()).collect();
    let w: Vec<f64> = (0..D).map(|i| 2.0 + (i as f64 * 1.7).cos()).collect();
    let unit = |v: Vec<f64>| {
        let norm = v.iter().map(|x| x * x).sum::<f64>().sqrt();
        v.into_iter().map(|x| x / norm).collect::<Vec<_>>()
    };
    let u = unit(u);
    let along: f64 = u.iter().zip(&w).map(|(a, b)| a * b).sum();
    let v = unit(w.iter().zip(&u).map(|(w, u)| w - along * u).collect());
    let p: Vec<f64> =
        (0..D).flat_map(|i| (0..D).map(move |j| (i, j))).map(|(i, j)| u[i] * u[j] + v[i] * v[j]).collect();
    let network = Network::new(Mlp::new(D, &[], D).spec()).unwrap();
    let theta = network.init(&Init::Pytorch.into(), 1, DType::F64).unwrap();
    let mut parts = [Tensor::from_vec(p, &[D, D]).unwrap(), Tensor::from_vec(vec![0.0; D], &[D]).unwrap()].into_iter();
    let theta = theta.map(|_| Ok(parts.next().unwrap())).unwrap();
    (Model { network, theta, loss: None, preprocess: None }, [u, v])
}

/// Two samples of the plane and one beside it, every other number of each erased.
fn seen(share_mask: bool) -> (DegradedSeen, Vec<Vec<f64>>) {
    let (model, [u, v]) = projection();
    let mix = |a: f64, b: f64| u.iter().zip(&v).map(|(u, v)| a * u + b * v).collect::<Vec<f64>>();
    let mut samples = vec![mix(1.2, 0.2), mix(1.0, -0.15), vec![0.9, 0.1, 0.8, 0.2, 0.9, 0.1, 0.9, 0.3]];
    samples.iter_mut().for_each(|sample| assert!(sample.iter().all(|x| *x > 0.0 && *x < 1.0), "{sample:?}"));
    let kept: Vec<f64> = (0..D).map(|i| if i % 2 == 0 { 1.0 } else { 0.0 }).collect();
    let damaged: Vec<f64> = samples.iter().flat_map(|sample| sample.iter().zip(&kept).map(|(x, k)| x * k)).collect();
    let degraded = Tensor::from_vec(damaged, &[3, D]).unwrap();
    let mask = share_mask.then(|| Tensor::from_vec(kept, &[D]).unwrap());
    (DegradedSeen { model, degraded, mask, blur: None, noise: Some(0.0) }, samples)
}

fn run(attack: &Autoencoder, seen: &DegradedSeen) -> Reconstruction {
    attack.reconstruct(seen, &mut Session::new(1, &mut Quiet)).unwrap()
}

fn errors(found: &Reconstruction, samples: &[Vec<f64>]) -> Vec<f64> {
    let values = found.samples.to_f64_vec().unwrap();
    let off = |(row, sample): (&[f64], &Vec<f64>)| row.iter().zip(sample).map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
    values.chunks(D).zip(samples).map(off).collect()
}

#[test]
fn samples_that_the_autoencoder_keeps_come_back_and_others_are_told_apart() {
    let admm = Autoencoder { method: Method::Admm, gamma: 1.0, known: 3000, ..Autoencoder::default() };
    let blind = Autoencoder { start: MaskStart::Visible, inner: 3000, ..admm.clone() };
    for (attack, share_mask) in
        [(Autoencoder::default(), true), (Autoencoder::default(), false), (admm, true), (blind, false)]
    {
        let (seen, samples) = seen(share_mask);
        let found = run(&attack, &seen);
        let errors = errors(&found, &samples);
        assert!(errors[0] < 1e-12 && errors[1] < 1e-12 && errors[2] > 1e-3, "{:?}: {errors:?}", attack.method);
        let sure = &found.confidence;
        assert!(sure[0] > 0.99 && sure[1] > 0.99 && sure[2] < 0.1, "{:?}: {sure:?}", attack.method);
        assert!(found.notes.iter().any(|note| note.starts_with("2 of 3")), "{:?}", found.notes);
    }
}

#[test]
fn noise_is_taken_off_what_is_seen() {
    let (mut seen, samples) = seen(true);
    let noise = [0.02, 0.0, -0.03, 0.0, 0.01, 0.0, 0.02, 0.0];
    let noisy: Vec<f64> =
        seen.degraded.to_f64_vec().unwrap().iter().enumerate().map(|(i, y)| y + noise[i % D]).collect();
    let before: f64 = noise.iter().map(|x| x * x).sum();
    (seen.degraded, seen.noise) = (Tensor::from_vec(noisy, &[3, D]).unwrap(), Some(0.02));
    let found = run(&Autoencoder::default(), &seen);
    let errors = errors(&found, &samples);
    assert!(errors[0] < before && errors[1] < before, "{errors:?}, noise {before}");
}

#[test]
fn a_resumed_search_ends_at_the_same_bits() {
    let admm = Autoencoder { method: Method::Admm, gamma: 1.0, passes: 7, ..Autoencoder::default() };
    let fixed = Autoencoder { conjugate: 1, passes: 9, ..Autoencoder::default() };
    for (attack, share_mask) in [(fixed, false), (admm.clone(), false), (admm, true)] {
        let (seen, _) = seen(share_mask);
        let whole = run(&attack, &seen);
        let mut hooks = StopsOnce::after(3);
        let part = attack.reconstruct(&seen, &mut Session::new(1, &mut hooks)).unwrap();
        assert_eq!(part.stop, Stop::Interrupted);
        let rest = attack.reconstruct(&seen, &mut Session::new(1, &mut hooks)).unwrap();
        assert_eq!(rest.samples.to_f64_vec().unwrap(), whole.samples.to_f64_vec().unwrap(), "{:?}", attack.method);
        assert_eq!(rest.trace, whole.trace);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let (seen, _) = seen(false);
    let fails = |attack: &Autoencoder, seen: &DegradedSeen| {
        attack.reconstruct(seen, &mut Session::new(1, &mut Quiet)).unwrap_err().to_string()
    };
    let network = Network::new(Mlp::new(D, &[], 3).spec()).unwrap();
    let theta = network.init(&Init::Pytorch.into(), 1, DType::F64).unwrap();
    let other = Model { network, theta, loss: None, preprocess: None };
    let error = fails(&Autoencoder::default(), &DegradedSeen { model: other, ..seen.clone() });
    assert!(error.contains("takes [8] and gives [3]"), "{error}");
    let beyond = DegradedSeen { degraded: seen.degraded.scale(3.0).unwrap(), ..seen.clone() };
    assert!(fails(&Autoencoder::default(), &beyond).contains("between 0 and 1"));
    let noisy = DegradedSeen { noise: Some(0.1), ..beyond.clone() };
    assert!(Autoencoder::default().reconstruct(&noisy, &mut Session::new(1, &mut Quiet)).is_ok());
    let noise = Autoencoder { damage: Damage::Noise, ..Autoencoder::default() };
    assert!(noise.reconstruct(&beyond, &mut Session::new(1, &mut Quiet)).is_ok());
    for (attack, part) in [
        (Autoencoder { passes: 0, ..Autoencoder::default() }, "passes"),
        (Autoencoder { gamma: -1.0, ..Autoencoder::default() }, "gamma"),
        (Autoencoder { relaxation: 2.0, ..Autoencoder::default() }, "relaxation"),
        (Autoencoder { block: 0, ..Autoencoder::default() }, "block"),
    ] {
        assert!(fails(&attack, &seen).contains(part), "{part}");
    }
}

#[test]
fn a_sample_of_which_nothing_is_left_is_named() {
    let (mut seen, _) = seen(false);
    let mut values = seen.degraded.to_f64_vec().unwrap();
    values[D..2 * D].fill(0.0);
    seen.degraded = Tensor::from_vec(values, &[3, D]).unwrap();
    let mut told = Told::default();
    Autoencoder::default().reconstruct(&seen, &mut Session::new(1, &mut told)).unwrap();
    assert!(told.0.iter().any(|told| told.contains("damaged sample 1")), "{:?}", told.0);
}

/// What runs into its neighbours is told apart again by what the autoencoder keeps.
#[test]
fn a_blur_is_undone() {
    let (mut seen, samples) = seen(false);
    let kernel = Tensor::from_vec(vec![0.3, 0.4, 0.3], &[1, 3]).unwrap();
    let clean = Tensor::from_vec(samples.concat(), &[3, D]).unwrap();
    seen.degraded = blurred(&clean, &kernel, &[D]).unwrap();
    seen.blur = Some(kernel);
    let admm = Autoencoder { method: Method::Admm, gamma: 1.0, known: 3000, ..Autoencoder::default() };
    for attack in [Autoencoder::default(), admm] {
        let errors = errors(&run(&attack, &seen), &samples);
        assert!(errors[0] < 1e-9 && errors[1] < 1e-9, "{:?}: {errors:?}", attack.method);
    }
    let other = Autoencoder { damage: Damage::Noise, ..Autoencoder::default() };
    let error = other.reconstruct(&seen, &mut Session::new(1, &mut Quiet)).unwrap_err().to_string();
    assert!(error.contains("kernel of a blur"), "{error}");
}

/// Theorem 1: f(x) = Wᵀ ρ(Wx) with ρ' in [0, 1] and singular values of W in [0, 1] is the proximity operator of a
/// function: its Jacobian is symmetric, with eigenvalues in [0, 1] everywhere.
#[test]
fn a_tied_autoencoder_is_a_proximity_operator() {
    let (features, width) = (5, 7);
    for (case, activation) in
        [Activation::Sigmoid, Activation::Tanh, Activation::Softplus { beta: 1.0 }, Activation::Relu].iter().enumerate()
    {
        let tied = TiedAutoencoder { features, width, activation: (*activation).into(), bias: false };
        let network = Network::new(tied.spec()).unwrap();
        for seed in 0..8 {
            let mut stream = Stream::new(seed, "theorem", case as u64);
            let mut drawn = |count: usize| (0..count).map(|_| stream.normal()).collect::<Vec<f64>>();
            let w = Tensor::from_vec(drawn(width * features), &[width, features]).unwrap();
            let largest = linalg::svd(&w).unwrap().s[0];
            let theta = network.init(&Init::Pytorch.into(), 1, DType::F64).unwrap();
            let theta = theta.map(|_| w.scale(1.0 / largest)).unwrap();
            let x = Tensor::from_vec(drawn(features), &[1, features]).unwrap().scale(3.0).unwrap();
            // One row of J for each output.
            let row = |output: usize| {
                let c: Vec<f64> = (0..features).map(|place| if place == output { 1.0 } else { 0.0 }).collect();
                let c = Tensor::from_vec(c, &[1, features]).unwrap();
                let back = network.pass(&theta, &x).unwrap().backward(Seed::Fixed(c), Want::Inputs).unwrap();
                back.inputs.unwrap().to_f64_vec().unwrap()
            };
            let jacobian: Vec<f64> = (0..features).flat_map(row).collect();
            for (i, j) in (0..features).flat_map(|i| (0..features).map(move |j| (i, j))) {
                assert!((jacobian[i * features + j] - jacobian[j * features + i]).abs() < 1e-14);
            }
            let values = linalg::eigh(&Tensor::from_vec(jacobian, &[features, features]).unwrap()).unwrap().values;
            assert!(values.iter().all(|value| (-1e-12..=1.0 + 1e-12).contains(value)), "{activation:?}: {values:?}");
        }
    }
}

/// Equation 17 as it is printed has v̂ in the place of ṽ = v̂ − u, and recovers nothing from a trained autoencoder.
#[test]
fn as_printed_equation_17_recovers_nothing() {
    let (count, features) = (4, 12);
    let mut stream = Stream::new(5, "samples", 0);
    let samples: Vec<f64> = (0..count * features).map(|_| stream.uniform(0.1, 0.9)).collect();
    let x = Tensor::from_vec(samples, &[count, features]).unwrap();
    let leaky = Activation::LeakyRelu { slope: 0.01 }.into();
    let spec = Mlp { activation: leaky, ..Mlp::new(features, &[128, 128, 128], features) }.spec();
    let network = Network::new(spec).unwrap();
    let start = network.init(&Init::Pytorch.into(), 1, DType::F64).unwrap();
    let data = Dataset { x: x.clone(), targets: Targets::Values(x.clone()), loss: Loss::Mse };
    let recipe = Recipe { update: UpdateRule::adam(1e-3), epochs: 20_000, stop_loss: Some(1e-9), ..Recipe::default() };
    let theta = recipe.train(&network, &start, &data, 1, |_| ControlFlow::Continue(())).unwrap().theta;
    let kept: Vec<f64> = (0..count * features).map(|place| if place % 3 == 0 { 0.0 } else { 1.0 }).collect();
    let kept = Tensor::from_vec(kept, &[count, features]).unwrap();
    let y = x.multiply(&kept).unwrap();
    let gamma = 1.0;
    let run = |tilde: bool| {
        let (mut v, mut u, mut xi) = (y.zeros_like().unwrap(), y.zeros_like().unwrap(), y.clone());
        for _ in 0..1000 {
            let from = if tilde { v.combine(1.0, &u, -1.0).unwrap() } else { v.clone() };
            let nearer = y.combine(1.0, &from, -1.0).unwrap().multiply(&kept).unwrap();
            xi = from.combine(1.0, &nearer, 1.0 / (1.0 + gamma / 2.0)).unwrap();
            let inner = xi.combine(1.0, &u, 1.0).unwrap().map(|x| x.clamp(-1e6, 1e6)).unwrap();
            v = network.forward(&theta, &inner).unwrap();
            u = u.combine(1.0, &xi, 1.0).unwrap().combine(1.0, &v, -1.0).unwrap();
        }
        let off = xi.combine(1.0, &x, -1.0).unwrap().to_f64_vec().unwrap();
        off.chunks(features).map(|row| row.iter().map(|v| v * v).sum::<f64>() / features as f64).collect::<Vec<_>>()
    };
    let recovered = |errors: &[f64]| errors.iter().filter(|error| **error < 5e-4).count();
    let (corrected, printed) = (run(true), run(false));
    assert!(recovered(&corrected) >= 2, "{corrected:?}");
    assert_eq!(recovered(&printed), 0, "{printed:?}");
}
