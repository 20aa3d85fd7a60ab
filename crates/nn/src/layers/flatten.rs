//! Every sample as one row of numbers.

use super::{At, Rule};
use crate::Result;
use crate::algebra::Algebra;

/// From `[batch, …]` to `[batch, product]`, in memory order.
#[derive(Debug, Clone)]
pub(crate) struct Flatten {
    pub(crate) input: Vec<usize>,
}

impl Rule for Flatten {
    fn forward<A: Algebra>(
        &self,
        algebra: &mut A,
        _: &[&A::Value],
        inputs: &[&A::Value],
    ) -> Result<(A::Value, Vec<A::Value>)> {
        let row = [self.input.iter().product()];
        Ok((algebra.reshape_rows(inputs[0], &row)?, Vec::new()))
    }

    fn backward<A: Algebra>(&self, algebra: &mut A, _: &At<'_, A::Value>, grad: &A::Value) -> Result<Vec<A::Value>> {
        Ok(vec![algebra.reshape_rows(grad, &self.input)?])
    }
}
