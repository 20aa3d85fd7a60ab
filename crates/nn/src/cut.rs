//! Some rows of everything that was computed of a batch.

use std::collections::HashMap;
use std::ops::Range;

use candle_core::TensorId;

use crate::{Result, Tensor};

/// Cuts the same rows out of tensors, each of them once: what was one tensor is one afterwards.
pub(crate) struct Cut {
    range: Range<usize>,
    made: HashMap<TensorId, Tensor>,
}

impl Cut {
    pub(crate) fn new(range: Range<usize>) -> Self {
        Self { range, made: HashMap::new() }
    }

    /// The rows of a tensor with one row for each sample.
    pub(crate) fn rows(&mut self, tensor: &Tensor) -> Result<Tensor> {
        if let Some(known) = self.made.get(&tensor.0.id()) {
            return Ok(known.clone());
        }
        let rows = tensor.slice_rows(self.range.clone())?;
        self.made.insert(tensor.0.id(), rows.clone());
        Ok(rows)
    }
}
