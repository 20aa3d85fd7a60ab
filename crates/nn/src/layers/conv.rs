//! y = w ⋆ x + b, or its transpose y = wᵀ ⋆ x + b.

use super::{At, Rule, Wanted};
use crate::algebra::Algebra;
use crate::gradient::GradientSink;
use crate::{Convolution, Result, Role};

/// A convolution on `[batch, channels, height, width]`.
///
/// A transposed one is the adjoint of the convolution in `geometry`, which goes
/// from this layer's output to its input.
#[derive(Debug, Clone)]
pub(crate) struct Conv {
    pub(crate) geometry: Convolution,
    pub(crate) transposed: bool,
    pub(crate) bias: bool,
}

impl Conv {
    pub(crate) fn wanted(&self) -> Vec<Wanted> {
        let shape = self.geometry.weight_shape();
        // Saturating: a weight too large to exist is for the type check to name.
        let fan_in = shape[1..].iter().fold(1_usize, |product, &side| product.saturating_mul(side));
        let outputs = self.output_channels();
        let weight = Wanted { suffix: "weight", shape: shape.to_vec(), role: Role::Weight, fan_in };
        let bias = self.bias.then(|| Wanted { suffix: "bias", shape: vec![outputs], role: Role::Bias, fan_in });
        std::iter::once(weight).chain(bias).collect()
    }

    fn output_channels(&self) -> usize {
        if self.transposed { self.geometry.inputs } else { self.geometry.outputs }
    }
}

impl Rule for Conv {
    fn forward<A: Algebra>(
        &self,
        algebra: &mut A,
        parameters: &[&A::Value],
        inputs: &[&A::Value],
    ) -> Result<(A::Value, Vec<A::Value>)> {
        let bias = parameters.get(1).copied();
        let output = if self.transposed {
            algebra.convolve_inputs(&self.geometry, inputs[0], parameters[0], bias)?
        } else {
            algebra.convolve(&self.geometry, inputs[0], parameters[0], bias)?
        };
        Ok((output, Vec::new()))
    }

    // ∂L/∂x = wᵀ ⋆ ∂L/∂y; for the transpose w ⋆ ∂L/∂y
    fn backward<A: Algebra>(&self, algebra: &mut A, at: &At<'_, A::Value>, grad: &A::Value) -> Result<Vec<A::Value>> {
        Ok(vec![if self.transposed {
            algebra.convolve(&self.geometry, grad, at.parameters[0], None)?
        } else {
            algebra.convolve_inputs(&self.geometry, grad, at.parameters[0], None)?
        }])
    }

    // ∂L/∂w = ∂L/∂y ⊗ patches of x; for the transpose x ⊗ patches of ∂L/∂y
    fn parameters<A: Algebra>(
        &self,
        algebra: &mut A,
        at: &At<'_, A::Value>,
        grad: &A::Value,
        numbers: &[usize],
        sink: &mut dyn GradientSink<A>,
    ) -> Result<()> {
        let (outer, patches) = if self.transposed { (at.inputs[0], grad) } else { (grad, at.inputs[0]) };
        let weight = algebra.convolve_weights(&self.geometry, outer, patches)?;
        sink.direct(algebra, numbers[0], weight)?;
        if !self.bias {
            return Ok(());
        }
        let sums = algebra.sum_channels(grad, self.output_channels())?;
        sink.direct(algebra, numbers[1], sums)
    }
}
