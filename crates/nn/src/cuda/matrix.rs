//! Matrix products.

use super::biased;
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
    let repeated = |bias| {
        let call = Call::new("repeat_row", dtype, Grid::Elements(count)).reads(&[bias]);
        call.sizes(&[count, shape[1]]).write_one(&gpu, shape)
    };
    let (out, done) = match bias {
        Some(bias) => match biased::product(&gpu, products[0].0, products[0].1, bias)? {
            Some(out) => (out, 1),
            None => (repeated(bias)?, 0),
        },
        None => (uninitialized(&gpu, shape, dtype)?, 0),
    };
    for (index, (a, b)) in products.iter().enumerate().skip(done) {
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
