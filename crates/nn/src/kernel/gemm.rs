//! The matrix product, with what usually follows it fused into its last step.
//!
//! Two ways through memory, chosen by shape alone:
//! - *panels*: A is packed whole for a block of k; every task packs one panel of
//!   B and runs down the rows. For all but the next.
//! - *rows*: with a short k and a large output (the weight gradient of a small
//!   batch), or few columns (the convolution of small images), B is packed whole for
//!   a block of k and every task packs and multiplies a few strips of rows.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::element::Element;
use super::gather::{Gathered, Offsets};
use super::isa::Isa;
use super::pack::Strips;
use super::tile::{self, Finish, Place, Table};

/// A row-major matrix in a slice, or the transpose of one, without a copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a, T> {
    pub(crate) data: &'a [T],
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) transposed: bool,
}

impl<'a, T> View<'a, T> {
    /// A row-major matrix.
    pub(crate) fn new(data: &'a [T], rows: usize, columns: usize) -> Self {
        assert_eq!(data.len(), rows * columns, "a view covers its slice");
        Self { data, rows, columns, transposed: false }
    }

    /// Distance between neighbouring rows of the matrix as stored.
    pub(crate) fn stride(&self) -> usize {
        if self.transposed { self.rows } else { self.columns }
    }

    /// The transpose.
    pub(crate) fn t(self) -> Self {
        Self { rows: self.columns, columns: self.rows, transposed: !self.transposed, ..self }
    }
}

/// What the product is combined with.
pub(crate) enum Epilogue<'a, T> {
    /// C = AB
    Store,
    /// C = AB + 1 biasᵀ
    Bias(&'a [T]),
    /// C = AB + previous, in place
    Add(Vec<T>),
    /// C = scale (AB − target), with Σ (AB − target)² on the side
    Residual { target: &'a [T], scale: T },
}

/// Steps of k between two visits to the output: an MR-wide strip of A stays in
/// the first-level cache, a panel of B in the second.
const DEPTH: usize = 512;

/// The product A·B and, for a residual, the sum of its squares.
pub(crate) fn gemm<T: Element>(a: View<'_, T>, b: View<'_, T>, epilogue: Epilogue<'_, T>) -> (Vec<T>, f64) {
    gemm_on(Isa::best(), a, b, epilogue)
}

/// [`gemm`] on a chosen instruction set, so that tests can run them all.
pub(crate) fn gemm_on<T: Element>(
    isa: Isa,
    a: View<'_, T>,
    b: View<'_, T>,
    epilogue: Epilogue<'_, T>,
) -> (Vec<T>, f64) {
    assert_eq!(a.columns, b.rows, "inner sizes of a product differ");
    let (m, n) = (a.rows, b.columns);
    if let Epilogue::Bias(bias) = epilogue {
        assert_eq!(bias.len(), n, "one bias for each column");
    }
    if let Epilogue::Residual { target, .. } = epilogue {
        assert_eq!(target.len(), m * n, "a target of the product's size");
    }
    if matches!(isa, Isa::Portable) || a.columns == 0 { portable(a, b, epilogue) } else { tiled(isa, a, b, epilogue) }
}

/// The product by our own tiles. On `Isa::Portable` these are scalar: slower
/// than the `gemm` crate, but what Miri can follow.
fn tiled<T: Element>(isa: Isa, a: View<'_, T>, b: View<'_, T>, epilogue: Epilogue<'_, T>) -> (Vec<T>, f64) {
    let (m, n) = (a.rows, b.columns);
    // A single column is the transpose of a single row, with the same layout,
    // and a row fills the tile far better.
    if n == 1 && m > 1 && !matches!(epilogue, Epilogue::Bias(_)) {
        return tiled(isa, b.t(), a.t(), epilogue);
    }
    let mut finish = Finish { accumulate: false, bias: None, residual: None };
    let mut out = match epilogue {
        Epilogue::Store => Vec::with_capacity(m * n),
        Epilogue::Bias(bias) => {
            finish.bias = Some(bias.as_ptr());
            Vec::with_capacity(m * n)
        }
        Epilogue::Add(previous) => {
            assert_eq!(previous.len(), m * n, "a sum of the product's size");
            finish.accumulate = true;
            previous
        }
        Epilogue::Residual { target, scale } => {
            finish.residual = Some((target.as_ptr(), scale));
            Vec::with_capacity(m * n)
        }
    };
    let place = Output { start: out.as_mut_ptr(), stride: n, columns: None };
    let squares = isa.run(Plan { isa, a, bt: b.t(), out: Shared(place), finish: Shared(finish) });
    // SAFETY: every task wrote its tiles, the tiles cover the output, and its
    // capacity was reserved above.
    unsafe { out.set_len(m * n) };
    (out, squares)
}

/// The product by the `gemm` crate, the epilogue by plain loops.
fn portable<T: Element>(a: View<'_, T>, b: View<'_, T>, epilogue: Epilogue<'_, T>) -> (Vec<T>, f64) {
    let (m, n, k) = (a.rows, b.columns, a.columns);
    let mut product = vec![T::ZERO; m * n];
    let strides = |view: View<'_, T>| {
        if view.transposed { (view.stride() as isize, 1) } else { (1, view.stride() as isize) }
    };
    let ((a_column, a_row), (b_column, b_row)) = (strides(a), strides(b));
    // SAFETY: the views cover their slices with these strides, and `product`
    // is a row-major m x n matrix of its own.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            product.as_mut_ptr(),
            1,
            n as isize,
            false,
            a.data.as_ptr(),
            a_column,
            a_row,
            b.data.as_ptr(),
            b_column,
            b_row,
            T::ZERO,
            T::ONE,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
    let mut squares = 0.0;
    match epilogue {
        Epilogue::Store => {}
        Epilogue::Bias(bias) => {
            for row in product.chunks_exact_mut(n.max(1)) {
                row.iter_mut().zip(bias).for_each(|(c, b)| *c += *b);
            }
        }
        Epilogue::Add(previous) => product.iter_mut().zip(previous).for_each(|(c, p)| *c += p),
        Epilogue::Residual { target, scale } => {
            for (c, t) in product.iter_mut().zip(target) {
                let difference = *c - *t;
                squares += (difference * difference).wide();
                *c = difference * scale;
            }
        }
    }
    (product, squares)
}

/// A pointer-carrying value that tasks share; each task writes its own tiles only.
#[derive(Clone, Copy)]
struct Shared<P>(P);

// SAFETY: the pointers are to memory that outlives the tasks; reads are of
// memory nobody writes, writes are to disjoint tiles.
unsafe impl<P> Send for Shared<P> {}
// SAFETY: as above.
unsafe impl<P> Sync for Shared<P> {}

/// Where the product goes.
#[derive(Clone, Copy)]
struct Output<'a, T> {
    start: *mut T,
    /// Distance between neighbouring rows.
    stride: usize,
    /// Where the columns lie in a row; `None`: side by side.
    columns: Option<&'a Offsets>,
}

/// out[i · stride + columns\[j\]] += Σ_k a\[i\]\[k\] b\[j\]\[k\], for matrices whose elements
/// lie anywhere: how a convolution is a matrix product.
///
/// # Safety
/// No two (i, j) may have one place in `out`.
pub(crate) unsafe fn gemm_scattered<T: Element>(
    a: Gathered<'_, T>,
    b: Gathered<'_, T>,
    out: &mut [T],
    stride: usize,
    columns: &Offsets,
) {
    // SAFETY: the caller's promise.
    unsafe { gemm_scattered_on(Isa::best(), a, b, out, stride, columns) }
}

/// [`gemm_scattered`] on a chosen instruction set, so that tests can run them all.
///
/// # Safety
/// As there.
unsafe fn gemm_scattered_on<T: Element>(
    isa: Isa,
    a: Gathered<'_, T>,
    b: Gathered<'_, T>,
    out: &mut [T],
    stride: usize,
    columns: &Offsets,
) {
    let (m, n, k) = (a.rows(), b.rows(), a.columns());
    assert_eq!(k, b.columns(), "inner sizes of a product differ");
    assert_eq!(n, columns.len(), "a place for each column");
    if m == 0 || n == 0 || k == 0 {
        return;
    }
    let last = (m - 1).checked_mul(stride).and_then(|row| row.checked_add(columns.largest()));
    assert!(last.is_some_and(|last| last < out.len()), "the product lies inside the output");
    let out = Output { start: out.as_mut_ptr(), stride, columns: Some(columns) };
    let finish = Finish { accumulate: true, bias: None, residual: None };
    // Places lie inside `out`, which is initialised, and are disjoint by the caller's promise.
    isa.run(Plan { isa, a, bt: b, out: Shared(out), finish: Shared(finish) });
}

/// A·B, given the transpose of B.
struct Plan<'a, T, A, B> {
    isa: Isa,
    a: A,
    bt: B,
    out: Shared<Output<'a, T>>,
    finish: Shared<Finish<T>>,
}

impl<T: Element, A: Strips<T>, B: Strips<T>> WithSimd for Plan<'_, T, A, B> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f64 {
        // Accumulators, two or three vectors of B and one of A must fit the registers, with one to spare.
        let lanes = size_of::<T::Vector<S>>() / size_of::<T>();
        if S::REGISTER_COUNT >= 32 { self.multiply::<8, 3>(lanes) } else { self.multiply::<6, 2>(lanes) }
    }
}

impl<T: Element, A: Strips<T>, B: Strips<T>> Plan<'_, T, A, B> {
    /// Rows and columns of the product, and the length of its sums.
    #[inline(always)]
    fn sizes(&self) -> (usize, usize, usize) {
        (self.a.rows(), self.bt.rows(), self.a.columns())
    }

    fn multiply<const MR: usize, const NV: usize>(&self, lanes: usize) -> f64 {
        let nr = NV * lanes;
        let (m, n, k) = self.sizes();
        let short = k <= DEPTH / 2 && m >= 512 && n >= 256;
        let slim = k > DEPTH / 2 && m >= 128 && n <= 160;
        if short || slim { self.by_rows::<MR, NV>(nr) } else { self.by_panels::<MR, NV>(nr) }
    }

    /// Runs the tasks, on all threads when there is work enough; their sums in order.
    fn run_tasks(&self, tasks: usize, strip: usize, task: impl Fn(usize, &mut [T]) -> f64 + Sync) -> f64 {
        let (m, n, k) = self.sizes();
        if m * n * k < 1 << 17 || rayon::current_num_threads() == 1 {
            let mut buffer = vec![T::ZERO; strip];
            return (0..tasks).map(|index| task(index, &mut buffer)).sum();
        }
        let sums: Vec<f64> =
            (0..tasks).into_par_iter().map_init(|| vec![T::ZERO; strip], |buffer, index| task(index, buffer)).collect();
        sums.iter().sum()
    }

    fn by_panels<const MR: usize, const NV: usize>(&self, nr: usize) -> f64 {
        let (m, n, k) = self.sizes();
        let (strips, panels) = (m.div_ceil(MR), n.div_ceil(nr));
        // Few panels: cut them along the rows too, or threads would wait for the last.
        let cuts = if panels < 24 && strips >= 16 { 2 } else { 1 };
        let mut packed_a = vec![T::ZERO; strips * MR * DEPTH.min(k)];
        let mut squares = 0.0;
        for k0 in (0..k).step_by(DEPTH) {
            let depth = DEPTH.min(k - k0);
            let packed_a = &mut packed_a[..strips * MR * depth];
            pack_strips(self.isa, self.a, MR, k0, packed_a, depth);
            let packed_a = &*packed_a;
            let last = k0 + depth == k;
            squares += self.run_tasks(panels * cuts, nr * depth, |index, panel| {
                // Cut by cut: a thread then finds the rows it has just packed in its own cache.
                let (column, cut) = (index % panels * nr, index / panels);
                let rows = strips * cut / cuts..strips * (cut + 1) / cuts;
                let work = Panel {
                    strips: rows.clone(),
                    packed_a: &packed_a[rows.start * MR * depth..rows.end * MR * depth],
                    depth,
                    column,
                    k0,
                    panel,
                    first_block: k0 == 0,
                    last_block: last,
                };
                // The last panel is only as many vectors wide as there are columns.
                match (n - column).div_ceil(nr / NV) {
                    1 => self.isa.run(Inner::<T, A, B, MR, 1> { plan: self, work }),
                    2 => self.isa.run(Inner::<T, A, B, MR, 2> { plan: self, work }),
                    _ => self.isa.run(Inner::<T, A, B, MR, NV> { plan: self, work }),
                }
            });
        }
        squares
    }

    fn by_rows<const MR: usize, const NV: usize>(&self, nr: usize) -> f64 {
        let (m, n, k) = self.sizes();
        let panels = n.div_ceil(nr);
        // The last panel is only as many vectors wide as there are columns.
        let tail = (panels - 1) * nr;
        let narrow = (n - tail).div_ceil(nr / NV) * (nr / NV);
        let mut packed_b = vec![T::ZERO; panels * nr * DEPTH.min(k)];
        // Four strips a task: a row of the output is then written in one go.
        const STRIPS: usize = 4;
        let strips = m.div_ceil(MR);
        let mut squares = 0.0;
        for k0 in (0..k).step_by(DEPTH) {
            let depth = DEPTH.min(k - k0);
            let packed_b = &mut packed_b[..(tail + narrow) * depth];
            let (whole, last) = packed_b.split_at_mut(tail * depth);
            pack_strips(self.isa, self.bt, nr, k0, whole, depth);
            pack_strips(self.isa, Tail(self.bt, tail), narrow, k0, last, depth);
            let (whole, last) = (&*whole, &*last);
            let (first_block, last_block) = (k0 == 0, k0 + depth == k);
            squares += self.run_tasks(strips.div_ceil(STRIPS), MR * depth, |index, packed_a| {
                let strips = index * STRIPS..((index + 1) * STRIPS).min(strips);
                let work = Rows { strips, packed_a, whole, last, narrow, k0, depth, nr, first_block, last_block };
                self.isa.run(ByRows::<T, A, B, MR, NV> { plan: self, work })
            });
        }
        squares
    }
}

/// The rows of a matrix from some row on.
#[derive(Clone, Copy)]
struct Tail<M>(M, usize);

impl<T, M: Strips<T>> Strips<T> for Tail<M> {
    #[inline(always)]
    fn rows(&self) -> usize {
        self.0.rows() - self.1
    }

    #[inline(always)]
    fn columns(&self) -> usize {
        self.0.columns()
    }

    #[inline(always)]
    fn strip(&self, first: usize, width: usize, k0: usize, packed: &mut [T]) {
        self.0.strip(self.1 + first, width, k0, packed);
    }
}

/// Packs all strips of a matrix for one block of k, in parallel when it is large.
fn pack_strips<T: Element>(isa: Isa, matrix: impl Strips<T>, width: usize, k0: usize, packed: &mut [T], depth: usize) {
    let work = |(index, packed): (usize, &mut [T])| {
        isa.vectorize(
            #[inline(always)]
            || matrix.strip(index * width, width, k0, packed),
        );
    };
    if packed.len() < super::PARALLEL_FROM {
        packed.chunks_mut(width * depth).enumerate().for_each(work);
    } else {
        packed.par_chunks_mut(width * depth).enumerate().for_each(work);
    }
}

/// One task of [`Plan::by_panels`]: a panel of B against some strips of A.
struct Inner<'a, T, A, B, const MR: usize, const NV: usize> {
    plan: &'a Plan<'a, T, A, B>,
    work: Panel<'a, T>,
}

struct Panel<'a, T> {
    strips: std::ops::Range<usize>,
    packed_a: &'a [T],
    depth: usize,
    column: usize,
    k0: usize,
    panel: &'a mut [T],
    first_block: bool,
    last_block: bool,
}

impl<T: Element, A: Strips<T>, B: Strips<T>, const MR: usize, const NV: usize> WithSimd for Inner<'_, T, A, B, MR, NV> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f64 {
        let Self { plan, work } = self;
        let nr = NV * size_of::<T::Vector<S>>() / size_of::<T>();
        let panel = &mut work.panel[..nr * work.depth];
        plan.bt.strip(work.column, nr, work.k0, panel);
        let mut squares = 0.0;
        for (strip, a) in work.strips.zip(work.packed_a.chunks_exact(MR * work.depth)) {
            let finish = plan.finish_at(strip * MR, work.column, work.first_block, work.last_block);
            let place = plan.place(strip * MR, MR, work.column, nr);
            // SAFETY: both strips hold `depth` steps; the place is this task's alone.
            squares += unsafe { tile::multiply::<S, T, MR, NV>(simd, a, panel, place, finish) };
        }
        squares
    }
}

/// One task of [`Plan::by_rows`]: some strips of A against all of B, for one block of k.
struct ByRows<'a, T, A, B, const MR: usize, const NV: usize> {
    plan: &'a Plan<'a, T, A, B>,
    work: Rows<'a, T>,
}

struct Rows<'a, T> {
    strips: std::ops::Range<usize>,
    packed_a: &'a mut [T],
    /// The panels of B that are `nr` wide.
    whole: &'a [T],
    /// The last one, which is `narrow`.
    last: &'a [T],
    narrow: usize,
    k0: usize,
    depth: usize,
    nr: usize,
    first_block: bool,
    last_block: bool,
}

impl<T: Element, A: Strips<T>, B: Strips<T>, const MR: usize, const NV: usize> WithSimd
    for ByRows<'_, T, A, B, MR, NV>
{
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f64 {
        let Self { plan, work } = self;
        let Rows { strips, packed_a, whole, last, narrow, k0, depth, nr, first_block, last_block } = work;
        let packed_a = &mut packed_a[..MR * depth];
        let mut squares = 0.0;
        for strip in strips {
            plan.a.strip(strip * MR, MR, k0, packed_a);
            let finish = |column| plan.finish_at(strip * MR, column, first_block, last_block);
            for (index, panel) in whole.chunks_exact(nr * depth).enumerate() {
                let place = plan.place(strip * MR, MR, index * nr, nr);
                // SAFETY: both strips hold `depth` steps; the place is this task's alone.
                squares += unsafe { tile::multiply::<S, T, MR, NV>(simd, packed_a, panel, place, finish(index * nr)) };
            }
            let column = whole.len() / depth;
            let place = plan.place(strip * MR, MR, column, narrow);
            // SAFETY: as above; `last` is as many vectors wide as the tile.
            squares += unsafe {
                match narrow / (nr / NV) {
                    1 => tile::multiply::<S, T, MR, 1>(simd, packed_a, last, place, finish(column)),
                    2 => tile::multiply::<S, T, MR, 2>(simd, packed_a, last, place, finish(column)),
                    _ => tile::multiply::<S, T, MR, NV>(simd, packed_a, last, place, finish(column)),
                }
            };
        }
        squares
    }
}

impl<T: Element, A: Strips<T>, B: Strips<T>> Plan<'_, T, A, B> {
    #[inline(always)]
    fn place(&self, row: usize, height: usize, column: usize, width: usize) -> Place<T> {
        let (m, n, _) = self.sizes();
        let Output { start, stride, columns } = self.out.0;
        // In bounds: row < m and column < n.
        let corner = start.wrapping_add(row * stride);
        let table = columns.map(|columns| Table { offsets: columns.from(column), run: columns.run() });
        Place {
            corner: if table.is_some() { corner } else { corner.wrapping_add(column) },
            stride,
            rows: height.min(m - row),
            columns: width.min(n - column),
            table,
        }
    }

    /// The finish for one tile: bias with the first block of k, residual after the last.
    #[inline(always)]
    fn finish_at(&self, row: usize, column: usize, first: bool, last: bool) -> Finish<T> {
        let stride = self.out.0.stride;
        let finish = self.finish.0;
        Finish {
            accumulate: finish.accumulate || !first,
            bias: finish.bias.filter(|_| first).map(|bias| bias.wrapping_add(column)),
            residual: finish
                .residual
                .filter(|_| last)
                .map(|(target, scale)| (target.wrapping_add(row * stride + column), scale)),
        }
    }
}

#[cfg(test)]
mod tests;
