//! Gradient matching and labels, on networks small enough for a test.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use afterimage_attacks::gradinversion::{BatchStatistics, Distance, GradInversion, LabelSource, LocalSteps, Steps};
use afterimage_attacks::labels::{Labels, Rule};
use afterimage_attacks::{
    Attack, Client, Defence, GradientSeen, LocalTraining, Model, Observation, Preprocess, Quiet, Reconstruction,
    Session, Stop,
};
use afterimage_nn::zoo::Mlp;
use afterimage_nn::{
    Activation, DType, Init, Loss, Mode, Network, NetworkSpec, Objective, Params, Reduction, Seed, Stream, Targets,
    Tensor, Want,
};
use common::{StopsOnce, Told};

const CONVOLUTIONAL: &str = r#"
    input = [2, 6, 6]
    layers = [
        { name = "conv", kind = "conv", outputs = 8, kernel = 3, padding = 1, bias = false },
        { name = "bn", kind = "batch-norm" },
        { name = "act", kind = "activation", function = "sigmoid" },
        { name = "flat", kind = "flatten" },
        { name = "fc", kind = "linear", outputs = 5 },
    ]"#;

/// One that normalises after a nonlinearity: the scale of its inputs is not lost.
const NORMALISED_LATER: &str = r#"
    input = [2, 6, 6]
    layers = [
        { name = "conv1", kind = "conv", outputs = 8, kernel = 3, padding = 1 },
        { name = "act1", kind = "activation", function = "sigmoid" },
        { name = "conv2", kind = "conv", outputs = 8, kernel = 3, padding = 1, bias = false },
        { name = "bn", kind = "batch-norm" },
        { name = "act2", kind = "activation", function = "sigmoid" },
        { name = "flat", kind = "flatten" },
        { name = "fc", kind = "linear", outputs = 5 },
    ]"#;

fn gradient(network: &Network, theta: &Params, x: &Tensor, labels: &[usize], reduction: Reduction) -> Params {
    let objective = Objective::new(Loss::CrossEntropy, reduction, Targets::Classes(labels.to_vec()));
    network.pass(theta, x).unwrap().backward(Seed::Loss(objective), Want::Weights).unwrap().weights.unwrap()
}

/// A client with samples of these labels, all of them in [0, 1].
struct Case {
    x: Tensor,
    labels: Vec<usize>,
    seen: GradientSeen,
}

fn case(network: &Network, labels: &[usize], mode: Mode, seed: u64) -> Case {
    let theta = network.init(&Init::Uniform { bound: 0.5 }.into(), seed, DType::F64).unwrap();
    let mut stream = Stream::new(seed, "samples", 0);
    let x = stream.tensor(&network.batch_shape(labels.len()), DType::F64, |stream| stream.uniform(0.0, 1.0)).unwrap();
    let gradient = gradient(&network.in_mode(mode), &theta, &x, labels, Reduction::Mean);
    let model = Model {
        network: network.clone(),
        theta,
        loss: Some(Loss::CrossEntropy),
        preprocess: Some(Preprocess::default()),
    };
    let seen = GradientSeen {
        model,
        gradient,
        reduction: Some(Reduction::Mean),
        batch_size: Some(labels.len()),
        labels: None,
        client: Client { mode: Some(mode), ..Client::default() },
    };
    Case { x, labels: labels.to_vec(), seen }
}

fn convolutional() -> Network {
    Network::new(NetworkSpec::from_toml(CONVOLUTIONAL).unwrap()).unwrap()
}

/// Nothing but the gradient, by L-BFGS.
fn bare() -> GradInversion {
    GradInversion {
        distance: Distance::Squared,
        optimiser: Steps::LBfgs,
        starts: 3,
        iterations: 1500,
        stop_loss: Some(1e-16),
        tv_weight: 0.0,
        l2_weight: 0.0,
        statistics_weight: 0.0,
        group_weight: 0.0,
        clamp: false,
        ..GradInversion::default()
    }
}

fn run(attack: &GradInversion, seen: &GradientSeen) -> Reconstruction {
    attack.reconstruct(seen, &mut Session::new(1, &mut Quiet)).unwrap()
}

/// The largest distance of a sample to its nearest candidate.
fn worst(x: &Tensor, rebuilt: &Reconstruction) -> f64 {
    let rows = |tensor: &Tensor| -> Vec<Vec<f64>> {
        tensor.to_f64_vec().unwrap().chunks_exact(tensor.row_len()).map(<[f64]>::to_vec).collect()
    };
    let distance = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
    let candidates = rows(&rebuilt.samples);
    let nearest = |x: &Vec<f64>| candidates.iter().map(|c| distance(x, c)).fold(f64::INFINITY, f64::min);
    rows(x).iter().map(nearest).fold(0.0, f64::max)
}

#[test]
fn samples_and_labels_come_back_from_their_gradient() {
    let network = convolutional();
    for labels in [LabelSource::Joint, LabelSource::Best, LabelSource::Idlg] {
        let case = case(&network, &[3], Mode::Eval, 1);
        let rebuilt = run(&GradInversion { labels, ..bare() }, &case.seen);
        assert!(worst(&case.x, &rebuilt) < 1e-3, "{labels:?}: {}", worst(&case.x, &rebuilt));
        assert_eq!(rebuilt.labels.as_deref(), Some(&[3][..]), "{labels:?}");
        assert!(rebuilt.confidence[0] > 0.99);
    }
    let two = case(&network, &[1, 4], Mode::Eval, 2);
    let rebuilt = run(&bare(), &two.seen);
    assert!(worst(&two.x, &rebuilt) < 1e-3, "{}", worst(&two.x, &rebuilt));
}

#[test]
fn batch_normalisation_by_the_batch_is_matched_as_such() {
    let network = Network::new(NetworkSpec::from_toml(NORMALISED_LATER).unwrap()).unwrap();
    let case = case(&network, &[2], Mode::Train, 3);
    let rebuilt = run(&bare(), &case.seen);
    let told = worst(&case.x, &rebuilt);
    let mut untold = case.seen.clone();
    untold.client.mode = None;
    let mut warned = Told::default();
    let rebuilt = bare().reconstruct(&untold, &mut Session::new(1, &mut warned)).unwrap();
    assert!(warned.0.iter().any(|warning| warning.contains("model.train()")), "{:?}", warned.0);
    assert!(told < 0.01 && worst(&case.x, &rebuilt) > 0.1, "{told}, {}", worst(&case.x, &rebuilt));
}

fn warnings(seen: &GradientSeen) -> Vec<String> {
    let mut warned = Told::default();
    let quick = GradInversion { iterations: 1, starts: 1, ..bare() };
    quick.reconstruct(seen, &mut Session::new(1, &mut warned)).unwrap();
    warned.0
}

#[test]
fn what_is_taken_for_granted_is_checked_first() {
    let network = convolutional();
    let case = case(&network, &[1, 1, 4, 4], Mode::Eval, 4);
    assert!(warnings(&case.seen).is_empty(), "{:?}", warnings(&case.seen));
    let theta = &case.seen.model.theta;
    let summed = gradient(&network, theta, &case.x, &case.labels, Reduction::Sum);
    let told = warnings(&GradientSeen { gradient: summed, ..case.seen.clone() });
    assert!(told.iter().any(|warning| warning.contains("\"sum\"")), "{told:?}");
    let others = Some(Targets::Classes(vec![0, 0, 2, 3]));
    let told = warnings(&GradientSeen { labels: others, ..case.seen.clone() });
    assert!(told.iter().any(|warning| warning.contains("are the labels those of this batch")), "{told:?}");
    let trained = gradient(&network.in_mode(Mode::Train), theta, &case.x, &case.labels, Reduction::Mean);
    let told = warnings(&GradientSeen { gradient: trained, ..case.seen.clone() });
    assert!(told.iter().any(|warning| warning.contains("model.train()")), "{told:?}");
    let model = Model { preprocess: None, ..case.seen.model.clone() };
    let told = warnings(&GradientSeen { model, ..case.seen.clone() });
    assert!(told.iter().any(|warning| warning.contains("how inputs are prepared")), "{told:?}");
}

/// What a client with these samples shares after its steps.
fn trained(case: &Case, local: LocalTraining) -> GradientSeen {
    let (network, start) = (&case.seen.model.network, &case.seen.model.theta);
    let mut theta = start.clone();
    for step in 0..local.steps {
        let rows: Vec<usize> = local.rows(step, case.x.rows()).collect();
        let labels: Vec<usize> = rows.iter().map(|&row| case.labels[row]).collect();
        let own = gradient(network, &theta, &case.x.select_rows(&rows).unwrap(), &labels, Reduction::Mean);
        theta = theta.combine(1.0, &own, -local.lr).unwrap();
    }
    let gradient = start.sub(&theta).unwrap().scale(1.0 / (local.lr * local.steps as f64)).unwrap();
    let client = Client { local: Some(local), ..case.seen.client.clone() };
    GradientSeen { gradient, client, labels: Some(Targets::Classes(case.labels.clone())), ..case.seen.clone() }
}

#[test]
fn steps_at_the_client_are_taken_with_the_candidates() {
    for (labels, batch) in [(&[1][..], None), (&[1, 4][..], Some(1))] {
        let case = case(&convolutional(), labels, Mode::Eval, 5);
        let seen = trained(&case, LocalTraining { steps: 4, lr: 0.2, batch });
        let through = worst(&case.x, &run(&bare(), &seen));
        let taken = worst(&case.x, &run(&GradInversion { local: LocalSteps::PseudoGradient, ..bare() }, &seen));
        assert!(through < 1e-2, "{batch:?}: {through}");
        assert!(taken > 5.0 * through && taken > 0.05, "{batch:?}: {taken} against {through}");
    }
}

#[test]
fn a_known_defence_is_allowed_for() {
    let case = case(&convolutional(), &[2], Mode::Eval, 6);
    let norm = case.seen.gradient.norm_squared().unwrap().sqrt();
    let pruned = case.seen.gradient.map(|value| value.map(|x| if x.abs() < 0.02 * norm { 0.0 } else { x })).unwrap();
    let clipped = case.seen.gradient.scale(0.1).unwrap();
    let cases = [
        (pruned, Defence { prune: 0.5, ..Defence::default() }),
        (clipped, Defence { clip: Some(0.1 * norm), ..Defence::default() }),
    ];
    for (gradient, defence) in cases {
        let untold = GradientSeen { gradient, ..case.seen.clone() };
        let mut told = untold.clone();
        told.client.defence = Some(defence);
        let (told, untold) = (worst(&case.x, &run(&bare(), &told)), worst(&case.x, &run(&bare(), &untold)));
        assert!(told < 0.05 && untold > 5.0 * told, "{defence:?}: {told} against {untold}");
    }
}

#[test]
fn statistics_of_the_batch_come_from_wherever_they_are() {
    let network = convolutional();
    let mut case = case(&network, &[0, 3], Mode::Eval, 7);
    let statistics = network.pass(&case.seen.model.theta, &case.x).unwrap().statistics().unwrap();
    case.seen.client.after = Some(network.tracked(&case.seen.model.theta, &statistics).unwrap());
    case.seen.client.statistics = Some(statistics);
    // Nothing but the statistics.
    let attack = |source| GradInversion {
        match_weight: 0.0,
        statistics_weight: 1.0,
        statistics: source,
        starts: 1,
        noise: 0.0,
        iterations: 300,
        ..GradInversion { optimiser: Steps::Adam, stop_loss: None, ..bare() }
    };
    let losses = |source| {
        let trace = run(&attack(source), &case.seen).trace;
        (trace.first().unwrap().loss, trace.last().unwrap().loss)
    };
    let (exact, last) = losses(BatchStatistics::Exact);
    assert!(last < 0.01 * exact, "{last} of {exact}");
    let (derived, _) = losses(BatchStatistics::Derived);
    assert!((exact - derived).abs() < 1e-9 * exact, "{exact} {derived}");
    assert_eq!(losses(BatchStatistics::Best).0, exact);
    assert!((losses(BatchStatistics::Approximate).0 - exact).abs() > 0.1 * exact);
    case.seen.client = Client::default();
    let error = attack(BatchStatistics::Exact).reconstruct(&case.seen, &mut Session::new(1, &mut Quiet)).unwrap_err();
    assert!(error.to_string().contains("did not share"), "{error}");
}

#[test]
fn a_resumed_search_over_a_group_ends_at_the_same_bits() {
    let case = case(&convolutional(), &[0, 2], Mode::Eval, 8);
    let attack = GradInversion { starts: 2, iterations: 40, group_every: 0.2, warmup: 5, ..GradInversion::default() };
    let whole = run(&attack, &case.seen);
    let mut hooks = StopsOnce::after(23);
    let half = attack.reconstruct(&case.seen, &mut Session::new(1, &mut hooks)).unwrap();
    assert_eq!((half.stop, half.iterations), (Stop::Interrupted, 23));
    let rest = attack.reconstruct(&case.seen, &mut Session::new(1, &mut hooks)).unwrap();
    assert_eq!(rest.samples.to_f64_vec().unwrap(), whole.samples.to_f64_vec().unwrap());
}

#[test]
fn what_a_client_says_survives_its_file() {
    let network = convolutional();
    let mut case = case(&network, &[0, 3], Mode::Train, 9);
    let statistics = network.pass(&case.seen.model.theta, &case.x).unwrap().statistics().unwrap();
    case.seen.client.after = Some(network.tracked(&case.seen.model.theta, &statistics).unwrap());
    case.seen.client.statistics = Some(statistics);
    case.seen.client.local = Some(LocalTraining { steps: 3, lr: 0.1, batch: Some(1) });
    case.seen.client.defence = Some(Defence { prune: 0.5, ..Defence::default() });
    let file = tempfile::tempdir().unwrap();
    let path = file.path().join("seen.safetensors");
    Observation::Gradient(case.seen.clone()).write(&path).unwrap();
    let Observation::Gradient(read) = Observation::read(&path, afterimage_nn::Device::Cpu).unwrap() else {
        panic!("a gradient")
    };
    let (ours, theirs) = (&case.seen.client, &read.client);
    assert_eq!((ours.mode, ours.local, ours.defence), (theirs.mode, theirs.local, theirs.defence));
    let numbers = |client: &Client| -> Vec<f64> {
        let statistics = client.statistics.iter().flatten();
        let own = statistics.flat_map(|one| [&one.mean, &one.variance].map(|value| value.to_f64_vec().unwrap()));
        let after = client.after.iter().flat_map(|after| after.buffers().iter().map(|b| b.value.to_f64_vec().unwrap()));
        own.chain(after).flatten().collect()
    };
    assert_eq!(numbers(ours), numbers(theirs));
    assert!(!numbers(ours).is_empty());
}

#[test]
fn what_cannot_be_is_refused() {
    let network = convolutional();
    let case = case(&network, &[0, 3], Mode::Eval, 10);
    let fails = |attack: &GradInversion, seen: GradientSeen| {
        attack.reconstruct(&seen, &mut Session::new(1, &mut Quiet)).unwrap_err().to_string()
    };
    let nothing = case.seen.gradient.zeros_like().unwrap();
    let with = |change: &dyn Fn(&mut GradientSeen)| {
        let mut seen = case.seen.clone();
        change(&mut seen);
        seen
    };
    assert!(fails(&bare(), with(&|seen| seen.gradient = nothing.clone())).contains("zero"));
    assert!(fails(&bare(), with(&|seen| seen.batch_size = Some(0))).contains("1 or more"));
    let beyond = Some(Targets::Classes(vec![0, 7]));
    assert!(fails(&bare(), with(&|seen| seen.labels = beyond.clone())).contains("beyond the network's 5 classes"));
    // Of another network: the first parameter that does not fit is named.
    let other = Network::new(Mlp::new(4, &[5], 3).spec()).unwrap();
    let other = other.init(&Init::Pytorch.into(), 1, DType::F64).unwrap();
    let error = fails(&bare(), with(&|seen| seen.gradient = other.clone()));
    assert!(error.contains("conv.weight"), "{error}");
    let nan = case.seen.gradient.map(|value| value.map(|_| f64::NAN)).unwrap();
    assert!(fails(&bare(), with(&|seen| seen.gradient = nan.clone())).contains("conv.weight"));
    let few = Some(Targets::Classes(vec![0]));
    assert!(fails(&bare(), with(&|seen| seen.labels = few.clone())).contains("1 labels for 2 samples"));
    for (attack, part) in [
        (GradInversion { starts: 0, ..bare() }, "starts"),
        (GradInversion { lr: f64::NAN, ..bare() }, "lr"),
        (GradInversion { tv_weight: -1.0, ..bare() }, "tv_weight"),
        (GradInversion { match_weight: 0.0, ..bare() }, "nothing ties"),
    ] {
        assert!(fails(&attack, case.seen.clone()).contains(part), "{part}");
    }
    let unknown = GradientSeen { model: Model { loss: None, ..case.seen.model.clone() }, ..case.seen.clone() };
    assert!(fails(&bare(), unknown).contains("loss is not known"));
}

/// A perceptron whose last layer reads what ReLU lets through.
fn told(rule: Rule, labels: &[usize], classes: usize, batch_size: Option<usize>, seed: u64) -> Vec<usize> {
    let network = Network::new(Mlp::new(30, &[64], classes).with_activation(Activation::Relu).spec()).unwrap();
    let theta = network.init(&Init::Pytorch.into(), seed, DType::F64).unwrap();
    let x = Stream::new(seed, "x", 0).normal_tensor(0.5, &[labels.len(), 30], DType::F64).unwrap();
    let gradient = gradient(&network, &theta, &x, labels, Reduction::Mean);
    let model = Model { network, theta, loss: Some(Loss::CrossEntropy), preprocess: None };
    let seen = GradientSeen {
        model,
        gradient,
        reduction: Some(Reduction::Mean),
        batch_size,
        labels: None,
        client: Client::default(),
    };
    let attack = Labels { rule, ..Labels::default() };
    let found = attack.reconstruct(&seen, &mut Session::new(1, &mut Quiet)).unwrap();
    assert_eq!(found.samples.rows(), 0);
    found.labels.unwrap()
}

#[test]
fn labels_that_occur_once_are_found_by_every_rule() {
    let labels = [3, 17, 29, 40, 41, 55, 73, 99];
    for rule in [Rule::Best, Rule::Idlg, Rule::Analytic, Rule::Yin, Rule::Llg, Rule::Ilrg] {
        assert_eq!(told(rule, &labels, 100, Some(8), 1), labels, "{rule:?}");
    }
}

#[test]
fn labels_that_repeat_are_counted() {
    let mut stream = Stream::new(3, "labels", 0);
    let mut labels: Vec<usize> = (0..64).map(|_| stream.below(10)).collect();
    labels.sort_unstable();
    // Of class 2 there is one: among 64 samples it leaves nothing below zero.
    assert_eq!(labels.iter().filter(|label| **label == 2).count(), 1);
    let found = told(Rule::Ilrg, &labels, 10, Some(64), 3);
    let count = |labels: &[usize], class| labels.iter().filter(|label| **label == class).count();
    let wrong: usize = (0..10).map(|class| count(&labels, class).saturating_sub(count(&found, class))).sum();
    assert!(found.len() == 64 && wrong <= 3, "{found:?}");
    // How many there are is in the gradient as well.
    let few = vec![0, 0, 0, 1, 2, 2, 9];
    assert_eq!(told(Rule::Ilrg, &few, 10, None, 4), few);
}
