//! Recovery from an autoencoder whose fixed points are known: a projection onto a plane.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::ops::ControlFlow;

use afterimage_attacks::autoencoder::{Autoencoder, Damage, MaskStart, Method};
use afterimage_attacks::{Attack, AttackError, DegradedSeen, Hooks, Model, Quiet, Reconstruction, Session, Stop, Tick};
use afterimage_nn::io::TensorFile;
use afterimage_nn::zoo::Mlp;
use afterimage_nn::{DType, Init, Network, Tensor};

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
    (DegradedSeen { model, degraded, mask, noise: Some(0.0) }, samples)
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

/// Asks to stop after the third pass, and keeps what it is given.
#[derive(Default)]
struct Third {
    kept: Option<TensorFile>,
    stops: bool,
}

impl Hooks for Third {
    fn tick(&mut self, tick: Tick) -> ControlFlow<()> {
        if self.stops && tick.iteration == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn keep(&mut self, state: &TensorFile) -> Result<(), AttackError> {
        self.kept = Some(state.clone());
        Ok(())
    }

    fn resumed(&mut self) -> Option<TensorFile> {
        self.kept.take()
    }
}

#[test]
fn a_resumed_search_ends_at_the_same_bits() {
    let admm = Autoencoder { method: Method::Admm, gamma: 1.0, passes: 7, ..Autoencoder::default() };
    for attack in [Autoencoder { conjugate: 1, passes: 9, ..Autoencoder::default() }, admm] {
        let (seen, _) = seen(false);
        let whole = run(&attack, &seen);
        let mut hooks = Third { kept: None, stops: true };
        let part = attack.reconstruct(&seen, &mut Session::new(1, &mut hooks)).unwrap();
        assert_eq!(part.stop, Stop::Interrupted);
        hooks.stops = false;
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

/// Remembers what the user is told.
#[derive(Default)]
struct Told(Vec<String>);

impl Hooks for Told {
    fn warn(&mut self, message: &str) {
        self.0.push(message.to_owned());
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
