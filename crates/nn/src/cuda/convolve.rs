//! Convolution and its two gradients.
//!
//! Without groups: patches written out, one matrix product for the whole batch. With groups the products would be
//! too small to be worth it, and the sums are made directly.

use std::sync::Arc;

use super::call::{Call, Grid, gpu_of, uninitialized};
use super::gemm::{gemm, gemm_by_sample};
use super::gpu::Gpu;
use super::reduce::sum_rows;
use crate::ops::Factor;
use crate::{Convolution, DType, Result, Tensor};

/// What a block of a matrix product computes at once, about, and how many blocks keep a device busy.
const TILE: usize = 64;
const BUSY: usize = 256;

/// A convolution of a batch on a device.
struct Batch<'a> {
    convolution: &'a Convolution,
    samples: usize,
    gpu: Arc<Gpu>,
    dtype: DType,
}

impl<'a> Batch<'a> {
    fn new(convolution: &'a Convolution, batch: &Tensor) -> Result<Self> {
        Ok(Self { convolution, samples: batch.rows(), gpu: gpu_of(batch)?, dtype: batch.dtype() })
    }

    /// Both axes, as the kernels take them.
    fn lines(&self) -> Vec<usize> {
        let line =
            |axis: &crate::Axis| [axis.size, axis.kernel, axis.stride, axis.before, axis.dilation, axis.outputs()];
        self.convolution.axes.iter().flat_map(line).collect()
    }

    fn call(&self, name: &'static str, grid: Grid) -> Call {
        Call::new(name, self.dtype, grid)
    }

    /// Weights of one output.
    fn depth(&self) -> usize {
        self.convolution.inputs * self.convolution.taps()
    }

    /// Pixels of all outputs of one channel.
    fn width(&self) -> usize {
        self.samples * self.convolution.pixels()
    }

    /// Whether a patch is a pixel, so that nothing needs to be written more than once.
    fn is_pointwise(&self) -> bool {
        self.convolution.axes.iter().all(|axis| axis.kernel == 1 && axis.stride == 1 && axis.before + axis.after == 0)
    }

    /// [weights, samples · pixels]
    fn patches(&self, x: &Tensor) -> Result<Tensor> {
        if self.is_pointwise() {
            return self.planes(x, self.convolution.inputs);
        }
        self.call("patches", Grid::Rows(self.depth(), self.width()))
            .reads(&[x])
            .sizes(&[self.samples, self.convolution.inputs])
            .sizes(&self.lines())
            .write_one(&self.gpu, &[self.depth(), self.width()])
    }

    /// [channels, samples · pixels], for outputs or what has their size.
    fn planes(&self, g: &Tensor, channels: usize) -> Result<Tensor> {
        let sizes = [self.samples, channels, self.convolution.pixels()];
        let call = self.call("to_planes", Grid::Elements(g.count())).reads(&[g]).sizes(&sizes);
        call.write_one(&self.gpu, &[channels, self.width()])
    }

    /// The weight as a matrix: [outputs, weights of one].
    fn matrix(&self, w: &Tensor) -> Result<Tensor> {
        w.reshape(&[self.convolution.outputs, self.depth()])
    }

    /// A sum over weights of a group, for each element of `shape`.
    fn grouped(
        &self,
        name: &'static str,
        (image, w): (&Tensor, &Tensor),
        previous: Option<&Tensor>,
        bias: Option<&Tensor>,
        shape: &[usize],
    ) -> Result<Tensor> {
        let Convolution { inputs, outputs, groups, .. } = *self.convolution;
        self.call(name, Grid::Elements(shape.iter().product()))
            .reads(&[image, w])
            .may_read(previous)
            .may_read(bias)
            .sizes(&[self.samples, inputs, outputs, groups])
            .sizes(&self.lines())
            .write_one(&self.gpu, shape)
    }

    /// Those sums for all pairs, one added to the other.
    fn grouped_sum(
        &self,
        name: &'static str,
        pairs: &[(&Tensor, &Tensor)],
        bias: Option<&Tensor>,
        shape: &[usize],
    ) -> Result<Tensor> {
        let mut sum = self.grouped(name, pairs[0], None, bias, shape)?;
        for &pair in &pairs[1..] {
            sum = self.grouped(name, pair, Some(&sum), None, shape)?;
        }
        Ok(sum)
    }
}

pub(crate) fn convolve_sum(
    convolution: &Convolution,
    pairs: &[(&Tensor, &Tensor)],
    bias: Option<&Tensor>,
    shape: &[usize],
) -> Result<Tensor> {
    let batch = Batch::new(convolution, pairs[0].0)?;
    if convolution.groups > 1 {
        return batch.grouped_sum("grouped_forward", pairs, bias, shape);
    }
    let planes = uninitialized(&batch.gpu, &[convolution.outputs, batch.width()], batch.dtype)?;
    for (index, &(x, w)) in pairs.iter().enumerate() {
        let (patches, matrix) = (batch.patches(x)?, batch.matrix(w)?);
        gemm(&batch.gpu, &planes, Factor::plain(&matrix), Factor::plain(&patches), index > 0)?;
    }
    batch
        .call("from_planes", Grid::Elements(planes.count()))
        .reads(&[&planes])
        .may_read(bias)
        .sizes(&[batch.samples, convolution.outputs, convolution.pixels()])
        .write_one(&batch.gpu, shape)
}

pub(crate) fn convolve_inputs(
    convolution: &Convolution,
    pairs: &[(&Tensor, &Tensor)],
    bias: Option<&Tensor>,
    shape: &[usize],
) -> Result<Tensor> {
    let batch = Batch::new(convolution, pairs[0].0)?;
    if convolution.groups > 1 {
        return batch.grouped_sum("grouped_inputs", pairs, bias, shape);
    }
    let spread = uninitialized(&batch.gpu, &[batch.depth(), batch.width()], batch.dtype)?;
    for (index, &(g, w)) in pairs.iter().enumerate() {
        let (planes, matrix) = (batch.planes(g, convolution.outputs)?, batch.matrix(w)?);
        gemm(&batch.gpu, &spread, Factor::transposed(&matrix), Factor::plain(&planes), index > 0)?;
    }
    let name = if batch.is_pointwise() { "from_planes" } else { "unpatches" };
    let call = batch
        .call(name, Grid::Elements(shape.iter().product()))
        .reads(&[&spread])
        .may_read(bias)
        .sizes(&[batch.samples, convolution.inputs]);
    let call = if batch.is_pointwise() { call.sizes(&[convolution.pixels()]) } else { call.sizes(&batch.lines()) };
    call.write_one(&batch.gpu, shape)
}

pub(crate) fn convolve_weights(convolution: &Convolution, g: &Tensor, x: &Tensor, shape: &[usize]) -> Result<Tensor> {
    let batch = Batch::new(convolution, g)?;
    let Convolution { inputs, outputs, groups, .. } = *convolution;
    if groups > 1 {
        return batch
            .call("grouped_weights", Grid::Blocks(shape.iter().product()))
            .reads(&[g, x])
            .sizes(&[batch.samples, inputs, outputs, groups])
            .sizes(&batch.lines())
            .write_one(&batch.gpu, shape);
    }
    let (planes, patches) = (batch.planes(g, outputs)?, batch.patches(x)?);
    // A small weight that many pixels add to: one product would be a long sum in a few corners of the device.
    let tiles = outputs.div_ceil(TILE) * batch.depth().div_ceil(TILE);
    // No more than the patches themselves is written for it.
    if batch.samples > 1 && tiles < BUSY && convolution.pixels() >= TILE.max(outputs) {
        let each = uninitialized(&batch.gpu, &[batch.samples, outputs, batch.depth()], batch.dtype)?;
        gemm_by_sample(&batch.gpu, &each, &planes, &patches, batch.samples)?;
        return sum_rows(&each)?.reshape(shape);
    }
    let out = uninitialized(&batch.gpu, &[outputs, batch.depth()], batch.dtype)?;
    gemm(&batch.gpu, &out, Factor::plain(&planes), Factor::transposed(&patches), false)?;
    out.reshape(shape)
}
