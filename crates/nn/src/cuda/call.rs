//! One call of the device: a kernel or a copy, with its memory.

use std::sync::Arc;

use candle_core::cuda_backend::{CudaStorage, cudarc};
use candle_core::op::BackpropOp;
use candle_core::{Storage, Tensor as Raw};
use cudarc::driver::{CudaSlice, DevicePtr, LaunchConfig, PushKernelArg, result};

use super::gpu::{Gpu, failed};
use crate::tensor::{addressable, on_host};
use crate::{DType, Device, Error, Result, Tensor};

/// Threads of a block, and blocks of a grid that cover any number of elements in turns.
const THREADS: usize = 256;
const MOST_BLOCKS: usize = 2048;
/// Blocks that each leave a part of a sum.
const MOST_PARTS: usize = 1024;

/// What a kernel is cut into.
#[derive(Clone, Copy)]
pub(super) enum Grid {
    /// A thread for each element, or for several in turn.
    Elements(usize),
    /// The same, with few enough blocks that a part of a sum from each is worth reading.
    Parts(usize),
    /// So many blocks, each of which works together.
    Blocks(usize),
    /// A block of 32 × 32 threads for every 32 columns.
    Columns(usize),
    /// Elements across, and so many rows.
    Rows(usize, usize),
}

impl Grid {
    /// Blocks along x.
    pub(super) fn blocks(self) -> usize {
        match self {
            Grid::Elements(count) | Grid::Rows(_, count) => count.div_ceil(THREADS).clamp(1, MOST_BLOCKS),
            Grid::Parts(count) => count.div_ceil(4 * THREADS).clamp(1, MOST_PARTS),
            Grid::Blocks(count) => count.max(1),
            Grid::Columns(count) => count.div_ceil(32).max(1),
        }
    }

    fn config(self) -> LaunchConfig {
        let rows = if let Grid::Rows(rows, _) = self { rows.clamp(1, 65_535) as u32 } else { 1 };
        let block_dim = if let Grid::Columns(_) = self { (32, 32, 1) } else { (THREADS as u32, 1, 1) };
        LaunchConfig { grid_dim: (self.blocks() as u32, rows, 1), block_dim, shared_mem_bytes: 0 }
    }
}

/// A kernel about to be launched. Parameters are what it writes, what it reads, tables, integers, doubles: in that order,
/// whatever the order they are given in.
pub(super) struct Call {
    name: &'static str,
    dtype: DType,
    grid: Grid,
    writes: Vec<Tensor>,
    reads: Vec<Option<Tensor>>,
    tables: Vec<Arc<CudaSlice<i32>>>,
    integers: Vec<i64>,
    reals: Vec<f64>,
}

impl Call {
    /// A kernel for tensors of a number type.
    pub(super) fn new(name: &'static str, dtype: DType, grid: Grid) -> Self {
        let (writes, reads, tables) = (Vec::new(), Vec::new(), Vec::new());
        Self { name, dtype, grid, writes, reads, tables, integers: Vec::new(), reals: Vec::new() }
    }

    pub(super) fn reads(mut self, tensors: &[&Tensor]) -> Self {
        self.reads.extend(tensors.iter().map(|&tensor| Some(tensor.clone())));
        self
    }

    /// A tensor, or a null pointer.
    pub(super) fn may_read(mut self, tensor: Option<&Tensor>) -> Self {
        self.reads.push(tensor.cloned());
        self
    }

    pub(super) fn table(mut self, table: Arc<CudaSlice<i32>>) -> Self {
        self.tables.push(table);
        self
    }

    pub(super) fn sizes(mut self, sizes: &[usize]) -> Self {
        self.integers.extend(sizes.iter().map(|&size| size as i64));
        self
    }

    pub(super) fn reals(mut self, reals: &[f64]) -> Self {
        self.reals.extend(reals);
        self
    }

    /// Launches the kernel, which writes tensors of these shapes.
    pub(super) fn write<const N: usize>(mut self, gpu: &Gpu, shapes: [(&[usize], DType); N]) -> Result<[Tensor; N]> {
        for (shape, dtype) in shapes {
            self.writes.push(uninitialized(gpu, shape, dtype)?);
        }
        let stream = gpu.lane().stream;
        let function = gpu.function(self.name, self.dtype)?;
        let mut pointers = Vec::with_capacity(12);
        for tensor in &self.writes {
            pointers.push(address(tensor)?);
        }
        for tensor in &self.reads {
            pointers.push(tensor.as_ref().map_or(Ok(0), address)?);
        }
        for table in &self.tables {
            pointers.push(table.device_ptr(&stream).0);
        }
        let mut launch = stream.launch_builder(&function);
        for pointer in &pointers {
            launch.arg(pointer);
        }
        for integer in &self.integers {
            launch.arg(integer);
        }
        for real in &self.reals {
            launch.arg(real);
        }
        // SAFETY: the kernels take these parameters in this order (tests/devices.rs calls each of them); every
        // pointer is to a tensor of the size that `ops` has checked, alive until the launch is queued, and
        // memory is freed on the stream that it is used on, hence after the kernel. What is recorded is read again later:
        // `Replay` holds it.
        unsafe { launch.launch(self.grid.config()) }.map_err(failed(self.name))?;
        let written: Vec<Tensor> = std::mem::take(&mut self.writes);
        <[Tensor; N]>::try_from(written)
            .map_err(|_| Error::Backend { operation: "launching a kernel", problem: "lost what it wrote".into() })
    }

    /// The same for one tensor of the kernel's number type.
    pub(super) fn write_one(self, gpu: &Gpu, shape: &[usize]) -> Result<Tensor> {
        let dtype = self.dtype;
        self.write(gpu, [(shape, dtype)]).map(|[tensor]| tensor)
    }
}

/// The device that a tensor is on.
pub(super) fn gpu_of(tensor: &Tensor) -> Result<Arc<Gpu>> {
    match tensor.device() {
        Device::Cuda(index) => Gpu::open(index),
        Device::Cpu => Err(Error::Device { device: "cpu".into(), problem: "is not a CUDA device".into() }),
    }
}

/// Memory for a tensor, with whatever was there before: for a kernel that writes all of it.
pub(super) fn uninitialized(gpu: &Gpu, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let count = addressable(shape)?;
    if count > i32::MAX as usize {
        let problem = format!("a tensor of shape {shape:?} has more elements than kernels count");
        return Err(Error::Backend { operation: "allocating on the device", problem });
    }
    on_host!(dtype, T => {
        // SAFETY: every kernel writes all elements of its outputs before anybody reads them.
        let memory = unsafe { gpu.lane().stream.alloc::<T>(count.max(1)) }.map_err(failed("allocating on the device"))?;
        let storage = CudaStorage::wrap_cuda_slice(memory, gpu.device.clone());
        Ok(Tensor(Raw::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false)))
    })
}

/// Where a tensor's elements are on the device. They stay there as long as the tensor.
pub(super) fn address(tensor: &Tensor) -> Result<u64> {
    let (storage, layout) = tensor.0.storage_and_layout();
    let wrong = |problem: &str| Error::Backend { operation: "reading a tensor", problem: problem.into() };
    let (start, _) = layout.contiguous_offsets().ok_or_else(|| wrong("it is not contiguous"))?;
    let Storage::Cuda(storage) = &*storage else { return Err(wrong("it is not on the device")) };
    on_host!(tensor.dtype(), T => {
        let slice = storage.as_cuda_slice::<T>().map_err(Error::backend("reading a tensor"))?;
        Ok(slice.device_ptr(slice.stream()).0 + (start * size_of::<T>()) as u64)
    })
}

/// Copies all elements of one tensor over those of another, from its `start`-th on.
pub(super) fn copy(gpu: &Gpu, from: &Tensor, to: &Tensor, start: usize) -> Result<()> {
    const WHAT: &str = "copying a tensor";
    if start + from.count() > to.count() || from.dtype() != to.dtype() {
        return Err(Error::shape(WHAT, to.shape(), from.shape()));
    }
    let size = from.dtype().bytes();
    let (source, destination) = (address(from)?, address(to)? + (start * size) as u64);
    // SAFETY: both are alive, on the device, and of at least that many bytes, as was just checked; the copy is queued
    // on the stream that everything else is on.
    unsafe { result::memcpy_dtod_async(destination, source, from.count() * size, gpu.lane().stream.cu_stream()) }
        .map_err(failed(WHAT))
}

/// Tensors stacked along the first axis.
pub(crate) fn concat_rows(parts: &[&Tensor], shape: &[usize]) -> Result<Tensor> {
    let gpu = gpu_of(parts[0])?;
    let out = uninitialized(&gpu, shape, parts[0].dtype())?;
    let mut start = 0;
    for part in parts {
        copy(&gpu, part, &out, start)?;
        start += part.count();
    }
    Ok(out)
}
