//! Work that is recorded once and repeated as a whole.
//!
//! Launching a kernel costs the processor a few microseconds, more than many kernels take. A
//! graph of them is launched at once.

use std::sync::Arc;

use candle_core::cuda_backend::cudarc;
use cudarc::driver::{CudaGraph, result};

use super::call::{copy, gpu_of, uninitialized};
use super::gpu::{Gpu, failed};
use crate::{Error, Result, Tensor};

/// A function of tensors, recorded.
pub(crate) struct Replay {
    gpu: Arc<Gpu>,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    /// What else the work reads: the graph knows addresses, not owners.
    _held: Vec<Tensor>,
    /// How products were rounded.
    tf32: bool,
    graph: CudaGraph,
}

const WHAT: &str = "repeating an iteration";

impl Replay {
    /// Records what `f` does with tensors like these; `None` if something in it cannot be recorded.
    ///
    /// `f` runs twice, the first time in the open: kernels are compiled and tables moved then. It reads its
    /// inputs, what it makes itself, and `held`: nothing else.
    pub(crate) fn record(
        inputs: &[&Tensor],
        held: Vec<Tensor>,
        mut f: impl FnMut(&[Tensor]) -> Result<Vec<Tensor>>,
    ) -> Result<Option<Self>> {
        let Some(&first) = inputs.first() else { return Ok(None) };
        let gpu = gpu_of(first)?;
        let inputs = inputs.iter().map(|&input| duplicate(&gpu, input)).collect::<Result<Vec<_>>>()?;
        let outputs = f(&inputs)?;
        let graph = gpu.record(|| {
            // What was found is let go before the recording ends, so that the graph frees what it allocates.
            f(&inputs)?.iter().zip(&outputs).try_for_each(|(from, to)| copy(&gpu, from, to, 0))
        })?;
        Ok(graph.map(|graph| Self { gpu, inputs, outputs, _held: held, tf32: crate::tf32(), graph }))
    }

    /// Whether it was recorded for tensors like these.
    pub(crate) fn takes(&self, inputs: &[&Tensor]) -> bool {
        let alike = |(ours, theirs): (&Tensor, &&Tensor)| {
            ours.shape() == theirs.shape() && ours.dtype() == theirs.dtype() && ours.device() == theirs.device()
        };
        self.tf32 == crate::tf32() && self.inputs.len() == inputs.len() && self.inputs.iter().zip(inputs).all(alike)
    }

    /// Does it again with these inputs, and gives what is asked of the outputs: they are written over next time.
    pub(crate) fn run<T>(&mut self, inputs: &[&Tensor], read: impl FnOnce(&[Tensor]) -> Result<T>) -> Result<T> {
        if !self.takes(inputs) {
            return Err(Error::Backend { operation: WHAT, problem: "it was recorded for other shapes".into() });
        }
        for (&from, to) in inputs.iter().zip(&self.inputs) {
            copy(&self.gpu, from, to, 0)?;
        }
        let stream = self.gpu.stream();
        stream.context().bind_to_thread().map_err(failed(WHAT))?;
        // SAFETY: the graph is alive and of this device; all it reads and writes is held by `self` (that is the
        // contract of `record`), or its own.
        unsafe { result::graph::launch(self.graph.cu_graph_exec(), stream.cu_stream()) }.map_err(failed(WHAT))?;
        read(&self.outputs)
    }
}

/// A tensor of its own with the same elements.
pub(crate) fn duplicate_of(tensor: &Tensor) -> Result<Tensor> {
    duplicate(&*gpu_of(tensor)?, tensor)
}

fn duplicate(gpu: &Gpu, tensor: &Tensor) -> Result<Tensor> {
    let own = uninitialized(gpu, tensor.shape(), tensor.dtype())?;
    copy(gpu, tensor, &own, 0)?;
    Ok(own)
}
