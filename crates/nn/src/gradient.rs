//! Where parameter gradients go.
//!
//! A backward pass does not hand out parameter gradients as finished tensors
//! but as the factors they are made of: the gradient of a linear layer's
//! weight is δᵀx. What receives the factors decides what becomes of them:
//! [`Collect`] multiplies them out, [`Residual`] multiplies and subtracts a
//! target in the same pass over memory, and forms that work on Gram matrices
//! never multiply them at all.

use std::rc::Rc;

use crate::algebra::{Algebra, Plain};
use crate::difference::Difference;
use crate::dual::Dual;
use crate::matching::Form;
use crate::ops::{self, Factor, Total};
use crate::{Error, ParamSpec, Params, Result, Role, Tensor};

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

/// A gradient less its target, times its scale: as a tensor, or in factors.
#[derive(Debug, Clone)]
pub(crate) enum Moving {
    Dense(Tensor),
    Factored(Rc<Difference>),
}

/// ‖G − T‖² as it comes: a sum, or ‖G‖² and ⟨G, T⟩, and what is too much in the latter if something is.
#[derive(Debug, Clone)]
pub(crate) enum Square {
    Whole(Total),
    Expanded(Vec<Total>),
}

/// What [`Residual`] leaves, with nothing read from a device.
pub(crate) struct Left {
    pub(crate) direction: Vec<Moving>,
    pub(crate) squares: Vec<Square>,
}

/// Subtracts a target from the gradients while they are being multiplied out, or keeps factors.
pub(crate) struct Residual<'a> {
    theta: &'a Params,
    target: &'a Params,
    scales: &'a [f64],
    /// How many layers use a parameter; only a sole use can be fused.
    uses: &'a [usize],
    collect: Collect<Tensor>,
    done: Vec<Option<(Moving, Square)>>,
    /// Whether gradients stay in factors where that pays, or wherever it can be.
    form: Form,
}

impl<'a> Residual<'a> {
    pub(crate) fn new(theta: &'a Params, target: &'a Params, scales: &'a [f64], uses: &'a [usize], form: Form) -> Self {
        let count = uses.len();
        Self {
            theta,
            target,
            scales,
            uses,
            collect: Collect::new(count),
            done: (0..count).map(|_| None).collect(),
            form,
        }
    }

    /// Whether a parameter is its own target.
    fn is_own(&self, parameter: usize) -> bool {
        self.theta.values()[parameter].0.id() == self.target.values()[parameter].0.id()
    }

    /// The bias of the layer whose weight this is.
    fn bias_of(&self, weight: usize) -> Option<&'a Tensor> {
        let specs = &self.theta.specs;
        let layer = specs.get(weight)?.name.strip_suffix("weight")?;
        let same = |spec: &ParamSpec| spec.role == Role::Bias && spec.name.strip_suffix("bias") == Some(layer);
        Some(&self.theta.values()[specs.iter().position(same)?])
    }

    /// What is left of every parameter.
    pub(crate) fn left(self) -> Result<Left> {
        let Self { target, scales, collect, mut done, .. } = self;
        let mut collected = Vec::new();
        for (parameter, gradient) in collect.gradients.into_iter().enumerate().filter(|(p, _)| done[*p].is_none()) {
            collected.push((parameter, gradient.map_or_else(|| target.values()[parameter].zeros_like(), Ok)?));
        }
        let wanted: Vec<_> = collected
            .iter()
            .map(|(parameter, gradient)| (gradient, &target.values()[*parameter], scales[*parameter]))
            .collect();
        for ((parameter, _), residual) in collected.iter().zip(ops::residuals(&wanted)?) {
            done[*parameter] = Some(whole(residual));
        }
        let (direction, squares) = done.into_iter().flatten().unzip();
        Ok(Left { direction, squares })
    }

    /// The same, multiplied out and read.
    pub(crate) fn finish(self, theta: &Params) -> Result<Residuals> {
        let (mut values, mut squares) = (Vec::new(), Vec::new());
        let Left { direction, squares: left } = self.left()?;
        for (value, square) in direction.into_iter().zip(left) {
            match (value, square) {
                (Moving::Dense(value), Square::Whole(square)) => {
                    values.push(value);
                    squares.push(square);
                }
                _ => return Err(Error::Algebra { operation: "residual", problem: "was kept in factors".into() }),
            }
        }
        let (specs, buffers) = (theta.specs.clone(), theta.buffers.clone());
        Ok(Residuals { direction: Params { specs, values, buffers }, squares: Total::read_all(squares)? })
    }
}

fn whole((value, squares): (Tensor, Total)) -> (Moving, Square) {
    (Moving::Dense(value), Square::Whole(squares))
}

impl GradientSink<Plain> for Residual<'_> {
    fn outer(&mut self, algebra: &mut Plain, parameter: usize, delta: &Tensor, input: &Tensor) -> Result<()> {
        let (target, scale) = (&self.target.values()[parameter], self.scales[parameter]);
        let (own, sole) = (self.is_own(parameter), self.uses[parameter] == 1);
        if sole && self.form.keeps_factors(delta.rows(), target.shape(), own) {
            let layer = algebra.output_of_layer().filter(|_| own).map(|output| (output, self.bias_of(parameter)));
            let difference = Difference::new(delta, input, target, scale, layer)?;
            let squares = difference.squares()?;
            self.done[parameter] = Some((Moving::Factored(Rc::new(difference)), Square::Expanded(squares)));
        } else if sole && !ops::waits_for_others(target) {
            let residual = ops::matmul_residual(Factor::transposed(delta), Factor::plain(input), target, scale)?;
            self.done[parameter] = Some(whole(residual));
        } else {
            self.collect.outer(algebra, parameter, delta, input)?;
        }
        Ok(())
    }

    fn sum(&mut self, algebra: &mut Plain, parameter: usize, delta: &Tensor) -> Result<()> {
        self.collect.sum(algebra, parameter, delta)
    }

    fn direct(&mut self, algebra: &mut Plain, parameter: usize, value: Tensor) -> Result<()> {
        self.collect.direct(algebra, parameter, value)
    }
}
