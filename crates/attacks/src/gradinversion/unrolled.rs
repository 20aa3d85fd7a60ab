//! Several steps of training at the client, differentiated through.
//!
//! | symbol | here | |
//! | --- | --- | --- |
//! | θ_{k+1} = θ_k − η g_k | the client's steps, k = 0 … K − 1 | g_k = ∇L(θ_k; x_k) |
//! | G = (θ_0 − θ_K) / (η K) | what it shares | the mean of the g_k |
//! | D(G) | what is minimised | v = ∂D/∂G |
//!
//! Backwards, with a_K = 0: w_k = v/K − η a_{k+1} is ∂D/∂g_k, so that x_k receives the derivative of
//! ⟨w_k, g_k⟩ and a_k = a_{k+1} + H_k w_k, where H_k is the Hessian of the loss at θ_k.

use afterimage_nn::{Along, Network, Objective, Params, Pass, Seed, Tensor, Want};

use super::matching::{Compared, Target};
use crate::{AttackError, LocalTraining};

/// The distance with its derivatives, in x and along the outputs of each step's samples.
pub(super) struct Unrolled {
    pub(super) value: f64,
    pub(super) inputs: Tensor,
    /// ⟨∂D/∂G, ∇_θ f_k(x_i)⟩ summed over the steps that used sample i.
    pub(super) outputs: Tensor,
}

/// Trains on candidates as the client did on its samples, and compares what would be shared.
pub(super) fn unrolled(
    network: &Network,
    start: &Params,
    x: &Tensor,
    objective: &Objective,
    local: LocalTraining,
    target: &Target,
) -> Result<Unrolled, AttackError> {
    let (steps, shared) = trained(network, start, x, objective, local)?;
    let Compared { value, direction } = target.compare_gradient(&shared)?;
    let mut inputs = x.zeros_like()?;
    let width: usize = network.output_shape().iter().product();
    let mut outputs = Tensor::zeros(&[x.rows(), width], x.dtype(), x.device())?;
    let mut adjoint: Option<Params> = None;
    for (step, (rows, pass)) in steps.iter().enumerate().rev() {
        let own = direction.scale(1.0 / local.steps as f64)?;
        let w = match &adjoint {
            Some(adjoint) => own.combine(1.0, adjoint, -local.lr)?,
            None => own,
        };
        let along = match step {
            0 => pass.along(&w)?,
            _ => {
                let (along, curved) = pass.curvature_along(&w)?;
                adjoint = Some(match adjoint {
                    Some(adjoint) => adjoint.combine(1.0, &curved, 1.0)?,
                    None => curved,
                });
                along
            }
        };
        let Along { outputs: own_outputs, inputs: own_inputs } = along;
        inputs = added_rows(&inputs, rows.clone(), &own_inputs)?;
        outputs = added_rows(&outputs, rows.clone(), &own_outputs.reshape(&[rows.len(), width])?)?;
    }
    Ok(Unrolled { value, inputs, outputs })
}

/// A step: which rows it used, and its pass through the network.
type Step<'n> = (std::ops::Range<usize>, Pass<'n>);

/// The client's steps with candidates for its samples, and what it would share.
pub(super) fn trained<'n>(
    network: &'n Network,
    start: &Params,
    x: &Tensor,
    objective: &Objective,
    local: LocalTraining,
) -> Result<(Vec<Step<'n>>, Params), AttackError> {
    let (mut theta, mut shared) = (start.clone(), start.zeros_like()?);
    let mut steps = Vec::new();
    for step in 0..local.steps {
        let rows = local.rows(step, x.rows());
        let mut pass = network.pass(&theta, &x.slice_rows(rows.clone())?)?;
        let targets = objective.targets.select(&rows.clone().collect::<Vec<_>>())?;
        let seed = Seed::Loss(Objective::new(objective.loss, objective.reduction, targets));
        let gradient = pass.backward(seed, Want::Weights)?.weights.map_or_else(|| theta.zeros_like(), Ok)?;
        theta = theta.combine(1.0, &gradient, -local.lr)?;
        shared = shared.combine(1.0, &gradient, 1.0 / local.steps as f64)?;
        steps.push((rows, pass));
    }
    Ok((steps, shared))
}

/// `sum` with `part` added to some of its rows.
fn added_rows(sum: &Tensor, rows: std::ops::Range<usize>, part: &Tensor) -> Result<Tensor, AttackError> {
    let added = sum.slice_rows(rows.clone())?.combine(1.0, part, 1.0)?;
    let (before, after) = (sum.slice_rows(0..rows.start)?, sum.slice_rows(rows.end..sum.rows())?);
    let parts: Vec<&Tensor> = [&before, &added, &after].into_iter().filter(|part| part.rows() > 0).collect();
    Ok(Tensor::concat_rows(&parts)?)
}

#[cfg(test)]
mod tests {
    use afterimage_nn::zoo::Mlp;
    use afterimage_nn::{Activation, DType, Init, Loss, Reduction, Stream, Targets};

    use super::super::matching::Distance;
    use super::*;
    use crate::{Client, GradientSeen, Model};

    #[test]
    fn derivatives_go_through_every_step() {
        let network = Network::new(Mlp::new(4, &[6], 3).with_activation(Activation::Tanh).spec()).unwrap();
        let theta = network.init(&Init::Pytorch.into(), 1, DType::F64).unwrap();
        let draw = |name| Stream::new(1, name, 0).normal_tensor(1.0, &[4, 4], DType::F64).unwrap();
        let (x, u) = (draw("x"), draw("u"));
        let gradient = network.init(&Init::Pytorch.into(), 2, DType::F64).unwrap();
        let model = Model { network: network.clone(), theta: theta.clone(), loss: None, preprocess: None };
        let client = Client::default();
        let seen = GradientSeen { model, gradient, reduction: None, batch_size: None, labels: None, client };
        let objective = |share: f64| {
            let mut labels = vec![0.25, 0.5, 0.25, 0.1, 0.1, 0.8, 0.3, 0.3, 0.4, 1.0, 0.0, 0.0];
            (labels[1], labels[2]) = (labels[1] + share, labels[2] - share);
            let labels = Targets::Values(Tensor::from_vec(labels, &[4, 3]).unwrap());
            Objective::new(Loss::CrossEntropy, Reduction::Mean, labels)
        };
        for batch in [None, Some(2)] {
            let local = LocalTraining { steps: 3, lr: 0.7, batch };
            let target = Target::new(&seen, Distance::Squared).unwrap();
            let at = |x: &Tensor, share: f64| unrolled(&network, &theta, x, &objective(share), local, &target).unwrap();
            let value = |h: f64| at(&x.combine(1.0, &u, h).unwrap(), 0.0).value;
            let expected = (value(1e-5) - value(-1e-5)) / 2e-5;
            let found = at(&x, 0.0);
            let slope = found.inputs.dot(&u).unwrap();
            assert!((slope - expected).abs() < 1e-6 * (1.0 + expected.abs()), "{batch:?}: {slope} {expected}");
            // Labels: ∂L/∂f falls by what a label gains.
            let expected = (at(&x, 1e-5).value - at(&x, -1e-5).value) / 2e-5;
            let outputs = found.outputs.to_f64_vec().unwrap();
            let rows = batch.unwrap_or(4) as f64;
            let slope = -(outputs[1] - outputs[2]) / rows;
            assert!((slope - expected).abs() < 1e-6 * (1.0 + expected.abs()), "{batch:?}: {slope} {expected}");
        }
    }
}
