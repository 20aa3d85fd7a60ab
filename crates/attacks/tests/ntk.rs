//! Records from two checkpoints: small cases of everything `ntk` does.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::ops::ControlFlow;

use afterimage_attacks::kkt::DualRule;
use afterimage_attacks::ntk::{Form, Gradients, Ntk};
use afterimage_attacks::{
    Attack, AttackError, Model, Observation, PairSeen, Quiet, Reconstruction, Session, Stop, checkpoint_iteration,
};
use afterimage_nn::io::TensorFile;
use afterimage_nn::optim::UpdateRule;
use afterimage_nn::train::{Dataset, Dynamics, Recipe};
use afterimage_nn::zoo::{Bias, Lenet, Mlp};
use afterimage_nn::{Activation, DType, Device, Init, Loss, Network, NetworkSpec, Stream, Targets, Tensor};
use common::StopsOnce;

const RECORDS: usize = 4;

struct Victim {
    seen: PairSeen,
    x: Tensor,
}

/// Trains a network on a few random records.
fn victim(spec: NetworkSpec, loss: Loss, recipe: &Recipe) -> Victim {
    victim_of(RECORDS, spec, loss, recipe)
}

/// The same on so many.
fn victim_of(records: usize, spec: NetworkSpec, loss: Loss, recipe: &Recipe) -> Victim {
    let network = Network::new(spec).unwrap();
    let outputs: usize = network.output_shape().iter().product();
    let before = network.init(&Init::LecunNormal.into(), 5, DType::F64).unwrap();
    let x = Stream::new(3, "x", 0).normal_tensor(0.5, &network.batch_shape(records), DType::F64).unwrap();
    let targets = match loss {
        Loss::CrossEntropy => Targets::Classes((0..records).map(|i| i % outputs).collect()),
        _ => {
            let value = |at: usize| if (at / outputs) % 2 == at % outputs % 2 { 1.0 } else { -1.0 };
            let values = (0..records * outputs).map(value).collect();
            Targets::Values(Tensor::from_vec(values, &[records, outputs]).unwrap())
        }
    };
    let data = Dataset { x: x.clone(), targets, loss };
    let trained = recipe.train(&network, &before, &data, 1, &mut |_| ControlFlow::Continue(())).unwrap();
    let between = trained.checkpoints.into_iter().map(|kept| kept.theta).collect();
    let model = Model { network, theta: trained.theta, loss: Some(loss), preprocess: None };
    Victim { seen: PairSeen { model, before, between }, x }
}

fn recipe(epochs: usize) -> Recipe {
    let update = UpdateRule::Sgd { lr: 2e-3, momentum: 0.9 };
    Recipe { update, epochs, stop_loss: Some(1e-9), ..Recipe::default() }
}

fn perceptron(outputs: usize) -> NetworkSpec {
    Mlp::new(12, &[256, 256], outputs).spec()
}

fn run(attack: &Ntk, seen: &PairSeen) -> Reconstruction {
    attack.reconstruct(seen, &mut Session::new(1, &mut Quiet)).unwrap()
}

/// For each record, how far the nearest candidate is, beside its own length.
fn distances(x: &Tensor, found: &Reconstruction) -> Vec<f64> {
    let rows = |x: &Tensor| -> Vec<Vec<f64>> {
        x.to_f64_vec().unwrap().chunks_exact(x.row_len()).map(<[f64]>::to_vec).collect()
    };
    let off = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
    let candidates = rows(&found.samples);
    rows(x)
        .iter()
        .map(|x| candidates.iter().map(|c| off(x, c)).fold(f64::INFINITY, f64::min) / off(x, &vec![0.0; x.len()]))
        .collect()
}

fn near(x: &Tensor, found: &Reconstruction, within: f64) -> usize {
    distances(x, found).iter().filter(|off| **off < within).count()
}

fn quick() -> Ntk {
    Ntk { iterations: 600, restarts: 4, sigma: 0.5, zeros: false, ..Ntk::default() }
}

#[test]
fn the_zeros_of_the_change_show_records_to_rounding() {
    let cases = [
        (Loss::HalfSquared, recipe(20_000), 1),
        (Loss::CrossEntropy, recipe(500), 3),
        (Loss::HalfSquared, Recipe { batch: Some(2), ..recipe(2000) }, 1),
    ];
    for (loss, recipe, outputs) in cases {
        let Victim { seen, x } = victim(perceptron(outputs), loss, &recipe);
        let found = run(&Ntk::default(), &seen);
        assert_eq!(found.samples.rows(), RECORDS, "{loss}, {recipe:?}: {:?}", found.notes);
        assert_eq!(near(&x, &found, 1e-6), RECORDS, "{:?} {:?}", distances(&x, &found), found.notes);
        assert!(found.certified.iter().all(|certain| *certain), "{:?}", found.confidence);
        assert_eq!(found.stop, Stop::Finished);
    }
    // Where units are never off there is nothing to see, and the search goes on without.
    let smooth = Mlp::new(12, &[256, 256], 1).with_activation(Activation::Tanh).spec();
    let Victim { seen, .. } = victim(smooth, Loss::HalfSquared, &recipe(500));
    let found = run(&Ntk { iterations: 5, restarts: 1, ..Ntk::default() }, &seen);
    assert_eq!(found.stop, Stop::IterationsUsed);
}

#[test]
fn records_come_back_from_all_kinds_of_training() {
    let linearised = Recipe { dynamics: Dynamics::Linearised, ..recipe(20_000) };
    let early = Recipe { stop_loss: Some(0.1), ..recipe(20_000) };
    let cases = [
        ("standard", Loss::HalfSquared, recipe(20_000), 1),
        ("linearised", Loss::HalfSquared, linearised, 1),
        ("stopped early", Loss::HalfSquared, early, 1),
        ("logistic", Loss::Logistic, recipe(500), 1),
        ("cross-entropy", Loss::CrossEntropy, recipe(500), 3),
        ("several outputs", Loss::HalfSquared, recipe(20_000), 3),
    ];
    for (name, loss, recipe, outputs) in cases {
        let Victim { seen, x } = victim(perceptron(outputs), loss, &recipe);
        let found = run(&quick(), &seen);
        assert!(found.notes[0].contains("4 independent records"), "{name}: {:?}", found.notes);
        // A record that the others predict leaves next to nothing in the change.
        assert!(near(&x, &found, 0.2) >= RECORDS - 1, "{name}: {:?} {:?}", distances(&x, &found), found.notes);
        assert!(found.confidence.iter().all(|c| (0.0..=1.0).contains(c)), "{name}");
    }
}

#[test]
fn columns_that_candidates_show_hold_the_search_for_the_others() {
    // Ten units for each record: too few for a search of zeros from anywhere.
    let spec = Mlp::new(20, &[120, 120], 1).spec();
    let Victim { seen, x } = victim_of(12, spec, Loss::HalfSquared, &recipe(20_000));
    let attack = Ntk { iterations: 1000, restarts: 4, sigma: 0.5, ..Ntk::default() };
    let found = run(&attack, &seen);
    let alone = run(&Ntk { zeros: false, ..attack }, &seen);
    let (exact, before) = (near(&x, &found, 1e-6), near(&x, &alone, 1e-3));
    assert_eq!((exact, found.samples.rows()), (12, 12), "{:?} {:?}", distances(&x, &found), found.notes);
    assert_eq!(before, 0, "the descent alone comes near, not there: {:?}", distances(&x, &alone));
}

#[test]
fn one_record_of_few_units_is_the_only_one_there_can_be() {
    let Victim { seen, x } = victim_of(1, Mlp::new(6, &[16], 1).spec(), Loss::HalfSquared, &recipe(2000));
    let found = run(&Ntk { iterations: 5, ..Ntk::default() }, &seen);
    assert_eq!(near(&x, &found, 1e-6), 1, "{:?}", distances(&x, &found));
}

#[test]
fn the_surest_candidates_are_the_records() {
    let Victim { seen, x } = victim(perceptron(1), Loss::HalfSquared, &recipe(20_000));
    let found = run(&quick(), &seen);
    let surest = Reconstruction {
        samples: found.samples.slice_rows(0..RECORDS).unwrap(),
        ..Reconstruction::finished(found.samples.clone(), 0.0, false)
    };
    assert!(found.confidence.is_sorted_by(|a, b| a >= b));
    assert_eq!(near(&x, &surest, 0.2), RECORDS, "{:?}", found.confidence);
}

#[test]
fn linearised_training_is_explained_by_gradients_at_its_start() {
    let linearised = Recipe { dynamics: Dynamics::Linearised, ..recipe(20_000) };
    let Victim { seen, x } = victim(perceptron(1), Loss::HalfSquared, &linearised);
    let found = run(&Ntk { gradients: Gradients::Initial, iterations: 1500, ..quick() }, &seen);
    assert!(near(&x, &found, 0.1) >= RECORDS - 1, "{:?} {:?}", distances(&x, &found), found.notes);
}

#[test]
fn the_published_loss_falls_in_both_algorithms() {
    let Victim { seen, .. } = victim(perceptron(1), Loss::HalfSquared, &recipe(20_000));
    let published = Ntk {
        candidates: Some(2 * RECORDS),
        duals: DualRule::Descent,
        gradients: Gradients::Final,
        form: Form::Released,
        row_space: false,
        zeros: false,
        restarts: 1,
        iterations: 2000,
        settle: 1.0,
        ..Ntk::default()
    };
    let fallen = |found: &Reconstruction| found.trace[found.trace.len() - 1].loss / found.trace[0].loss;
    let found = run(&published, &seen);
    assert!(fallen(&found) < 0.3, "{}", fallen(&found));
    // One batch of all candidates is algorithm 1; smaller ones go other ways to the same end.
    let one = run(&Ntk { batch: Some(2 * RECORDS), iterations: 200, ..published.clone() }, &seen);
    let all = run(&Ntk { iterations: 200, ..published.clone() }, &seen);
    let off = one.samples.combine(1.0, &all.samples, -1.0).unwrap();
    assert!(off.dot(&off).unwrap() < 1e-12 * all.samples.dot(&all.samples).unwrap());
    let small = run(&Ntk { batch: Some(3), iterations: 6000, lr: 2e-3, lr_alpha: 2e-3, ..published }, &seen);
    assert!(fallen(&small) < 0.3, "{}", fallen(&small));
}

#[test]
fn more_checkpoints_say_more() {
    let kept = Recipe { keep_epochs: vec![20, 100], ..recipe(20_000) };
    let Victim { seen, x } = victim(perceptron(1), Loss::HalfSquared, &kept);
    assert_eq!(seen.between.len(), 2);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("observation.safetensors");
    Observation::WeightPair(seen.clone()).write(&path).unwrap();
    let Observation::WeightPair(again) = Observation::read(&path, Device::Cpu).unwrap() else { panic!("a pair") };
    assert_eq!(again.between.len(), 2);
    let worst = |found: &Reconstruction| distances(&x, found).into_iter().fold(0.0, f64::max);
    let with = worst(&run(&quick(), &again));
    let without = worst(&run(&quick(), &PairSeen { between: Vec::new(), ..seen }));
    assert!(with < without, "{with} with, {without} without");
}

#[test]
fn convolutional_networks_are_searched_in_pixels() {
    let Victim { seen, .. } = victim(Lenet::new(&[1, 28, 28], 1).spec(), Loss::HalfSquared, &recipe(30));
    let error = quick().reconstruct(&seen, &mut Session::new(1, &mut Quiet)).unwrap_err().to_string();
    assert!(error.contains("candidates") && error.contains("no fully connected layer"), "{error}");
    for duals in [DualRule::Projected, DualRule::Descent] {
        let attack = Ntk { candidates: Some(5), iterations: 40, restarts: 1, duals, smooth_weight: 1e-3, ..quick() };
        let found = run(&attack, &seen);
        assert_eq!(found.samples.shape()[1..], [1, 28, 28]);
        let (first, last) = (found.trace[0].loss, found.trace[found.trace.len() - 1].loss);
        assert!(last < first, "{duals:?}: {first} {last}");
    }
}

#[test]
fn a_linear_model_shows_the_span_and_no_record() {
    let spec = Mlp { bias: Bias::None, ..Mlp::new(12, &[], 3) }.spec();
    let Victim { seen, x } = victim(spec, Loss::HalfSquared, &recipe(50));
    let error = quick().reconstruct(&seen, &mut Session::new(1, &mut Quiet)).unwrap_err();
    assert!(matches!(error, AttackError::NotApplicable { .. }), "{error}");
    assert!(error.to_string().contains("not identifiable"), "{error}");
    // ΔW = Σ δ_i x_iᵀ: its rows lie in the span of the records, to rounding.
    let change = seen.model.theta.sub(&seen.before).unwrap();
    let space = afterimage_attacks::RowSpace::of(&x.reshape(&[RECORDS, 12]).unwrap()).unwrap();
    assert!(space.residuals(change.values().first().unwrap()).unwrap().iter().all(|off| *off < 1e-7));
}

#[test]
fn what_cannot_be_attacked_says_why() {
    let Victim { seen, .. } = victim(perceptron(1), Loss::HalfSquared, &recipe(20));
    let refused = |attack: Ntk, seen: &PairSeen| {
        attack.reconstruct(seen, &mut Session::new(1, &mut Quiet)).unwrap_err().to_string()
    };
    let equal = PairSeen { before: seen.model.theta.clone(), ..seen.clone() };
    assert!(refused(quick(), &equal).contains("the checkpoints are equal"));
    assert!(refused(Ntk { restarts: 0, ..quick() }, &seen).contains("restarts"));
    assert!(refused(Ntk { batch: Some(2), ..quick() }, &seen).contains("duals"));
    assert!(refused(Ntk { lr: f64::NAN, ..quick() }, &seen).contains("lr"));
    assert!(refused(Ntk { softplus: [-1.0, 2.0], ..quick() }, &seen).contains("softplus"));
    assert!(refused(Ntk { range: Some([1.0, 0.0]), ..quick() }, &seen).contains("range"));
    // More gradients than anybody can solve for; multipliers that move need not.
    let many = Ntk { candidates: Some(5000), iterations: 1, ..quick() };
    assert!(refused(many, &seen).contains("set `duals` to \"descent\""));
    // Weight decay moves the weights along themselves, too: no span is left to be told.
    let decayed = Recipe { weight_decay: 0.1, ..recipe(500) };
    let Victim { seen: decayed, .. } = victim(perceptron(1), Loss::HalfSquared, &decayed);
    assert!(refused(quick(), &decayed).contains("full rank"));

    // Checkpoints of two architectures, and one that is no number, do not become an observation.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("observation.safetensors");
    Observation::WeightPair(seen).write(&path).unwrap();
    let spoilt = |change: &dyn Fn(&mut TensorFile)| {
        let mut file = TensorFile::read(&path).unwrap();
        change(&mut file);
        let other = folder.path().join("other.safetensors");
        file.write(&other).unwrap();
        Observation::read(&other, Device::Cpu).unwrap_err().to_string()
    };
    let name = "theta0.2.weight";
    let narrow = spoilt(&|file| {
        let weight = Tensor::zeros(&[256, 255], DType::F64, Device::Cpu).unwrap();
        file.tensors.insert(name.into(), weight);
    });
    assert!(narrow.contains("theta0") && narrow.contains("[256, 255]"), "{narrow}");
    let nan = spoilt(&|file| {
        let weight = Tensor::full(f64::NAN, &[256, 256], DType::F64, Device::Cpu).unwrap();
        file.tensors.insert(name.into(), weight);
    });
    assert!(nan.contains("theta0") && nan.contains("NaN"), "{nan}");
}

#[test]
fn a_resumed_run_ends_where_it_would_have() {
    let Victim { seen, .. } = victim(perceptron(1), Loss::HalfSquared, &recipe(100));
    let projected = Ntk { iterations: 30, restarts: 3, ..quick() };
    // Algorithm 2 is in the middle of a round of its batches then.
    let batched = Ntk { duals: DualRule::Descent, candidates: Some(8), batch: Some(3), ..projected.clone() };
    for attack in [projected, batched] {
        let whole = run(&attack, &seen);
        // In the middle of the second start.
        let mut hooks = StopsOnce::after(47);
        let part = attack.reconstruct(&seen, &mut Session::new(1, &mut hooks)).unwrap();
        assert_eq!(part.stop, Stop::Interrupted);
        assert_eq!(hooks.kept.as_ref().and_then(checkpoint_iteration), Some(47));
        let again = attack.reconstruct(&seen, &mut Session::new(1, &mut hooks)).unwrap();
        assert_eq!(again.samples.to_f64_vec().unwrap(), whole.samples.to_f64_vec().unwrap());
        assert_eq!(again.iterations, whole.iterations);
    }
}

#[test]
fn fewer_digits_find_the_same() {
    let Victim { seen, x } = victim(perceptron(1), Loss::HalfSquared, &recipe(20_000));
    let found = run(&Ntk { dtype: Some(DType::F32), ..quick() }, &seen);
    assert_eq!(near(&x, &found, 0.2), RECORDS, "{:?}", distances(&x, &found));
}
