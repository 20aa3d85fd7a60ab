//! The loop of iterative attacks: what it gives back, and that a killed run
//! goes on to the same bits.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::ops::ControlFlow;

use afterimage_attacks::{
    AnyAttack, AttackError, Descent, Evaluation, Hooks, Keep, Model, ModelInversion, Observation, Preprocess, Problem,
    Quiet, Session, Stop, Tick, Variable, WeightsSeen, checkpoint_iteration,
};
use afterimage_nn::io::TensorFile;
use afterimage_nn::optim::UpdateRule;
use afterimage_nn::train::Schedule;
use afterimage_nn::zoo::Mlp;
use afterimage_nn::{DType, Init, Loss, Network, Tensor};

/// Σ (x − y)² + Σ y², with noise after every step: two variables, random numbers.
struct Noisy;

impl Problem for Noisy {
    fn evaluate(&mut self, _: usize, at: &[Tensor]) -> Result<Evaluation, AttackError> {
        let off = at[0].combine(1.0, &at[1], -1.0)?;
        let loss = off.dot(&off)? + at[1].dot(&at[1])?;
        Ok(Evaluation {
            loss,
            gradients: vec![Some(off.scale(2.0)?), Some(at[1].scale(2.0)?.combine(1.0, &off, -2.0)?)],
        })
    }

    fn after_step(&mut self, iteration: usize, values: &mut [Tensor]) -> Result<(), AttackError> {
        let noise = afterimage_nn::Stream::new(3, "noise", iteration as u64).normal_tensor(0.01, &[4], DType::F32)?;
        values[0] = values[0].combine(1.0, &noise, 1.0)?;
        Ok(())
    }
}

fn variables() -> Vec<Variable> {
    let tensor = |values: [f32; 4]| Tensor::from_vec(values.to_vec(), &[4]).unwrap();
    vec![
        Variable { name: "x".into(), start: tensor([1.0, 2.0, 3.0, 4.0]), update: UpdateRule::adam(0.05) },
        Variable { name: "y".into(), start: tensor([0.5; 4]), update: UpdateRule::Sgd { lr: 0.02, momentum: 0.9 } },
    ]
}

/// Stops after so many ticks, as a kill would, with a checkpoint every `every`.
#[derive(Default)]
struct Killer {
    ticks: usize,
    kill_after: Option<usize>,
    every: usize,
    kept: Option<TensorFile>,
    start: Option<TensorFile>,
}

impl Hooks for Killer {
    fn tick(&mut self, _: Tick) -> ControlFlow<()> {
        self.ticks += 1;
        if Some(self.ticks) == self.kill_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn wants_checkpoint(&mut self) -> bool {
        self.every > 0 && self.ticks.is_multiple_of(self.every)
    }

    fn keep(&mut self, state: &TensorFile) -> Result<(), AttackError> {
        // Through bytes, as on disk.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.safetensors");
        state.write(&path)?;
        // A kill leaves the last regular checkpoint, not the one a polite stop would take.
        if self.kill_after.is_none_or(|kill| self.ticks < kill) {
            self.kept = Some(TensorFile::read(&path)?);
        }
        Ok(())
    }

    fn resumed(&mut self) -> Option<TensorFile> {
        self.start.take()
    }

    fn warn(&mut self, message: &str) {
        panic!("{message}");
    }
}

#[test]
fn a_killed_descent_goes_on_to_the_same_bits() {
    for keep in [Keep::Last, Keep::Best] {
        let descent =
            Descent { iterations: 137, schedule: Schedule::Cosine { warmup: 10 }, keep, ..Descent::default() };
        let whole = descent.run(&variables(), &mut Noisy, &mut Session::new(1, &mut Quiet)).unwrap();
        assert_eq!((whole.iterations, whole.stop), (137, Stop::IterationsUsed));
        for kill_after in [1, 2, 50, 136] {
            let mut killer = Killer { kill_after: Some(kill_after), every: 7, ..Killer::default() };
            let stopped = descent.run(&variables(), &mut Noisy, &mut Session::new(1, &mut killer)).unwrap();
            assert_eq!((stopped.iterations, stopped.stop), (kill_after, Stop::Interrupted));
            let at = killer.kept.as_ref().map_or(0, |state| checkpoint_iteration(state).unwrap());
            assert_eq!(at, (kill_after - 1) / 7 * 7);
            let mut again = Killer { start: killer.kept, ..Killer::default() };
            let resumed = descent.run(&variables(), &mut Noisy, &mut Session::new(1, &mut again)).unwrap();
            assert_eq!(again.ticks, 137 - at);
            assert_eq!((resumed.loss, &resumed.trace), (whole.loss, &whole.trace));
            for (a, b) in resumed.values.iter().zip(&whole.values) {
                assert_eq!(a.to_f64_vec().unwrap(), b.to_f64_vec().unwrap());
            }
        }
    }
}

#[test]
fn a_checkpoint_of_something_else_is_refused() {
    let mut killer = Killer { every: 1, ..Killer::default() };
    let descent = Descent { iterations: 3, ..Descent::default() };
    descent.run(&variables(), &mut Noisy, &mut Session::new(1, &mut killer)).unwrap();
    let state = killer.kept.unwrap();
    let renamed = |from: &str, to: &str| {
        let mut state = state.clone();
        let value = state.tensors.remove(from).unwrap();
        state.tensors.insert(to.into(), value);
        state
    };
    let mut shorter = state.clone();
    shorter.tensors.insert("value.x".into(), Tensor::from_vec(vec![0.0_f32], &[1]).unwrap());
    for state in [TensorFile::default(), renamed("value.x", "value.z"), shorter] {
        let mut hooks = Killer { start: Some(state), ..Killer::default() };
        let error = descent.run(&variables(), &mut Noisy, &mut Session::new(1, &mut hooks)).unwrap_err();
        assert!(error.to_string().contains("checkpoint: cannot be used"), "{error}");
    }
}

#[test]
fn the_best_point_is_the_attackers_own_choice() {
    // A step so long that the loss rises at once: the start is the best point.
    struct Steep;
    impl Problem for Steep {
        fn evaluate(&mut self, _: usize, at: &[Tensor]) -> Result<Evaluation, AttackError> {
            Ok(Evaluation { loss: at[0].dot(&at[0])?, gradients: vec![Some(at[0].scale(2.0)?)] })
        }
    }
    let start = Tensor::from_vec(vec![1.0], &[1]).unwrap();
    let x = [Variable { name: "x".into(), start, update: UpdateRule::sgd(1.5) }];
    let run = |keep| {
        let descent = Descent { iterations: 4, keep, ..Descent::default() };
        descent.run(&x, &mut Steep, &mut Session::new(1, &mut Quiet)).unwrap().values[0].to_scalar().unwrap()
    };
    assert_eq!((run(Keep::Best), run(Keep::Last)), (1.0, 16.0));
    let descent = Descent { iterations: 2000, ..Descent::default() };
    let error = descent.run(&x, &mut Steep, &mut Session::new(1, &mut Quiet)).unwrap_err();
    assert!(error.to_string().contains("lower the learning rate"), "{error}");
}

fn observation(outputs: usize) -> Observation {
    let network = Network::new(Mlp::new(6, &[16], outputs).spec()).unwrap();
    let theta = network.init(&Init::Pytorch.into(), 1, DType::F64).unwrap();
    let loss = if outputs == 1 { Loss::Logistic } else { Loss::CrossEntropy };
    let preprocess = Some(Preprocess::default());
    Observation::Weights(WeightsSeen { model: Model { network, theta, loss: Some(loss), preprocess } })
}

#[test]
fn model_inversion_raises_the_answer_inside_the_range() {
    for outputs in [1, 3] {
        let observation = observation(outputs);
        let attack = ModelInversion { candidates: 6, iterations: 400, range_weight: 10.0, ..ModelInversion::default() };
        let run = |iterations: usize| {
            let attack = AnyAttack::ModelInversion(ModelInversion { iterations, ..attack.clone() });
            attack.run(&observation, &mut Session::new(1, &mut Quiet)).unwrap().samples
        };
        let model = observation.model();
        let answers = |x: &Tensor| model.network.forward(&model.theta, x).unwrap().to_f64_vec().unwrap();
        let (start, end) = (run(0), run(400));
        let (before, after) = (answers(&start), answers(&end));
        for candidate in 0..6 {
            let place = candidate * outputs + candidate % outputs;
            let sign = if outputs == 1 && candidate < 3 { -1.0 } else { 1.0 };
            assert!(sign * after[place] > sign * before[place], "candidate {candidate} of {outputs} outputs");
        }
        let pixels = end.to_f64_vec().unwrap();
        assert!(pixels.iter().all(|x| (-0.2..1.2).contains(x)), "{pixels:?}");
    }
}

#[test]
fn an_attack_on_the_wrong_observation_says_what_it_needs() {
    let attack = AnyAttack::all().into_iter().find(|attack| attack.card().name == "analytic").unwrap();
    let error = attack.run(&observation(1), &mut Session::new(1, &mut Quiet)).unwrap_err().to_string();
    assert_eq!(error, "attack `analytic` needs a gradient, and the observation is final weights");
}
