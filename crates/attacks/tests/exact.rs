//! Whole batches through a ReLU layer: what comes back, what is proven, and what
//! is said where nothing can.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::ops::ControlFlow;

use afterimage_attacks::{
    AnyAttack, AttackError, Exact, GradientSeen, Hooks, Model, Observation, Quiet, Reconstruction, Session, Stop, Tick,
};
use afterimage_nn::zoo::Mlp;
use afterimage_nn::{
    Activation, DType, Init, Loss, Network, Objective, Reduction, Seed, Stream, Targets, Tensor, Want,
};

/// A client and its batch.
struct Client {
    network: Network,
    dtype: DType,
    loss: Loss,
    reduction: Reduction,
    x: Tensor,
    targets: Targets,
    knows_size: bool,
}

impl Client {
    fn new(batch: usize) -> Self {
        let network = Network::new(Mlp::new(40, &[160, 60], 5).spec()).unwrap();
        let x = Stream::new(7, "batch", 0).normal_tensor(1.0, &[batch, 40], DType::F64).unwrap();
        // Labels repeat.
        let targets = Targets::Classes((0..batch).map(|i| i * i % 5).collect());
        Self {
            network,
            dtype: DType::F32,
            loss: Loss::CrossEntropy,
            reduction: Reduction::Mean,
            x,
            targets,
            knows_size: true,
        }
    }

    fn with(self, activation: Activation) -> Self {
        let network = Network::new(Mlp::new(40, &[160, 60], 5).with_activation(activation).spec()).unwrap();
        Self { network, ..self }
    }

    fn shares(&self) -> Observation {
        let theta = self.network.init(&Init::Pytorch.into(), 3, self.dtype).unwrap();
        let x = self.x.to_dtype(self.dtype).unwrap();
        let targets = match &self.targets {
            Targets::Values(values) => Targets::Values(values.to_dtype(self.dtype).unwrap()),
            classes => classes.clone(),
        };
        let objective = Objective::new(self.loss, self.reduction, targets);
        let gradients = self.network.pass(&theta, &x).unwrap().backward(Seed::Loss(objective), Want::Weights).unwrap();
        Observation::Gradient(GradientSeen {
            model: Model { network: self.network.clone(), theta, loss: Some(self.loss), preprocess: None },
            gradient: gradients.weights.unwrap(),
            reduction: None,
            batch_size: self.knows_size.then_some(self.x.rows()),
            labels: None,
            client: afterimage_attacks::Client::default(),
        })
    }

    /// Squared distance per element from each sample to the nearest candidate.
    fn errors(&self, found: &Reconstruction) -> Vec<f64> {
        let (width, candidates) = (found.samples.row_len(), found.samples.to_f64_vec().unwrap());
        let distance = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>() / 40.0;
        let x = self.x.to_f64_vec().unwrap();
        let nearest = |x: &[f64]| candidates.chunks_exact(width).map(|c| distance(x, c)).fold(f64::INFINITY, f64::min);
        x.chunks_exact(40).map(nearest).collect()
    }
}

fn attack(observation: &Observation, exact: Exact) -> Result<Reconstruction, AttackError> {
    AnyAttack::Exact(exact).run(observation, &mut Session::new(1, &mut Quiet))
}

fn worst(errors: &[f64]) -> f64 {
    errors.iter().copied().fold(0.0, f64::max)
}

#[test]
fn whole_batches_come_back_exactly_and_are_proven() {
    let base = || Client::new(8);
    let regression = Stream::new(9, "y", 0).normal_tensor(1.0, &[8, 5], DType::F64).unwrap();
    for (name, client, limit) in [
        ("f32", base(), 1e-9),
        ("f64", Client { dtype: DType::F64, ..base() }, 1e-18),
        ("summed", Client { reduction: Reduction::Sum, ..base() }, 1e-9),
        ("unknown size", Client { knows_size: false, ..base() }, 1e-9),
        ("regression", Client { loss: Loss::Mse, targets: Targets::Values(regression), ..base() }, 1e-9),
        ("one", Client::new(1), 1e-9),
    ] {
        let observation = client.shares();
        let found = attack(&observation, Exact::default()).unwrap();
        assert!(worst(&client.errors(&found)) < limit, "{name}: {:?}", client.errors(&found));
        assert_eq!(found.samples.rows(), client.x.rows(), "{name}");
        assert!(found.certified.iter().all(|certified| *certified), "{name}: {:?}", found.notes);
        if let Targets::Classes(classes) = &client.targets {
            let (mut found, mut classes) = (found.labels.unwrap(), classes.clone());
            found.sort_unstable();
            classes.sort_unstable();
            assert_eq!(found, classes, "{name}");
        }
    }
}

#[test]
fn two_classes_with_one_output_come_back_with_their_labels() {
    let network = Network::new(Mlp::new(40, &[160], 1).spec()).unwrap();
    let signs = vec![1.0, -1.0, -1.0, 1.0, 1.0];
    let targets = Targets::Values(Tensor::from_vec(signs, &[5, 1]).unwrap());
    let client = Client { network, loss: Loss::Logistic, targets, ..Client::new(5) };
    let found = attack(&client.shares(), Exact::default()).unwrap();
    assert!(worst(&client.errors(&found)) < 1e-9);
    assert_eq!(found.labels.unwrap().iter().sum::<usize>(), 3);
}

#[test]
fn leaky_units_give_samples_as_exactly() {
    // Nothing is off, but the gradient of every layer tells what is.
    let client = Client { dtype: DType::F64, ..Client::new(5) }.with(Activation::LeakyRelu { slope: 0.01 });
    let observation = client.shares();
    let found = attack(&observation, Exact { polish: 0, ..Exact::default() }).unwrap();
    assert!(worst(&client.errors(&found)) < 1e-16, "{:?}", client.errors(&found));
    assert!(found.certified.iter().all(|certain| *certain), "{:?}", found.notes);
}

#[test]
fn duplicates_are_found_once_and_mentioned() {
    let client = Client::new(6);
    let x = client.x.select_rows(&[0, 1, 2, 3, 4, 0]).unwrap();
    let client = Client { x, targets: Targets::Classes(vec![0, 1, 2, 3, 4, 1]), ..client };
    let found = attack(&client.shares(), Exact::default()).unwrap();
    assert!(worst(&client.errors(&found)) < 1e-9, "{:?}", client.errors(&found));
    assert_eq!(found.samples.rows(), 5);
    assert!(found.notes.iter().any(|note| note.contains("duplicates")), "{:?}", found.notes);
}

#[test]
fn a_layer_inside_gives_its_own_inputs_and_says_so() {
    let client = Client::new(4);
    let exact = Exact { layer: "2".into(), ..Exact::default() };
    let found = attack(&client.shares(), exact).unwrap();
    assert_eq!(found.samples.row_len(), 160);
    assert!(found.notes.iter().any(|note| note.contains("inputs of that layer, not samples")), "{:?}", found.notes);
    assert!(found.certified.iter().all(|certified| !certified));
    // They are: what the first layer gives for the samples.
    let Observation::Gradient(seen) = client.shares() else { panic!() };
    let first = Network::new(Mlp::new(40, &[160], 1).spec()).unwrap();
    let named = ["0.weight", "0.bias"].map(|name| (name.to_owned(), seen.model.theta.get(name).unwrap().clone()));
    let last = [("2.weight", vec![1, 160]), ("2.bias", vec![1])]
        .map(|(name, shape)| (name.to_owned(), Tensor::zeros(&shape, DType::F32, afterimage_nn::Device::Cpu).unwrap()));
    let theta = first.params(named.into_iter().chain(last).collect(), DType::F32, afterimage_nn::Device::Cpu).unwrap();
    let inputs = first.features(&theta, &client.x.to_dtype(DType::F32).unwrap()).unwrap().to_f64_vec().unwrap();
    let candidates = found.samples.to_f64_vec().unwrap();
    for input in inputs.chunks_exact(160) {
        let distance = |c: &[f64]| c.iter().zip(input).map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
        let nearest = candidates.chunks_exact(160).map(distance).fold(f64::INFINITY, f64::min);
        assert!(nearest < 1e-6, "{nearest}");
    }
}

#[test]
fn what_cannot_be_separated_is_explained() {
    let refused = |observation: &Observation, exact: Exact| match attack(observation, exact) {
        Err(error @ AttackError::NotApplicable { .. }) => error.to_string(),
        other => panic!("{:?}", other.map(|found| found.notes)),
    };
    let sigmoid = Client::new(4).with(Activation::Sigmoid).shares();
    assert!(refused(&sigmoid, Exact::default()).contains("followed by sigmoid, which is never off"));
    // More samples than the input has elements.
    let crowd = Client { knows_size: false, ..Client::new(50) }.shares();
    assert!(refused(&crowd, Exact::default()).contains("full rank"));
    assert!(refused(&Client::new(50).shares(), Exact::default()).contains("full rank"));
    let Observation::Gradient(mut dead) = Client::new(2).shares() else { panic!() };
    dead.gradient = dead.gradient.zeros_like().unwrap();
    assert!(refused(&Observation::Gradient(dead), Exact::default()).contains("gradient of the layer is zero"));
    let named = |layer: &str| Exact { layer: layer.into(), ..Exact::default() };
    assert!(refused(&Client::new(2).shares(), named("nothing")).contains("no fully connected layer `nothing`"));
    assert!(refused(&Client::new(2).shares(), named("4")).contains("not followed by ReLU"));
    for wrong in [Exact { searches: 0, ..Exact::default() }, Exact { tolerance: 2.0, ..Exact::default() }] {
        assert!(matches!(attack(&Client::new(2).shares(), wrong), Err(AttackError::Nn(_))));
    }
}

#[test]
fn nothing_found_and_a_stop_are_results_not_refusals() {
    // Eight searches cannot find twelve columns.
    let exact = Exact { searches: 1, ..Exact::default() };
    let found = attack(&Client::new(12).shares(), exact).unwrap();
    assert_eq!((found.samples.shape(), found.stop), (&[0, 40][..], Stop::IterationsUsed));
    assert!(found.notes[0].contains("no choice of directions"), "{:?}", found.notes);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.safetensors");
    found.write(&path).unwrap();
    assert_eq!(Reconstruction::read(&path).unwrap().samples.rows(), 0);
    // A stop at the first step.
    struct Impatient;
    impl Hooks for Impatient {
        fn tick(&mut self, _: Tick) -> ControlFlow<()> {
            ControlFlow::Break(())
        }
    }
    let observation = Client::new(12).shares();
    let stopped = AnyAttack::Exact(Exact::default()).run(&observation, &mut Session::new(1, &mut Impatient)).unwrap();
    assert_eq!(stopped.stop, Stop::Interrupted);
}

#[test]
fn noise_makes_samples_as_noisy_as_it_is() {
    let errors = |noise: f64| {
        let client = Client { dtype: DType::F64, ..Client::new(4) };
        let Observation::Gradient(mut seen) = client.shares() else { panic!() };
        let rms = (seen.gradient.norm_squared().unwrap() / seen.gradient.count() as f64).sqrt();
        let mut stream = Stream::new(5, "noise", 0);
        seen.gradient = seen
            .gradient
            .map(|value| value.combine(1.0, &stream.normal_tensor(noise * rms, value.shape(), DType::F64)?, 1.0))
            .unwrap();
        let found = attack(&Observation::Gradient(seen), Exact { tolerance: 0.05, ..Exact::default() });
        found.map(|found| worst(&client.errors(&found)).sqrt()).unwrap_or(f64::INFINITY)
    };
    let (small, larger) = (errors(1e-5), errors(1e-4));
    assert!(small < 2e-3 && larger < 2e-2 && larger > 3.0 * small, "{small} {larger}");
}
