//! What networks learn from few records: accuracy on records that none of them saw.

use std::ops::ControlFlow;

use afterimage_attacks::Tick;
use afterimage_nn::tangent;
use afterimage_nn::train::{Dataset, Progress, Recipe, StopReason};
use afterimage_nn::{DType, Device, Loss, Network, Params, Targets, Tensor};
use serde::{Deserialize, Serialize};

use super::kernel::{Kernel, solved};
use super::objective::Labelled;
use crate::Result;

/// Share of test records that are told right.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Accuracy {
    /// By the network, trained by gradient descent.
    pub standard: f64,
    /// By its first-order expansion about its start, trained to the end: f₀ + K K⁻¹(y − f₀).
    pub linearised: f64,
    /// By an infinitely wide network: kernel regression.
    pub infinite: f64,
}

/// Kernel regression: K(x, S) K_SS⁻¹ y.
pub(super) fn regression<'a>(
    kernel: &'a Kernel,
    set: &'a Labelled,
    ridge: f64,
) -> Result<impl Fn(&Tensor) -> Result<Tensor> + 'a> {
    let weights = solved(&kernel.between(&set.x, None)?, ridge, &set.y)?;
    Ok(move |x: &Tensor| Ok(kernel.between(x, Some(&set.x))?.matmul(&weights)?))
}

/// The network's expansion about its start, trained to the end: f₀(x) + K(x, S) K_SS⁻¹ (y − f₀(S)),
/// the limit of gradient descent.
pub(super) fn linearised<'a>(
    network: &'a Network,
    start: &'a Params,
    set: &'a Labelled,
    ridge: f64,
) -> Result<impl Fn(&Tensor) -> Result<Tensor> + 'a> {
    let (dtype, outputs) = (start.dtype(), set.y.row_len());
    let placed = move |x: &Tensor| x.to_dtype(dtype)?.to_device(start.device());
    let values = |x: &Tensor| network.forward(start, x)?.to_dtype(DType::F64)?.to_device(Device::Cpu);
    let s = placed(&set.x)?;
    let before = values(&s)?;
    let missing = set.y.combine(1.0, &before.reshape(set.y.shape())?, -1.0)?;
    let kernel = tangent::kernel(network, start, &s, None)?;
    let weights = solved(&kernel, ridge, &missing.reshape(&[missing.count(), 1])?)?;
    Ok(move |x: &Tensor| {
        let x = placed(x)?;
        let moved = tangent::kernel(network, start, &x, Some(&s))?.matmul(&weights)?;
        let f = network.forward(start, &x)?.to_dtype(DType::F64)?.to_device(Device::Cpu)?;
        Ok(moved.reshape(&[x.rows(), outputs])?.combine(1.0, &f.reshape(&[x.rows(), outputs])?, 1.0)?)
    })
}

/// The network after training on a set; `None` if it was stopped.
pub(super) fn trained(
    network: &Network,
    start: &Params,
    set: &Labelled,
    recipe: &Recipe,
    seed: u64,
    observe: &mut dyn FnMut(Tick) -> ControlFlow<()>,
) -> Result<Option<Params>> {
    let dtype = start.dtype();
    let x = set.x.to_dtype(dtype)?.to_device(start.device())?;
    let targets = Targets::Values(set.y.to_dtype(dtype)?.to_device(start.device())?);
    let data = Dataset { x, targets, loss: Loss::HalfSquared };
    let mut watch = |progress: Progress| {
        observe(Tick { iteration: progress.epoch, total: progress.epochs, loss: Some(progress.loss) })
    };
    let trained = recipe.train(network, start, &data, seed, &mut watch)?;
    Ok((trained.stop != StopReason::Interrupted).then_some(trained.theta))
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterimage_nn::optim::UpdateRule;
    use afterimage_nn::train::Dynamics;
    use afterimage_nn::zoo::Mlp;
    use afterimage_nn::{Init, Stream};

    #[test]
    fn training_the_expansion_ends_at_the_closed_form() {
        let network = Network::new(Mlp::new(4, &[30, 30], 1).spec()).unwrap();
        let start = network.init(&Init::LecunNormal.into(), 2, DType::F64).unwrap();
        let random =
            |name: &str, rows: usize| Stream::new(1, name, 0).normal_tensor(1.0, &[rows, 4], DType::F64).unwrap();
        let y = Tensor::from_vec(vec![1.0, -1.0, 1.0], &[3, 1]).unwrap();
        let set = Labelled { x: random("s", 3), y };
        let update = UpdateRule::Sgd { lr: 0.05, momentum: 0.9 };
        let dynamics = Dynamics::Linearised;
        let recipe = Recipe { update, epochs: 20_000, stop_loss: Some(1e-22), dynamics, ..Recipe::default() };
        let theta = trained(&network, &start, &set, &recipe, 1, &mut |_| ControlFlow::Continue(())).unwrap().unwrap();
        let x = random("x", 5);
        let pass = network.pass(&start, &x).unwrap();
        let along = pass.outputs_along(&theta.sub(&start).unwrap()).unwrap();
        let by_training = pass.outputs().combine(1.0, &along, 1.0).unwrap();
        let closed = linearised(&network, &start, &set, 0.0).unwrap()(&x).unwrap();
        let off = by_training.combine(1.0, &closed, -1.0).unwrap();
        assert!(off.dot(&off).unwrap().sqrt() < 1e-8);
    }
}
