//! A weight's gradient less a target, never multiplied out.
//!
//! The gradient of a linear layer's weight over m samples is δᵀa, a matrix of rank m. Where m is
//! small beside the layer, the direction v = s (δᵀa − T) that a matching attack moves along is cheaper as its parts:
//! products with it need only products with T and with Gram matrices of m × m, and
//!
//! ```text
//! ‖δᵀa − T‖² = ⟨aaᵀ, δδᵀ⟩ − 2 ⟨δ, aTᵀ⟩ + ‖T‖²
//! ```
//!
//! needs nothing that is not needed anyway. What the sum loses to rounding is of the order of ‖T‖² ε.

use crate::cut::Cut;
use crate::ops::{self, Factor, Total};
use crate::{Result, Tensor};

/// v = scale (δᵀa − T), with what is needed of it more than once.
#[derive(Debug)]
pub(crate) struct Difference {
    delta: Tensor,
    input: Tensor,
    target: Tensor,
    scale: f64,
    /// δ and a of the samples whose products with v will be asked for: all, or some of them.
    own_delta: Tensor,
    own_input: Tensor,
    /// aaᵀ, δδᵀ and aTᵀ, the first factor of these samples.
    inputs: Tensor,
    deltas: Tensor,
    toward: Tensor,
}

/// A product with v: sums of products of pairs, and scale times something that is finished.
pub(crate) struct Product<'a> {
    first: (Tensor, &'a Tensor),
    second: Option<(Tensor, Factor<'a>)>,
    finished: Option<(f64, &'a Tensor)>,
}

impl Difference {
    /// Whether `samples` are few enough beside a weight of this shape that factors are cheaper:
    /// 2mhd + 2m²(h + d) multiplications instead of 3mhd, in smaller products.
    pub(crate) fn pays(samples: usize, outputs: usize, inputs: usize) -> bool {
        4 * samples * (outputs + inputs) < outputs * inputs
    }

    pub(crate) fn new(delta: &Tensor, input: &Tensor, target: &Tensor, scale: f64) -> Result<Self> {
        Ok(Self {
            inputs: input.matmul_transposed(input)?,
            deltas: delta.matmul_transposed(delta)?,
            toward: input.matmul_transposed(target)?,
            own_delta: delta.clone(),
            own_input: input.clone(),
            delta: delta.clone(),
            input: input.clone(),
            target: target.clone(),
            scale,
        })
    }

    /// The same v, for products with some of the samples.
    pub(crate) fn rows(&self, cut: &mut Cut) -> Result<Self> {
        Ok(Self {
            own_delta: cut.rows(&self.own_delta)?,
            own_input: cut.rows(&self.own_input)?,
            inputs: cut.rows(&self.inputs)?,
            deltas: cut.rows(&self.deltas)?,
            toward: cut.rows(&self.toward)?,
            delta: self.delta.clone(),
            input: self.input.clone(),
            target: self.target.clone(),
            scale: self.scale,
        })
    }

    /// ‖δᵀa‖² and ⟨δᵀa, T⟩.
    pub(crate) fn squares(&self) -> Result<[Total; 2]> {
        Ok([ops::dot_total(&self.inputs, &self.deltas)?, ops::dot_total(&self.delta, &self.toward)?])
    }

    /// A v, or A vᵀ. Where A is what the factors are made of, most of it is there already.
    pub(crate) fn product(&self, a: &Tensor, a_transposed: bool, v_transposed: bool) -> Result<Product<'_>> {
        let a_plain = if a_transposed { a.transpose()? } else { a.clone() };
        let (left, right) = if v_transposed { (&self.input, &self.delta) } else { (&self.delta, &self.input) };
        let own = if v_transposed { &self.own_input } else { &self.own_delta };
        let same = !a_transposed && a.0.id() == own.0.id();
        let among = match (v_transposed, same) {
            (true, true) => self.inputs.clone(),
            (false, true) => self.deltas.clone(),
            (_, false) => a_plain.matmul_transposed(left)?,
        };
        let first = (among.scale(self.scale)?, right);
        if v_transposed && same {
            return Ok(Product { first, second: None, finished: Some((-self.scale, &self.toward)) });
        }
        let target = Factor { matrix: &self.target, transposed: v_transposed };
        Ok(Product { first, second: Some((a_plain.scale(-self.scale)?, target)), finished: None })
    }
}

impl Product<'_> {
    /// What is to be multiplied and added up.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (Factor<'_>, Factor<'_>)> {
        let first = (Factor::plain(&self.first.0), Factor::plain(self.first.1));
        std::iter::once(first).chain(self.second.iter().map(|(a, b)| (Factor::plain(a), *b)))
    }

    /// The sum with what was finished before.
    pub(crate) fn rest(&self, sum: Tensor) -> Result<Tensor> {
        match self.finished {
            Some((factor, finished)) => sum.combine(1.0, finished, factor),
            None => Ok(sum),
        }
    }
}
