//! Convolution where each input channel has kernels of its own: too little work an
//! element for a matrix product, so rows of pixels are added up directly.

use rayon::prelude::*;

use super::PARALLEL_FROM;
use super::element::Element;
use super::isa::Isa;
use crate::convolution::{Axis, Convolution};

/// Output columns that meet an input column under tap `j`, and the first such input.
fn meeting(axis: &Axis, tap: usize) -> (std::ops::Range<usize>, usize) {
    let shift = tap * axis.dilation;
    let first = axis.before.saturating_sub(shift).div_ceil(axis.stride);
    // The last place whose input place · stride + shift − before is below the size.
    let end = (axis.size + axis.before).saturating_sub(shift).div_ceil(axis.stride).min(axis.outputs());
    (first..end.max(first), (first * axis.stride + shift).saturating_sub(axis.before))
}

/// Calls `f` with a tap and the rows that meet under it: (tap, output range, input start, steps between inputs).
#[inline(always)]
fn each_row([rows, columns]: [Axis; 2], mut f: impl FnMut(usize, std::ops::Range<usize>, usize, usize)) {
    let (row_taps, column_taps) = (rows.kernel, columns.kernel);
    for i in 0..row_taps {
        let (places, first_row) = meeting(&rows, i);
        for j in 0..column_taps {
            let (across, first_column) = meeting(&columns, j);
            if across.is_empty() {
                continue;
            }
            for (step, place) in places.clone().enumerate() {
                let output = place * columns.outputs();
                let input = (first_row + step * rows.stride) * columns.size + first_column;
                f(i * column_taps + j, output + across.start..output + across.end, input, columns.stride);
            }
        }
    }
}

/// Runs `task` on every chunk, in parallel where there is enough to do.
fn each_chunk<T: Element>(out: &mut [T], chunk: usize, task: impl Fn(usize, &mut [T]) + Sync) {
    let isa = Isa::best();
    let work = |(index, chunk): (usize, &mut [T])| {
        isa.vectorize(
            #[inline(always)]
            || task(index, chunk),
        );
    };
    if chunk == 0 {
        return;
    }
    if out.len() < PARALLEL_FROM {
        out.chunks_exact_mut(chunk).enumerate().for_each(work);
    } else {
        out.par_chunks_exact_mut(chunk).enumerate().for_each(work);
    }
}

pub(super) fn forward<T: Element>(convolution: &Convolution, x: &[T], w: &[T], out: &mut [T]) {
    let (taps, each) = (convolution.taps(), convolution.outputs / convolution.inputs);
    let plane = convolution.axes[0].size * convolution.axes[1].size;
    let axes = convolution.axes;
    each_chunk(
        out,
        convolution.pixels(),
        #[inline(always)]
        |index, out| {
            let output = index % convolution.outputs;
            let x = &x[index / each * plane..][..plane];
            let w = &w[output * taps..][..taps];
            each_row(
                axes,
                #[inline(always)]
                |tap, places, input, step| {
                    let count = places.len();
                    let (out, weight) = (&mut out[places], w[tap]);
                    if step == 1 {
                        for (out, &x) in out.iter_mut().zip(&x[input..input + count]) {
                            *out = weight.fma(x, *out);
                        }
                    } else {
                        for (out, &x) in out.iter_mut().zip(x[input..].iter().step_by(step)) {
                            *out = weight.fma(x, *out);
                        }
                    }
                },
            );
        },
    );
}

pub(super) fn inputs<T: Element>(convolution: &Convolution, g: &[T], w: &[T], dx: &mut [T]) {
    let (taps, each, pixels) = (convolution.taps(), convolution.outputs / convolution.inputs, convolution.pixels());
    let axes = convolution.axes;
    each_chunk(
        dx,
        convolution.axes[0].size * convolution.axes[1].size,
        #[inline(always)]
        |index, dx| {
            for one in 0..each {
                let g = &g[(index * each + one) * pixels..][..pixels];
                let output = index % convolution.inputs * each + one;
                let w = &w[output * taps..][..taps];
                each_row(
                    axes,
                    #[inline(always)]
                    |tap, places, input, step| {
                        let count = places.len();
                        let (g, weight) = (&g[places], w[tap]);
                        if step == 1 {
                            for (dx, &g) in dx[input..input + count].iter_mut().zip(g) {
                                *dx = weight.fma(g, *dx);
                            }
                        } else {
                            for (dx, &g) in dx[input..].iter_mut().step_by(step).zip(g) {
                                *dx = weight.fma(g, *dx);
                            }
                        }
                    },
                );
            }
        },
    );
}

pub(super) fn weights<T: Element>(convolution: &Convolution, g: &[T], x: &[T], dw: &mut [T]) {
    let (taps, each, pixels) = (convolution.taps(), convolution.outputs / convolution.inputs, convolution.pixels());
    let plane = convolution.axes[0].size * convolution.axes[1].size;
    let samples = g.len() / (convolution.outputs * pixels).max(1);
    let axes = convolution.axes;
    let isa = Isa::best();
    let work = |(output, dw): (usize, &mut [T])| {
        isa.vectorize(
            #[inline(always)]
            || {
                for n in 0..samples {
                    let g = &g[(n * convolution.outputs + output) * pixels..][..pixels];
                    let x = &x[(n * convolution.inputs + output / each) * plane..][..plane];
                    each_row(
                        axes,
                        #[inline(always)]
                        |tap, places, input, step| {
                            let count = places.len();
                            let g = &g[places];
                            dw[tap] += if step == 1 {
                                dot(g, &x[input..input + count])
                            } else {
                                g.iter()
                                    .zip(x[input..].iter().step_by(step))
                                    .fold(T::ZERO, |sum, (&g, &x)| g.fma(x, sum))
                            };
                        },
                    );
                }
            },
        );
    };
    if g.len() < PARALLEL_FROM {
        dw.chunks_exact_mut(taps).enumerate().for_each(work);
    } else {
        dw.par_chunks_exact_mut(taps).enumerate().for_each(work);
    }
}

/// Σ a b in eight strands, which vectorise.
#[inline(always)]
fn dot<T: Element>(a: &[T], b: &[T]) -> T {
    let mut strands = [T::ZERO; 8];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    for (a, b) in a.iter().zip(b) {
        for (strand, (&a, &b)) in strands.iter_mut().zip(a.iter().zip(b)) {
            *strand = a.fma(b, *strand);
        }
    }
    let rest = a_rest.iter().zip(b_rest).fold(T::ZERO, |sum, (&a, &b)| a.fma(b, sum));
    strands.into_iter().fold(rest, |sum, strand| sum + strand)
}
