//! Optimisers over lists of tensors: parameters, or candidates and coefficients.

mod lbfgs;
mod line_search;
mod muon;
mod soap;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

pub use lbfgs::{Lbfgs, LbfgsOptions, LbfgsStep};

use crate::ops::{self, AdamRates};
use crate::{Device, Error, Params, Result, Tensor};

/// A first-order update rule, with PyTorch's meaning of every number.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum UpdateRule {
    /// b ← μb + g, p ← p − lr·b
    Sgd {
        /// Learning rate.
        lr: f64,
        /// μ; 0 is plain gradient descent.
        #[serde(default)]
        momentum: f64,
    },
    /// Kingma & Ba (2015)
    Adam {
        /// Learning rate.
        lr: f64,
        /// Decay of the mean.
        #[serde(default = "beta1")]
        beta1: f64,
        /// Decay of the mean square.
        #[serde(default = "beta2")]
        beta2: f64,
        /// Added to the root of the mean square.
        #[serde(default = "epsilon")]
        epsilon: f64,
    },
    /// Adam in the eigenbasis of Shampoo's preconditioner (Vyas et al., 2024): fewer and dearer steps, for networks that
    /// Adam does not bring to small losses
    Soap {
        /// Learning rate.
        lr: f64,
        /// Decay of the mean.
        #[serde(default = "slower")]
        beta1: f64,
        /// Decay of the mean square and of the preconditioner.
        #[serde(default = "slower")]
        beta2: f64,
        /// Added to the root of the mean square.
        #[serde(default = "epsilon")]
        epsilon: f64,
        /// Steps after which the bases are turned further.
        #[serde(default = "every")]
        every: usize,
        /// The longest side of a weight that has a basis of its own: a step costs its square.
        #[serde(default = "longest")]
        longest: usize,
    },
    /// Momentum with every direction of a weight moved equally far (Jordan et al., 2024); biases as Adam moves them. For
    /// networks that are to fit their data closely
    Muon {
        /// Learning rate: the root mean square of a step is a fifth of it, as Adam's is about.
        lr: f64,
        /// Decay of the mean.
        #[serde(default = "slower")]
        momentum: f64,
        /// Decay of the mean square, of biases.
        #[serde(default = "slower")]
        beta2: f64,
    },
}

fn slower() -> f64 {
    0.95
}

fn longest() -> usize {
    2500
}

fn every() -> usize {
    30
}

fn beta1() -> f64 {
    0.9
}

fn beta2() -> f64 {
    0.999
}

fn epsilon() -> f64 {
    1e-8
}

impl UpdateRule {
    /// Gradient descent.
    pub fn sgd(lr: f64) -> Self {
        UpdateRule::Sgd { lr, momentum: 0.0 }
    }

    /// Adam with its usual constants.
    pub fn adam(lr: f64) -> Self {
        UpdateRule::Adam { lr, beta1: beta1(), beta2: beta2(), epsilon: epsilon() }
    }

    /// SOAP with its usual constants.
    pub fn soap(lr: f64) -> Self {
        UpdateRule::Soap {
            lr,
            beta1: slower(),
            beta2: slower(),
            epsilon: epsilon(),
            every: every(),
            longest: longest(),
        }
    }

    /// Muon with its usual constants.
    pub fn muon(lr: f64) -> Self {
        UpdateRule::Muon { lr, momentum: slower(), beta2: slower() }
    }

    /// The learning rate.
    pub fn lr(self) -> f64 {
        match self {
            UpdateRule::Sgd { lr, .. }
            | UpdateRule::Adam { lr, .. }
            | UpdateRule::Soap { lr, .. }
            | UpdateRule::Muon { lr, .. } => lr,
        }
    }

    /// Fails, naming the setting, if a number is out of range.
    pub fn check(self) -> Result<()> {
        let inside = |setting, value: f64, fits: bool, expected: &str| {
            if fits {
                Ok(())
            } else {
                Err(Error::Setting { setting, value: value.to_string(), expected: expected.into() })
            }
        };
        let decay =
            |setting, value| inside(setting, value, (0.0..1.0).contains(&value), "must be at least 0 and below 1");
        let lr = self.lr();
        inside("lr", lr, lr > 0.0 && lr.is_finite(), "must be a positive number")?;
        match self {
            UpdateRule::Sgd { momentum, .. } => decay("momentum", momentum),
            UpdateRule::Muon { momentum, beta2, .. } => {
                decay("momentum", momentum)?;
                decay("beta2", beta2)
            }
            UpdateRule::Adam { beta1, beta2, epsilon, .. } | UpdateRule::Soap { beta1, beta2, epsilon, .. } => {
                if let UpdateRule::Soap { every, .. } = self {
                    inside("every", every as f64, every > 0, "must be 1 or more")?;
                }
                decay("beta1", beta1)?;
                decay("beta2", beta2)?;
                inside("epsilon", epsilon, epsilon >= 0.0 && epsilon.is_finite(), "must not be negative")
            }
        }
    }
}

/// An update rule with its memory.
///
/// ```
/// use afterimage_nn::{Tensor, optim::{Optimizer, UpdateRule}};
/// // Minimise (p − 3)².
/// let mut p = vec![Tensor::from_vec(vec![0.0], &[1])?];
/// let mut optimizer = Optimizer::new(UpdateRule::Sgd { lr: 0.1, momentum: 0.5 })?;
/// for _ in 0..200 {
///     let gradient = Tensor::from_vec(vec![2.0 * (p[0].to_scalar()? - 3.0)], &[1])?;
///     optimizer.step(&mut p, &[gradient], 1.0)?;
/// }
/// assert!((p[0].to_scalar()? - 3.0).abs() < 1e-12);
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Optimizer {
    rule: UpdateRule,
    steps: u64,
    /// Momentum, or first and then second moments: as many as tensors, once or twice. Of SOAP, six for each tensor; of Muon,
    /// two for each.
    memory: Vec<Tensor>,
    /// What Muon needs at every step and never changes.
    ones: muon::Identities,
}

impl Optimizer {
    /// A rule without memory yet.
    pub fn new(rule: UpdateRule) -> Result<Self> {
        rule.check()?;
        Self::resume(rule, 0, Vec::new())
    }

    /// One that goes on where another stopped; see [`state`](Self::state).
    pub fn resume(rule: UpdateRule, steps: u64, memory: Vec<Tensor>) -> Result<Self> {
        rule.check()?;
        Ok(Self { rule, steps, memory, ones: muon::Identities::default() })
    }

    /// Steps taken, and the tensors to keep for resuming.
    pub fn state(&self) -> (u64, &[Tensor]) {
        (self.steps, &self.memory)
    }

    /// Moves `values` against their gradients; `factor` multiplies the learning rate.
    pub fn step(&mut self, values: &mut [Tensor], gradients: &[Tensor], factor: f64) -> Result<()> {
        if values.len() != gradients.len() {
            return Err(Error::shape("gradients of an optimiser step", [values.len()], &[gradients.len()]));
        }
        let memories = match self.rule {
            UpdateRule::Sgd { momentum, .. } => usize::from(momentum > 0.0),
            UpdateRule::Adam { .. } => 2,
            UpdateRule::Soap { .. } => soap::KEPT,
            UpdateRule::Muon { .. } => muon::KEPT,
        };
        if !self.memory.is_empty() && self.memory.len() != memories * values.len() {
            let expected = [memories * values.len()];
            return Err(Error::shape("memory of an optimiser", expected, &[self.memory.len()]));
        }
        self.steps += 1;
        match self.rule {
            UpdateRule::Sgd { lr, momentum } => self.sgd(values, gradients, lr * factor, momentum),
            UpdateRule::Adam { lr, beta1, beta2, epsilon } => {
                let correction = |beta: f64| 1.0 - beta.powf(self.steps as f64);
                let (correction1, correction2) = (correction(beta1), correction(beta2));
                let rates = AdamRates { step: lr * factor, beta1, beta2, correction1, correction2, epsilon };
                self.adam(values, gradients, rates)
            }
            UpdateRule::Soap { beta2, longest, .. } if self.memory.is_empty() => {
                for gradient in gradients {
                    self.memory.extend(soap::begin(gradient, beta2, longest)?);
                }
                Ok(())
            }
            UpdateRule::Soap { lr, beta1, beta2, epsilon, every, .. } => {
                // Moments are counted from the second gradient: the first moved nothing.
                let correction = |beta: f64| 1.0 - beta.powf((self.steps - 1) as f64);
                let (correction1, correction2) = (correction(beta1), correction(beta2));
                let adam = AdamRates { step: lr * factor, beta1, beta2, correction1, correction2, epsilon };
                let turn = self.steps.is_multiple_of(every as u64);
                let rates = soap::Rates { adam, turn };
                let moved =
                    |value: &Tensor, gradient: &Tensor, kept: &mut [Tensor]| soap::step(value, gradient, kept, rates);
                side_by_side(values, gradients, &mut self.memory, soap::KEPT, moved)
            }
            UpdateRule::Muon { lr, momentum, beta2 } => {
                if self.memory.is_empty() {
                    let begun = values.iter().map(muon::begin).collect::<Result<Vec<_>>>()?;
                    self.memory = begun.into_iter().flatten().collect();
                }
                let correction = |beta: f64| 1.0 - beta.powf(self.steps as f64);
                let (correction1, correction2) = (correction(momentum), correction(beta2));
                let step = lr * factor;
                let rates = AdamRates { step, beta1: momentum, beta2, correction1, correction2, epsilon: epsilon() };
                self.ones = std::mem::take(&mut self.ones).of(values)?;
                let ones = &self.ones;
                let moved = |value: &Tensor, gradient: &Tensor, kept: &mut [Tensor]| {
                    muon::step(value, gradient, kept, rates, ones)
                };
                side_by_side(values, gradients, &mut self.memory, muon::KEPT, moved)
            }
        }
    }

    /// Parameters moved against their gradient.
    pub fn updated(&mut self, theta: &Params, gradient: &Params, factor: f64) -> Result<Params> {
        theta.same_layout(gradient)?;
        let mut moved = theta.clone();
        self.step(&mut moved.values, &gradient.values, factor)?;
        Ok(moved)
    }

    fn sgd(&mut self, values: &mut [Tensor], gradients: &[Tensor], lr: f64, momentum: f64) -> Result<()> {
        if momentum == 0.0 {
            for (value, gradient) in values.iter_mut().zip(gradients) {
                *value = ops::combine(1.0, value, -lr, gradient)?;
            }
            return Ok(());
        }
        if self.memory.is_empty() {
            self.memory = gradients.to_vec();
        } else {
            for (memory, gradient) in self.memory.iter_mut().zip(gradients) {
                *memory = ops::combine(momentum, memory, 1.0, gradient)?;
            }
        }
        for (value, memory) in values.iter_mut().zip(&self.memory) {
            *value = ops::combine(1.0, value, -lr, memory)?;
        }
        Ok(())
    }

    fn adam(&mut self, values: &mut [Tensor], gradients: &[Tensor], rates: AdamRates) -> Result<()> {
        if self.memory.is_empty() {
            let zeros = gradients.iter().chain(gradients).map(Tensor::zeros_like);
            self.memory = zeros.collect::<Result<_>>()?;
        }
        let (means, squares) = self.memory.split_at_mut(values.len());
        let moments = means.iter_mut().zip(squares);
        for ((value, gradient), (mean, square)) in values.iter_mut().zip(gradients).zip(moments) {
            [*value, *mean, *square] = ops::adam(value, gradient, mean, square, rates)?;
        }
        Ok(())
    }
}

/// Moves every value by its gradient and the `each` tensors that are kept for it; several at once.
fn side_by_side(
    values: &mut [Tensor],
    gradients: &[Tensor],
    memory: &mut [Tensor],
    each: usize,
    step: impl Fn(&Tensor, &Tensor, &mut [Tensor]) -> Result<Tensor> + Sync,
) -> Result<()> {
    let moved = |((value, gradient), kept): ((&mut Tensor, &Tensor), &mut [Tensor])| -> Result<()> {
        *value = step(value, gradient, kept)?;
        Ok(())
    };
    match values.iter().all(|value| value.device() == Device::Cpu) {
        true => values.par_iter_mut().zip(gradients).zip(memory.par_chunks_mut(each)).try_for_each(moved),
        // A device does one thing after the other.
        false => values.iter_mut().zip(gradients).zip(memory.chunks_mut(each)).try_for_each(moved),
    }
}

/// Inner product of two lists of tensors.
pub(crate) fn dot(a: &[Tensor], b: &[Tensor]) -> Result<f64> {
    a.iter().zip(b).map(|(a, b)| ops::dot(a, b)).sum()
}

/// factor · a for a list of tensors.
pub(crate) fn scale(factor: f64, a: &[Tensor]) -> Result<Vec<Tensor>> {
    a.iter().map(|a| ops::scale(factor, a)).collect()
}

/// α a + β b for lists of tensors.
pub(crate) fn combine(alpha: f64, a: &[Tensor], beta: f64, b: &[Tensor]) -> Result<Vec<Tensor>> {
    a.iter().zip(b).map(|(a, b)| ops::combine(alpha, a, beta, b)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_settings_are_named() {
        for (rule, part) in [
            (UpdateRule::sgd(0.0), "lr = 0"),
            (UpdateRule::sgd(f64::NAN), "lr = NaN"),
            (UpdateRule::Sgd { lr: 0.1, momentum: 1.0 }, "momentum = 1"),
            (UpdateRule::Adam { lr: 0.1, beta1: -0.1, beta2: 0.9, epsilon: 0.0 }, "beta1 = -0.1"),
        ] {
            assert!(Optimizer::new(rule).unwrap_err().to_string().contains(part));
        }
    }

    #[test]
    fn memory_of_other_tensors_is_refused() {
        let tensor = || Tensor::from_vec(vec![1.0], &[1]).unwrap();
        let mut adam = Optimizer::resume(UpdateRule::adam(0.1), 5, vec![tensor()]).unwrap();
        let error = adam.step(&mut [tensor(), tensor()], &[tensor(), tensor()], 1.0).unwrap_err();
        assert!(error.to_string().contains("memory of an optimiser"), "{error}");
    }

    #[test]
    fn a_resumed_optimizer_goes_on_to_the_same_bits() {
        let start = Tensor::from_vec(vec![1.0_f32, -2.0, 0.5, 3.0, 0.1, -0.7], &[2, 3]).unwrap();
        for rule in [
            UpdateRule::Sgd { lr: 0.05, momentum: 0.9 },
            UpdateRule::adam(0.05),
            UpdateRule::soap(0.05),
            UpdateRule::muon(0.05),
        ] {
            let run = |optimizer: &mut Optimizer, p: &mut Vec<Tensor>, steps| {
                for _ in 0..steps {
                    let gradient = vec![ops::scale(2.0, &p[0]).unwrap()];
                    optimizer.step(p, &gradient, 1.0).unwrap();
                }
            };
            let (mut whole, mut p) = (Optimizer::new(rule).unwrap(), vec![start.clone()]);
            run(&mut whole, &mut p, 10);
            let (mut half, mut q) = (Optimizer::new(rule).unwrap(), vec![start.clone()]);
            run(&mut half, &mut q, 4);
            let (steps, memory) = half.state();
            let mut rest = Optimizer::resume(rule, steps, memory.to_vec()).unwrap();
            run(&mut rest, &mut q, 6);
            assert_eq!(p[0].to_f64_vec().unwrap(), q[0].to_f64_vec().unwrap());
        }
    }
}
