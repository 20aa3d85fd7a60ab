//! A sum that may still be on a device.

use super::on_device;
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
        totals.read(totals.unread.as_ref())
    }
}

/// Several sums, side by side.
#[derive(Debug, Clone)]
pub(crate) struct Totals {
    /// What is known already.
    known: Vec<Option<f64>>,
    /// The others, in their order.
    pub(crate) unread: Option<Tensor>,
}

impl Totals {
    pub(crate) fn new(totals: Vec<Total>) -> Result<Self> {
        let (mut known, mut parts) = (Vec::with_capacity(totals.len()), Vec::new());
        for total in &totals {
            known.push(match total {
                Total::Known(sum) => Some(*sum),
                Total::Parts(own) => {
                    parts.push(own);
                    None
                }
            });
        }
        let unread = if parts.is_empty() { None } else { Some(sum_each(&parts)?) };
        Ok(Self { known, unread })
    }

    /// What is needed to read the same sums elsewhere.
    #[cfg(feature = "cuda")]
    pub(crate) fn without_unread(self) -> Self {
        Self { unread: None, ..self }
    }

    /// The sums, those that were unread from wherever they are now.
    pub(crate) fn read(&self, unread: Option<&Tensor>) -> Result<Vec<f64>> {
        let sums = unread.map_or(Ok(Vec::new()), |sums| sums.0.to_vec1::<f64>());
        let mut sums = sums.map_err(Error::backend("reading sums"))?.into_iter();
        Ok(self.known.iter().map(|known| known.or_else(|| sums.next()).unwrap_or(f64::NAN)).collect())
    }
}

/// The sum of each of these, where they are.
fn sum_each(parts: &[&Tensor]) -> Result<Tensor> {
    on_device!(parts[0], crate::cuda::sum_each(parts));
    let sums = parts.iter().map(|parts| Ok(parts.to_f64_vec()?.iter().sum())).collect::<Result<Vec<f64>>>()?;
    Tensor::from_vec(sums, &[parts.len()])
}
