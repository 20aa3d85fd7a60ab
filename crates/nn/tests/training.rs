//! Training: against PyTorch's optimisers, and against what theory says.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

use afterimage_nn::io::TensorFile;
use afterimage_nn::optim::UpdateRule;
use afterimage_nn::train::{Dataset, Dynamics, GaussNewton, Hooks, Progress, Recipe, Schedule, StopReason, Trained};
use afterimage_nn::zoo::{Bias, Mlp};
use afterimage_nn::{
    Activation, DType, Device, Error, Init, Loss, Mode, Network, NetworkSpec, Objective, Params, Reduction, Result,
    Stream, Targets, Tensor, Want,
};
use common::{batch, parameters, relative};

fn run(recipe: &Recipe, network: &Network, start: &Params, data: &Dataset) -> Result<Trained> {
    recipe.train(network, start, data, 1, |_| ControlFlow::Continue(()))
}

/// A small classification problem.
fn problem() -> (Network, Params, Dataset) {
    let network = Network::new(Mlp::new(4, &[8], 3).with_activation(Activation::Tanh).spec()).unwrap();
    let start = parameters(&network, "start", 0, DType::F64);
    let targets = Targets::Classes((0..9).map(|i| i % 3).collect());
    (network, start, Dataset { x: batch(&[4], 9, "train", 0), targets, loss: Loss::CrossEntropy })
}

#[test]
fn optimizers_agree_with_pytorch() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/train/golden.safetensors");
    let golden = TensorFile::read(path).unwrap();
    let (network, ..) = problem();
    let params = |prefix: &str| {
        let named: BTreeMap<String, Tensor> = (golden.tensors.iter())
            .filter_map(|(key, value)| Some((key.strip_prefix(prefix)?.strip_prefix('/')?.to_owned(), value.clone())))
            .filter(|(name, _)| name != "loss")
            .collect();
        network.params(named, DType::F64, Device::Cpu).unwrap()
    };
    let classes = golden.integers["y"].values.iter().map(|&y| y as usize).collect();
    let data = Dataset { x: golden.tensors["x"].clone(), targets: Targets::Classes(classes), loss: Loss::CrossEntropy };
    let momentum = UpdateRule::Sgd { lr: 0.1, momentum: 0.9 };
    let adam = UpdateRule::Adam { lr: 0.02, beta1: 0.8, beta2: 0.95, epsilon: 1e-6 };
    for (name, update, weight_decay) in [
        ("sgd", UpdateRule::sgd(0.3), 0.0),
        ("momentum", momentum, 0.0),
        ("momentum-decay", momentum, 0.05),
        ("adam", UpdateRule::adam(0.02), 0.0),
        ("adam-decay", adam, 0.1),
    ] {
        let recipe = Recipe { update, weight_decay, epochs: 25, ..Recipe::default() };
        let trained = run(&recipe, &network, &params("start"), &data).unwrap();
        for (parameter, value) in trained.theta.iter() {
            let error = relative(value, params(name).get(parameter).unwrap(), 1e-3);
            assert!(error < 1e-12, "{name} {parameter}: {error:e}");
        }
        let expected = golden.tensors[&format!("{name}/loss")].to_scalar().unwrap();
        assert!((trained.loss - expected).abs() < 1e-12, "{name}: {} for {expected}", trained.loss);
    }
}

/// One row of ∇_θ f for each sample, flattened, for a network with one output.
fn jacobian(network: &Network, theta: &Params, x: &Tensor) -> Vec<Vec<f64>> {
    let one = Tensor::from_vec(vec![1.0], &[1, 1]).unwrap();
    (0..x.rows())
        .map(|i| {
            let x = x.slice_rows(i..i + 1).unwrap();
            let gradient = network.backward(theta, &x, &one, Want::Weights).unwrap().weights.unwrap();
            gradient.values().iter().flat_map(|value| value.to_f64_vec().unwrap()).collect()
        })
        .collect()
}

#[test]
fn linearised_gradient_descent_follows_its_kernel() {
    // With the mean of ½(f − y)² the residual obeys r(t + 1) = (I − (lr/N) K) r(t) exactly.
    let network = Network::new(Mlp::new(3, &[12, 10], 1).spec()).unwrap();
    let start = parameters(&network, "start", 0, DType::F64);
    let (x, y) = (batch(&[3], 6, "x", 0), batch(&[1], 6, "y", 0));
    let (lr, steps) = (0.002, 40);
    let rows = jacobian(&network, &start, &x);
    let y_values = y.to_f64_vec().unwrap();
    let initial = network.forward(&start, &x).unwrap().to_f64_vec().unwrap();
    let mut residual: Vec<f64> = initial.iter().zip(&y_values).map(|(f, y)| f - y).collect();
    for _ in 0..steps {
        let change = |i: usize| -> f64 {
            (0..6).map(|j| rows[i].iter().zip(&rows[j]).map(|(a, b)| a * b).sum::<f64>() * residual[j]).sum()
        };
        let next: Vec<f64> = (0..6).map(|i| residual[i] - lr / 6.0 * change(i)).collect();
        residual = next;
    }
    let expected: f64 = residual.iter().map(|r| 0.5 * r * r).sum::<f64>() / 6.0;
    let data = Dataset { x: x.clone(), targets: Targets::Values(y), loss: Loss::HalfSquared };
    for batch in [None, Some(6)] {
        let update = UpdateRule::sgd(lr);
        let recipe = Recipe { update, epochs: steps, batch, dynamics: Dynamics::Linearised, ..Recipe::default() };
        let trained = run(&recipe, &network, &start, &data).unwrap();
        let moved = trained.theta.sub(&start).unwrap();
        let outputs = network.pass(&start, &x).unwrap().outputs_along(&moved).unwrap().to_f64_vec().unwrap();
        let loss = (0..6).map(|i| 0.5 * (initial[i] + outputs[i] - y_values[i]).powi(2)).sum::<f64>() / 6.0;
        assert!((loss - expected).abs() < 1e-12 * (1.0 + expected), "batch {batch:?}: {loss} for {expected}");
    }
}

#[test]
fn normalised_descent_finds_the_maximum_margin_direction() {
    // With y x = (1, 2) and (2, 1) on the margin and (4, 5) beyond it, the separator
    // through the origin of largest margin is w ∝ (1, 1).
    let network = Network::new(Mlp { bias: Bias::None, ..Mlp::new(2, &[], 1) }.spec()).unwrap();
    let start = network.init(&Init::Normal { std: 0.0 }.into(), 1, DType::F64).unwrap();
    let x = Tensor::from_vec(vec![1.0, 2.0, -2.0, -1.0, 4.0, 5.0], &[3, 2]).unwrap();
    let targets = Targets::Values(Tensor::from_vec(vec![1.0, -1.0, 1.0], &[3, 1]).unwrap());
    let data = Dataset { x, targets, loss: Loss::Logistic };
    for update in [UpdateRule::sgd(0.01), UpdateRule::Sgd { lr: 0.05, momentum: 0.9 }] {
        let recipe = Recipe { normalised: true, update, stop_loss: Some(1e-60), epochs: 5000, ..Recipe::default() };
        let trained = run(&recipe, &network, &start, &data).unwrap();
        assert_eq!(trained.stop, StopReason::LossReached, "{update:?}");
        let w = trained.theta.values()[0].to_f64_vec().unwrap();
        assert!((w[0] / w[1] - 1.0).abs() < 2e-2, "{update:?}: {w:?}");

        // Plain descent heads the same way and is nowhere near after as many steps.
        let plain = Recipe { epochs: trained.epochs, ..Recipe::default() };
        assert!(run(&plain, &network, &start, &data).unwrap().loss > 1e-4);
    }
}

/// A first layer near zero is a plateau: momentum leaves it, and steps that must not raise the loss do not.
#[test]
fn momentum_carries_normalised_steps_over_a_plateau() {
    let mlp = Mlp { bias: Bias::First, ..Mlp::new(2, &[60, 60], 1) };
    let network = Network::new(mlp.spec()).unwrap();
    let start = network.init(&mlp.small_first_layer(Init::Pytorch, 1e-4), 1, DType::F64).unwrap();
    let angles = (0..6).map(|i| f64::from(i) * std::f64::consts::FRAC_PI_3);
    let x: Vec<f64> = angles.flat_map(|angle| [angle.cos(), angle.sin()]).collect();
    let signs = vec![1.0, -1.0, 1.0, -1.0, 1.0, -1.0];
    let targets = Targets::Values(Tensor::from_vec(signs, &[6, 1]).unwrap());
    let data = Dataset { x: Tensor::from_vec(x, &[6, 2]).unwrap(), targets, loss: Loss::Logistic };
    let update = UpdateRule::Sgd { lr: 0.02, momentum: 0.9 };
    let recipe = Recipe { normalised: true, update, stop_loss: Some(1e-10), epochs: 20_000, ..Recipe::default() };
    let trained = run(&recipe, &network, &start, &data).unwrap();
    assert_eq!(trained.stop, StopReason::LossReached, "loss {}", trained.loss);
}

#[test]
fn mini_batches_of_everything_are_the_full_batch() {
    let (network, start, data) = problem();
    let full = run(&Recipe { epochs: 5, ..Recipe::default() }, &network, &start, &data).unwrap();
    let whole = run(&Recipe { epochs: 5, batch: Some(9), ..Recipe::default() }, &network, &start, &data).unwrap();
    // The order of the samples differs, so sums round differently.
    assert!(full.theta.sub(&whole.theta).unwrap().norm_squared().unwrap() < 1e-28);

    let recipe = Recipe { epochs: 5, batch: Some(2), ..Recipe::default() };
    let train = |seed| recipe.train(&network, &start, &data, seed, |_| ControlFlow::Continue(())).unwrap().theta;
    assert_eq!(train(1).sub(&train(1)).unwrap().norm_squared().unwrap(), 0.0);
    assert!(train(1).sub(&train(2)).unwrap().norm_squared().unwrap() > 0.0);
}

#[test]
fn checkpoints_are_kept_where_asked() {
    let (network, start, data) = problem();
    let recipe = Recipe {
        update: UpdateRule::adam(0.05),
        epochs: 400,
        stop_loss: Some(1e-3),
        keep_losses: vec![1e-2, 0.5, 1e-1],
        keep_epochs: vec![3],
        ..Recipe::default()
    };
    let trained = run(&recipe, &network, &start, &data).unwrap();
    assert_eq!(trained.stop, StopReason::LossReached);
    assert!(trained.loss <= 1e-3);
    let losses: Vec<f64> = trained.checkpoints.iter().map(|checkpoint| checkpoint.loss).collect();
    assert_eq!(losses.len(), 4, "{losses:?}");
    assert!(trained.checkpoints.iter().any(|checkpoint| checkpoint.epoch == 3));
    for threshold in [0.5, 1e-1, 1e-2] {
        assert!(losses.iter().any(|loss| *loss <= threshold && *loss > threshold * 0.5), "{threshold}: {losses:?}");
    }
    // The loss that is reported is the loss of the parameters that are returned.
    let objective = afterimage_nn::Objective::new(data.loss, afterimage_nn::Reduction::Mean, data.targets.clone());
    let again = objective.value(&network.forward(&trained.theta, &data.x).unwrap()).unwrap();
    assert_eq!(again, trained.loss);
}

#[test]
fn the_observer_can_stop_and_sees_every_epoch() {
    let (network, start, data) = problem();
    let mut seen = Vec::new();
    let trained = Recipe::default()
        .train(&network, &start, &data, 1, |progress| {
            seen.push(progress.epoch);
            if progress.epoch == 4 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert_eq!((seen, trained.stop, trained.epochs), (vec![1, 2, 3, 4], StopReason::Interrupted, 4));
}

/// Stops after so many epochs, keeps what it is given, and goes on from it.
#[derive(Default)]
struct Stopping {
    after: usize,
    kept: Option<TensorFile>,
    seen: Vec<usize>,
}

impl Hooks for Stopping {
    fn epoch(&mut self, progress: Progress) -> ControlFlow<()> {
        self.seen.push(progress.epoch);
        if progress.epoch == self.after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn keep(&mut self, state: &TensorFile) -> afterimage_nn::Result<()> {
        self.kept = Some(state.clone());
        Ok(())
    }

    fn resumed(&mut self) -> Option<TensorFile> {
        self.kept.take()
    }
}

#[test]
fn a_training_that_was_stopped_goes_on_to_the_same_bits() {
    let (network, start, data) = problem();
    let values = Targets::Values(batch(&[3], 9, "values", 1));
    let squares = Dataset { targets: values, loss: Loss::Mse, ..data.clone() };
    let plain = |update| Recipe { update, epochs: 12, keep_epochs: vec![2, 7], ..Recipe::default() };
    let momentum = UpdateRule::Sgd { lr: 0.05, momentum: 0.9 };
    let cosine = Schedule::Cosine { warmup: 3 };
    let cases = [
        (plain(UpdateRule::sgd(0.1)), &data),
        (Recipe { keep_losses: vec![10.0, 1.05, 1e-9], ..plain(momentum) }, &data),
        (Recipe { batch: Some(2), schedule: cosine, ..plain(UpdateRule::adam(0.01)) }, &data),
        (Recipe { batch: Some(4), weight_decay: 0.01, ..plain(UpdateRule::soap(0.01)) }, &data),
        (Recipe { batch: Some(4), ..plain(UpdateRule::muon(0.01)) }, &data),
        (Recipe { normalised: true, ..plain(UpdateRule::sgd(0.1)) }, &data),
        (Recipe { normalised: true, ..plain(momentum) }, &data),
        (Recipe { dynamics: Dynamics::Linearised, ..plain(momentum) }, &data),
        (Recipe { epochs: 3, gauss_newton: Some(GaussNewton { steps: 9, conjugate: 5 }), ..plain(momentum) }, &squares),
    ];
    for (recipe, data) in cases {
        let whole = run(&recipe, &network, &start, data).unwrap();
        let mut hooks = Stopping { after: 5, ..Stopping::default() };
        let part = recipe.train_with(&network, &start, data, 1, &mut hooks).unwrap();
        assert_eq!((part.stop, part.epochs), (StopReason::Interrupted, 5));
        // As it comes back from a file.
        let folder = std::env::temp_dir().join(format!("afterimage-training-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("state.safetensors");
        hooks.kept.take().unwrap().write(&path).unwrap();
        let mut hooks = Stopping { kept: Some(TensorFile::read(&path).unwrap()), ..Stopping::default() };
        std::fs::remove_dir_all(&folder).unwrap();
        let rest = recipe.train_with(&network, &start, data, 1, &mut hooks).unwrap();
        assert_eq!((rest.stop, rest.epochs, rest.loss), (whole.stop, whole.epochs, whole.loss), "{recipe:?}");
        assert_eq!(hooks.seen.first(), Some(&6));
        let bits = |theta: &Params| theta.state().map(|(_, value)| value.to_f64_vec().unwrap()).collect::<Vec<_>>();
        assert_eq!(bits(&rest.theta), bits(&whole.theta), "{recipe:?}");
        let kept = |trained: &Trained| {
            let kept = trained.checkpoints.iter().map(|kept| (kept.epoch, kept.loss, bits(&kept.theta)));
            kept.collect::<Vec<_>>()
        };
        assert_eq!(kept(&rest), kept(&whole), "{recipe:?}");
        let driven = |trained: &Trained| trained.driven.as_ref().map(|driven| driven.to_f64_vec().unwrap());
        assert_eq!(driven(&rest), driven(&whole), "{recipe:?}");
    }
}

#[test]
fn a_state_that_does_not_fit_is_refused() {
    let (network, start, data) = problem();
    let recipe = Recipe { epochs: 3, ..Recipe::default() };
    let mut hooks = Stopping { after: 2, ..Stopping::default() };
    recipe.train_with(&network, &start, &data, 1, &mut hooks).unwrap();
    let state = hooks.kept.take().unwrap();
    let refused = |state: TensorFile| {
        let mut hooks = Stopping { kept: Some(state), ..Stopping::default() };
        recipe.train_with(&network, &start, &data, 1, &mut hooks).unwrap_err().to_string()
    };
    assert!(refused(TensorFile::default()).contains("no record of a training"));
    let mut cut = state.clone();
    let name = cut.tensors.keys().find(|name| name.starts_with("theta/")).unwrap().clone();
    cut.tensors.remove(&name);
    assert!(refused(cut).contains("missing"));
    let mut garbled = state;
    garbled.metadata.insert("training".into(), "epoch = \"many\"".into());
    assert!(refused(garbled).contains("cannot read the state of a training"));
}

#[test]
fn training_that_cannot_go_on_says_why() {
    let (network, start, data) = problem();
    let diverging = Recipe { update: UpdateRule::sgd(1e3), epochs: 50, ..Recipe::default() };
    let steep = Network::new(Mlp::new(4, &[8], 3).with_activation(Activation::SquareCube).spec()).unwrap();
    let error = run(&diverging, &steep, &parameters(&steep, "start", 0, DType::F64), &data).unwrap_err();
    assert!(
        matches!(error, Error::Diverged { .. }) && error.to_string().contains("lower the learning rate"),
        "{error}"
    );
    for (recipe, part) in [
        (Recipe { batch: Some(0), ..Recipe::default() }, "batch = 0"),
        (Recipe { weight_decay: -1.0, ..Recipe::default() }, "weight_decay = -1"),
        (Recipe { normalised: true, batch: Some(3), ..Recipe::default() }, "normalised = true"),
        (
            Recipe { normalised: true, update: UpdateRule::adam(0.1), ..Recipe::default() },
            "full-batch gradient descent",
        ),
        (Recipe { normalised: true, schedule: Schedule::Cosine { warmup: 0 }, ..Recipe::default() }, "own length"),
        (Recipe { keep_losses: vec![f64::NAN], ..Recipe::default() }, "keep_losses = NaN"),
    ] {
        let error = run(&recipe, &network, &start, &data).unwrap_err();
        assert!(matches!(error, Error::Setting { .. }) && error.to_string().contains(part), "{error}");
    }
    let empty = Dataset { x: batch(&[4], 0, "none", 0), targets: Targets::Classes(Vec::new()), loss: data.loss };
    let recipe = Recipe { batch: Some(2), ..Recipe::default() };
    assert!(matches!(run(&recipe, &network, &start, &empty).unwrap_err(), Error::EmptyBatch { .. }));
    let short = Dataset { targets: Targets::Classes(vec![0, 1]), ..data };
    assert!(run(&Recipe::default(), &network, &start, &short).unwrap_err().to_string().contains("targets"));
}

#[test]
fn schedules_have_their_shape() {
    let cosine = Schedule::Cosine { warmup: 10 };
    assert_eq!(cosine.factor(0, 110), 0.1);
    assert_eq!(cosine.factor(10, 110), 1.0);
    assert!((cosine.factor(60, 110) - 0.5).abs() < 1e-12);
    assert!(cosine.factor(109, 110) < 1e-3);
    assert_eq!(Schedule::Step { every: 10, factor: 0.5 }.factor(25, 100), 0.25);
    let decay = Schedule::Decay { to: 1e-2 };
    assert!((decay.factor(50, 100) - 0.1).abs() < 1e-15 && decay.factor(0, 100) == 1.0);
    let stairs = Schedule::Stairs { at: [0.375, 0.625, 0.875], factor: 0.1 };
    assert_eq!(
        [0, 299, 300, 500, 799].map(|step| stairs.factor(step, 800)),
        [1.0, 1.0, 0.1, 0.1 * 0.1, 0.1 * 0.1 * 0.1]
    );
    assert_eq!(Schedule::Constant.factor(7, 10), 1.0);
}

#[test]
fn running_statistics_follow_training_unless_frozen() {
    let text = r#"
        input = [2, 4, 4]
        layers = [
            { kind = "conv", outputs = 3, kernel = 3, bias = false },
            { name = "bn", kind = "batch-norm" },
            { kind = "activation", function = "tanh" },
            { kind = "flatten" },
            { kind = "linear", outputs = 2 },
        ]"#;
    let network = Network::new(NetworkSpec::from_toml(text).unwrap()).unwrap();
    let start = network.init(&Init::Pytorch.into(), 3, DType::F64).unwrap();
    let x = Stream::new(5, "x", 0).normal_tensor(1.0, &[12, 2, 4, 4], DType::F64).unwrap();
    let data = Dataset { x, targets: Targets::Classes((0..12).map(|i| i % 2).collect()), loss: Loss::CrossEntropy };
    let statistics = |theta: &Params| -> Vec<Vec<f64>> {
        theta.buffers().iter().map(|buffer| buffer.value.to_f64_vec().unwrap()).collect()
    };
    for batch in [None, Some(5)] {
        let recipe = Recipe { update: UpdateRule::adam(0.05), epochs: 60, batch, ..Recipe::default() };
        let trained = recipe.train(&network, &start, &data, 1, |_| ControlFlow::Continue(())).unwrap();
        // They are part of what a stopped run goes on from.
        let mut hooks = Stopping { after: 31, ..Stopping::default() };
        for _ in 0..2 {
            let again = recipe.train_with(&network, &start, &data, 1, &mut hooks).unwrap();
            hooks.after = 0;
            if again.stop != StopReason::Interrupted {
                assert_eq!((again.loss, statistics(&again.theta)), (trained.loss, statistics(&trained.theta)));
                assert_eq!(hooks.seen.len(), 60);
            }
        }
        assert_ne!(statistics(&trained.theta), statistics(&start));
        // After sixty epochs the running statistics are near those of the data: either mode has learned them.
        let objective = Objective::new(Loss::CrossEntropy, Reduction::Mean, data.targets.clone());
        let loss = |mode| objective.value(&network.in_mode(mode).forward(&trained.theta, &data.x).unwrap()).unwrap();
        assert!(loss(Mode::Train) < 0.2, "{}", loss(Mode::Train));
        assert!(loss(Mode::Eval) < 0.4, "{}", loss(Mode::Eval));

        let frozen = Recipe { frozen_statistics: true, ..recipe };
        let trained = frozen.train(&network, &start, &data, 1, |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(statistics(&trained.theta), statistics(&start));
        assert!(objective.value(&network.forward(&trained.theta, &data.x).unwrap()).unwrap() < 0.2);
    }
}
