//! Packing: a block of a matrix laid out in the order the inner loop reads it.
//!
//! A packed strip of width W holds, for each k in turn, W neighbouring
//! elements: `packed[k * W + j]`. Strips that reach over the matrix's edge are
//! filled up with zeros, so that the inner loop needs no edge case.

use super::element::Element;
use super::gemm::View;
use super::transpose;

/// A matrix that packs itself.
pub(super) trait Strips<T>: Copy + Sync {
    fn rows(&self) -> usize;
    fn columns(&self) -> usize;
    /// Packs rows `first .. first + width`, columns `k0 .. k0 + depth`, as a strip
    /// `packed[k * width + j] = self[first + j][k0 + k]`; zero beyond the last row.
    fn strip(&self, first: usize, width: usize, k0: usize, packed: &mut [T]);
}

impl<T: Element> Strips<T> for View<'_, T> {
    #[inline(always)]
    fn rows(&self) -> usize {
        self.rows
    }

    #[inline(always)]
    fn columns(&self) -> usize {
        self.columns
    }

    #[inline(always)]
    fn strip(&self, first: usize, width: usize, k0: usize, packed: &mut [T]) {
        let depth = packed.len() / width;
        let have = width.min(self.rows - first);
        if self.transposed {
            copied(&self.data[k0 * self.stride() + first..], self.stride(), have, width, packed);
        } else {
            turned(&self.data[first * self.stride() + k0..], self.stride(), have, width, depth, packed);
        }
    }
}

/// The strip's elements for one k lie side by side in memory: copy them.
#[inline(always)]
fn copied<T: Element>(source: &[T], stride: usize, have: usize, width: usize, packed: &mut [T]) {
    // Every width there is, as a constant: copies become a few vector moves
    // instead of a call for each.
    if have == width {
        match width {
            4 => return copied_whole::<T, 4>(source, stride, packed),
            6 => return copied_whole::<T, 6>(source, stride, packed),
            8 => return copied_whole::<T, 8>(source, stride, packed),
            12 => return copied_whole::<T, 12>(source, stride, packed),
            16 => return copied_whole::<T, 16>(source, stride, packed),
            24 => return copied_whole::<T, 24>(source, stride, packed),
            48 => return copied_whole::<T, 48>(source, stride, packed),
            _ => {}
        }
    }
    for (k, packed) in packed.chunks_exact_mut(width).enumerate() {
        let source = &source[k * stride..][..have];
        let (body, edge) = packed.split_at_mut(have);
        body.copy_from_slice(source);
        edge.fill(T::ZERO);
    }
}

#[inline(always)]
fn copied_whole<T: Element, const WIDTH: usize>(source: &[T], stride: usize, packed: &mut [T]) {
    for (k, packed) in packed.as_chunks_mut::<WIDTH>().0.iter_mut().enumerate() {
        packed.copy_from_slice(&source[k * stride..][..WIDTH]);
    }
}

/// Side of the square blocks that are moved at once where there are no vectors for it.
pub(super) const BLOCK: usize = 8;

/// The strip's elements for one k lie a stride apart: transpose, in square blocks that fit the vectors of this
/// processor, and what they leave in small ones so that both sides stay in registers and cache lines.
#[inline(always)]
fn turned<T: Element>(source: &[T], stride: usize, have: usize, width: usize, depth: usize, packed: &mut [T]) {
    let covered = transpose::blocks(source, stride, have, width, depth, packed);
    let rows = have / BLOCK * BLOCK;
    let columns = depth / BLOCK * BLOCK;
    for j in (0..rows).step_by(BLOCK) {
        let done = if j < covered.rows { covered.depth } else { 0 };
        for k in (done..columns).step_by(BLOCK) {
            let mut block = [[T::ZERO; BLOCK]; BLOCK];
            for (i, row) in block.iter_mut().enumerate() {
                row.copy_from_slice(&source[(j + i) * stride + k..][..BLOCK]);
            }
            for i in 0..BLOCK {
                let line = &mut packed[(k + i) * width + j..][..BLOCK];
                for (value, row) in line.iter_mut().zip(&block) {
                    *value = row[i];
                }
            }
        }
        for k in columns..depth {
            for i in 0..BLOCK {
                packed[k * width + j + i] = source[(j + i) * stride + k];
            }
        }
    }
    for j in rows..width {
        for k in 0..depth {
            packed[k * width + j] = if j < have { source[j * stride + k] } else { T::ZERO };
        }
    }
}
