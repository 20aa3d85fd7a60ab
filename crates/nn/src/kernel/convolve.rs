//! Convolution and its two gradients as matrix products on patches that are never written out.
//!
//! With P output pixels a sample and K weights an output:
//! - forward: `out[o][pixel] = Σ_k w[o][k] · patch[pixel][k]`
//! - weights: `dw[o][k] = Σ_pixel g[o][pixel] · patch[pixel][k]`
//! - inputs: with a stride s, the inputs fall into s² phases that meet different
//!   weights; each is a forward product of its own with the kernels turned around.
//!
//! A padded copy of the image makes every patch lie inside it, so that a patch's
//! place is the sum of its pixel's and its weight's ([`Gathered`]).

use std::borrow::Cow;

use rayon::prelude::*;

use super::PARALLEL_FROM;
use super::depthwise;
use super::element::Element;
use super::gather::{Gathered, Offsets};
use super::gemm::gemm_scattered;
use crate::convolution::{Axis, Convolution};

/// Planes with zeros around them.
struct Padded<'a, T: Clone> {
    data: Cow<'a, [T]>,
    /// Width of a plane.
    width: usize,
    /// Elements of a plane.
    plane: usize,
}

impl<'a, T: Element> Padded<'a, T> {
    /// `margin` is (before, after) for rows and columns.
    fn new(x: &'a [T], [height, width]: [usize; 2], margin: [(usize, usize); 2]) -> Self {
        let [(top, bottom), (left, right)] = margin;
        let (padded_height, padded_width) = (height + top + bottom, width + left + right);
        let plane = padded_height * padded_width;
        if [top, bottom, left, right] == [0; 4] || height * width == 0 {
            return Self { data: Cow::Borrowed(x), width, plane: height * width };
        }
        let planes = x.len() / (height * width);
        let mut data = vec![T::ZERO; planes * plane];
        let work = |(padded, source): (&mut [T], &[T])| {
            let rows = padded.chunks_exact_mut(padded_width).skip(top);
            for (row, source) in rows.zip(source.chunks_exact(width)) {
                row[left..left + width].copy_from_slice(source);
            }
        };
        if data.len() < PARALLEL_FROM {
            data.chunks_exact_mut(plane).zip(x.chunks_exact(height * width)).for_each(work);
        } else {
            let sources = x.par_chunks_exact(height * width);
            data.par_chunks_exact_mut(plane).zip(sources).with_min_len(4).for_each(work);
        }
        Self { data: Cow::Owned(data), width: padded_width, plane }
    }
}

/// Offsets of pixels on a grid, sample by sample.
fn pixels(
    samples: usize,
    sample: usize,
    [rows, columns]: [usize; 2],
    [down, right]: [usize; 2],
    start: usize,
) -> Offsets {
    let mut at = Vec::with_capacity(samples * rows * columns);
    for n in 0..samples {
        for i in 0..rows {
            let row = start + n * sample + i * down;
            at.extend((0..columns).map(|j| row + j * right));
        }
    }
    Offsets::new(at)
}

fn sides(convolution: &Convolution) -> [usize; 2] {
    convolution.axes.map(|axis| axis.size)
}

fn output_sides(convolution: &Convolution) -> [usize; 2] {
    convolution.axes.map(|axis| axis.outputs())
}

/// The patches of a padded image: offsets of pixels, and of one group's weights.
struct Patches<'a, T: Clone> {
    padded: Padded<'a, T>,
    pixels: Offsets,
}

impl<'a, T: Element> Patches<'a, T> {
    fn new(convolution: &Convolution, x: &'a [T], samples: usize) -> Self {
        let [rows, columns] = convolution.axes;
        let margin = [rows, columns].map(|axis| (axis.before, axis.after));
        let padded = Padded::new(x, sides(convolution), margin);
        let steps = [rows.stride * padded.width, columns.stride];
        let pixels = pixels(samples, convolution.inputs * padded.plane, output_sides(convolution), steps, 0);
        Self { padded, pixels }
    }

    fn weights(&self, convolution: &Convolution, group: usize) -> Offsets {
        let each = convolution.inputs / convolution.groups;
        let [rows, columns] = convolution.axes;
        let mut at = Vec::with_capacity(each * convolution.taps());
        for channel in group * each..(group + 1) * each {
            for i in 0..rows.kernel {
                let row = channel * self.padded.plane + i * rows.dilation * self.padded.width;
                at.extend((0..columns.kernel).map(|j| row + j * columns.dilation));
            }
        }
        Offsets::new(at)
    }
}

/// `out += w ⋆ x`, for `out` of [samples, outputs, pixels].
pub(crate) fn forward<T: Element>(convolution: &Convolution, x: &[T], w: &[T], out: &mut [T]) {
    if convolution.is_depthwise() {
        return depthwise::forward(convolution, x, w, out);
    }
    let (outputs, pixels) = (convolution.outputs, convolution.pixels());
    let each = outputs / convolution.groups;
    let samples = out.len() / (outputs * pixels).max(1);
    let patches = Patches::new(convolution, x, samples);
    for group in 0..convolution.groups {
        let weights = patches.weights(convolution, group);
        let row = weights.len();
        let (rows, columns) = (every(group * each, each, row), Offsets::new((0..row).collect()));
        let places = batched(samples, outputs * pixels, pixels, group * each * pixels);
        let a = Gathered::new(w, &rows, &columns);
        let b = Gathered::new(&patches.padded.data, &patches.pixels, &weights);
        // SAFETY: rows are `pixels` apart, columns fill that distance in every sample.
        unsafe { gemm_scattered(a, b, out, pixels, &places) };
    }
}

/// `first, first + 1, …`, so many of them, each times `step`.
fn every(first: usize, count: usize, step: usize) -> Offsets {
    Offsets::new((first..first + count).map(|index| index * step).collect())
}

/// Places of `length` neighbours in each sample.
fn batched(samples: usize, sample: usize, length: usize, start: usize) -> Offsets {
    pixels(samples, sample, [1, length], [0, 1], start)
}

/// `dw += Σ g ⊗ patch`, for `dw` of the weight's shape.
pub(crate) fn weights<T: Element>(convolution: &Convolution, g: &[T], x: &[T], dw: &mut [T]) {
    if convolution.is_depthwise() {
        return depthwise::weights(convolution, g, x, dw);
    }
    let (outputs, pixels) = (convolution.outputs, convolution.pixels());
    let each = outputs / convolution.groups;
    let samples = g.len() / (outputs * pixels).max(1);
    let patches = Patches::new(convolution, x, samples);
    let in_gradient = batched(samples, outputs * pixels, pixels, 0);
    for (group, dw) in dw.chunks_exact_mut((dw.len() / convolution.groups).max(1)).enumerate() {
        let weights = patches.weights(convolution, group);
        let rows = every(group * each, each, pixels);
        let places = Offsets::new((0..weights.len()).collect());
        let a = Gathered::new(g, &rows, &in_gradient);
        let b = Gathered::new(&patches.padded.data, &weights, &patches.pixels);
        // SAFETY: an ordinary row-major matrix.
        unsafe { gemm_scattered(a, b, dw, weights.len(), &places) };
    }
}

/// Zeros that the gradient needs around it so that every place an input could meet exists.
fn gradient_margin(axis: &Axis) -> (usize, usize) {
    let (mut before, mut after) = (0, 0);
    for phase in axis.phases() {
        let count = axis.of_phase(phase) as isize;
        for (_, shift) in axis.met_by(phase) {
            before = before.max(-shift);
            after = after.max(count + shift - axis.outputs() as isize);
        }
    }
    (before as usize, after as usize)
}

/// `dx += wᵀ ⋆ g`, for `dx` of [samples, inputs, height, width].
pub(crate) fn inputs<T: Element>(convolution: &Convolution, g: &[T], w: &[T], dx: &mut [T]) {
    if convolution.is_depthwise() {
        return depthwise::inputs(convolution, g, w, dx);
    }
    let (outputs, groups, taps) = (convolution.outputs, convolution.groups, convolution.taps());
    let (ins, outs) = (convolution.inputs / groups, outputs / groups);
    let [rows, columns] = convolution.axes;
    let plane = rows.size * columns.size;
    let samples = dx.len() / (convolution.inputs * plane).max(1);
    let margin = [rows, columns].map(|axis| gradient_margin(&axis));
    let padded = Padded::new(g, output_sides(convolution), margin);
    for (phase_row, phase_column) in rows.phases().flat_map(|i| columns.phases().map(move |j| (i, j))) {
        let grid = [rows.of_phase(phase_row), columns.of_phase(phase_column)];
        let (met_rows, met_columns) = (rows.met_by(phase_row), columns.met_by(phase_column));
        let in_gradient = pixels(samples, outputs * padded.plane, grid, [padded.width, 1], 0);
        let steps = [rows.stride * columns.size, columns.stride];
        for group in 0..groups {
            let start = group * ins * plane + phase_row * columns.size + phase_column;
            let places = pixels(samples, convolution.inputs * plane, grid, steps, start);
            // Weight (o, k) of the kernels turned around, and where its gradient lies.
            let (mut weight, mut gradient) = (Vec::new(), Vec::new());
            for output in group * outs..(group + 1) * outs {
                for &(i, down) in &met_rows {
                    let row = (down + margin[0].0 as isize) as usize * padded.width;
                    for &(j, right) in &met_columns {
                        weight.push(output * ins * taps + i * columns.kernel + j);
                        gradient.push(output * padded.plane + row + (right + margin[1].0 as isize) as usize);
                    }
                }
            }
            let (channels, weight, gradient) = (every(0, ins, taps), Offsets::new(weight), Offsets::new(gradient));
            let a = Gathered::new(w, &channels, &weight);
            let b = Gathered::new(&padded.data, &in_gradient, &gradient);
            // SAFETY: channels are a plane apart; the pixels of a phase are distinct places of one.
            unsafe { gemm_scattered(a, b, dx, plane, &places) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(len: usize, salt: usize) -> Vec<f64> {
        (0..len).map(|i| ((i * 7919 + salt * 104_729) % 2003) as f64 / 1001.5 - 1.0).collect()
    }

    /// Every (sample, output, input, tap, output pixel, input pixel) that meet.
    fn each(convolution: &Convolution, samples: usize, mut f: impl FnMut(usize, usize, usize)) {
        let [rows, columns] = convolution.axes;
        let (ins, outs) = (convolution.inputs / convolution.groups, convolution.outputs / convolution.groups);
        for (n, o) in (0..samples).flat_map(|n| (0..convolution.outputs).map(move |o| (n, o))) {
            for (c, i, j) in
                (0..ins).flat_map(|c| (0..rows.kernel).flat_map(move |i| (0..columns.kernel).map(move |j| (c, i, j))))
            {
                for (p, q) in (0..rows.outputs()).flat_map(|p| (0..columns.outputs()).map(move |q| (p, q))) {
                    let y = (p * rows.stride + i * rows.dilation).wrapping_sub(rows.before);
                    let x = (q * columns.stride + j * columns.dilation).wrapping_sub(columns.before);
                    if y < rows.size && x < columns.size {
                        let input = ((n * convolution.inputs + o / outs * ins + c) * rows.size + y) * columns.size + x;
                        let weight = ((o * ins + c) * rows.kernel + i) * columns.kernel + j;
                        let output = ((n * convolution.outputs + o) * rows.outputs() + p) * columns.outputs() + q;
                        f(input, weight, output);
                    }
                }
            }
        }
    }

    fn axis(size: usize, kernel: usize, stride: usize, before: usize, after: usize, dilation: usize) -> Axis {
        Axis { size, kernel, stride, before, after, dilation }
    }

    #[test]
    fn all_three_products_agree_with_loops() {
        let square = |axis| [axis, axis];
        let geometries = [
            (2, 3, 1, square(axis(5, 3, 1, 1, 1, 1))),
            (16, 9, 1, square(axis(16, 3, 1, 1, 1, 1))),
            (8, 16, 1, square(axis(8, 3, 2, 1, 1, 1))),
            (3, 8, 1, square(axis(9, 1, 2, 0, 0, 1))),
            (4, 6, 2, [axis(7, 3, 2, 0, 1, 1), axis(11, 2, 1, 1, 0, 2)]),
            (6, 6, 3, square(axis(8, 2, 3, 0, 0, 1))),
            (5, 5, 5, square(axis(9, 3, 1, 1, 1, 1))),
            (4, 8, 4, [axis(10, 5, 2, 2, 2, 1), axis(7, 3, 1, 0, 2, 2)]),
            (40, 33, 1, square(axis(4, 3, 1, 1, 1, 1))),
            (1, 1, 1, square(axis(3, 3, 1, 0, 0, 1))),
            (2, 2, 1, square(axis(6, 5, 1, 4, 4, 1))),
            // Many outputs of long sums over few pixels, which go another way through memory.
            (32, 130, 1, square(axis(9, 3, 1, 1, 1, 1))),
            // Steps longer than the image.
            (2, 3, 1, square(axis(3, 3, 7, 1, 1, 1))),
        ];
        for (inputs, outputs, groups, axes) in geometries {
            let convolution = Convolution { inputs, outputs, groups, axes };
            for samples in [1, 3] {
                let length = |shape: &[usize]| samples * shape.iter().product::<usize>();
                let x = ramp(length(&convolution.input_shape()), 1);
                let g = ramp(length(&convolution.output_shape()), 2);
                let w = ramp(convolution.weight_shape().iter().product(), 3);
                let (mut out, mut dx, mut dw) = (g.clone(), x.clone(), w.clone());
                each(&convolution, samples, |i, k, o| {
                    out[o] += w[k] * x[i];
                    dx[i] += w[k] * g[o];
                    dw[k] += g[o] * x[i];
                });
                // They add to what is there.
                let (mut out_found, mut dx_found, mut dw_found) = (g.clone(), x.clone(), w.clone());
                forward(&convolution, &x, &w, &mut out_found);
                super::inputs(&convolution, &g, &w, &mut dx_found);
                weights(&convolution, &g, &x, &mut dw_found);
                for (what, found, expected) in
                    [("forward", out_found, out), ("inputs", dx_found, dx), ("weights", dw_found, dw)]
                {
                    let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                    assert!(worst < 1e-11, "{what} of {convolution:?}, {samples} samples: off by {worst:e}");
                }
            }
        }
    }
}
