//! Operations in which each row, the first axis, or each place in a row has numbers of its own.

use rayon::prelude::*;

use super::{on_device, same_kind, same_shape};
use crate::kernel::element::Element;
use crate::tensor::on_host;
use crate::{Error, Result, Tensor};

/// Σ a · b over each row, in double precision.
pub(crate) fn dot_rows(a: &Tensor, b: &Tensor) -> Result<Vec<f64>> {
    same_shape("products of rows", &[a, b])?;
    if a.count() == 0 {
        return Ok(vec![0.0; a.rows()]);
    }
    on_device!(a, crate::cuda::dot_rows(a, b)?.to_f64_vec());
    let length = a.row_len();
    on_host!(a.dtype(), T => {
        let (a, b) = (a.host::<T>()?, b.host::<T>()?);
        let dot = |(a, b): (&[T], &[T])| a.iter().zip(b).map(|(a, b)| a.wide() * b.wide()).sum();
        Ok(a.par_chunks_exact(length).zip(b.par_chunks_exact(length)).map(dot).collect())
    })
}

/// a_r + factor_r b_r.
pub(crate) fn add_rows(a: &Tensor, factors: &[f64], b: &Tensor) -> Result<Tensor> {
    same_shape("sums of rows", &[a, b])?;
    if factors.len() != a.rows() {
        return Err(Error::shape("factors of rows", [a.rows()], &[factors.len()]));
    }
    if a.count() == 0 {
        return Ok(a.clone());
    }
    on_device!(a, crate::cuda::add_rows(a, factors, b));
    let length = a.row_len();
    on_host!(a.dtype(), T => {
        let (first, second) = (a.host::<T>()?, b.host::<T>()?);
        let mut out = first.to_vec();
        let rows = out.par_chunks_exact_mut(length).zip(second.par_chunks_exact(length)).zip(factors);
        rows.for_each(|((out, b), &factor)| {
            out.iter_mut().zip(b).for_each(|(a, b)| *a += T::of(factor) * *b);
        });
        Tensor::from_vec(out, a.shape())
    })
}

/// f(x, low, high) of each element and the bounds of its place in a row.
macro_rules! ranged {
    ($x:expr, $low:expr, $high:expr, $away:path, |$value:ident, $l:ident, $h:ident| $T:ident => $body:expr) => {{
        let (x, low, high): (&Tensor, &Tensor, &Tensor) = ($x, $low, $high);
        same_kind("range", &[x, low, high])?;
        if let Some(other) = [low, high].into_iter().find(|bound| bound.count() != x.row_len()) {
            return Err(Error::shape("bounds of a range", [x.row_len()], other.shape()));
        }
        on_device!(x, $away(x, low, high));
        on_host!(x.dtype(), $T => {
            let (data, low, high) = (x.host::<$T>()?, low.host::<$T>()?, high.host::<$T>()?);
            let mut out = Vec::with_capacity(data.len());
            for row in data.chunks_exact(low.len().max(1)) {
                out.extend(row.iter().zip(low.iter().zip(high.iter())).map(|(&$value, (&$l, &$h))| $body));
            }
            Tensor::from_vec(out, x.shape())
        })
    }};
}

/// How far elements lie outside the range of their place in a row.
pub(crate) fn excess(x: &Tensor, low: &Tensor, high: &Tensor) -> Result<Tensor> {
    ranged!(x, low, high, crate::cuda::excess, |x, low, high| T => {
        // Zero inside, and of what is no number none.
        if x > high { x - high } else if x < low { x - low } else { T::of(0.0) * x }
    })
}

/// Elements moved into the range of their place in a row.
pub(crate) fn clamp_rows(x: &Tensor, low: &Tensor, high: &Tensor) -> Result<Tensor> {
    ranged!(x, low, high, crate::cuda::clamp_rows, |x, low, high| T => {
        if x > high { high } else if x < low { low } else { x }
    })
}
