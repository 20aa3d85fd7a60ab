//! y = max(z, 0) + a min(z, 0), with a learned slope a for all channels or one for each.

use super::{At, Rule, Wanted};
use crate::algebra::Algebra;
use crate::gradient::GradientSink;
use crate::{Activation, Result, Role};

/// A ReLU whose negative side has a learned slope.
#[derive(Debug, Clone)]
pub(crate) struct Prelu {
    /// One, or as many as channels.
    pub(crate) slopes: usize,
}

impl Prelu {
    pub(crate) fn wanted(slopes: usize) -> Vec<Wanted> {
        vec![Wanted { suffix: "weight", shape: vec![slopes], role: Role::Slope, fan_in: 1 }]
    }
}

impl Rule for Prelu {
    fn forward<A: Algebra>(
        &self,
        algebra: &mut A,
        parameters: &[&A::Value],
        inputs: &[&A::Value],
    ) -> Result<(A::Value, Vec<A::Value>)> {
        let (positive, slope) = algebra.activate(Activation::Relu, inputs[0])?;
        let negative = algebra.sub(inputs[0], &positive)?;
        let bent = algebra.combine_channels(&[(&negative, parameters[0])], None)?;
        Ok((algebra.add(&positive, &bent)?, vec![positive, slope, negative]))
    }

    // ∂L/∂z = g where z > 0, a g elsewhere
    fn backward<A: Algebra>(&self, algebra: &mut A, at: &At<'_, A::Value>, grad: &A::Value) -> Result<Vec<A::Value>> {
        let [positive, slope, _] = at.kept else { return Ok(Vec::new()) };
        let above = algebra.pull_back(Activation::Relu, at.inputs[0], (positive, slope), grad)?;
        let below = algebra.sub(grad, &above)?;
        let bent = algebra.combine_channels(&[(&below, at.parameters[0])], None)?;
        Ok(vec![algebra.add(&above, &bent)?])
    }

    // ∂L/∂a = Σ g min(z, 0)
    fn parameters<A: Algebra>(
        &self,
        algebra: &mut A,
        at: &At<'_, A::Value>,
        grad: &A::Value,
        numbers: &[usize],
        sink: &mut dyn GradientSink<A>,
    ) -> Result<()> {
        let [.., negative] = at.kept else { return Ok(()) };
        let sums = algebra.dot_channels(grad, negative, self.slopes)?;
        sink.direct(algebra, numbers[0], sums)
    }
}
