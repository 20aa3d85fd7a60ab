//! y = x: dropout is never applied, in training neither.

use super::{At, Rule};
use crate::Result;
use crate::algebra::Algebra;

/// A layer that somebody's training may have had on. Which units it dropped is unknown to
/// whoever sees a gradient or weights, so it is off here, and
/// [`Network::dropouts`](crate::Network::dropouts) says where.
#[derive(Debug, Clone)]
pub(crate) struct Dropout;

impl Rule for Dropout {
    fn forward<A: Algebra>(
        &self,
        _: &mut A,
        _: &[&A::Value],
        inputs: &[&A::Value],
    ) -> Result<(A::Value, Vec<A::Value>)> {
        Ok((inputs[0].clone(), Vec::new()))
    }

    fn backward<A: Algebra>(&self, _: &mut A, _: &At<'_, A::Value>, grad: &A::Value) -> Result<Vec<A::Value>> {
        Ok(vec![grad.clone()])
    }
}
