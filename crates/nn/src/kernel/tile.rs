//! The inner loop: an MR x NR tile of the product, held in vector registers.

use pulp::Simd;

use super::element::Element;

/// What happens to a tile once its sum over this block of k is complete.
#[derive(Clone, Copy)]
pub(super) struct Finish<T> {
    /// Add to what is in the output already (a later block of k, or a sum of products).
    pub(super) accumulate: bool,
    /// One value for each column, added to every row; starts at the tile's first column.
    pub(super) bias: Option<*const T>,
    /// Subtract the target, which has the output's layout and starts at the tile's
    /// corner; then multiply by the scale. The squared differences are summed.
    pub(super) residual: Option<(*const T, T)>,
}

/// Where a tile goes: its corner in the output, and how much of it exists.
#[derive(Clone, Copy)]
pub(super) struct Place<T> {
    pub(super) corner: *mut T,
    /// Distance between neighbouring rows.
    pub(super) stride: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// How far from the corner's row each column lies; `None`: side by side.
    pub(super) table: Option<Table>,
}

impl<T> Place<T> {
    /// # Safety
    /// `column < self.columns`.
    #[inline(always)]
    unsafe fn offset(&self, row: usize, column: usize) -> usize {
        row * self.stride
            + match self.table {
                None => column,
                // SAFETY: the table has an entry for every column of the tile.
                Some(table) => unsafe { table.offsets.add(column).read() },
            }
    }
}

/// Columns that do not lie side by side.
#[derive(Clone, Copy)]
pub(super) struct Table {
    /// One entry for each column of the tile.
    pub(super) offsets: *const usize,
    /// So many neighbours lie side by side, counted from the tile's first column.
    pub(super) run: usize,
}

/// Multiplies a packed strip of A (MR wide) with one of B (NV vectors wide) and
/// writes the tile. Returns Σ (AB − T)² over the tile for a residual, else 0.
///
/// # Safety
/// `a` and `b` hold as many steps of k; `place` and the pointers in `finish`
/// are valid for `rows` x `columns` elements, and nobody else writes there.
/// Without `finish.accumulate` the output may be uninitialised.
#[inline(always)]
pub(super) unsafe fn multiply<S: Simd, T: Element, const MR: usize, const NV: usize>(
    simd: S,
    a: &[T],
    b: &[T],
    place: Place<T>,
    finish: Finish<T>,
) -> f64 {
    let lanes = size_of::<T::Vector<S>>() / size_of::<T>();
    let zero = T::v_splat(simd, T::ZERO);
    let mut sums = [[zero; NV]; MR];
    let (a, _) = a.as_chunks::<MR>();
    for (a, b) in a.iter().zip(b.chunks_exact(NV * lanes)) {
        // SAFETY: `b` is NV vectors long, and vectors of plain numbers may be
        // read from any address that holds that many.
        let b: [T::Vector<S>; NV] =
            std::array::from_fn(|j| unsafe { b.as_ptr().add(j * lanes).cast::<T::Vector<S>>().read_unaligned() });
        for (sums, &a) in sums.iter_mut().zip(a) {
            let a = T::v_splat(simd, a);
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum = T::v_mul_add(simd, a, b, *sum);
            }
        }
    }
    let by_vectors = place.table.is_none_or(|table| table.run >= lanes);
    if place.rows == MR && place.columns == NV * lanes && by_vectors {
        // SAFETY: the caller's promise, for a tile that exists whole.
        unsafe { write_whole::<S, T, MR, NV>(simd, sums, place, finish) }
    } else {
        // SAFETY: as above; the rim writes only the rows and columns that exist.
        unsafe { write_rim::<S, T, MR, NV>(sums, place, finish) }
    }
}

/// # Safety
/// As [`multiply`], with a tile that lies wholly inside the output, each vector side by side.
#[inline(always)]
unsafe fn write_whole<S: Simd, T: Element, const MR: usize, const NV: usize>(
    simd: S,
    sums: [[T::Vector<S>; NV]; MR],
    place: Place<T>,
    finish: Finish<T>,
) -> f64 {
    let lanes = size_of::<T::Vector<S>>() / size_of::<T>();
    let mut squares = T::v_splat(simd, T::ZERO);
    for (row, sums) in sums.into_iter().enumerate() {
        for (j, mut value) in sums.into_iter().enumerate() {
            // SAFETY: row < MR = place.rows and j * lanes < place.columns.
            unsafe {
                let offset = place.offset(row, j * lanes);
                let out = place.corner.add(offset).cast::<T::Vector<S>>();
                if finish.accumulate {
                    value = T::v_add(simd, value, out.read_unaligned());
                }
                if let Some(bias) = finish.bias {
                    value = T::v_add(simd, value, bias.add(j * lanes).cast::<T::Vector<S>>().read_unaligned());
                }
                if let Some((target, scale)) = finish.residual {
                    value = T::v_sub(simd, value, target.add(offset).cast::<T::Vector<S>>().read_unaligned());
                    squares = T::v_mul_add(simd, value, value, squares);
                    value = T::v_mul(simd, value, T::v_splat(simd, scale));
                }
                out.write_unaligned(value);
            }
        }
    }
    T::v_sum(simd, squares).wide()
}

/// # Safety
/// As [`multiply`].
#[inline(always)]
unsafe fn write_rim<S: Simd, T: Element, const MR: usize, const NV: usize>(
    sums: [[T::Vector<S>; NV]; MR],
    place: Place<T>,
    finish: Finish<T>,
) -> f64 {
    let lanes = size_of::<T::Vector<S>>() / size_of::<T>();
    let mut squares = 0.0;
    for (row, sums) in sums.iter().enumerate().take(place.rows) {
        // SAFETY: NV vectors are NV * lanes plain numbers.
        let sums = unsafe { std::slice::from_raw_parts(sums.as_ptr().cast::<T>(), NV * lanes) };
        for (column, &sum) in sums.iter().enumerate().take(place.columns) {
            let mut value = sum;
            // SAFETY: row < place.rows and column < place.columns.
            unsafe {
                let offset = place.offset(row, column);
                let out = place.corner.add(offset);
                if finish.accumulate {
                    value += out.read();
                }
                if let Some(bias) = finish.bias {
                    value += bias.add(column).read();
                }
                if let Some((target, scale)) = finish.residual {
                    value -= target.add(offset).read();
                    squares += (value * value).wide();
                    value *= scale;
                }
                out.write(value);
            }
        }
    }
    squares
}
