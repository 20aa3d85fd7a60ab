//! Every layer and activation against central differences, in double precision.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use afterimage_nn::algebra::Plain;
use afterimage_nn::{LayerKind, Loss, Network, Objective, Params, Reduction, Seed, Statistics, Targets, Tensor, Want};
use common::{batch, dot, moved, networks, parameters, relative};

const STEP: f64 = 1e-5;
const TOLERANCE: f64 = 1e-6;

/// Whether no pre-activation is close enough to a kink for a step to cross it.
fn off_kinks(network: &Network, theta: &Params, x: &Tensor) -> bool {
    let trace = network.trace(&mut Plain::new(), theta, x).unwrap();
    network.spec().layers.iter().zip(trace.values()).all(|(layer, z)| {
        if let LayerKind::MaxPool { .. } = &layer.kind {
            // Far apart, whichever of them meet in a window.
            let mut values = z.to_f64_vec().unwrap();
            values.sort_by(f64::total_cmp);
            return values.windows(2).all(|pair| pair[1] - pair[0] > STEP);
        }
        let kinks: &[f64] = match &layer.kind {
            LayerKind::Prelu { .. } => &[0.0],
            LayerKind::Activation { function } if function.is_piecewise_linear() => &[0.0, 6.0],
            _ => &[],
        };
        z.to_f64_vec().unwrap().iter().all(|z| kinks.iter().all(|kink| (z - kink).abs() > 100.0 * STEP))
    })
}

/// A problem off the kinks: parameters, inputs, coefficients, and a direction in each space.
struct Problem {
    theta: Params,
    v: Params,
    x: Tensor,
    u: Tensor,
    c: Tensor,
}

fn problems(network: &Network) -> impl Iterator<Item = Problem> {
    let draw = |index| Problem {
        theta: parameters(network, "theta", index, afterimage_nn::DType::F64),
        v: parameters(network, "v", index, afterimage_nn::DType::F64),
        x: batch(network.input_shape(), 4, "x", index),
        u: batch(network.input_shape(), 4, "u", index),
        c: batch(network.output_shape(), 4, "c", index),
    };
    (0..).map(draw).filter(|p| off_kinks(network, &p.theta, &p.x)).take(5)
}

/// Networks whose derivatives are those of their values; the surrogate ReLU's are not, by design.
fn honest_networks() -> impl Iterator<Item = (String, Network)> {
    networks().into_iter().filter(|(name, _)| !name.contains("surrogate"))
}

#[test]
fn backward_is_the_derivative_of_forward() {
    for (name, network) in honest_networks() {
        for Problem { theta, v, x, u, c } in problems(&network) {
            let value = |theta: &Params, x: &Tensor| dot(&c, &network.forward(theta, x).unwrap());
            let gradients = network.backward(&theta, &x, &c, Want::Both).unwrap();
            let slope = |up: f64, down: f64| (up - down) / (2.0 * STEP);

            let along_v = slope(
                value(&theta.combine(1.0, &v, STEP).unwrap(), &x),
                value(&theta.combine(1.0, &v, -STEP).unwrap(), &x),
            );
            let weights = gradients.weights.unwrap();
            let expected = weights.dot(&v).unwrap();
            assert!((along_v - expected).abs() <= TOLERANCE * expected.abs().max(1e-2), "{name}: weights");

            let along_u = slope(value(&theta, &moved(&x, STEP, &u)), value(&theta, &moved(&x, -STEP, &u)));
            let inputs = gradients.inputs.unwrap();
            let expected = dot(&inputs, &u);
            assert!((along_u - expected).abs() <= TOLERANCE * expected.abs().max(1e-2), "{name}: inputs");

            // What is wanted decides what is computed, never what comes out.
            let alone = network.backward(&theta, &x, &c, Want::Inputs).unwrap();
            assert!(alone.weights.is_none());
            assert_eq!(alone.inputs.unwrap().to_f64_vec().unwrap(), inputs.to_f64_vec().unwrap());
            let alone = network.backward(&theta, &x, &c, Want::Weights).unwrap();
            assert!(alone.inputs.is_none());
            assert_eq!(alone.weights.unwrap().sub(&weights).unwrap().norm_squared().unwrap(), 0.0);
        }
    }
}

#[test]
fn along_is_the_derivative_of_backward() {
    for (name, network) in honest_networks() {
        for Problem { theta, v, x, c, .. } in problems(&network) {
            let along = network.along(&theta, &v, &x, Seed::Fixed(c.clone())).unwrap();
            let at = |h: f64| theta.combine(1.0, &v, h).unwrap();
            let difference = |f: &dyn Fn(&Params) -> Tensor| {
                let wide = moved(&f(&at(STEP)), -1.0, &f(&at(-STEP)));
                moved(&wide.zeros_like().unwrap(), 0.5 / STEP, &wide)
            };
            let outputs = difference(&|theta| network.forward(theta, &x).unwrap());
            assert!(relative(&along.outputs, &outputs, 1e-2) <= TOLERANCE, "{name}: outputs");
            let inputs = difference(&|theta| network.backward(theta, &x, &c, Want::Inputs).unwrap().inputs.unwrap());
            assert!(relative(&along.inputs, &inputs, 1e-2) <= TOLERANCE, "{name}: inputs");
        }
    }
}

/// Objectives that fit a network, one for each loss.
fn objectives(network: &Network) -> Vec<Objective> {
    let values = batch(network.output_shape(), 4, "targets", 0);
    let signs: Vec<f64> = values.to_f64_vec().unwrap().iter().map(|y| y.signum()).collect();
    let signs = Tensor::from_vec(signs, values.shape()).unwrap();
    let classes = (0..4).map(|i| i % network.output_shape()[0]).collect();
    vec![
        Objective::new(Loss::Logistic, Reduction::Mean, Targets::Values(signs)),
        Objective::new(Loss::Mse, Reduction::Sum, Targets::Values(values.clone())),
        Objective::new(Loss::HalfSquared, Reduction::Mean, Targets::Values(values)),
        Objective::new(Loss::CrossEntropy, Reduction::Mean, Targets::Classes(classes)),
    ]
}

#[test]
fn along_follows_a_loss_whose_coefficients_move() {
    for (name, network) in honest_networks() {
        for Problem { theta, v, x, .. } in problems(&network).take(2) {
            for objective in objectives(&network) {
                let seed = Seed::Loss(objective.clone());
                let input_gradient = |h: f64| {
                    let theta = theta.combine(1.0, &v, h).unwrap();
                    let mut pass = network.pass(&theta, &x).unwrap();
                    pass.backward(seed.clone(), Want::Inputs).unwrap().inputs.unwrap()
                };
                let wide = moved(&input_gradient(STEP), -1.0, &input_gradient(-STEP));
                let expected = moved(&wide.zeros_like().unwrap(), 0.5 / STEP, &wide);
                let along = network.along(&theta, &v, &x, seed.clone()).unwrap();
                assert!(relative(&along.inputs, &expected, 1e-2) <= TOLERANCE, "{name}: {:?}", objective.loss);
            }
        }
    }
}

#[test]
fn curvature_is_the_derivative_of_the_parameter_gradient() {
    for (name, network) in honest_networks() {
        for Problem { theta, v, x, .. } in problems(&network).take(2) {
            for objective in objectives(&network) {
                let seed = Seed::Loss(objective.clone());
                let gradient = |h: f64| {
                    let theta = theta.combine(1.0, &v, h).unwrap();
                    let mut pass = network.pass(&theta, &x).unwrap();
                    pass.backward(seed.clone(), Want::Weights).unwrap().weights.unwrap()
                };
                let expected = gradient(STEP).sub(&gradient(-STEP)).unwrap().scale(0.5 / STEP).unwrap();
                let mut pass = network.pass(&theta, &x).unwrap();
                pass.backward(seed.clone(), Want::Weights).unwrap();
                let (along, curved) = pass.curvature_along(&v).unwrap();
                let off = curved.sub(&expected).unwrap().norm_squared().unwrap().sqrt();
                let size = expected.norm_squared().unwrap().sqrt().max(1e-2);
                assert!(off <= TOLERANCE * size, "{name}: {:?}: {}", objective.loss, off / size);
                let alone = pass.along(&v).unwrap();
                assert_eq!(alone.inputs.to_f64_vec().unwrap(), along.inputs.to_f64_vec().unwrap(), "{name}");
            }
        }
    }
}

#[test]
fn functions_of_statistics_are_pulled_back_to_the_inputs() {
    let mut seen = 0;
    for (name, network) in honest_networks().filter(|(_, network)| network.buffer_names().next().is_some()) {
        for Problem { theta, x, u, c, .. } in problems(&network).take(2) {
            // Φ = Σ ½ μ² + σ² over all channels of all normalisations.
            let value = |x: &Tensor| {
                let pass = network.pass(&theta, x).unwrap();
                let each = |one: &Statistics| {
                    let variance: f64 = one.variance.to_f64_vec().unwrap().iter().sum();
                    0.5 * dot(&one.mean, &one.mean) + variance
                };
                dot(&c, pass.outputs()) + pass.statistics().unwrap().iter().map(each).sum::<f64>()
            };
            let expected = (value(&moved(&x, STEP, &u)) - value(&moved(&x, -STEP, &u))) / (2.0 * STEP);
            let pass = network.pass(&theta, &x).unwrap();
            let slopes = pass.statistics().unwrap().into_iter();
            let slopes: Vec<Statistics> =
                slopes.map(|one| Statistics { variance: one.variance.map(|_| 1.0).unwrap(), ..one }).collect();
            let found = dot(&pass.pull_statistics(Some(&c), &slopes).unwrap(), &u);
            assert!((found - expected).abs() <= TOLERANCE * expected.abs().max(1e-2), "{name}: {found} {expected}");
            seen += 1;
        }
    }
    assert!(seen >= 4, "{seen}");
}

#[test]
fn tangents_of_outputs_are_adjoint_to_gradients() {
    // ⟨v, Σ c ∇f⟩ = ⟨c, tangent of f along v⟩, exactly, the surrogate ReLU included.
    for (name, network) in networks() {
        for Problem { theta, v, x, c, .. } in problems(&network) {
            let mut pass = network.pass(&theta, &x).unwrap();
            let weights = pass.backward(Seed::Fixed(c.clone()), Want::Weights).unwrap().weights.unwrap();
            let along = pass.along(&v).unwrap();
            let (left, right) = (weights.dot(&v).unwrap(), dot(&c, &along.outputs));
            assert!((left - right).abs() <= 1e-11 * left.abs().max(1.0), "{name}: {left} against {right}");
            let alone = pass.outputs_along(&v).unwrap();
            assert_eq!(alone.to_f64_vec().unwrap(), along.outputs.to_f64_vec().unwrap(), "{name}");
        }
    }
}

#[test]
fn replayed_values_change_no_bit() {
    for (name, network) in networks() {
        for Problem { theta, v, x, c, .. } in problems(&network) {
            let fresh = network.along(&theta, &v, &x, Seed::Fixed(c.clone())).unwrap().inputs.to_f64_vec().unwrap();
            // Whatever the first pass was for, the second may want more.
            for want in [Want::Both, Want::Inputs, Want::Weights] {
                let mut pass = network.pass(&theta, &x).unwrap();
                pass.backward(Seed::Fixed(c.clone()), want).unwrap();
                assert_eq!(pass.along(&v).unwrap().inputs.to_f64_vec().unwrap(), fresh, "{name} after {want:?}");
            }
            let mut pass = network.pass(&theta, &x).unwrap();
            pass.residual(Seed::Fixed(c), &theta, &vec![2.0; theta.values().len()]).unwrap();
            assert_eq!(pass.along(&v).unwrap().inputs.to_f64_vec().unwrap(), fresh, "{name} after a residual");
        }
    }
}

#[test]
fn a_second_backward_pass_forgets_the_first() {
    for (name, network) in networks() {
        for Problem { theta, v, x, c, .. } in problems(&network).take(1) {
            let other = batch(network.output_shape(), 4, "other", 0);
            let mut pass = network.pass(&theta, &x).unwrap();
            pass.backward(Seed::Fixed(other), Want::Weights).unwrap();
            pass.backward(Seed::Fixed(c.clone()), Want::Weights).unwrap();
            let along = pass.along(&v).unwrap();
            let fresh = network.along(&theta, &v, &x, Seed::Fixed(c)).unwrap();
            assert_eq!(along.inputs.to_f64_vec().unwrap(), fresh.inputs.to_f64_vec().unwrap(), "{name}");
        }
    }
}

#[test]
fn the_fused_residual_equals_gradient_minus_target() {
    for (name, network) in networks() {
        for Problem { theta, v: target, x, c, .. } in problems(&network) {
            let scales: Vec<f64> = (0..target.values().len()).map(|i| 2.0 + i as f64).collect();
            let mut pass = network.pass(&theta, &x).unwrap();
            let residuals = pass.residual(Seed::Fixed(c.clone()), &target, &scales).unwrap();
            let gradients = network.backward(&theta, &x, &c, Want::Weights).unwrap().weights.unwrap();
            let difference = gradients.sub(&target).unwrap();
            for (i, (parameter, difference)) in difference.iter().enumerate() {
                let expected = moved(&difference.zeros_like().unwrap(), scales[i], difference);
                let found = residuals.direction.get(parameter).unwrap();
                assert!(relative(found, &expected, 1e-9) < 1e-12, "{name}: {parameter}");
                let squares = dot(difference, difference);
                assert!((residuals.squares[i] - squares).abs() < 1e-11 * squares.max(1.0), "{name}: {parameter}");
            }
        }
    }
}
