//! y = x Wᵀ + b, or y = x W + b with the weight of another layer.

use super::{At, Rule, Wanted};
use crate::algebra::Algebra;
use crate::gradient::GradientSink;
use crate::{Result, Role};

/// A fully connected layer on `[batch, inputs]`.
///
/// `transposed` is the decoder of a tied autoencoder: it has no weight of its
/// own but uses an encoder's `[inputs', inputs]` matrix the other way round.
#[derive(Debug, Clone)]
pub(crate) struct Linear {
    pub(crate) transposed: bool,
    pub(crate) bias: bool,
}

impl Linear {
    /// What a layer with its own weight asks for.
    pub(crate) fn wanted(inputs: usize, outputs: usize, bias: bool) -> Vec<Wanted> {
        let weight = Wanted { suffix: "weight", shape: vec![outputs, inputs], role: Role::Weight, fan_in: inputs };
        std::iter::once(weight).chain(Self::wanted_bias(inputs, outputs, bias)).collect()
    }

    /// The bias alone: what a tied layer asks for.
    pub(crate) fn wanted_bias(inputs: usize, outputs: usize, bias: bool) -> Option<Wanted> {
        bias.then(|| Wanted { suffix: "bias", shape: vec![outputs], role: Role::Bias, fan_in: inputs })
    }
}

impl Rule for Linear {
    fn forward<A: Algebra>(
        &self,
        algebra: &mut A,
        parameters: &[&A::Value],
        inputs: &[&A::Value],
    ) -> Result<(A::Value, Vec<A::Value>)> {
        let bias = parameters.get(1).copied();
        Ok((algebra.matmul(inputs[0], false, parameters[0], !self.transposed, bias)?, Vec::new()))
    }

    // ∂L/∂x = ∂L/∂y W
    fn backward<A: Algebra>(&self, algebra: &mut A, at: &At<'_, A::Value>, grad: &A::Value) -> Result<Vec<A::Value>> {
        Ok(vec![algebra.matmul(grad, false, at.parameters[0], self.transposed, None)?])
    }

    // ∂L/∂W = (∂L/∂y)ᵀ x, ∂L/∂b = Σ ∂L/∂y
    fn parameters<A: Algebra>(
        &self,
        algebra: &mut A,
        at: &At<'_, A::Value>,
        grad: &A::Value,
        numbers: &[usize],
        sink: &mut dyn GradientSink<A>,
    ) -> Result<()> {
        if self.transposed {
            sink.outer(algebra, numbers[0], at.inputs[0], grad)?;
        } else {
            sink.outer(algebra, numbers[0], grad, at.inputs[0])?;
        }
        if self.bias { sink.sum(algebra, numbers[1], grad) } else { Ok(()) }
    }
}
