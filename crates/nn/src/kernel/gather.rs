//! Matrices whose elements lie anywhere: element (i, j) at `rows[i] + columns[j]`.
//!
//! The patches that a convolution reads, a batch of images as one matrix with a
//! row for each channel, kernels turned around: all of them are such matrices,
//! so that no patch is ever written to memory (an implicit matrix product).

use super::element::Element;
use super::pack::{BLOCK, Strips};

/// Offsets along one axis of a matrix, and how far they run side by side.
#[derive(Debug)]
pub(crate) struct Offsets {
    at: Vec<usize>,
    /// Aligned groups of so many are neighbours in memory.
    run: usize,
    largest: usize,
}

/// The longest run worth knowing of.
const LONGEST: usize = 64;

impl Offsets {
    pub(crate) fn new(at: Vec<usize>) -> Self {
        let side_by_side = |group: &[usize]| group.windows(2).all(|pair| pair[1] == pair[0] + 1);
        let mut run = LONGEST;
        while run > 1 && !at.chunks(run).all(side_by_side) {
            run /= 2;
        }
        let largest = at.iter().copied().max().unwrap_or(0);
        Self { at, run, largest }
    }

    pub(crate) fn len(&self) -> usize {
        self.at.len()
    }

    pub(super) fn run(&self) -> usize {
        self.run
    }

    pub(super) fn largest(&self) -> usize {
        self.largest
    }

    /// The offsets from one on.
    pub(super) fn from(&self, index: usize) -> *const usize {
        self.at[index..].as_ptr()
    }
}

/// A matrix with element (i, j) at `data[rows[i] + columns[j]]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gathered<'a, T> {
    data: &'a [T],
    rows: &'a Offsets,
    columns: &'a Offsets,
}

impl<'a, T> Gathered<'a, T> {
    pub(crate) fn new(data: &'a [T], rows: &'a Offsets, columns: &'a Offsets) -> Self {
        let empty = rows.at.is_empty() || columns.at.is_empty();
        let last = rows.largest.checked_add(columns.largest);
        assert!(empty || last.is_some_and(|last| last < data.len()), "a matrix lies inside its data");
        Self { data, rows, columns }
    }
}

impl<T: Element> Strips<T> for Gathered<'_, T> {
    #[inline(always)]
    fn rows(&self) -> usize {
        self.rows.len()
    }

    #[inline(always)]
    fn columns(&self) -> usize {
        self.columns.len()
    }

    #[inline(always)]
    fn strip(&self, first: usize, width: usize, k0: usize, packed: &mut [T]) {
        let depth = packed.len() / width;
        let have = width.min(self.rows() - first);
        let (rows, columns) = (&self.rows.at[first..first + have], &self.columns.at[k0..k0 + depth]);
        // Groups of a strip are groups of the table if both start where one does.
        let fits = |run: usize| {
            have == width && self.rows.run >= run && width.is_multiple_of(run) && first.is_multiple_of(run)
        };
        if fits(16) {
            return self.copied::<16>(rows, columns, packed);
        }
        if fits(8) {
            return self.copied::<8>(rows, columns, packed);
        }
        if fits(4) {
            return self.copied::<4>(rows, columns, packed);
        }
        if self.columns.run >= BLOCK && k0.is_multiple_of(BLOCK) {
            return self.turned(rows, columns, width, packed);
        }
        // A width that is a constant keeps the rows in registers.
        match (rows.as_chunks::<8>(), rows.as_chunks::<4>()) {
            (([rows], []), _) if width == 8 => self.one_by_one(rows, columns, 8, packed),
            (_, ([rows], [])) if width == 4 => self.one_by_one(rows, columns, 4, packed),
            _ => self.one_by_one(rows, columns, width, packed),
        }
    }
}

impl<T: Element> Gathered<'_, T> {
    /// Rows in runs: copy them.
    #[inline(always)]
    fn copied<const RUN: usize>(&self, rows: &[usize], columns: &[usize], packed: &mut [T]) {
        for (packed, column) in packed.chunks_exact_mut(rows.len()).zip(columns) {
            for (packed, row) in packed.as_chunks_mut::<RUN>().0.iter_mut().zip(rows.iter().step_by(RUN)) {
                packed.copy_from_slice(&self.data[row + column..][..RUN]);
            }
        }
    }

    /// Columns in runs: transpose square blocks in registers.
    #[inline(always)]
    fn turned(&self, rows: &[usize], columns: &[usize], width: usize, packed: &mut [T]) {
        let (whole_rows, rest_rows) = rows.as_chunks::<BLOCK>();
        let whole_columns = columns.len() / BLOCK * BLOCK;
        for (j, rows) in whole_rows.iter().enumerate() {
            for k in (0..whole_columns).step_by(BLOCK) {
                let mut block = [[T::ZERO; BLOCK]; BLOCK];
                for (line, row) in block.iter_mut().zip(rows) {
                    line.copy_from_slice(&self.data[row + columns[k]..][..BLOCK]);
                }
                for i in 0..BLOCK {
                    let line = &mut packed[(k + i) * width + j * BLOCK..][..BLOCK];
                    for (value, row) in line.iter_mut().zip(&block) {
                        *value = row[i];
                    }
                }
            }
            for (k, column) in columns.iter().enumerate().skip(whole_columns) {
                for (value, row) in packed[k * width + j * BLOCK..][..BLOCK].iter_mut().zip(rows) {
                    *value = self.data[row + column];
                }
            }
        }
        let done = whole_rows.len() * BLOCK;
        for (packed, column) in packed.chunks_exact_mut(width).zip(columns) {
            for (j, value) in packed[done..].iter_mut().enumerate() {
                *value = rest_rows.get(j).map_or(T::ZERO, |row| self.data[row + column]);
            }
        }
    }

    #[inline(always)]
    fn one_by_one(&self, rows: &[usize], columns: &[usize], width: usize, packed: &mut [T]) {
        for (packed, column) in packed.chunks_exact_mut(width).zip(columns) {
            let (body, edge) = packed.split_at_mut(rows.len());
            for (value, row) in body.iter_mut().zip(rows) {
                // SAFETY: `new` checked the largest sum of a row and a column against the data.
                *value = unsafe { *self.data.get_unchecked(row + column) };
            }
            edge.fill(T::ZERO);
        }
    }
}
