//! The objectives at a point: their gradients, and that they say the same.

use afterimage_nn::zoo::Mlp;
use afterimage_nn::{Activation, DType, Init, Loss, Network, Params, Stream, Tensor};

use super::batched::{Batched, parts};
use super::held::{Held, Known, Within};
use super::matching::Matching;
use super::projected::{Projected, weigh};
use super::softening::Softening;
use super::space::ChangeSpace;
use super::steps::{Gradients, Step};
use crate::objective::check_gradients;
use crate::{AttackError, Contribution, Evaluation, Model, PairSeen, PixelRange, Problem, Term};

const RECORDS: usize = 3;
const CANDIDATES: usize = 5;
/// ReLU as it is: there is none in these networks.
const PLAIN: Softening = Softening { first: 0.0, last: 0.0, iterations: 1 };

struct Setting {
    network: Network,
    steps: Vec<Step>,
    x: Tensor,
    alpha: Tensor,
}

/// Two changes of a smooth network, explained at both ends of each.
fn setting(outputs: usize) -> Setting {
    let smooth = Activation::Softplus { beta: 3.0 };
    let network = Network::new(Mlp::new(4, &[8, 7], outputs).with_activation(smooth).spec()).unwrap();
    let theta = |seed| network.init(&Init::Pytorch.into(), seed, DType::F64).unwrap();
    let model = Model { network: network.clone(), theta: theta(3), loss: Some(Loss::HalfSquared), preprocess: None };
    let seen = PairSeen { model, before: theta(1), between: vec![theta(2)] };
    let steps = Step::all(&seen, Gradients::Both, "ntk").unwrap();
    let x = Stream::new(2, "x", 0).normal_tensor(1.0, &[CANDIDATES, 4], DType::F64).unwrap();
    let alpha = Stream::new(2, "alpha", 0).normal_tensor(1.0, &[4 * CANDIDATES, outputs], DType::F64).unwrap();
    Setting { network, steps, x, alpha }
}

fn matching<'a>(setting: &'a Setting, relative: bool) -> Matching<'a> {
    Matching { network: &setting.network, steps: &setting.steps, softening: PLAIN, share: 0.3, relative }
}

#[test]
fn gradients_are_those_of_the_values() {
    for outputs in [1, 2] {
        let setting = setting(outputs);
        let at = [setting.x.clone(), setting.alpha.clone()];
        check_gradients(&mut matching(&setting, true), 0, &at, 1e-6);
        check_gradients(&mut matching(&setting, false), 0, &at, 1e-6);
        let mut projected = Projected { network: &setting.network, steps: &setting.steps, softening: PLAIN };
        check_gradients(&mut projected, 0, &at[..1], 1e-5);
    }
}

#[test]
fn the_best_multipliers_leave_least() {
    let setting = setting(1);
    let best = Projected { network: &setting.network, steps: &setting.steps, softening: PLAIN }
        .evaluate(0, std::slice::from_ref(&setting.x))
        .unwrap()
        .value;
    let weighed = weigh(&setting.network, &setting.steps, &setting.x).unwrap();
    assert!((weighed.left - best / 2.0).abs() < 1e-10, "a mean over two steps");
    for scale in [0.0, 0.5, 1.0] {
        let at = [setting.x.clone(), setting.alpha.scale(scale).unwrap()];
        assert!(matching(&setting, true).evaluate(0, &at).unwrap().value >= best);
    }
    // Without a candidate so much more is left as it was needed for.
    let without = |place: usize| {
        let others: Vec<usize> = (0..CANDIDATES).filter(|&other| other != place).collect();
        weigh(&setting.network, &setting.steps, &setting.x.select_rows(&others).unwrap()).unwrap().left
    };
    for place in 0..CANDIDATES {
        let cost = without(place) - weighed.left;
        assert!((cost - weighed.needed[place]).abs() < 1e-6 * (1e-3 + cost), "{place}: {cost}");
    }
}

#[test]
fn batches_see_the_loss_and_their_gradient_as_all_do() {
    let setting = setting(2);
    let range = || PixelRange::between([-0.5, 0.5], &[4], 0).unwrap();
    let mut all = crate::WeightedSum::new().with(1.0, matching(&setting, true)).with(0.7, range());
    for batch in [CANDIDATES, 2] {
        let parts = parts(CANDIDATES, batch);
        let rows_of = |part: &std::ops::Range<usize>| -> Vec<usize> {
            (0..4).flat_map(|place| part.clone().map(move |row| place * CANDIDATES + row)).collect()
        };
        // All of them at once, at the same point.
        let mut matched = |at: &[Tensor]| {
            let x = Tensor::concat_rows(&at.iter().step_by(2).collect::<Vec<_>>()).unwrap();
            let order: Vec<usize> = parts.iter().flat_map(rows_of).collect();
            let places: Vec<usize> =
                (0..order.len()).map(|row| order.iter().position(|&own| own == row).unwrap()).collect();
            let alpha = Tensor::concat_rows(&at.iter().skip(1).step_by(2).collect::<Vec<_>>()).unwrap();
            all.evaluate(0, &[x, alpha.select_rows(&places).unwrap()]).unwrap()
        };
        let mut at = Vec::new();
        for part in &parts {
            at.push(setting.x.slice_rows(part.clone()).unwrap());
            at.push(setting.alpha.select_rows(&rows_of(part)).unwrap());
        }
        let mut batched = Batched {
            loss: matching(&setting, true),
            priors: vec![(0.7, Box::new(range()))],
            seed: 1,
            totals: None,
            old: Vec::new(),
        };
        let (mut moved, mut whole) = (Vec::new(), matched(&at));
        for iteration in 0..parts.len() {
            let found = batched.evaluate(iteration, &at).unwrap();
            assert!((found.loss - whole.loss).abs() < 1e-10 * whole.loss);
            let turn = found.gradients.iter().position(Option::is_some).unwrap() / 2;
            moved.push(turn);
            let expected = [
                whole.gradients[0].as_ref().unwrap().slice_rows(parts[turn].clone()).unwrap(),
                whole.gradients[1].as_ref().unwrap().select_rows(&rows_of(&parts[turn])).unwrap(),
            ];
            for (variable, expected) in expected.iter().enumerate() {
                let off = found.gradients[2 * turn + variable].as_ref().unwrap().combine(1.0, expected, -1.0).unwrap();
                assert!(off.dot(&off).unwrap() < 1e-20 * expected.dot(expected).unwrap());
            }
            // A step of the batch: the sum follows it.
            for place in [2 * turn, 2 * turn + 1] {
                let gradient = found.gradients[place].as_ref().unwrap();
                let step = 0.05 / gradient.dot(gradient).unwrap().sqrt();
                at[place] = at[place].combine(1.0, gradient, -step).unwrap();
            }
            batched.after_step(iteration, &mut at).unwrap();
            whole = matched(&at);
            assert!((whole.loss - found.loss).abs() > 1e-6 * found.loss, "nothing moved");
        }
        moved.sort_unstable();
        assert_eq!(moved, (0..parts.len()).collect::<Vec<_>>(), "every batch has its turn");
    }
}

#[test]
fn coordinates_say_what_records_say() {
    // Changes that are those of records: Σ δ ⊗ (x, 1) in the first layer, anything above.
    let network = Network::new(Mlp::new(9, &[8, 7], 1).spec()).unwrap();
    let theta = |seed| network.init(&Init::Pytorch.into(), seed, DType::F64).unwrap();
    let random = |name: &str, shape: &[usize]| Stream::new(5, name, 0).normal_tensor(1.0, shape, DType::F64).unwrap();
    let (x, delta) = (random("x", &[RECORDS, 9]), random("delta", &[8, RECORDS]));
    let ones = Tensor::full(1.0, &[RECORDS, 1], DType::F64, afterimage_nn::Device::Cpu).unwrap();
    let before = theta(1);
    let (mut change, mut place) = (theta(2), 0);
    change = change
        .map(|value| {
            place += 1;
            match place {
                1 => delta.matmul(&x),
                2 => delta.matmul(&ones)?.reshape(&[8]),
                _ => Ok(value.clone()),
            }
        })
        .unwrap();
    let after: Params = before.combine(1.0, &change, 1.0).unwrap();
    let model = Model { network: network.clone(), theta: after, loss: None, preprocess: None };
    let steps = Step::all(&PairSeen { model, before, between: Vec::new() }, Gradients::Both, "ntk").unwrap();
    let space = ChangeSpace::of(&network, &steps).unwrap().unwrap();
    assert_eq!(space.rank, RECORDS);
    let reduced: Vec<Step> =
        steps.iter().map(|step| step.map(&|params| space.reduced(params))).collect::<Result<_, _>>().unwrap();
    assert!((reduced[0].size - steps[0].size).abs() < 1e-10 * steps[0].size, "nothing of the change is lost");
    let held = Held::of(&space, &[], CANDIDATES, DType::F64, afterimage_nn::Device::Cpu).unwrap();
    assert_eq!(held.dimensions(), RECORDS - 1);
    let c = held.coordinates(&[random("c", &[CANDIDATES, RECORDS - 1])]).unwrap().remove(0);
    let records = space.span.records(&c).unwrap();
    // They lie where records can: on the plane through the three.
    let weights = afterimage_nn::linalg::least_squares(
        &Tensor::concat_rows(&[&x.transpose().unwrap(), &ones.transpose().unwrap()]).unwrap(),
        &Tensor::concat_rows(&[
            &records.transpose().unwrap(),
            &Tensor::full(1.0, &[1, CANDIDATES], DType::F64, afterimage_nn::Device::Cpu).unwrap(),
        ])
        .unwrap(),
    )
    .unwrap();
    let off =
        x.transpose().unwrap().matmul(&weights).unwrap().combine(1.0, &records.transpose().unwrap(), -1.0).unwrap();
    assert!(off.dot(&off).unwrap() < 1e-20 * records.dot(&records).unwrap());
    let by_records = weigh(&network, &steps, &records).unwrap();
    let by_coordinates = weigh(&space.network, &reduced, &c).unwrap();
    assert!((by_records.left - by_coordinates.left).abs() < 1e-9);
}

#[test]
fn a_known_column_takes_a_dimension_from_every_other_record() {
    // D = A C, so that the duals are the columns of C⁻¹; the last coordinate of records is fixed.
    let (rank, fixed) = (5, 0.7);
    let random = |name: &str, shape: &[usize]| Stream::new(7, name, 0).normal_tensor(1.0, shape, DType::F64).unwrap();
    let mut c = random("c", &[rank, rank]).to_f64_vec().unwrap();
    c.iter_mut().skip(rank - 1).step_by(rank).for_each(|last| *last = fixed);
    let rows: Vec<&[f64]> = c.chunks_exact(rank).collect();
    let identity: Vec<f64> = (0..rank * rank).map(|at| f64::from(u8::from(at % rank == at / rank))).collect();
    let square = |values: Vec<f64>| Tensor::from_vec(values, &[rank, rank]).unwrap();
    let inverse = afterimage_nn::linalg::least_squares(&square(c.clone()), &square(identity)).unwrap();
    let duals = inverse.transpose().unwrap().to_f64_vec().unwrap();
    let known: Vec<Known> = (0..2)
        .map(|record| {
            let dual = &duals[record * rank..(record + 1) * rank];
            let length = dual.iter().map(|p| p * p).sum::<f64>().sqrt();
            // Candidates are near their records.
            let candidate = rows[record].iter().map(|c| c + 0.01).collect();
            Known { dual: dual.iter().map(|p| p / length).collect(), candidate }
        })
        .collect();
    let held = Held::over(rank, Some(fixed), &known, 6, DType::F64, afterimage_nn::Device::Cpu).unwrap();
    assert_eq!(held.dimensions(), rank - 1 - known.len());
    let start = held.start(&known, &random("noise", &[6, held.dimensions()])).unwrap();
    let at = held.coordinates(&start).unwrap().remove(0).to_f64_vec().unwrap();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    for (place, candidate) in at.chunks_exact(rank).enumerate() {
        assert!((candidate[rank - 1] - fixed).abs() < 1e-12);
        for (other, known) in known.iter().enumerate().filter(|(other, _)| *other != place) {
            assert!(dot(candidate, &known.dual).abs() < 1e-12, "{place} and {other}");
        }
    }
    for (candidate, known) in at.chunks_exact(rank).zip(&known) {
        let off: Vec<f64> = candidate.iter().zip(&known.candidate).map(|(a, b)| a - b).collect();
        assert!(dot(&off, &off).sqrt() < 0.05, "known records start near where they were");
    }
    // Every record can be reached: from itself, a start is itself.
    let exact: Vec<Known> =
        known.iter().zip(&rows).map(|(k, row)| Known { dual: k.dual.clone(), candidate: row.to_vec() }).collect();
    let start = held.start(&exact, &random("noise", &[6, held.dimensions()])).unwrap();
    let at = held.coordinates(&start).unwrap().remove(0).to_f64_vec().unwrap();
    assert!(at.iter().zip(&c).take(2 * rank).all(|(a, b)| (a - b).abs() < 1e-10));
    /// A quadratic form of the coordinates.
    struct Near(Tensor);
    impl Term for Near {
        fn evaluate(&mut self, _: usize, at: &[Tensor]) -> Result<Contribution, AttackError> {
            let off = at[0].combine(1.0, &self.0, -1.0)?;
            Ok(Contribution { value: 0.5 * off.dot(&off)?, gradients: vec![Some(off)] })
        }
    }
    /// The problem as a term, for the check of its gradients.
    struct AsTerm<P>(P);
    impl<P: Problem> Term for AsTerm<P> {
        fn evaluate(&mut self, iteration: usize, at: &[Tensor]) -> Result<Contribution, AttackError> {
            let Evaluation { loss, gradients } = self.0.evaluate(iteration, at)?;
            Ok(Contribution { value: loss, gradients })
        }
    }
    let problem = crate::WeightedSum::new().with(1.0, Near(random("goal", &[6, rank])));
    check_gradients(&mut AsTerm(Within { problem, held: Some(&held) }), 0, &start, 1e-6);
}
