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
//!
//! Where T is the weight W itself, as for a network trained until it is a stationary point, aTᵀ is what the layer
//! computed, and products with T join those with W: ȧW + a(−sT) = (ȧ − sa)W.

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
    toward: Toward,
}

/// aTᵀ: multiplied out, or what the layer made of a with T for its weight, and the bias that is in it.
#[derive(Debug, Clone)]
pub(crate) enum Toward {
    Multiplied(Tensor),
    Layer { output: Tensor, bias: Option<Tensor> },
}

impl Toward {
    fn read(&self) -> Result<Tensor> {
        match self {
            Self::Multiplied(product) => Ok(product.clone()),
            Self::Layer { output, bias: None } => Ok(output.clone()),
            Self::Layer { output, bias: Some(bias) } => {
                let one = Tensor::full(1.0, &[1], bias.dtype(), bias.device())?;
                ops::combine_channels(&[(output, &one)], Some(&bias.scale(-1.0)?))
            }
        }
    }

    fn rows(&self, cut: &mut Cut) -> Result<Self> {
        Ok(match self {
            Self::Multiplied(product) => Self::Multiplied(cut.rows(product)?),
            Self::Layer { output, bias } => Self::Layer { output: cut.rows(output)?, bias: bias.clone() },
        })
    }
}

/// A factor of a product that moves: its value, its tangent, whether it is transposed.
pub(crate) struct Moved<'a> {
    pub(crate) value: &'a Tensor,
    pub(crate) tangent: Option<&'a Tensor>,
    pub(crate) transposed: bool,
}

/// The tangent of a product with a weight that moves along v: sums of products of pairs, and scale times something
/// that is finished.
pub(crate) struct Product<'a> {
    first: (Tensor, &'a Tensor),
    second: Option<(Tensor, Factor<'a>)>,
    finished: Option<(f64, Tensor)>,
    /// Whether the tangent of the other factor is in it.
    whole: bool,
}

impl Difference {
    /// Whether `samples` are few enough beside a weight of this shape that factors are cheaper:
    /// 2mhd + 2m²(h + d) multiplications instead of 3mhd, in smaller products; 2m²(h + d) where the target is the
    /// weight itself.
    pub(crate) fn pays(samples: usize, outputs: usize, inputs: usize, own: bool) -> bool {
        4 * samples * (outputs + inputs) < if own { 3 } else { 1 } * outputs * inputs
    }

    /// `layer` is what a layer with the target for its weight has made of the inputs, with its bias.
    pub(crate) fn new(
        delta: &Tensor,
        input: &Tensor,
        target: &Tensor,
        scale: f64,
        layer: Option<(&Tensor, Option<&Tensor>)>,
    ) -> Result<Self> {
        let toward = match layer {
            Some((output, bias)) => Toward::Layer { output: output.clone(), bias: bias.cloned() },
            None => Toward::Multiplied(input.matmul_transposed(target)?),
        };
        Ok(Self {
            inputs: input.matmul_transposed(input)?,
            deltas: delta.matmul_transposed(delta)?,
            toward,
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
            toward: self.toward.rows(cut)?,
            delta: self.delta.clone(),
            input: self.input.clone(),
            target: self.target.clone(),
            scale: self.scale,
        })
    }

    /// ‖δᵀa‖² and ⟨δᵀa, T⟩, the latter with what a layer's bias added to it, which follows then.
    pub(crate) fn squares(&self) -> Result<Vec<Total>> {
        let mut squares = vec![ops::dot_total(&self.inputs, &self.deltas)?];
        match &self.toward {
            Toward::Multiplied(product) => squares.push(ops::dot_total(&self.delta, product)?),
            Toward::Layer { output, bias } => {
                squares.push(ops::dot_total(&self.delta, output)?);
                if let Some(bias) = bias {
                    squares.push(ops::dot_total(&ops::sum_rows(&self.delta)?, bias)?);
                }
            }
        }
        Ok(squares)
    }

    /// The tangent of A W or A Wᵀ as W moves along v, and A too where that costs nothing more. Where A is what the
    /// factors are made of, most of it is there already.
    pub(crate) fn product(&self, a: Moved<'_>, weight: &Tensor, v_transposed: bool) -> Result<Product<'_>> {
        let plain = |a_part: &Tensor| if a.transposed { a_part.transpose() } else { Ok(a_part.clone()) };
        let (left, right) = if v_transposed { (&self.input, &self.delta) } else { (&self.delta, &self.input) };
        let own = if v_transposed { &self.own_input } else { &self.own_delta };
        let same = !a.transposed && a.value.0.id() == own.0.id();
        let among = match (v_transposed, same) {
            (true, true) => self.inputs.clone(),
            (false, true) => self.deltas.clone(),
            (_, false) => plain(a.value)?.matmul_transposed(left)?,
        };
        let first = (among.scale(self.scale)?, right);
        let target = Factor { matrix: &self.target, transposed: v_transposed };
        if let Some(tangent) = a.tangent.filter(|_| weight.0.id() == self.target.0.id()) {
            let both = plain(&tangent.combine(1.0, a.value, -self.scale)?)?;
            return Ok(Product { first, second: Some((both, target)), finished: None, whole: true });
        }
        let (second, finished) = if v_transposed && same {
            (None, Some((-self.scale, self.toward.read()?)))
        } else {
            (Some((plain(a.value)?.scale(-self.scale)?, target)), None)
        };
        Ok(Product { first, second, finished, whole: a.tangent.is_none() })
    }
}

impl Product<'_> {
    /// What is to be multiplied and added up.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (Factor<'_>, Factor<'_>)> {
        let first = (Factor::plain(&self.first.0), Factor::plain(self.first.1));
        std::iter::once(first).chain(self.second.iter().map(|(a, b)| (Factor::plain(a), *b)))
    }

    /// Whether nothing is left of the other factor's tangent.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole
    }

    /// The sum with what was finished before.
    pub(crate) fn rest(&self, sum: Tensor) -> Result<Tensor> {
        match &self.finished {
            Some((factor, finished)) => sum.combine(1.0, finished, *factor),
            None => Ok(sum),
        }
    }
}
