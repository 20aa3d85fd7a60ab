//! Where branches of the graph meet: y = Σ x_k, or y = [x_1 … x_n] along the channels.

use super::{At, Rule};
use crate::Result;
use crate::algebra::Algebra;

/// The sum of equally shaped inputs: a residual connection.
#[derive(Debug, Clone)]
pub(crate) struct Add;

impl Rule for Add {
    fn forward<A: Algebra>(
        &self,
        algebra: &mut A,
        _: &[&A::Value],
        inputs: &[&A::Value],
    ) -> Result<(A::Value, Vec<A::Value>)> {
        let mut sum = inputs[0].clone();
        for input in &inputs[1..] {
            sum = algebra.add(&sum, input)?;
        }
        Ok((sum, Vec::new()))
    }

    fn backward<A: Algebra>(&self, _: &mut A, at: &At<'_, A::Value>, grad: &A::Value) -> Result<Vec<A::Value>> {
        Ok(vec![grad.clone(); at.inputs.len()])
    }
}

/// Inputs joined along the second axis: a skip connection of a U-shaped network.
#[derive(Debug, Clone)]
pub(crate) struct Concat {
    /// Channels of each input.
    pub(crate) channels: Vec<usize>,
}

impl Rule for Concat {
    fn forward<A: Algebra>(
        &self,
        algebra: &mut A,
        _: &[&A::Value],
        inputs: &[&A::Value],
    ) -> Result<(A::Value, Vec<A::Value>)> {
        Ok((algebra.concat(inputs)?, Vec::new()))
    }

    fn backward<A: Algebra>(&self, algebra: &mut A, _: &At<'_, A::Value>, grad: &A::Value) -> Result<Vec<A::Value>> {
        let mut start = 0;
        let mut parts = Vec::with_capacity(self.channels.len());
        for &channels in &self.channels {
            parts.push(algebra.narrow(grad, start, channels)?);
            start += channels;
        }
        Ok(parts)
    }
}
