//! Windows over planes.

use std::ops::Range;

use super::call::{Call, Grid, gpu_of};
use crate::{Result, Tensor, Windows};

/// For one axis: where windows start and end, and which windows hold each pixel. Both ends grow
/// from window to window, so that those are neighbours.
fn axis(ranges: &[Range<usize>], size: usize) -> impl Iterator<Item = usize> {
    let starts = ranges.iter().map(|range| range.start);
    let ends = ranges.iter().map(|range| range.end);
    let first = (0..size).map(|pixel| ranges.partition_point(|range| range.end <= pixel));
    let last = (0..size).map(|pixel| ranges.partition_point(|range| range.start <= pixel));
    let all: Vec<usize> = starts.chain(ends).chain(first).chain(last).collect();
    all.into_iter()
}

fn windowed(name: &'static str, windows: &Windows, inputs: &[&Tensor], shape: &[usize]) -> Result<Tensor> {
    let (first, gpu) = (inputs[0], gpu_of(inputs[0])?);
    let [height, width] = windows.size;
    let table = axis(&windows.rows, height).chain(axis(&windows.columns, width)).map(|number| number as i32);
    let table = gpu.table(table.collect())?;
    Call::new(name, first.dtype(), Grid::Elements(shape.iter().product()))
        .reads(inputs)
        .table(table)
        .sizes(&[shape[0] * shape[1], windows.rows.len(), height, windows.columns.len(), width])
        .reals(&[windows.scale.unwrap_or(0.0)])
        .write_one(&gpu, shape)
}

pub(crate) fn pool(windows: &Windows, x: &Tensor, shape: &[usize]) -> Result<Tensor> {
    windowed("pool_sums", windows, &[x], shape)
}

pub(crate) fn spread(windows: &Windows, g: &Tensor, shape: &[usize]) -> Result<Tensor> {
    windowed("pool_spread", windows, &[g], shape)
}

pub(crate) fn take_largest(windows: &Windows, x: &Tensor, of: &Tensor, shape: &[usize]) -> Result<Tensor> {
    windowed("take_largest", windows, &[x, of], shape)
}

pub(crate) fn put_largest(windows: &Windows, x: &Tensor, g: &Tensor, shape: &[usize]) -> Result<Tensor> {
    windowed("put_largest", windows, &[x, g], shape)
}
