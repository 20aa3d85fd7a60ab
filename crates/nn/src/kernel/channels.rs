//! Loops over [batch, channels, pixels] where each channel has numbers of its own.

use std::mem::MaybeUninit;

use rayon::prelude::*;

use super::element::{Element, flush};
use super::isa::Isa;
use super::{CHUNK, PARALLEL_FROM};

/// One number for each channel, or one for all.
#[inline(always)]
fn of_channel<T: Copy>(numbers: &[T], channel: usize) -> T {
    if numbers.len() == 1 { numbers[0] } else { numbers[channel] }
}

/// Σ_t x_t ⊙ factor_t (+ shift), element by element, in one pass.
///
/// Inputs are [batch, channels, pixels]; factors and shift have `channels` numbers, or one.
pub(crate) fn combine<T: Element, const N: usize>(
    terms: [(&[T], &[T]); N],
    shift: Option<&[T]>,
    channels: usize,
    pixels: usize,
) -> Vec<T> {
    let len = terms.first().map_or(0, |(x, _)| x.len());
    let row = channels * pixels;
    assert!(row > 0 && len.is_multiple_of(row), "channels and pixels divide the input");
    let fits = |numbers: &[T]| numbers.len() == 1 || numbers.len() == channels;
    assert!(terms.iter().all(|(x, factors)| x.len() == len && fits(factors)) && shift.is_none_or(fits));
    let isa = Isa::best();
    let mut out: Vec<T> = Vec::with_capacity(len);
    // Whole samples a task, or whole channels of one: cut by size alone.
    let unit = if pixels == 1 { row } else { pixels };
    let per_task = (CHUNK / unit).max(1) * unit;
    let work = |(index, out): (usize, &mut [MaybeUninit<T>])| {
        isa.vectorize(
            #[inline(always)]
            || {
                let first = index * per_task;
                for (place, out) in out.chunks_exact_mut(unit).enumerate() {
                    let start = first + place * unit;
                    let inputs = terms.map(
                        #[inline(always)]
                        |(x, _)| &x[start..start + unit],
                    );
                    if pixels == 1 {
                        for (channel, out) in out.iter_mut().enumerate() {
                            let mut sum = shift.map_or(T::ZERO, |shift| of_channel(shift, channel));
                            for (input, (_, factors)) in inputs.iter().zip(terms) {
                                sum = of_channel(factors, channel).fma(input[channel], sum);
                            }
                            out.write(flush(sum));
                        }
                    } else {
                        let channel = start / pixels % channels;
                        let factors = terms.map(
                            #[inline(always)]
                            |(_, factors)| of_channel(factors, channel),
                        );
                        let shift = shift.map_or(T::ZERO, |shift| of_channel(shift, channel));
                        for (i, out) in out.iter_mut().enumerate() {
                            let mut sum = shift;
                            for (input, factor) in inputs.iter().zip(factors) {
                                sum = factor.fma(input[i], sum);
                            }
                            out.write(flush(sum));
                        }
                    }
                }
            },
        );
    };
    let spare = &mut out.spare_capacity_mut()[..len];
    if len < PARALLEL_FROM {
        spare.chunks_mut(per_task).enumerate().for_each(work);
    } else {
        spare.par_chunks_mut(per_task).enumerate().for_each(work);
    }
    // SAFETY: `len` and `per_task` are multiples of `unit`, so that every element was written.
    unsafe { out.set_len(len) };
    out
}

/// Σ f(a, b) over batch and pixels, for each channel, in double precision.
fn reduce<T: Element>(
    a: &[T],
    b: &[T],
    channels: usize,
    pixels: usize,
    f: impl Fn(f64, f64) -> f64 + Sync,
) -> Vec<f64> {
    /// Strands that are added up side by side.
    const LANES: usize = 16;
    assert!(a.len() == b.len() && channels * pixels > 0, "reduced inputs differ in length");
    let (isa, row) = (Isa::best(), channels * pixels);
    if pixels == 1 {
        // Rows of features: a channel's numbers are far apart, a sample's side by side.
        return isa.vectorize(
            #[inline(always)]
            || {
                let mut sums = vec![0.0_f64; channels];
                for (a, b) in a.chunks_exact(row).zip(b.chunks_exact(row)) {
                    for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
                        *sum += f(a.wide(), b.wide());
                    }
                }
                sums
            },
        );
    }
    let of_channel = |channel: usize| {
        isa.vectorize(
            #[inline(always)]
            || {
                let mut strands = [0.0_f64; LANES];
                let mut rest = 0.0;
                for start in (channel * pixels..a.len()).step_by(row) {
                    let (a, a_rest) = a[start..start + pixels].as_chunks::<LANES>();
                    let (b, b_rest) = b[start..start + pixels].as_chunks::<LANES>();
                    for (a, b) in a.iter().zip(b) {
                        for i in 0..LANES {
                            strands[i] += f(a[i].wide(), b[i].wide());
                        }
                    }
                    for (a, b) in a_rest.iter().zip(b_rest) {
                        rest += f(a.wide(), b.wide());
                    }
                }
                strands.iter().sum::<f64>() + rest
            },
        )
    };
    if a.len() < PARALLEL_FROM {
        (0..channels).map(of_channel).collect()
    } else {
        (0..channels).into_par_iter().map(of_channel).collect()
    }
}

/// Σ x over batch and pixels, for each channel.
pub(crate) fn sums<T: Element>(x: &[T], channels: usize, pixels: usize) -> Vec<f64> {
    reduce(
        x,
        x,
        channels,
        pixels,
        #[inline(always)]
        |x, _| x,
    )
}

/// Σ a b over batch and pixels, for each channel.
pub(crate) fn dots<T: Element>(a: &[T], b: &[T], channels: usize, pixels: usize) -> Vec<f64> {
    reduce(
        a,
        b,
        channels,
        pixels,
        #[inline(always)]
        |a, b| a * b,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(len: usize, salt: usize) -> Vec<f64> {
        (0..len).map(|i| ((i * 37 + salt * 11) % 101) as f64 / 101.0 - 0.3).collect()
    }

    #[test]
    fn every_element_sees_its_own_channel() {
        for (batch, channels, pixels) in [(1, 1, 1), (3, 5, 1), (2, 3, 7), (4, 130, 1), (3, 4, 6000), (2, 3, 20_000)] {
            let (a, b) = (ramp(batch * channels * pixels, 1), ramp(batch * channels * pixels, 2));
            let (f, g, s) = (ramp(channels, 3), ramp(1, 4), ramp(channels, 5));
            let out = combine([(&a, &f), (&b, &g)], Some(&s), channels, pixels);
            let (sums, dots) = (sums(&a, channels, pixels), dots(&a, &b, channels, pixels));
            let mut expected = vec![(0.0, 0.0); channels];
            for (i, out) in out.iter().enumerate() {
                let channel = i / pixels % channels;
                assert!((out - (a[i] * f[channel] + b[i] * g[0] + s[channel])).abs() < 1e-14);
                expected[channel].0 += a[i];
                expected[channel].1 += a[i] * b[i];
            }
            for channel in 0..channels {
                assert!((sums[channel] - expected[channel].0).abs() < 1e-9);
                assert!((dots[channel] - expected[channel].1).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn the_thread_count_changes_no_bit() {
        let (a, f) = (ramp(3 * 7 * 9001, 1), ramp(7, 2));
        let run = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| (combine([(&a, &f)], None, 7, 9001), dots(&a, &a, 7, 9001)))
        };
        assert_eq!(run(1), run(3));
    }
}
