//! Matrix products by cuBLAS.

use std::ffi::c_void;

use candle_core::cuda_backend::cudarc;
use cudarc::cublas::result as cublas;
use cudarc::cublas::sys::{cublasComputeType_t, cublasGemmAlgo_t, cublasOperation_t, cudaDataType_t};

use super::call::address;
use super::gpu::{Gpu, failed};
use crate::ops::Factor;
use crate::{DType, Error, Result, Tensor};

/// A row-major factor as cuBLAS sees it: where it is, how it is turned, elements from row to row and from one
/// product of a batch to the next.
struct Operand {
    address: u64,
    transposed: bool,
    row: usize,
    next: usize,
}

/// C = A·B, or C += A·B, for a batch of products of one size.
struct Products {
    a: Operand,
    b: Operand,
    c: u64,
    /// Rows and columns of C, and what is summed over.
    size: [usize; 3],
    count: usize,
    add: bool,
}

impl Products {
    /// The products, with the numbers of one type.
    ///
    /// # Safety
    ///
    /// All addresses are of matrices of these sizes and number type on the device, alive until the work is queued.
    unsafe fn multiply(&self, gpu: &Gpu, dtype: DType) -> Result<()> {
        const WHAT: &str = "matrix product";
        let Self { a, b, c, size: [m, n, k], count, add } = self;
        if *m == 0 || *n == 0 || *k == 0 {
            return Err(Error::EmptyBatch { what: WHAT.into() });
        }
        let turned = |operand: &Operand| match operand.transposed {
            true => cublasOperation_t::CUBLAS_OP_T,
            false => cublasOperation_t::CUBLAS_OP_N,
        };
        let beta = f64::from(u8::from(*add));
        let (single, double) = ([1.0_f32, beta as f32], [1.0_f64, beta]);
        let (kind, compute, scalars) = match dtype {
            DType::F32 if crate::device::tf32() => (
                cudaDataType_t::CUDA_R_32F,
                cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
                single.as_ptr().cast::<c_void>(),
            ),
            DType::F32 => (cudaDataType_t::CUDA_R_32F, cublasComputeType_t::CUBLAS_COMPUTE_32F, single.as_ptr().cast()),
            DType::F64 => (cudaDataType_t::CUDA_R_64F, cublasComputeType_t::CUBLAS_COMPUTE_64F, double.as_ptr().cast()),
        };
        let blas = gpu.lane().blas;
        // cuBLAS counts by columns: there, a row-major matrix is its own transpose, and Cᵀ = Bᵀ Aᵀ.
        // SAFETY: the caller vouches for the matrices; `scalars` points to two numbers of `dtype` that outlive
        // the call, and cuBLAS queues its work on the lane that everything else is on.
        unsafe {
            cublas::gemm_strided_batched_ex(
                *blas.handle(),
                turned(b),
                turned(a),
                *n as i32,
                *m as i32,
                *k as i32,
                scalars,
                b.address as *const c_void,
                kind,
                b.row as i32,
                b.next as i64,
                a.address as *const c_void,
                kind,
                a.row as i32,
                a.next as i64,
                scalars.byte_add(dtype.bytes()),
                *c as *mut c_void,
                kind,
                *n as i32,
                (m * n) as i64,
                *count as i32,
                compute,
                cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        }
        .map_err(failed(WHAT))
    }
}

/// out = A·B, or out += A·B. The sizes have been checked.
pub(super) fn gemm(gpu: &Gpu, out: &Tensor, a: Factor<'_>, b: Factor<'_>, add: bool) -> Result<()> {
    let ((m, k), (_, n)) = (a.size()?, b.size()?);
    let operand = |factor: Factor<'_>| -> Result<Operand> {
        let row = factor.matrix.row_len();
        Ok(Operand { address: address(factor.matrix)?, transposed: factor.transposed, row, next: 0 })
    };
    let products = Products { a: operand(a)?, b: operand(b)?, c: address(out)?, size: [m, n, k], count: 1, add };
    // SAFETY: `ops` has checked the sizes, and the tensors outlive the call.
    unsafe { products.multiply(gpu, out.dtype()) }
}

/// out_s = A_s·B_sᵀ for each of so many samples, whose columns lie side by side in A and B.
pub(super) fn gemm_by_sample(gpu: &Gpu, out: &Tensor, a: &Tensor, b: &Tensor, samples: usize) -> Result<()> {
    let (m, n, row) = (a.rows(), b.rows(), a.row_len());
    let (k, fits) = (row / samples.max(1), row == b.row_len() && out.count() == samples * m * n);
    if !fits || k * samples != row {
        return Err(Error::shape("products by sample", [samples, m, n], out.shape()));
    }
    let operand = |tensor: &Tensor, transposed| -> Result<Operand> {
        Ok(Operand { address: address(tensor)?, transposed, row, next: k })
    };
    let (a, b) = (operand(a, false)?, operand(b, true)?);
    let products = Products { a, b, c: address(out)?, size: [m, n, k], count: samples, add: false };
    // SAFETY: the sizes were checked just now, and the tensors outlive the call.
    unsafe { products.multiply(gpu, out.dtype()) }
}
