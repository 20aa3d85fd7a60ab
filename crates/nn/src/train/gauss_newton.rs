//! Steps of Gauss–Newton for squared losses: what descent leaves, to the last digit.
//!
//! A network that can fit its data exactly is, near there, almost linear in its parameters: f(θ + s) ≈ f + J s. A step
//! solves that for the residual, damped as Levenberg and Marquardt do,
//!
//! ```text
//! (J Jᵀ + λ) u = y − f        s = Jᵀ u
//! ```
//!
//! by conjugate gradients over the residuals: Jᵀ is a backward pass, J the tangent of a forward pass, and neither is
//! ever written out. First-order steps need as many as J Jᵀ is ill-conditioned; these need the root of that (Martens,
//! 2010, trains deep autoencoders so).

use serde::{Deserialize, Serialize};

use super::Dataset;
use crate::network::Want;
use crate::{Error, Loss, Network, Params, Pass, Result, Seed, Targets, Tensor, ops};

/// Steps of Gauss–Newton after the epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GaussNewton {
    /// Most steps.
    pub steps: usize,
    /// Most steps of conjugate gradients for one.
    #[serde(default = "hundred")]
    pub conjugate: usize,
}

fn hundred() -> usize {
    100
}

/// Damping at the start, as a part of the curvature along the gradient.
const DAMPING: f64 = 1e-2;
/// What damping is multiplied with after a step that does what it should, and one that does not.
const EASIER: f64 = 1.0 / 3.0;
const HARDER: f64 = 4.0;
/// Part of the residual that conjugate gradients may leave.
const LEFT: f64 = 1e-2;

/// Where the steps are.
pub(super) struct Steps<'a> {
    settings: GaussNewton,
    network: &'a Network,
    data: &'a Dataset,
    loss: f64,
}

impl<'a> Steps<'a> {
    /// Fails unless the loss is a squared one.
    pub(super) fn new(settings: GaussNewton, network: &'a Network, data: &'a Dataset, theta: &Params) -> Result<Self> {
        if !matches!((data.loss, &data.targets), (Loss::Mse | Loss::HalfSquared, Targets::Values(_))) {
            let expected = "is for squared losses: half-squared and mse".into();
            return Err(Error::Setting { setting: "gauss_newton", value: data.loss.to_string(), expected });
        }
        let loss = data.objective().value(network.pass(theta, &data.x)?.outputs())?;
        Ok(Self { settings, network, data, loss })
    }

    /// y − f.
    fn residual(&self, pass: &Pass<'_>) -> Result<Tensor> {
        let Targets::Values(targets) = &self.data.targets else { return pass.outputs().zeros_like() };
        ops::combine(1.0, &targets.reshape(pass.outputs().shape())?, -1.0, pass.outputs())
    }

    /// Jᵀ u.
    fn back(pass: &mut Pass<'_>, u: &Tensor) -> Result<Params> {
        let gradients = pass.backward(Seed::Fixed(u.clone()), Want::Weights)?;
        gradients.weights.ok_or(Error::Algebra { operation: "backward pass", problem: "gave no gradient".into() })
    }

    /// One step from θ: the loss after it, or `None` if no step lowers it any more. λ is known once it is known what it is
    /// to be measured by.
    pub(super) fn step(&mut self, theta: &mut Params, lambda: &mut Option<f64>) -> Result<Option<f64>> {
        let mut pass = self.network.pass(theta, &self.data.x)?;
        let residual = self.residual(&pass)?;
        let size = residual.dot(&residual)?;
        if size == 0.0 {
            return Ok(None);
        }
        let steepest = Self::back(&mut pass, &residual)?.norm_squared()?;
        let scale = steepest / size;
        let mut damping = lambda.unwrap_or(DAMPING * scale);
        for _ in 0..12 {
            let step = self.solve(&mut pass, &residual, damping)?;
            let moved = theta.combine(1.0, &step, 1.0)?;
            let outcome = self.network.pass(&moved, &self.data.x).and_then(|pass| {
                let loss = self.data.objective().value(pass.outputs())?;
                Ok(loss)
            });
            match outcome {
                Ok(loss) if loss < self.loss => {
                    // A step that falls far short of the linear model's promise was too bold.
                    let left = ops::combine(1.0, &residual, -1.0, &pass.outputs_along(&step)?)?;
                    let promised = 1.0 - left.dot(&left)? / size;
                    let kept = (1.0 - loss / self.loss) / promised.max(f64::MIN_POSITIVE);
                    let factor = if kept > 0.75 {
                        EASIER
                    } else if kept < 0.25 {
                        HARDER
                    } else {
                        1.0
                    };
                    *lambda = Some(damping * factor);
                    (*theta, self.loss) = (moved, loss);
                    return Ok(Some(loss));
                }
                Ok(_) | Err(Error::NonFinite { .. }) => damping *= HARDER,
                Err(other) => return Err(other),
            }
        }
        Ok(None)
    }

    /// s = Jᵀ u for (J Jᵀ + λ) u = r.
    fn solve(&self, pass: &mut Pass<'_>, residual: &Tensor, damping: f64) -> Result<Params> {
        let mut solution = residual.zeros_like()?;
        let (mut rest, mut direction) = (residual.clone(), residual.clone());
        let mut size = rest.dot(&rest)?;
        let enough = LEFT * LEFT * size;
        for _ in 0..self.settings.conjugate {
            let moved = Self::back(pass, &direction)?;
            let curved = ops::combine(1.0, &pass.outputs_along(&moved)?, damping, &direction)?;
            let bend = direction.dot(&curved)?;
            if bend <= 0.0 {
                break;
            }
            let far = size / bend;
            solution = ops::combine(1.0, &solution, far, &direction)?;
            rest = ops::combine(1.0, &rest, -far, &curved)?;
            let left = rest.dot(&rest)?;
            if left <= enough {
                break;
            }
            direction = ops::combine(1.0, &rest, left / size, &direction)?;
            size = left;
        }
        Self::back(pass, &solution)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::super::{Dataset, Recipe, StopReason};
    use super::*;
    use crate::optim::UpdateRule;
    use crate::zoo::Mlp;
    use crate::{DType, Init, Stream};

    fn data(samples: usize, features: usize) -> Dataset {
        let x = Stream::new(1, "gauss-newton", 0).normal_tensor(1.0, &[samples, features], DType::F64).unwrap();
        Dataset { targets: Targets::Values(x.clone()), x, loss: Loss::Mse }
    }

    #[test]
    fn what_adam_leaves_is_fitted_to_rounding() {
        let network = Network::new(Mlp::new(12, &[40, 40], 12).spec()).unwrap();
        let start = network.init(&Init::Kaiming.into(), 1, DType::F64).unwrap();
        let data = data(20, 12);
        let recipe =
            Recipe { update: UpdateRule::adam(1e-3), epochs: 300, stop_loss: Some(1e-20), ..Recipe::default() };
        let plain = recipe.train(&network, &start, &data, 1, |_| ControlFlow::Continue(())).unwrap();
        let gauss_newton = Some(GaussNewton { steps: 60, conjugate: 200 });
        let polished = Recipe { gauss_newton, ..recipe };
        let mut epochs = 0;
        let observe = |progress: super::super::Progress| {
            epochs = progress.epochs;
            ControlFlow::Continue(())
        };
        let polished = polished.train(&network, &start, &data, 1, observe).unwrap();
        assert!(plain.loss > 1e-4, "{}", plain.loss);
        assert_eq!((polished.stop, epochs), (StopReason::LossReached, 360), "{}", polished.loss);
        let outputs = network.forward(&polished.theta, &data.x).unwrap();
        let off = outputs.combine(1.0, &data.x, -1.0).unwrap();
        assert!(off.dot(&off).unwrap() / 240.0 <= 1.01e-20, "the loss is that of the weights");
    }

    #[test]
    fn other_losses_are_refused() {
        let network = Network::new(Mlp::new(3, &[4], 2).spec()).unwrap();
        let start = network.init(&Init::Kaiming.into(), 1, DType::F64).unwrap();
        let x = Stream::new(1, "x", 0).normal_tensor(1.0, &[4, 3], DType::F64).unwrap();
        let data = Dataset { x, targets: Targets::Classes(vec![0, 1, 0, 1]), loss: Loss::CrossEntropy };
        let recipe =
            Recipe { epochs: 1, gauss_newton: Some(GaussNewton { steps: 1, conjugate: 1 }), ..Recipe::default() };
        let refused = recipe.train(&network, &start, &data, 1, |_| ControlFlow::Continue(()));
        assert!(refused.unwrap_err().to_string().contains("is for squared losses"));
    }
}
