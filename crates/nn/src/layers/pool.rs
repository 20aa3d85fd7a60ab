//! Windows of pixels to one pixel, and one pixel to a window.

use super::{At, Rule};
use crate::algebra::Algebra;
use crate::{Result, Windows};

/// y = mean of each window, or its sum times a constant.
#[derive(Debug, Clone)]
pub(crate) struct AveragePool {
    pub(crate) windows: Windows,
}

impl Rule for AveragePool {
    fn forward<A: Algebra>(
        &self,
        algebra: &mut A,
        _: &[&A::Value],
        inputs: &[&A::Value],
    ) -> Result<(A::Value, Vec<A::Value>)> {
        Ok((algebra.pool(&self.windows, inputs[0])?, Vec::new()))
    }

    fn backward<A: Algebra>(&self, algebra: &mut A, _: &At<'_, A::Value>, grad: &A::Value) -> Result<Vec<A::Value>> {
        Ok(vec![algebra.spread(&self.windows, grad)?])
    }
}

/// y = largest of each window.
#[derive(Debug, Clone)]
pub(crate) struct MaxPool {
    pub(crate) windows: Windows,
}

impl Rule for MaxPool {
    fn forward<A: Algebra>(
        &self,
        algebra: &mut A,
        _: &[&A::Value],
        inputs: &[&A::Value],
    ) -> Result<(A::Value, Vec<A::Value>)> {
        Ok((algebra.largest(&self.windows, inputs[0])?, Vec::new()))
    }

    fn backward<A: Algebra>(&self, algebra: &mut A, at: &At<'_, A::Value>, grad: &A::Value) -> Result<Vec<A::Value>> {
        Ok(vec![algebra.put_largest(&self.windows, at.inputs[0], grad)?])
    }
}

/// Every pixel as a block of itself: nearest-neighbour upsampling.
#[derive(Debug, Clone)]
pub(crate) struct Upsample {
    /// The blocks, as windows over the larger plane.
    pub(crate) windows: Windows,
}

impl Rule for Upsample {
    fn forward<A: Algebra>(
        &self,
        algebra: &mut A,
        _: &[&A::Value],
        inputs: &[&A::Value],
    ) -> Result<(A::Value, Vec<A::Value>)> {
        Ok((algebra.spread(&self.windows, inputs[0])?, Vec::new()))
    }

    fn backward<A: Algebra>(&self, algebra: &mut A, _: &At<'_, A::Value>, grad: &A::Value) -> Result<Vec<A::Value>> {
        Ok(vec![algebra.pool(&self.windows, grad)?])
    }
}
