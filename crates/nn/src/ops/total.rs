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
    pub(crate) fn read(self) -> Result<f64> {
        Ok(Self::read_all(vec![self])?.into_iter().sum())
    }

    /// The sums, with one reading of the device.
    pub(crate) fn read_all(totals: Vec<Self>) -> Result<Vec<f64>> {
        let totals = Totals::new(totals)?;
        totals.read(totals.parts.as_ref())
    }
}

/// Several sums, their parts side by side.
#[derive(Debug, Clone)]
pub(crate) struct Totals {
    /// Of each sum what is known, or how many parts it has.
    sums: Vec<std::result::Result<f64, usize>>,
    pub(crate) parts: Option<Tensor>,
}

impl Totals {
    pub(crate) fn new(totals: Vec<Total>) -> Result<Self> {
        let (mut sums, mut parts) = (Vec::with_capacity(totals.len()), Vec::new());
        for total in &totals {
            match total {
                Total::Known(sum) => sums.push(Ok(*sum)),
                Total::Parts(own) => {
                    sums.push(Err(own.count()));
                    parts.push(own);
                }
            }
        }
        let parts = if parts.is_empty() { None } else { Some(Tensor::concat_rows(&parts)?) };
        Ok(Self { sums, parts })
    }

    /// What is needed to read the same sums from parts that are elsewhere.
    #[cfg(feature = "cuda")]
    pub(crate) fn without_parts(self) -> Self {
        Self { parts: None, ..self }
    }

    /// The sums, from their parts wherever those are now.
    pub(crate) fn read(&self, parts: Option<&Tensor>) -> Result<Vec<f64>> {
        let parts = parts.map_or(Ok(Vec::new()), |parts| parts.0.to_vec1::<f64>());
        let mut parts = parts.map_err(Error::backend("reading sums"))?.into_iter();
        Ok(self.sums.iter().map(|sum| sum.unwrap_or_else(|count| parts.by_ref().take(count).sum())).collect())
    }
}
