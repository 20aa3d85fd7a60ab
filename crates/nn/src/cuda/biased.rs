//! A matrix product that begins with a bias, in one kernel of cuBLASLt.
//!
//! Writing the bias to every row first costs a kernel of its own, which an iteration of a small network waits for
//! as long as for a third of the product.

use std::ffi::c_void;
use std::sync::Arc;

use candle_core::cuda_backend::cudarc;
use cudarc::cublaslt::{result as lt, sys};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};

use super::call::{address, uninitialized};
use super::gpu::{Gpu, failed};
use crate::ops::Factor;
use crate::{DType, Result, Tensor};

const WHAT: &str = "matrix product with a bias";
/// What algorithms may use while they work.
const WORKSPACE: usize = 8 << 20;
/// What addresses are multiples of; a part of a tensor may begin anywhere.
const ALIGNMENT: u32 = 16;
/// Narrower products have kernels of their own in cuBLAS.
const NARROW: usize = 32;
/// Smaller products that are not rounded have better kernels in cuBLAS: an iteration of 100 x 4096 outputs took 1.23 ms with
/// those of cuBLASLt and 1.11 without, one of 1000 x 4096 took 7.68 and 7.81 (H200).
const SMALL: usize = 1 << 21;

/// The library, and memory that its kernels share: they run one after another.
pub(super) struct Biased {
    handle: Owned<sys::cublasLtHandle_t>,
    workspace: CudaSlice<u8>,
}

// SAFETY: the library lets threads share a handle; what it is told of is on one stream.
unsafe impl Send for Biased {}
// SAFETY: as above.
unsafe impl Sync for Biased {}

impl Biased {
    pub(super) fn new(stream: &Arc<CudaStream>) -> Result<Self> {
        let handle = Owned { what: lt::create_handle().map_err(failed(WHAT))?, destroy: lt::destroy_handle };
        // SAFETY: nobody reads it but kernels that have written it.
        let workspace = unsafe { stream.alloc::<u8>(WORKSPACE) }.map_err(failed(WHAT))?;
        Ok(Self { handle, workspace })
    }
}

/// Something of the library's, and the way to let go of it.
struct Owned<T: Copy> {
    what: T,
    destroy: unsafe fn(T) -> std::result::Result<(), lt::CublasError>,
}

impl<T: Copy> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: made by the library, let go of once.
        let _ = unsafe { (self.destroy)(self.what) };
    }
}

type Layout = Owned<sys::cublasLtMatrixLayout_t>;

/// A row-major matrix is, column by column, its own transpose.
fn layout(rows: usize, columns: usize) -> Result<Layout> {
    let kind = sys::cudaDataType_t::CUDA_R_32F;
    let what = lt::create_matrix_layout(kind, columns as u64, rows as u64, columns as i64).map_err(failed(WHAT))?;
    Ok(Owned { what, destroy: lt::destroy_matrix_layout })
}

/// A·B with the bias added to each row; `None` where a product and a bias on their own are the better or the only way.
pub(super) fn product(gpu: &Gpu, a: Factor<'_>, b: Factor<'_>, bias: &Tensor) -> Result<Option<Tensor>> {
    let ((m, k), (_, n)) = (a.size()?, b.size()?);
    let worse = n < NARROW || (!crate::device::tf32() && m.saturating_mul(n) < SMALL);
    if bias.dtype() != DType::F32 || worse || m == 0 || k == 0 {
        return Ok(None);
    }
    let out = uninitialized(gpu, &[m, n], DType::F32)?;
    let [from_a, from_b, from_bias, to] = [address(a.matrix)?, address(b.matrix)?, address(bias)?, address(&out)?];
    if [from_a, from_b, from_bias, to].iter().any(|address| address % u64::from(ALIGNMENT) != 0) {
        return Ok(None);
    }
    let description = description(a.transposed, b.transposed, from_bias)?;
    let [layout_a, layout_b] =
        [layout(a.matrix.rows(), a.matrix.row_len())?, layout(b.matrix.rows(), b.matrix.row_len())?];
    let layout_out = layout(m, n)?;
    let preference = preference()?;
    let Biased { handle, workspace } = gpu.biased();
    // SAFETY: all descriptions are alive.
    let chosen = unsafe {
        let [a, b, out] = [&layout_a, &layout_b, &layout_out].map(|layout| layout.what);
        lt::get_matmul_algo_heuristic(handle.what, description.what, b, a, out, out, preference.what)
    };
    // The library remembers its choices, so this is no search. Where it has no kernel, there is the other way.
    let Ok(chosen) = chosen else { return Ok(None) };
    let (lane, one, zero) = (gpu.lane(), 1.0_f32, 0.0_f32);
    // SAFETY: the addresses are of tensors of these sizes on the device, which outlive the call; descriptions and scalars do too;
    // the work is queued on the lane that everything else is on.
    unsafe {
        lt::matmul(
            handle.what,
            description.what,
            (&raw const one).cast(),
            (&raw const zero).cast(),
            from_b as *const c_void,
            layout_b.what,
            from_a as *const c_void,
            layout_a.what,
            to as *const c_void,
            layout_out.what,
            to as *mut c_void,
            layout_out.what,
            &chosen.algo,
            workspace.device_ptr(workspace.stream()).0 as *mut c_void,
            WORKSPACE,
            lane.stream.cu_stream().cast(),
        )
    }
    .map_err(failed(WHAT))?;
    Ok(Some(out))
}

/// Cᵀ = Bᵀ Aᵀ + bias, since the library counts by columns.
fn description(a_transposed: bool, b_transposed: bool, bias: u64) -> Result<Owned<sys::cublasLtMatmulDesc_t>> {
    use sys::cublasLtMatmulDescAttributes_t as Attribute;
    let compute = match crate::device::tf32() {
        true => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
        false => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
    };
    let what = lt::create_matmul_desc(compute, sys::cudaDataType_t::CUDA_R_32F).map_err(failed(WHAT))?;
    let description = Owned { what, destroy: lt::destroy_matmul_desc };
    // CUBLAS_OP_T and CUBLAS_OP_N.
    let [first, second] = [b_transposed, a_transposed].map(i32::from);
    let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS;
    // SAFETY: each attribute is read at once, and has the type that the library documents for it.
    unsafe {
        let set = |attribute, (value, size)| {
            lt::set_matmul_desc_attribute(what, attribute, value, size).map_err(failed::<lt::CublasError>(WHAT))
        };
        set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, plain(&first))?;
        set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, plain(&second))?;
        set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, plain(&epilogue))?;
        set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, plain(&bias))?;
    }
    Ok(description)
}

/// An attribute's value as the library takes it.
fn plain<T: Copy>(value: &T) -> (*const c_void, usize) {
    (std::ptr::from_ref(value).cast(), size_of::<T>())
}

fn preference() -> Result<Owned<sys::cublasLtMatmulPreference_t>> {
    use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
    let what = lt::create_matmul_pref().map_err(failed(WHAT))?;
    let preference = Owned { what, destroy: lt::destroy_matmul_pref };
    let aligned = [
        Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
        Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
        Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
    ];
    // SAFETY: as for the description.
    unsafe {
        let set = |attribute, (value, size)| {
            lt::set_matmul_pref_attribute(what, attribute, value, size).map_err(failed::<lt::CublasError>(WHAT))
        };
        let most = Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        set(most, plain(&WORKSPACE))?;
        for attribute in aligned {
            set(attribute, plain(&ALIGNMENT))?;
        }
    }
    Ok(preference)
}
