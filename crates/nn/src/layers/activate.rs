//! y = φ(z), element by element.

use super::{At, Rule};
use crate::algebra::Algebra;
use crate::{Activation, Result};

/// An activation without parameters.
#[derive(Debug, Clone)]
pub(crate) struct Activate {
    pub(crate) function: Activation,
}

impl Rule for Activate {
    fn forward<A: Algebra>(
        &self,
        algebra: &mut A,
        _: &[&A::Value],
        inputs: &[&A::Value],
    ) -> Result<(A::Value, Vec<A::Value>)> {
        let (value, slope) = algebra.activate(self.function, inputs[0])?;
        Ok((value, vec![slope]))
    }

    // ∂L/∂z = ∂L/∂y ⊙ φ'(z)
    fn backward<A: Algebra>(&self, algebra: &mut A, at: &At<'_, A::Value>, grad: &A::Value) -> Result<Vec<A::Value>> {
        Ok(vec![algebra.pull_back(self.function, at.inputs[0], (at.output, &at.kept[0]), grad)?])
    }
}
