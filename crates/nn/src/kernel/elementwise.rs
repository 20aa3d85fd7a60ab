//! Elementwise loops: one pass over memory each, vectorised for the processor at hand.
//!
//! Closures handed in must be `#[inline(always)]`: only what is inlined into the
//! loop is compiled for the processor's vector instructions.

use std::mem::MaybeUninit;

use rayon::prelude::*;

use super::element::Element;
use super::isa::Isa;
use super::{CHUNK, PARALLEL_FROM};

/// `out[i] = f([inputs[0][i], …])`.
///
/// All inputs must have one length; the caller has checked shapes.
pub(crate) fn map<T: Element, const N: usize>(inputs: [&[T]; N], f: impl Fn([T; N]) -> T + Sync) -> Vec<T> {
    let [out] = map_many(
        inputs,
        #[inline(always)]
        |x| [f(x)],
    );
    out
}

/// `(out_0[i], …) = f([inputs[0][i], …])`: several results from one pass.
pub(crate) fn map_many<T: Element, const N: usize, const M: usize>(
    inputs: [&[T]; N],
    f: impl Fn([T; N]) -> [T; M] + Sync,
) -> [Vec<T>; M] {
    let len = inputs.first().map_or(0, |input| input.len());
    assert!(inputs.iter().all(|input| input.len() == len), "elementwise inputs differ in length");
    let isa = Isa::best();
    let mut out: [Vec<T>; M] = std::array::from_fn(|_| Vec::with_capacity(len));
    {
        let chunks: Vec<(usize, [&mut [MaybeUninit<T>]; M])> = split(&mut out, len);
        let work = |(start, mut out): (usize, [&mut [MaybeUninit<T>]; M])| {
            isa.vectorize(
                #[inline(always)]
                || fill(&mut out, inputs.map(|input| &input[start..]), &f),
            );
        };
        if len < PARALLEL_FROM { chunks.into_iter().for_each(work) } else { chunks.into_par_iter().for_each(work) }
    }
    for vector in &mut out {
        // SAFETY: the chunks cover 0..len of every vector's spare capacity, and
        // `fill` wrote each of their elements.
        unsafe { vector.set_len(len) };
    }
    out
}

/// Cuts the spare capacity of the outputs into equal chunks that can be filled apart.
fn split<T, const M: usize>(out: &mut [Vec<T>; M], len: usize) -> Vec<(usize, [&mut [MaybeUninit<T>]; M])> {
    let mut rest = out.each_mut().map(|vector| &mut vector.spare_capacity_mut()[..len]);
    let mut chunks = Vec::with_capacity(len.div_ceil(CHUNK));
    let mut start = 0;
    while start < len {
        let take = CHUNK.min(len - start);
        let mut tails: [&mut [MaybeUninit<T>]; M] = std::array::from_fn(|_| Default::default());
        let mut heads: [&mut [MaybeUninit<T>]; M] = std::array::from_fn(|_| Default::default());
        for ((head, tail), whole) in heads.iter_mut().zip(&mut tails).zip(rest) {
            (*head, *tail) = whole.split_at_mut(take);
        }
        chunks.push((start, heads));
        rest = tails;
        start += take;
    }
    chunks
}

#[inline(always)]
fn fill<T: Element, const N: usize, const M: usize>(
    out: &mut [&mut [MaybeUninit<T>]; M],
    inputs: [&[T]; N],
    f: &impl Fn([T; N]) -> [T; M],
) {
    let len = out.first().map_or(0, |slice| slice.len());
    let inputs = inputs.map(|input| &input[..len]);
    let mut out = out.each_mut().map(|slice| &mut slice[..len]);
    for i in 0..len {
        let values = f(inputs.map(
            #[inline(always)]
            |input| input[i],
        ));
        for (slice, value) in out.iter_mut().zip(values) {
            slice[i].write(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_writes_every_element_of_every_output() {
        for len in [0, 1, 7, CHUNK, CHUNK + 1, PARALLEL_FROM, 3 * CHUNK + 5] {
            let a: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let b: Vec<f32> = (0..len).map(|i| 0.5 * i as f32).collect();
            let [sum, difference] = map_many([&a, &b], |[a, b]| [a + b, a - b]);
            for i in 0..len {
                assert_eq!((sum[i], difference[i]), (a[i] + b[i], a[i] - b[i]));
            }
        }
    }
}
