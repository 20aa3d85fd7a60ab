//! Sums in double precision, in a fixed order.

use rayon::prelude::*;

use super::element::Element;
use super::isa::Isa;
use super::{CHUNK, PARALLEL_FROM};

/// Independent partial sums a loop keeps, so that additions can overlap.
const LANES: usize = 16;

/// Σ f(a_i, b_i) in f64: chunk sums added in order, whatever the thread count.
fn sum2<T: Element>(a: &[T], b: &[T], f: impl Fn(f64, f64) -> f64 + Sync) -> f64 {
    assert_eq!(a.len(), b.len(), "reduced inputs differ in length");
    let isa = Isa::best();
    let work = |(a, b): (&[T], &[T])| {
        isa.vectorize(
            #[inline(always)]
            || {
                let mut lanes = [0.0_f64; LANES];
                let (a, a_rest) = a.as_chunks::<LANES>();
                let (b, b_rest) = b.as_chunks::<LANES>();
                for (a, b) in a.iter().zip(b) {
                    for i in 0..LANES {
                        lanes[i] += f(a[i].wide(), b[i].wide());
                    }
                }
                let rest: f64 = a_rest.iter().zip(b_rest).map(|(a, b)| f(a.wide(), b.wide())).sum();
                lanes.iter().sum::<f64>() + rest
            },
        )
    };
    if a.len() < PARALLEL_FROM {
        a.chunks(CHUNK).zip(b.chunks(CHUNK)).map(work).sum()
    } else {
        let partial: Vec<f64> = a.par_chunks(CHUNK).zip(b.par_chunks(CHUNK)).map(work).collect();
        partial.iter().sum()
    }
}

/// Σ a_i b_i.
pub(crate) fn dot<T: Element>(a: &[T], b: &[T]) -> f64 {
    sum2(
        a,
        b,
        #[inline(always)]
        |a, b| a * b,
    )
}

/// Σ (a_i − b_i)².
pub(crate) fn squared_distance<T: Element>(a: &[T], b: &[T]) -> f64 {
    sum2(
        a,
        b,
        #[inline(always)]
        |a, b| (a - b) * (a - b),
    )
}

/// The place of the first NaN or infinity, if there is one.
pub(crate) fn first_non_finite<T: Element>(a: &[T]) -> Option<usize> {
    // 0 · x is 0 for a finite number and NaN otherwise; `&` without a branch vectorises.
    a.chunks(CHUNK).enumerate().find_map(|(index, chunk)| {
        let clean = Isa::best().vectorize(
            #[inline(always)]
            || chunk.iter().fold(true, |clean, &x| clean & (x * T::ZERO == T::ZERO)),
        );
        if clean {
            return None;
        }
        chunk.iter().position(|x| !x.wide().is_finite()).map(|i| index * CHUNK + i)
    })
}

/// Columns a thread sums at a time.
const COLUMNS: usize = 256;

/// Σ_r x[r][j] for each column j of a row-major matrix.
pub(crate) fn column_sums<T: Element>(x: &[T], columns: usize) -> Vec<T> {
    let isa = Isa::best();
    let mut out = vec![T::ZERO; columns];
    let work = |(block, out): (usize, &mut [T])| {
        isa.vectorize(
            #[inline(always)]
            || {
                let mut sums = [0.0_f64; COLUMNS];
                let sums = &mut sums[..out.len()];
                let start = block * COLUMNS;
                for row in x.chunks_exact(columns) {
                    for (sum, value) in sums.iter_mut().zip(&row[start..start + out.len()]) {
                        *sum += value.wide();
                    }
                }
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out = T::of(*sum);
                }
            },
        );
    };
    if x.len() < PARALLEL_FROM {
        out.chunks_mut(COLUMNS).enumerate().for_each(work);
    } else {
        out.par_chunks_mut(COLUMNS).enumerate().for_each(work);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 37) % 101) as f32 / 101.0 - 0.3).collect()
    }

    #[test]
    fn sums_agree_with_the_naive_double_sum() {
        for len in [0, 1, 15, 16, 17, CHUNK + 3, PARALLEL_FROM + 1, 200_000] {
            let (a, b) = (ramp(len), ramp(len + 9)[9..].to_vec());
            let expected: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            assert!((dot(&a, &b) - expected).abs() <= 1e-12 * expected.abs().max(1.0));
            let expected: f64 = a.iter().zip(&b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
            assert!((squared_distance(&a, &b) - expected).abs() <= 1e-11 * expected.abs().max(1.0));
        }
    }

    #[test]
    fn column_sums_agree_with_a_loop() {
        for (rows, columns) in [(1, 1), (5, 3), (3, 257), (300, 513)] {
            let x = ramp(rows * columns);
            for (j, sum) in column_sums(&x, columns).iter().enumerate() {
                let expected: f64 = (0..rows).map(|r| f64::from(x[r * columns + j])).sum();
                assert!((f64::from(*sum) - expected).abs() < 1e-5 * expected.abs().max(1.0));
            }
        }
    }

    #[test]
    fn non_finite_numbers_are_found_where_they_are() {
        let mut x = ramp(3 * CHUNK);
        assert_eq!(first_non_finite(&x), None);
        x[2 * CHUNK + 7] = f32::NEG_INFINITY;
        assert_eq!(first_non_finite(&x), Some(2 * CHUNK + 7));
        x[5] = f32::NAN;
        assert_eq!(first_non_finite(&x), Some(5));
    }

    #[test]
    fn the_thread_count_changes_no_bit() {
        let a = ramp(300_000);
        let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap().install(|| dot(&a, &a));
        let three = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap().install(|| dot(&a, &a));
        assert_eq!(one.to_bits(), three.to_bits());
    }
}
