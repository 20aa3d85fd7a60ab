//! Square blocks of a matrix, transposed in vector registers.
//!
//! Packing a factor whose rows lie the wrong way is a transpose; element by element it costs as much as
//! the arithmetic of forty rows. In registers it is a few shuffles for each vector.

use super::element::Element;
#[cfg(target_arch = "x86_64")]
use super::isa::Isa;

/// The part of a strip that whole blocks cover: so many rows, and so many steps of k.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Covered {
    pub(super) rows: usize,
    pub(super) depth: usize,
}

/// `packed[k * width + j] = source[j * stride + k]` for as many of `rows` and `depth` as whole blocks cover on
/// this processor; the rest is the caller's.
pub(super) fn blocks<T: Element>(
    source: &[T],
    stride: usize,
    rows: usize,
    width: usize,
    depth: usize,
    packed: &mut [T],
) -> Covered {
    #[cfg(target_arch = "x86_64")]
    {
        let (block, single) = match (Isa::best(), size_of::<T>()) {
            (Isa::Avx512(_), 4) if width.is_multiple_of(16) => (16, true),
            (Isa::Avx512(_) | Isa::Avx2(_), 4) => (8, true),
            (Isa::Avx512(_), 8) => (8, false),
            _ => return Covered::default(),
        };
        let covered = Covered { rows: rows / block * block, depth: depth / block * block };
        if covered.rows == 0 || covered.depth == 0 || covered.rows > width {
            return Covered::default();
        }
        assert!(source.len() >= (covered.rows - 1) * stride + covered.depth, "the blocks lie inside the source");
        assert!(packed.len() >= (covered.depth - 1) * width + covered.rows, "the blocks lie inside the strip");
        for j in (0..covered.rows).step_by(block) {
            for k in (0..covered.depth).step_by(block) {
                // SAFETY: the block lies inside both slices, as was just checked for the last of them; T is the f32 or
                // f64 of its size (`Element` is sealed), and an `Isa` is proof of the instructions.
                unsafe {
                    let (from, to) = (source.as_ptr().add(j * stride + k), packed.as_mut_ptr().add(k * width + j));
                    match (block, single) {
                        (16, _) => x86::single_16(from.cast(), stride, to.cast(), width),
                        (_, true) => x86::single_8(from.cast(), stride, to.cast(), width),
                        (_, false) => x86::double_8(from.cast(), stride, to.cast(), width),
                    }
                }
            }
        }
        covered
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (source, stride, rows, width, depth, packed);
        Covered::default()
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::array::from_fn;

    /// Four vectors of four quarters, transposed: the first has the first quarter of each.
    #[target_feature(enable = "avx512f")]
    fn by_quarters([a, b, c, d]: [__m512d; 4]) -> [__m512d; 4] {
        let (even, odd) = (_mm512_shuffle_f64x2::<0x88>(a, b), _mm512_shuffle_f64x2::<0xdd>(a, b));
        let (even2, odd2) = (_mm512_shuffle_f64x2::<0x88>(c, d), _mm512_shuffle_f64x2::<0xdd>(c, d));
        [
            _mm512_shuffle_f64x2::<0x88>(even, even2),
            _mm512_shuffle_f64x2::<0x88>(odd, odd2),
            _mm512_shuffle_f64x2::<0xdd>(even, even2),
            _mm512_shuffle_f64x2::<0xdd>(odd, odd2),
        ]
    }

    /// 16 × 16 singles.
    ///
    /// # Safety
    /// 16 rows of 16 elements, `stride` apart, can be read; 16 rows, `width` apart, can be written.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn single_16(from: *const f32, stride: usize, to: *mut f32, width: usize) {
        // SAFETY: the caller's promise.
        let r: [__m512; 16] = from_fn(|i| unsafe { _mm512_loadu_ps(from.add(i * stride)) });
        // Pairs of rows, then fours: u[4i + c] has, in its L-th quarter, column 4L + c of rows 4i to 4i + 3.
        let t: [__m512; 16] = from_fn(|i| match i % 2 {
            0 => _mm512_unpacklo_ps(r[i], r[i + 1]),
            _ => _mm512_unpackhi_ps(r[i - 1], r[i]),
        });
        let u: [__m512d; 16] = from_fn(|i| {
            let first = i / 4 * 4 + i % 4 / 2;
            let (a, b) = (_mm512_castps_pd(t[first]), _mm512_castps_pd(t[first + 2]));
            if i % 2 == 0 { _mm512_unpacklo_pd(a, b) } else { _mm512_unpackhi_pd(a, b) }
        });
        for c in 0..4 {
            let columns = by_quarters([u[c], u[4 + c], u[8 + c], u[12 + c]]);
            for (quarter, column) in columns.into_iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { _mm512_storeu_ps(to.add((4 * quarter + c) * width), _mm512_castpd_ps(column)) };
            }
        }
    }

    /// 8 × 8 singles.
    ///
    /// # Safety
    /// 8 rows of 8 elements, `stride` apart, can be read; 8 rows, `width` apart, can be written.
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn single_8(from: *const f32, stride: usize, to: *mut f32, width: usize) {
        // SAFETY: the caller's promise.
        let r: [__m256; 8] = from_fn(|i| unsafe { _mm256_loadu_ps(from.add(i * stride)) });
        let t: [__m256; 8] = from_fn(|i| match i % 2 {
            0 => _mm256_unpacklo_ps(r[i], r[i + 1]),
            _ => _mm256_unpackhi_ps(r[i - 1], r[i]),
        });
        let u: [__m256; 8] = from_fn(|i| {
            let first = i / 4 * 4 + i % 4 / 2;
            let (a, b) = (t[first], t[first + 2]);
            if i % 2 == 0 { _mm256_shuffle_ps::<0x44>(a, b) } else { _mm256_shuffle_ps::<0xee>(a, b) }
        });
        for c in 0..4 {
            let (low, high) =
                (_mm256_permute2f128_ps::<0x20>(u[c], u[4 + c]), _mm256_permute2f128_ps::<0x31>(u[c], u[4 + c]));
            // SAFETY: the caller's promise.
            unsafe {
                _mm256_storeu_ps(to.add(c * width), low);
                _mm256_storeu_ps(to.add((4 + c) * width), high);
            }
        }
    }

    /// 8 × 8 doubles.
    ///
    /// # Safety
    /// As [`single_8`].
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn double_8(from: *const f64, stride: usize, to: *mut f64, width: usize) {
        // SAFETY: the caller's promise.
        let r: [__m512d; 8] = from_fn(|i| unsafe { _mm512_loadu_pd(from.add(i * stride)) });
        // t[2i + c] has, in its L-th quarter, column 2L + c of rows 2i and 2i + 1.
        let t: [__m512d; 8] = from_fn(|i| match i % 2 {
            0 => _mm512_unpacklo_pd(r[i], r[i + 1]),
            _ => _mm512_unpackhi_pd(r[i - 1], r[i]),
        });
        for c in 0..2 {
            let columns = by_quarters([t[c], t[2 + c], t[4 + c], t[6 + c]]);
            for (quarter, column) in columns.into_iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { _mm512_storeu_pd(to.add((2 * quarter + c) * width), column) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Element>(rows: usize, width: usize, depth: usize, stride: usize) -> Covered {
        let source: Vec<T> = (0..rows * stride).map(|i| T::of(i as f64)).collect();
        let mut packed = vec![T::of(-1.0); width * depth];
        let covered = blocks(&source, stride, rows, width, depth, &mut packed);
        for (place, &found) in packed.iter().enumerate() {
            let (k, j) = (place / width, place % width);
            let inside = j < covered.rows && k < covered.depth;
            let expected = if inside { T::of((j * stride + k) as f64) } else { T::of(-1.0) };
            assert!(found == expected, "{rows} rows of {width}, depth {depth}: at {j}, {k}");
        }
        covered
    }

    #[test]
    fn blocks_are_transposed_and_nothing_else_is_touched() {
        let mut most = Covered::default();
        for (rows, width) in [(48, 48), (16, 16), (37, 48), (8, 8), (5, 8), (24, 24), (12, 12), (7, 24)] {
            for depth in [1, 7, 8, 16, 33, 64] {
                let covered = [check::<f32>(rows, width, depth, depth), check::<f64>(rows, width, depth, depth + 3)];
                most = covered.into_iter().fold(most, |most, own| if own.rows > most.rows { own } else { most });
            }
        }
        #[cfg(target_arch = "x86_64")]
        assert!(matches!(Isa::best(), Isa::Portable) || most.rows >= 8, "{most:?}");
    }
}
