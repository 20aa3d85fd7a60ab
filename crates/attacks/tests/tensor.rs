//! Batches through a wide layer of random units: what comes back, with its labels,
//! through layers below, and what is said where nothing can.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::ops::ControlFlow;

use afterimage_attacks::tensor::{Contraction, Diagonalise, Source, Span, TensorDecomposition};
use afterimage_attacks::{
    AnyAttack, AttackError, GradientSeen, Hooks, Model, Observation, Quiet, Reconstruction, Session, Stop, Tick,
};
use afterimage_nn::zoo::{Below, BelowWeights, Mlp, Probe};
use afterimage_nn::{
    Activation, DType, Init, InitSpec, Loss, Network, NetworkSpec, Objective, Reduction, Seed, Stream, Targets, Tensor,
    Want,
};

const FEATURES: usize = 40;

/// A client, the network it was sent, and its batch of unit vectors.
struct Client {
    spec: NetworkSpec,
    init: InitSpec,
    loss: Loss,
    reduction: Reduction,
    x: Vec<Vec<f64>>,
    y: Vec<f64>,
    knows_size: bool,
    norm: f64,
    seed: u64,
}

impl Client {
    fn of(probe: &Probe) -> Self {
        let mut stream = Stream::new(11, "batch", 0);
        let x = (0..4).map(|_| unit((0..FEATURES).map(|_| stream.normal()).collect())).collect();
        let (loss, reduction) = (Loss::HalfSquared, Reduction::Mean);
        let (spec, init) = (probe.spec(), probe.init());
        Self { spec, init, loss, reduction, x, y: vec![1.0, -1.0, -1.0, 1.0], knows_size: true, norm: 1.0, seed: 3 }
    }

    fn new(activation: Activation) -> Self {
        Self::of(&Probe::new(FEATURES, 900, activation))
    }

    fn rows(&self) -> Vec<f64> {
        self.x.iter().flatten().map(|x| self.norm * x).collect()
    }

    fn shares(&self) -> Observation {
        let network = Network::new(self.spec.clone()).unwrap();
        let theta = network.init(&self.init, self.seed, DType::F64).unwrap();
        let features = self.x[0].len();
        let x = Tensor::from_f64(&self.rows(), &[self.x.len(), features], DType::F64).unwrap();
        let y = Targets::Values(Tensor::from_f64(&self.y, &[self.y.len(), 1], DType::F64).unwrap());
        let objective = Objective::new(self.loss, self.reduction, y);
        let gradients = network.pass(&theta, &x).unwrap().backward(Seed::Loss(objective), Want::Weights).unwrap();
        Observation::Gradient(GradientSeen {
            model: Model { network, theta, loss: Some(self.loss), preprocess: None },
            gradient: gradients.weights.unwrap(),
            reduction: Some(self.reduction),
            batch_size: self.knows_size.then_some(self.x.len()),
            labels: None,
            client: afterimage_attacks::Client::default(),
        })
    }

    /// For each sample, how far the nearest candidate is, and what value it came with.
    fn nearest(&self, found: &Reconstruction) -> Vec<(f64, f64)> {
        let features = self.x[0].len();
        let candidates = found.samples.to_f64_vec().unwrap();
        // Labels may be unknown.
        let unknown = || vec![f64::NAN; found.samples.rows()];
        let targets = found.targets.as_ref().map_or_else(unknown, |targets| targets.to_f64_vec().unwrap());
        let distance = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
        let of = |x: &[f64]| {
            let each = candidates.chunks_exact(features).zip(&targets).map(|(c, y)| (distance(x, c), *y));
            each.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
        };
        self.rows().chunks_exact(features).map(of).collect()
    }

    /// Every sample comes back this near, with its label.
    fn comes_back(&self, attack: &TensorDecomposition, error: f64) -> Reconstruction {
        let found = run(&self.shares(), attack).unwrap();
        for ((distance, label), y) in self.nearest(&found).into_iter().zip(&self.y) {
            assert!(distance < error, "{distance} with notes {:?} {:?}", found.notes, found.trace);
            assert!((label - y).abs() < 1e-4_f64.max(10.0 * error), "label {label} for {y}");
        }
        found
    }
}

fn unit(x: Vec<f64>) -> Vec<f64> {
    let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt();
    x.iter().map(|x| x / norm).collect()
}

fn run(observation: &Observation, attack: &TensorDecomposition) -> Result<Reconstruction, AttackError> {
    AnyAttack::Tensor(attack.clone()).run(observation, &mut Session::new(1, &mut Quiet))
}

fn known_norm() -> TensorDecomposition {
    TensorDecomposition { norm: 1.0, ..TensorDecomposition::default() }
}

#[test]
fn batches_come_back_exactly_with_their_labels() {
    for name in ["square-cube", "tanh", "sigmoid", "softplus", "silu", "relu", "leaky-relu"] {
        let mut client = Client::new(name.parse().unwrap());
        client.knows_size = name != "tanh";
        let found = client.comes_back(&known_norm(), 1e-7);
        assert!(found.certified.iter().all(|certain| *certain), "{name}");
        assert_eq!(found.samples.rows(), 4, "{name}");
        let classes: Vec<usize> = client.y.iter().map(|y| usize::from(*y > 0.0)).collect();
        let mut labels = found.labels.unwrap();
        labels.sort_unstable();
        assert_eq!(labels.iter().sum::<usize>(), classes.iter().sum::<usize>());
    }
}

#[test]
fn regression_labels_and_lengths_come_back_too() {
    for name in ["square-cube", "tanh", "sigmoid", "softplus"] {
        let mut client = Client::new(name.parse().unwrap());
        client.y = vec![0.25, -1.75, 3.5, 0.0];
        client.norm = 1.6;
        for (loss, reduction) in [(Loss::HalfSquared, Reduction::Sum), (Loss::Mse, Reduction::Mean)] {
            (client.loss, client.reduction) = (loss, reduction);
            client.comes_back(&TensorDecomposition::default(), 1e-7);
        }
    }
}

#[test]
fn weights_of_any_spread_and_offsets_do_not_matter() {
    // An ordinary network: uniform weights and biases, not chosen by anybody.
    let mlp = Mlp::new(FEATURES, &[4000], 1).with_activation(Activation::Tanh);
    let mut client = Client::new(Activation::Tanh);
    (client.spec, client.init, client.norm) = (mlp.spec(), Init::Pytorch.into(), 6.0);
    let found = client.comes_back(&TensorDecomposition::default(), 1e-5);
    assert!(found.notes.iter().any(|note| note.contains("not normal")), "{:?}", found.notes);
}

#[test]
fn offsets_tell_how_long_samples_are() {
    let mlp = Mlp::new(FEATURES, &[4000], 1);
    let mut client = Client::new(Activation::Relu);
    (client.spec, client.init, client.norm) = (mlp.spec(), Init::Pytorch.into(), 6.0);
    let found = client.comes_back(&TensorDecomposition::default(), 1e-6);
    assert!(found.certified.iter().all(|certain| *certain));
}

#[test]
fn without_offsets_piecewise_linear_units_do_not() {
    let mut client = Client::new(Activation::Relu);
    client.norm = 1.6;
    let found = run(&client.shares(), &TensorDecomposition::default()).unwrap();
    assert!(!found.certified.iter().any(|certain| *certain));
    assert!(found.targets.is_none() && found.notes.iter().any(|note| note.contains("how long a sample is")));
    for row in found.samples.to_f64_vec().unwrap().chunks_exact(FEATURES) {
        assert!((row.iter().map(|x| x * x).sum::<f64>() - 1.0).abs() < 1e-9);
    }
    // With layers below, the known norm of the input gives the length of what they carry.
    let below = Below { weights: BelowWeights::Random, width: 6 * FEATURES, ..Below::new(1, Activation::Tanh) };
    let probe = Probe { below: Some(below), ..Probe::new(FEATURES, 1500, Activation::Relu) };
    let client = Client::of(&probe);
    let found = run(&client.shares(), &known_norm()).unwrap();
    for (distance, _) in client.nearest(&found) {
        assert!(distance < 1e-4, "{distance}");
    }
}

#[test]
fn the_bias_says_nothing_of_logistic_residues() {
    // Their sign is that of the label, whatever the bias.
    let mut client = Client::of(&Probe { bias: 6.0, ..Probe::new(FEATURES, 900, Activation::Softplus { beta: 1.0 }) });
    (client.loss, client.y) = (Loss::Logistic, vec![1.0; 4]);
    client.comes_back(&known_norm(), 1e-5);
}

#[test]
fn a_sample_that_hardly_shows_is_not_certain() {
    let mut client = Client::of(&Probe { bias: 0.0, ..Probe::new(FEATURES, 900, Activation::SquareCube) });
    let network = Network::new(client.spec.clone()).unwrap();
    let theta = network.init(&client.init, client.seed, DType::F64).unwrap();
    let x = Tensor::from_f64(&client.rows(), &[4, FEATURES], DType::F64).unwrap();
    let outputs = network.forward(&theta, &x).unwrap().to_f64_vec().unwrap();
    // The last sample is answered almost perfectly.
    client.y[3] = outputs[3] - 1e-5;
    let found = run(&client.shares(), &TensorDecomposition { restarts: 0, polish: 1, ..known_norm() }).unwrap();
    assert!(!found.certified.iter().all(|certain| *certain), "{:?}", found.notes);
}

#[test]
fn an_odd_activation_without_a_bias_leaves_the_sign_open() {
    let client = Client::of(&Probe { bias: 0.0, ..Probe::new(FEATURES, 900, Activation::Tanh) });
    let found = client.comes_back(&known_norm(), 1e-7);
    assert_eq!(found.samples.rows(), 8);
    assert!(found.notes.iter().any(|note| note.contains("both signs")));
    assert!(!found.certified.iter().any(|certain| *certain));
    // The sigmoid is odd but for its middle, which is enough.
    let client = Client::of(&Probe { bias: 0.0, ..Probe::new(FEATURES, 900, Activation::Sigmoid) });
    assert_eq!(client.comes_back(&known_norm(), 1e-7).samples.rows(), 4);
}

#[test]
fn layers_that_keep_their_input_change_nothing() {
    for (below, top) in [("relu", "tanh"), ("relu", "relu"), ("leaky-relu", "softplus"), ("tanh", "sigmoid")] {
        for layers in [1, 2] {
            let below = Below::new(layers, below.parse().unwrap());
            let probe = Probe { below: Some(below), ..Probe::new(FEATURES, 900, top.parse().unwrap()) };
            Client::of(&probe).comes_back(&known_norm(), 1e-6);
        }
    }
}

#[test]
fn random_layers_are_inverted() {
    for below in ["tanh", "sigmoid", "relu", "leaky-relu"] {
        let below =
            Below { weights: BelowWeights::Random, width: 6 * FEATURES, ..Below::new(1, below.parse().unwrap()) };
        let probe = Probe { below: Some(below), ..Probe::new(FEATURES, 1500, Activation::SquareCube) };
        Client::of(&probe).comes_back(&TensorDecomposition::default(), 1e-5);
    }
}

#[test]
fn the_scale_of_a_direction_is_found_by_the_norm_of_the_input() {
    // Without the polish only the direction of what the layers carry is known, and roughly.
    let below = Below { weights: BelowWeights::Random, width: 30, ..Below::new(1, Activation::Tanh) };
    let probe = Probe { below: Some(below), ..Probe::new(5, 60_000, Activation::SquareCube) };
    let mut client = Client::of(&probe);
    client.x = vec![unit(vec![1.0, 0.4, 0.0, -0.3, 0.2]), unit(vec![-0.2, 0.1, 1.0, 0.5, 0.0])];
    client.y = vec![1.0, -1.0];
    let published = TensorDecomposition { norm: 1.0, polish: 0, ..TensorDecomposition::default() };
    let found = run(&client.shares(), &published).unwrap();
    for (distance, _) in client.nearest(&found) {
        assert!(distance < 0.25, "{distance}");
    }
    for row in found.samples.to_f64_vec().unwrap().chunks_exact(5) {
        assert!((row.iter().map(|x| x * x).sum::<f64>().sqrt() - 1.0).abs() < 0.02);
    }
}

/// The published method on its own: an error that falls with the width as 1/√m,
/// with every choice it leaves open.
#[test]
fn the_published_method_has_its_rate() {
    let published = |gradient| TensorDecomposition {
        gradient,
        span: Span::Moments,
        contraction: Contraction::Mean,
        diagonalise: Diagonalise::Orthogonal,
        polish: 0,
        ..known_norm()
    };
    let error = |activation, gradient, width: usize| {
        let mut total = 0.0;
        for seed in 0..8 {
            let mut client = Client::of(&Probe::new(30, width, activation));
            client.x = (0..2).map(|i| (0..30).map(|j| f64::from(u8::from(i == j))).collect()).collect();
            (client.y, client.seed) = (vec![1.0, -1.0], seed);
            let found = run(&client.shares(), &published(gradient)).unwrap();
            let squares: f64 = client.nearest(&found).iter().map(|(distance, _)| distance * distance).sum();
            total += squares / 2.0;
        }
        (total / 8.0).sqrt()
    };
    for (name, gradient) in [
        ("square-cube", Source::Output),
        ("square-cube", Source::Hidden),
        ("tanh", Source::Hidden),
        ("relu", Source::Hidden),
    ] {
        let activation: Activation = name.parse().unwrap();
        let (narrow, wide) = (error(activation, gradient, 8_000), error(activation, gradient, 72_000));
        let slope = (wide / narrow).ln() / 9.0_f64.ln();
        assert!((-0.75..-0.25).contains(&slope), "{name} {gradient:?}: {narrow} to {wide}, slope {slope}");
    }
}

#[test]
fn what_cannot_be_taken_apart_is_said() {
    let reason = |client: &Client, attack: &TensorDecomposition| match run(&client.shares(), attack) {
        Err(AttackError::NotApplicable { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    let default = TensorDecomposition::default();
    // Linear: only Σ r x; quadratic: only Σ r x xᵀ.
    assert!(reason(&Client::new(Activation::Identity), &default).contains("Σ r_i x_i"));
    assert!(reason(&Client::new(Activation::Square), &default).contains("Σ r_i x_i x_iᵀ"));
    let mut many = Client::of(&Probe::new(3, 900, Activation::Tanh));
    many.x = (0..5).map(|i| unit(vec![1.0, f64::from(i), f64::from(i * i) - 3.0])).collect();
    many.y = vec![1.0; 5];
    assert!(reason(&many, &default).contains("5 samples of 3 elements"));
    many.knows_size = false;
    assert!(reason(&many, &default).contains("full rank"));
    // One sample in few dimensions is no such case.
    many.x.truncate(1);
    many.y.truncate(1);
    many.comes_back(&default, 1e-6);
    let below = Below { weights: BelowWeights::Random, ..Below::new(1, Activation::SquareCube) };
    let lost = Client::of(&Probe { below: Some(below), ..Probe::new(FEATURES, 900, Activation::Tanh) });
    assert!(reason(&lost, &default).contains("cannot be undone"));
    let mut several = Client::new(Activation::Tanh);
    let mlp = Mlp::new(FEATURES, &[300], 4).with_activation(Activation::Tanh);
    (several.spec, several.init) = (mlp.spec(), Init::Pytorch.into());
    several.y = vec![0.5; 16];
    let outputs = {
        let network = Network::new(several.spec.clone()).unwrap();
        let theta = network.init(&several.init, 3, DType::F64).unwrap();
        let gradient = theta.clone();
        let model = Model { network, theta, loss: None, preprocess: None };
        Observation::Gradient(GradientSeen {
            model,
            gradient,
            reduction: None,
            batch_size: Some(4),
            labels: None,
            client: afterimage_attacks::Client::default(),
        })
    };
    assert!(run(&outputs, &default).unwrap_err().to_string().contains("4 outputs"));
    // Nothing was shared.
    let mut dead = Client::new(Activation::Relu);
    dead.x = vec![vec![0.0; FEATURES]; 2];
    dead.y = vec![1.0, -1.0];
    assert!(reason(&dead, &default).contains("zero"));
    for wrong in [
        TensorDecomposition { tolerance: 0.0, ..default.clone() },
        TensorDecomposition { projections: 0, ..default.clone() },
        TensorDecomposition { norm: f64::NAN, ..default.clone() },
    ] {
        assert!(matches!(run(&many.shares(), &wrong), Err(AttackError::Nn(_))));
    }
}

#[test]
fn duplicates_are_merged_and_said() {
    let mut client = Client::new(Activation::Sigmoid);
    client.x[3] = client.x[0].clone();
    let found = run(&client.shares(), &known_norm()).unwrap();
    assert_eq!(found.samples.rows(), 3);
    assert!(found.targets.is_none() && found.labels.is_none());
    assert!(found.notes.iter().any(|note| note.contains("4 samples span 3 dimensions")), "{:?}", found.notes);
    for (distance, _) in client.nearest(&found) {
        assert!(distance < 1e-7, "{distance}");
    }
}

/// Whenever it is told to stop, it says that it was stopped.
#[test]
fn a_stop_is_never_taken_for_an_end() {
    struct Patience(usize);
    impl Hooks for Patience {
        fn tick(&mut self, _: Tick) -> ControlFlow<()> {
            self.0 = self.0.saturating_sub(1);
            if self.0 == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }
    let observation = Client::new(Activation::Sigmoid).shares();
    let run = |patience: usize| {
        let mut hooks = Patience(patience);
        let found = AnyAttack::Tensor(known_norm()).run(&observation, &mut Session::new(1, &mut hooks)).unwrap();
        (found.stop, patience - hooks.0)
    };
    let (stop, steps) = run(1_000);
    assert_eq!(stop, Stop::Finished);
    for patience in 1..=steps {
        assert_eq!(run(patience).0, Stop::Interrupted, "after {patience} of {steps}");
    }
}
