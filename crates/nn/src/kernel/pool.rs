//! Pooling and its adjoint, plane by plane.

use rayon::prelude::*;

use super::PARALLEL_FROM;
use super::element::Element;
use super::isa::Isa;
use crate::windows::Windows;

/// One output plane from each input plane.
fn planes<T: Element>(
    inputs: [&[T]; 2],
    plane: [usize; 2],
    out: usize,
    f: impl Fn([&[T]; 2], &mut [T]) + Sync,
) -> Vec<T> {
    let count = inputs[0].len() / plane[0].max(1);
    let mut result = vec![T::ZERO; count * out];
    let isa = Isa::best();
    let work = |(index, out): (usize, &mut [T])| {
        let part = |which: usize| &inputs[which][index * plane[which]..][..plane[which]];
        isa.vectorize(
            #[inline(always)]
            || f([part(0), part(1)], out),
        );
    };
    if out == 0 {
        return result;
    }
    if inputs[0].len() < PARALLEL_FROM {
        result.chunks_exact_mut(out).enumerate().for_each(work);
    } else {
        result.par_chunks_exact_mut(out).enumerate().with_min_len(4).for_each(work);
    }
    result
}

fn sizes(windows: &Windows) -> (usize, usize) {
    (windows.size[0] * windows.size[1], windows.count()[0] * windows.count()[1])
}

/// Each window's scaled sum.
pub(crate) fn pool<T: Element>(windows: &Windows, x: &[T]) -> Vec<T> {
    let (plane, count) = sizes(windows);
    let width = windows.size[1];
    planes(
        [x, x],
        [plane, plane],
        count,
        #[inline(always)]
        |[x, _], out| {
            let mut out = out.iter_mut();
            for rows in windows.rows.iter() {
                for columns in windows.columns.iter() {
                    let mut sum = T::ZERO;
                    for row in rows.clone() {
                        for &value in &x[row * width..][columns.clone()] {
                            sum += value;
                        }
                    }
                    if let Some(out) = out.next() {
                        *out = sum * T::of(windows.scale_of(rows, columns));
                    }
                }
            }
        },
    )
}

/// Each window's scaled value added to all its pixels: the adjoint of [`pool`].
pub(crate) fn spread<T: Element>(windows: &Windows, g: &[T]) -> Vec<T> {
    let (plane, count) = sizes(windows);
    let width = windows.size[1];
    planes(
        [g, g],
        [count, count],
        plane,
        #[inline(always)]
        |[g, _], out| {
            let mut g = g.iter();
            for rows in windows.rows.iter() {
                for columns in windows.columns.iter() {
                    let Some(&value) = g.next() else { return };
                    let value = value * T::of(windows.scale_of(rows, columns));
                    for row in rows.clone() {
                        for out in &mut out[row * width..][columns.clone()] {
                            *out += value;
                        }
                    }
                }
            }
        },
    )
}

/// The place of each window's first largest value.
#[inline(always)]
fn each_largest<T: Element>(windows: &Windows, x: &[T], mut f: impl FnMut(usize, usize)) {
    let width = windows.size[1];
    let mut window = 0;
    for rows in windows.rows.iter() {
        for columns in windows.columns.iter() {
            let mut best = rows.start * width + columns.start;
            for row in rows.clone() {
                for place in row * width + columns.start..row * width + columns.end {
                    // Not a number counts as largest, so that it is not lost.
                    if x[place] > x[best] || (x[place].wide().is_nan() && !x[best].wide().is_nan()) {
                        best = place;
                    }
                }
            }
            f(window, best);
            window += 1;
        }
    }
}

/// From each window the element of `of` where `x` is largest.
pub(crate) fn take_largest<T: Element>(windows: &Windows, x: &[T], of: &[T]) -> Vec<T> {
    let (plane, count) = sizes(windows);
    planes(
        [x, of],
        [plane, plane],
        count,
        #[inline(always)]
        |[x, of], out| {
            each_largest(
                windows,
                x,
                #[inline(always)]
                |window, place| out[window] = of[place],
            )
        },
    )
}

/// Each window's value put where `x` is largest: the adjoint of [`take_largest`] in `of`.
pub(crate) fn put_largest<T: Element>(windows: &Windows, x: &[T], g: &[T]) -> Vec<T> {
    let (plane, count) = sizes(windows);
    planes(
        [x, g],
        [plane, count],
        plane,
        #[inline(always)]
        |[x, g], out| {
            each_largest(
                windows,
                x,
                #[inline(always)]
                |window, place| out[place] += g[window],
            )
        },
    )
}
