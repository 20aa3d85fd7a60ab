//! A sum that may still be on a device.

use crate::{Error, Result, Tensor};

/// A sum over all elements of something, in double precision.
///
/// Reading a number from a device waits for all that was asked of it. So a sum stays there, in
/// parts, until somebody wants it, and several are read at once.
#[derive(Debug, Clone)]
pub(crate) enum Total {
    /// In main memory.
    Known(f64),
    /// The parts that blocks of threads have left, to be added up.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "without a device every sum is known"))]
    Parts(Tensor),
}

impl Total {
    /// The sum.
    #[cfg(any(feature = "cuda", test))]
    pub(crate) fn read(self) -> Result<f64> {
        Ok(Self::read_all(vec![self])?.into_iter().sum())
    }

    /// The sums, with one reading of the device.
    pub(crate) fn read_all(totals: Vec<Self>) -> Result<Vec<f64>> {
        let parts: Vec<&candle_core::Tensor> = totals
            .iter()
            .filter_map(|total| if let Self::Parts(parts) = total { Some(&parts.0) } else { None })
            .collect();
        let parts = match parts.as_slice() {
            [] => Vec::new(),
            parts => candle_core::Tensor::cat(parts, 0)
                .and_then(|all| all.to_vec1::<f64>())
                .map_err(Error::backend("reading a sum"))?,
        };
        let mut parts = parts.into_iter();
        let sum = |total| match total {
            Self::Known(sum) => sum,
            Self::Parts(own) => parts.by_ref().take(own.count()).sum(),
        };
        Ok(totals.into_iter().map(sum).collect())
    }
}
