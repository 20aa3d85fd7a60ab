use candle_core::{Result as Backend, Tensor as Raw};

use crate::Convolution;

/// Where each (weight, pixel) of a sample reads in the sample with zeros around it.
fn reads(convolution: &Convolution, device: &candle_core::Device) -> Backend<Raw> {
    let [rows, columns] = convolution.axes;
    let width = columns.size + columns.before + columns.after;
    let plane = width * (rows.size + rows.before + rows.after);
    let mut at: Vec<u32> = Vec::new();
    for channel in 0..convolution.inputs {
        for (i, j) in (0..rows.kernel).flat_map(|i| (0..columns.kernel).map(move |j| (i, j))) {
            for p in 0..rows.outputs() {
                let row = channel * plane + (p * rows.stride + i * rows.dilation) * width + j * columns.dilation;
                at.extend((0..columns.outputs()).map(|q| (row + q * columns.stride) as u32));
            }
        }
    }
    let count = at.len();
    Raw::from_vec(at, count, device)
}

/// [samples, groups, weights of a group, pixels]
fn patches(convolution: &Convolution, x: &Raw) -> Backend<Raw> {
    let [rows, columns] = convolution.axes;
    let padded = x.pad_with_zeros(2, rows.before, rows.after)?.pad_with_zeros(3, columns.before, columns.after)?;
    let weights = convolution.inputs / convolution.groups * convolution.taps();
    padded.flatten_from(1)?.contiguous()?.index_select(&reads(convolution, x.device())?, 1)?.reshape((
        x.dim(0)?,
        convolution.groups,
        weights,
        convolution.pixels(),
    ))
}

/// [1, groups, outputs of a group, weights of a group]
fn kernels(convolution: &Convolution, w: &Raw) -> Backend<Raw> {
    w.reshape((1, convolution.groups, convolution.outputs / convolution.groups, ()))
}

/// [samples, groups, outputs of a group, pixels]
fn grouped(convolution: &Convolution, g: &Raw) -> Backend<Raw> {
    g.reshape((g.dim(0)?, convolution.groups, convolution.outputs / convolution.groups, convolution.pixels()))
}

pub(crate) fn forward(convolution: &Convolution, x: &Raw, w: &Raw) -> Backend<Raw> {
    kernels(convolution, w)?.broadcast_matmul(&patches(convolution, x)?)
}

pub(crate) fn inputs(convolution: &Convolution, g: &Raw, w: &Raw) -> Backend<Raw> {
    let [rows, columns] = convolution.axes;
    let (height, width) = (rows.size + rows.before + rows.after, columns.size + columns.before + columns.after);
    let turned = kernels(convolution, w)?.transpose(2, 3)?.contiguous()?;
    let spread = turned.broadcast_matmul(&grouped(convolution, g)?)?;
    let samples = g.dim(0)?;
    let padded = Raw::zeros((samples, convolution.inputs * height * width), g.dtype(), g.device())?
        .index_add(&reads(convolution, g.device())?, &spread.reshape((samples, ()))?, 1)?
        .reshape((samples, convolution.inputs, height, width))?;
    padded.narrow(2, rows.before, rows.size)?.narrow(3, columns.before, columns.size)?.contiguous()
}

pub(crate) fn weights(convolution: &Convolution, g: &Raw, x: &Raw) -> Backend<Raw> {
    let turned = patches(convolution, x)?.transpose(2, 3)?.contiguous()?;
    grouped(convolution, g)?.matmul(&turned)?.sum(0)
}
