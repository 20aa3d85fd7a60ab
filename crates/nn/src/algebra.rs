//! The operations that passes through a network are written in.
//!
//! A layer states its forward and backward rule once, in terms of an
//! [`Algebra`]. [`Plain`] computes the rule on tensors and may record the
//! results; [`Duals`](crate::dual::Duals) computes it on pairs (value,
//! tangent), taking values from such a recording. The derivative of a
//! backward pass thus needs no code of its own.

use std::collections::HashMap;

use crate::cut::Cut;
use crate::ops::{self, Factor};
use crate::{Activation, Convolution, Result, Tensor, Windows};

/// Which rule of a layer is being computed; part of the key of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// From inputs to the output.
    Forward,
    /// From the output's gradient to the inputs' gradients.
    Backward,
    /// From the output's gradient to the parameters' gradients.
    Parameters,
    /// Adding the gradient of the so-manieth input to what other layers gave it.
    Accumulate(usize),
}

/// Arithmetic over some kind of value.
pub trait Algebra {
    /// What is computed with: a tensor, or a tensor with a tangent.
    type Value: Clone;

    /// Says that the operations that follow are those of `node` in `stage`.
    fn enter(&mut self, node: usize, stage: Stage);
    /// A value that does not depend on anything.
    fn constant(&mut self, value: &Tensor) -> Self::Value;
    /// How many numbers a value has.
    fn count(&self, value: &Self::Value) -> Result<f64>;
    /// A one of a value's number type and place, as a constant.
    fn one(&mut self, like: &Self::Value) -> Result<Self::Value>;
    /// a·b, either factor transposed on request, plus `bias` on every row.
    fn matmul(
        &mut self,
        a: &Self::Value,
        a_transposed: bool,
        b: &Self::Value,
        b_transposed: bool,
        bias: Option<&Self::Value>,
    ) -> Result<Self::Value>;
    /// a + b
    fn add(&mut self, a: &Self::Value, b: &Self::Value) -> Result<Self::Value>;
    /// a − b
    fn sub(&mut self, a: &Self::Value, b: &Self::Value) -> Result<Self::Value>;
    /// a ⊙ b
    fn mul(&mut self, a: &Self::Value, b: &Self::Value) -> Result<Self::Value>;
    /// factor · a
    fn scale(&mut self, factor: f64, a: &Self::Value) -> Result<Self::Value>;
    /// (a + shift)^(−1/2), element by element
    fn inverse_sqrt(&mut self, a: &Self::Value, shift: f64) -> Result<Self::Value>;
    /// (φ(z), φ'(z)). The slope is for [`pull_back`](Self::pull_back), which
    /// accounts for its dependence on z.
    fn activate(&mut self, f: Activation, z: &Self::Value) -> Result<(Self::Value, Self::Value)>;
    /// grad ⊙ φ'(z), from what [`activate`](Self::activate) gave.
    fn pull_back(
        &mut self,
        f: Activation,
        z: &Self::Value,
        activated: (&Self::Value, &Self::Value),
        grad: &Self::Value,
    ) -> Result<Self::Value>;
    /// Sum over the batch, the first axis.
    fn sum_rows(&mut self, x: &Self::Value) -> Result<Self::Value>;
    /// Σ x ⊙ factors (+ shift) over pairs (x, factors): each channel (second axis) has
    /// its own factors and shift; one number may serve all.
    fn combine_channels(
        &mut self,
        terms: &[(&Self::Value, &Self::Value)],
        shift: Option<&Self::Value>,
    ) -> Result<Self::Value>;
    /// Sums over everything but the channels; `factors` of them, one or all.
    fn sum_channels(&mut self, x: &Self::Value, factors: usize) -> Result<Self::Value>;
    /// Sums of a ⊙ b over everything but the channels; `factors` of them.
    fn dot_channels(&mut self, a: &Self::Value, b: &Self::Value, factors: usize) -> Result<Self::Value>;
    /// w ⋆ x, plus each channel's bias.
    fn convolve(
        &mut self,
        convolution: &Convolution,
        x: &Self::Value,
        w: &Self::Value,
        bias: Option<&Self::Value>,
    ) -> Result<Self::Value>;
    /// wᵀ ⋆ g, plus each channel's bias: the adjoint of [`convolve`](Self::convolve) in x.
    fn convolve_inputs(
        &mut self,
        convolution: &Convolution,
        g: &Self::Value,
        w: &Self::Value,
        bias: Option<&Self::Value>,
    ) -> Result<Self::Value>;
    /// Σ_samples g ⊗ patches of x: the adjoint of [`convolve`](Self::convolve) in w.
    fn convolve_weights(&mut self, convolution: &Convolution, g: &Self::Value, x: &Self::Value) -> Result<Self::Value>;
    /// Each window's scaled sum.
    fn pool(&mut self, windows: &Windows, x: &Self::Value) -> Result<Self::Value>;
    /// Each window's scaled value on all its pixels: the adjoint of [`pool`](Self::pool).
    fn spread(&mut self, windows: &Windows, g: &Self::Value) -> Result<Self::Value>;
    /// Each window's largest element.
    fn largest(&mut self, windows: &Windows, x: &Self::Value) -> Result<Self::Value>;
    /// Each window's value where x is largest: the adjoint of [`largest`](Self::largest).
    fn put_largest(&mut self, windows: &Windows, x: &Self::Value, g: &Self::Value) -> Result<Self::Value>;
    /// The same elements; each row in the shape `row`.
    fn reshape_rows(&mut self, x: &Self::Value, row: &[usize]) -> Result<Self::Value>;
    /// Joined along the second axis.
    fn concat(&mut self, parts: &[&Self::Value]) -> Result<Self::Value>;
    /// A part of the second axis.
    fn narrow(&mut self, x: &Self::Value, start: usize, length: usize) -> Result<Self::Value>;
}

/// What a pass computed, by layer and stage, in the order of its operations.
#[derive(Debug, Default)]
pub(crate) struct Tape(HashMap<(usize, Stage), Vec<Tensor>>);

impl Tape {
    /// The `index`-th result of a stage, if it was recorded.
    pub(crate) fn get(&self, node: usize, stage: Stage, index: usize) -> Option<&Tensor> {
        self.0.get(&(node, stage))?.get(index)
    }

    /// What it has of some samples, where every result has a row for each.
    pub(crate) fn rows(&self, cut: &mut Cut) -> Result<Self> {
        let cut_all = |(place, results): (&(usize, Stage), &Vec<Tensor>)| -> Result<_> {
            Ok((*place, results.iter().map(|result| cut.rows(result)).collect::<Result<_>>()?))
        };
        Ok(Self(self.0.iter().map(cut_all).collect::<Result<_>>()?))
    }

    /// Every result there is.
    #[cfg(test)]
    pub(crate) fn values(&self) -> impl Iterator<Item = &Tensor> {
        self.0.values().flatten()
    }

    /// Forgets everything but the forward pass: the output gradient has changed.
    pub(crate) fn rewind(&mut self) {
        self.0.retain(|(_, stage), _| *stage == Stage::Forward);
    }
}

/// Ordinary arithmetic on tensors, recorded when asked to.
#[derive(Debug, Default)]
pub struct Plain {
    tape: Option<Tape>,
    scope: Option<(usize, Stage)>,
    /// Of how many results at most a layer and stage is recorded, where not of all.
    most: HashMap<(usize, Stage), usize>,
}

impl Plain {
    /// Computes and forgets.
    pub fn new() -> Self {
        Self::default()
    }

    /// Computes and records, for a dual pass to follow.
    pub(crate) fn recording() -> Self {
        Self { tape: Some(Tape::default()), ..Self::default() }
    }

    pub(crate) fn tape_mut(&mut self) -> Option<&mut Tape> {
        self.tape.as_mut()
    }

    pub(crate) fn tape(&self) -> Option<&Tape> {
        self.tape.as_ref()
    }

    /// Forgets, and does not record, what a layer and stage compute after so many results.
    pub(crate) fn record_at_most(&mut self, most: HashMap<(usize, Stage), usize>) {
        for (place, &most) in &most {
            if let Some(results) = self.tape.as_mut().and_then(|tape| tape.0.get_mut(place)) {
                results.truncate(most);
            }
        }
        self.most = most;
    }

    pub(crate) fn into_tape(self) -> Option<Tape> {
        self.tape
    }

    /// What the layer whose gradients are being computed made of its inputs, if that was recorded.
    pub(crate) fn output_of_layer(&self) -> Option<&Tensor> {
        let (node, _) = self.scope?;
        self.tape()?.get(node, Stage::Forward, 0)
    }

    fn keep(&mut self, result: Tensor) -> Tensor {
        // Parameter gradients are never an ingredient of a dual pass, and large.
        if let (Some(tape), Some(scope)) = (&mut self.tape, self.scope)
            && scope.1 != Stage::Parameters
        {
            let results = tape.0.entry(scope).or_default();
            if self.most.get(&scope).is_none_or(|&most| results.len() < most) {
                results.push(result.clone());
            }
        }
        result
    }
}

/// A factor that is transposed or not.
pub(crate) fn factor(matrix: &Tensor, transposed: bool) -> Factor<'_> {
    if transposed { Factor::transposed(matrix) } else { Factor::plain(matrix) }
}

/// `x` with each row in the shape `row`.
pub(crate) fn reshape_rows(x: &Tensor, row: &[usize]) -> Result<Tensor> {
    let shape: Vec<usize> = std::iter::once(x.rows()).chain(row.iter().copied()).collect();
    x.reshape(&shape)
}

impl Algebra for Plain {
    type Value = Tensor;

    fn enter(&mut self, node: usize, stage: Stage) {
        self.scope = Some((node, stage));
    }

    fn constant(&mut self, value: &Tensor) -> Tensor {
        value.clone()
    }

    fn count(&self, value: &Tensor) -> Result<f64> {
        Ok(value.count() as f64)
    }

    fn one(&mut self, like: &Tensor) -> Result<Tensor> {
        Tensor::full(1.0, &[1], like.dtype(), like.device())
    }

    fn matmul(
        &mut self,
        a: &Tensor,
        a_transposed: bool,
        b: &Tensor,
        b_transposed: bool,
        bias: Option<&Tensor>,
    ) -> Result<Tensor> {
        let product = ops::matmul_sum(&[(factor(a, a_transposed), factor(b, b_transposed))], bias)?;
        Ok(self.keep(product))
    }

    fn add(&mut self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let sum = ops::add(a, b)?;
        Ok(self.keep(sum))
    }

    fn sub(&mut self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let difference = ops::sub(a, b)?;
        Ok(self.keep(difference))
    }

    fn mul(&mut self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let product = ops::mul(a, b)?;
        Ok(self.keep(product))
    }

    fn scale(&mut self, factor: f64, a: &Tensor) -> Result<Tensor> {
        let scaled = ops::scale(factor, a)?;
        Ok(self.keep(scaled))
    }

    fn inverse_sqrt(&mut self, a: &Tensor, shift: f64) -> Result<Tensor> {
        let root = ops::inverse_sqrt(a, shift)?;
        Ok(self.keep(root))
    }

    fn activate(&mut self, f: Activation, z: &Tensor) -> Result<(Tensor, Tensor)> {
        let (value, slope) = ops::activate(f, z)?;
        Ok((self.keep(value), self.keep(slope)))
    }

    fn pull_back(&mut self, _: Activation, _: &Tensor, activated: (&Tensor, &Tensor), grad: &Tensor) -> Result<Tensor> {
        self.mul(grad, activated.1)
    }

    fn sum_rows(&mut self, x: &Tensor) -> Result<Tensor> {
        let sum = ops::sum_rows(x)?;
        Ok(self.keep(sum))
    }

    fn combine_channels(&mut self, terms: &[(&Tensor, &Tensor)], shift: Option<&Tensor>) -> Result<Tensor> {
        let sum = ops::combine_channels(terms, shift)?;
        Ok(self.keep(sum))
    }

    fn sum_channels(&mut self, x: &Tensor, factors: usize) -> Result<Tensor> {
        let sum = ops::sum_channels(x, factors)?;
        Ok(self.keep(sum))
    }

    fn dot_channels(&mut self, a: &Tensor, b: &Tensor, factors: usize) -> Result<Tensor> {
        let sums = ops::dot_channels(a, b, factors)?;
        Ok(self.keep(sums))
    }

    fn convolve(&mut self, geometry: &Convolution, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let product = ops::convolve_sum(geometry, &[(x, w)], bias)?;
        Ok(self.keep(product))
    }

    fn convolve_inputs(
        &mut self,
        geometry: &Convolution,
        g: &Tensor,
        w: &Tensor,
        bias: Option<&Tensor>,
    ) -> Result<Tensor> {
        let product = ops::convolve_inputs(geometry, &[(g, w)], bias)?;
        Ok(self.keep(product))
    }

    fn convolve_weights(&mut self, geometry: &Convolution, g: &Tensor, x: &Tensor) -> Result<Tensor> {
        let product = ops::convolve_weights(geometry, g, x)?;
        Ok(self.keep(product))
    }

    fn pool(&mut self, windows: &Windows, x: &Tensor) -> Result<Tensor> {
        let pooled = ops::pool(windows, x)?;
        Ok(self.keep(pooled))
    }

    fn spread(&mut self, windows: &Windows, g: &Tensor) -> Result<Tensor> {
        let spread = ops::spread(windows, g)?;
        Ok(self.keep(spread))
    }

    fn largest(&mut self, windows: &Windows, x: &Tensor) -> Result<Tensor> {
        let largest = ops::take_largest(windows, x, x)?;
        Ok(self.keep(largest))
    }

    fn put_largest(&mut self, windows: &Windows, x: &Tensor, g: &Tensor) -> Result<Tensor> {
        let put = ops::put_largest(windows, x, g)?;
        Ok(self.keep(put))
    }

    fn reshape_rows(&mut self, x: &Tensor, row: &[usize]) -> Result<Tensor> {
        let reshaped = reshape_rows(x, row)?;
        Ok(self.keep(reshaped))
    }

    fn concat(&mut self, parts: &[&Tensor]) -> Result<Tensor> {
        let joined = ops::concat(parts)?;
        Ok(self.keep(joined))
    }

    fn narrow(&mut self, x: &Tensor, start: usize, length: usize) -> Result<Tensor> {
        let part = ops::narrow(x, start, length)?;
        Ok(self.keep(part))
    }
}
