//! Where parameter gradients go.
//!
//! A backward pass does not hand out parameter gradients as finished tensors
//! but as the factors they are made of: the gradient of a linear layer's
//! weight is δᵀx. What receives the factors decides what becomes of them:
//! [`Collect`] multiplies them out, [`Residual`] multiplies and subtracts a
//! target in the same pass over memory, and forms that work on Gram matrices
//! never multiply them at all.

use crate::algebra::{Algebra, Plain};
use crate::dual::Dual;
use crate::ops::{self, Factor, Total};
use crate::{Params, Result, Tensor};

/// A receiver of parameter gradients in factored form. A parameter that is
/// used twice (tied weights) arrives twice; the gradient is the sum.
pub trait GradientSink<A: Algebra> {
    /// gradient += deltaᵀ · input, for a delta and an input with one row a sample.
    fn outer(&mut self, algebra: &mut A, parameter: usize, delta: &A::Value, input: &A::Value) -> Result<()>;
    /// gradient += Σ_samples delta.
    fn sum(&mut self, algebra: &mut A, parameter: usize, delta: &A::Value) -> Result<()>;
    /// gradient += value, where no factors exist.
    fn direct(&mut self, algebra: &mut A, parameter: usize, value: A::Value) -> Result<()>;
}

/// Multiplies the factors out into ordinary gradients.
#[derive(Debug)]
pub(crate) struct Collect<V> {
    gradients: Vec<Option<V>>,
}

impl<V> Collect<V> {
    pub(crate) fn new(parameters: usize) -> Self {
        Self { gradients: (0..parameters).map(|_| None).collect() }
    }
}

impl Collect<Tensor> {
    /// The gradients; zero for parameters that no output depends on.
    pub(crate) fn finish(self, theta: &Params) -> Result<Params> {
        let values = self.gradients.into_iter().zip(theta.values());
        let values = values.map(|(gradient, like)| gradient.map_or_else(|| like.zeros_like(), Ok));
        let values = values.collect::<Result<_>>()?;
        Ok(Params { specs: theta.specs.clone(), values, buffers: theta.buffers.clone() })
    }
}

impl Collect<Dual> {
    /// How the gradients move; zero where they do not.
    pub(crate) fn tangents(self, theta: &Params) -> Result<Params> {
        let gradients = self.gradients.into_iter();
        let gradients = gradients.map(|gradient| gradient.and_then(|gradient| gradient.tangent().cloned())).collect();
        Collect { gradients }.finish(theta)
    }
}

impl<A: Algebra> GradientSink<A> for Collect<A::Value> {
    fn outer(&mut self, algebra: &mut A, parameter: usize, delta: &A::Value, input: &A::Value) -> Result<()> {
        let product = algebra.matmul(delta, true, input, false, None)?;
        self.direct(algebra, parameter, product)
    }

    fn sum(&mut self, algebra: &mut A, parameter: usize, delta: &A::Value) -> Result<()> {
        let sum = algebra.sum_rows(delta)?;
        self.direct(algebra, parameter, sum)
    }

    fn direct(&mut self, algebra: &mut A, parameter: usize, value: A::Value) -> Result<()> {
        let total = match self.gradients[parameter].take() {
            Some(previous) => algebra.add(&previous, &value)?,
            None => value,
        };
        self.gradients[parameter] = Some(total);
        Ok(())
    }
}

/// scale_p (G_p − T_p) for every parameter, and Σ (G_p − T_p)² for each.
#[derive(Debug)]
pub struct Residuals {
    /// scale_p (G_p − T_p): with scale 2w_p, the derivative of Σ_p w_p ‖G_p − T_p‖² in G.
    pub direction: Params,
    /// ‖G_p − T_p‖², one for each parameter, in order.
    pub squares: Vec<f64>,
}

/// Subtracts a target from the gradients while they are being multiplied out.
pub(crate) struct Residual<'a> {
    target: &'a Params,
    scales: &'a [f64],
    /// How many layers use a parameter; only a sole use can be fused.
    uses: &'a [usize],
    collect: Collect<Tensor>,
    fused: Vec<Option<(Tensor, Total)>>,
}

impl<'a> Residual<'a> {
    pub(crate) fn new(target: &'a Params, scales: &'a [f64], uses: &'a [usize]) -> Self {
        let count = uses.len();
        Self { target, scales, uses, collect: Collect::new(count), fused: (0..count).map(|_| None).collect() }
    }

    pub(crate) fn finish(self, theta: &Params) -> Result<Residuals> {
        let (mut values, mut squares) = (Vec::new(), Vec::new());
        let gradients = self.fused.into_iter().zip(self.collect.gradients);
        for ((fused, collected), (target, &scale)) in gradients.zip(self.target.values().iter().zip(self.scales)) {
            let (value, square) = match (fused, collected) {
                (Some(done), _) => done,
                (None, Some(gradient)) => ops::residual(&gradient, target, scale)?,
                (None, None) => ops::residual(&target.zeros_like()?, target, scale)?,
            };
            values.push(value);
            squares.push(square);
        }
        let (specs, buffers) = (theta.specs.clone(), theta.buffers.clone());
        Ok(Residuals { direction: Params { specs, values, buffers }, squares: Total::read_all(squares)? })
    }
}

impl GradientSink<Plain> for Residual<'_> {
    fn outer(&mut self, algebra: &mut Plain, parameter: usize, delta: &Tensor, input: &Tensor) -> Result<()> {
        if self.uses[parameter] > 1 {
            return self.collect.outer(algebra, parameter, delta, input);
        }
        let (a, b) = (Factor::transposed(delta), Factor::plain(input));
        let target = &self.target.values()[parameter];
        self.fused[parameter] = Some(ops::matmul_residual(a, b, target, self.scales[parameter])?);
        Ok(())
    }

    fn sum(&mut self, algebra: &mut Plain, parameter: usize, delta: &Tensor) -> Result<()> {
        self.collect.sum(algebra, parameter, delta)
    }

    fn direct(&mut self, algebra: &mut Plain, parameter: usize, value: Tensor) -> Result<()> {
        self.collect.direct(algebra, parameter, value)
    }
}
