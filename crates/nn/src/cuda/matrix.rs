//! Matrix products.

use super::call::{Call, Grid, gpu_of, uninitialized};
use super::gemm::gemm;
use super::reduce::residual;
use crate::ops::{Factor, Total};
use crate::{Result, Tensor};

pub(crate) fn matmul_sum(
    shape: &[usize; 2],
    products: &[(Factor<'_>, Factor<'_>)],
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let first = products[0].0.matrix;
    let (gpu, dtype, count) = (gpu_of(first)?, first.dtype(), shape[0] * shape[1]);
    let out = match bias {
        Some(bias) => Call::new("repeat_row", dtype, Grid::Elements(count))
            .reads(&[bias])
            .sizes(&[count, shape[1]])
            .write_one(&gpu, shape)?,
        None => uninitialized(&gpu, shape, dtype)?,
    };
    for (index, (a, b)) in products.iter().enumerate() {
        gemm(&gpu, &out, *a, *b, index > 0 || bias.is_some())?;
    }
    Ok(out)
}

pub(crate) fn matmul_residual(a: Factor<'_>, b: Factor<'_>, target: &Tensor, scale: f64) -> Result<(Tensor, Total)> {
    let gpu = gpu_of(target)?;
    let product = uninitialized(&gpu, target.shape(), target.dtype())?;
    gemm(&gpu, &product, a, b, false)?;
    residual(&product, target, scale)
}
