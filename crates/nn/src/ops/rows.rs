//! Operations in which each row, the first axis, has a number of its own.

use rayon::prelude::*;

use super::{on_device, same_shape};
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
