//! Pooling, upsampling, and the adjoints of both.

use candle_core::{D, Result as Backend, Tensor as Raw};

use super::{batched, same_kind};
use crate::kernel::pool;
use crate::tensor::on_host;
use crate::{Error, Result, Tensor, Windows};

/// Samples and channels of a batch of planes of the given size.
fn planes(what: &'static str, x: &Tensor, [height, width]: [usize; 2]) -> Result<[usize; 2]> {
    match *x.shape() {
        [samples, channels, h, w] if [h, w] == [height, width] => Ok([samples, channels]),
        ref other => Err(Error::shape(what, format!("[batch, channels, {height}, {width}]"), other)),
    }
}

fn batch_of([samples, channels]: [usize; 2], [height, width]: [usize; 2]) -> [usize; 4] {
    batched(samples, [channels, height, width])
}

/// A map of one batch of planes, or of two, to another.
macro_rules! mapped {
    ($what:literal, $windows:expr, [$($x:expr),+], $shape:expr, $kernel:path, $fallback:path) => {{
        let shape = $shape;
        same_kind($what, &[$($x),+])?;
        let inputs = [$($x),+];
        if !inputs[0].on_cpu() {
            let compute = || $fallback($windows, $(&$x.0),+)?.reshape(&shape);
            return compute().map(Tensor).map_err(Error::backend($what));
        }
        on_host!(inputs[0].dtype(), T => Tensor::from_vec($kernel($windows, $(&$x.host::<T>()?),+), &shape))
    }};
}

/// Each window's scaled sum.
pub(crate) fn pool(windows: &Windows, x: &Tensor) -> Result<Tensor> {
    let batch = planes("pooling", x, windows.size)?;
    mapped!("pooling", windows, [x], batch_of(batch, windows.count()), pool::sum, fallback::sum)
}

/// Each window's scaled value added to all its pixels.
pub(crate) fn spread(windows: &Windows, g: &Tensor) -> Result<Tensor> {
    let batch = planes("spreading", g, windows.count())?;
    mapped!("spreading", windows, [g], batch_of(batch, windows.size), pool::spread, fallback::spread)
}

/// From each window the element of `of` where `x` is largest.
pub(crate) fn take_largest(windows: &Windows, x: &Tensor, of: &Tensor) -> Result<Tensor> {
    let batch = planes("largest of a window", x, windows.size)?;
    if of.shape() != x.shape() {
        return Err(Error::shape("largest of a window", x.shape(), of.shape()));
    }
    let shape = batch_of(batch, windows.count());
    mapped!("largest of a window", windows, [x, of], shape, pool::take_largest, fallback::take_largest)
}

/// Each window's value put where `x` is largest.
pub(crate) fn put_largest(windows: &Windows, x: &Tensor, g: &Tensor) -> Result<Tensor> {
    let batch = planes("largest of a window", x, windows.size)?;
    if planes("largest of a window", g, windows.count())? != batch {
        return Err(Error::shape("largest of a window", x.shape(), g.shape()));
    }
    let shape = batch_of(batch, windows.size);
    mapped!("largest of a window", windows, [x, g], shape, pool::put_largest, fallback::put_largest)
}

/// The same by candle's own operations.
pub(super) mod fallback {
    use super::*;

    /// The windows along one axis as a matrix of zeros and ones.
    fn matrix(windows: &Windows, axis: usize, like: &Raw) -> Backend<Raw> {
        let (ranges, size) = ([&windows.rows, &windows.columns][axis], windows.size[axis]);
        // A constant scale goes with the rows; one by area is a product of both axes.
        let scale = |length: usize| match (windows.scale, axis) {
            (None, _) => 1.0 / length as f64,
            (Some(scale), 0) => scale,
            (Some(_), _) => 1.0,
        };
        let entry = |range: &std::ops::Range<usize>, place: usize| {
            if range.contains(&place) { scale(range.len()) } else { 0.0 }
        };
        let data: Vec<f64> = ranges.iter().flat_map(|range| (0..size).map(move |place| entry(range, place))).collect();
        Raw::from_vec(data, (ranges.len(), size), like.device())?.to_dtype(like.dtype())
    }

    /// rows · x · columnsᵀ, plane by plane.
    fn sandwiched(rows: &Raw, x: &Raw, columns: &Raw) -> Backend<Raw> {
        let planes = x.dim(0)? * x.dim(1)?;
        let x = x.reshape((planes, x.dim(2)?, x.dim(3)?))?;
        rows.unsqueeze(0)?.broadcast_matmul(&x.broadcast_matmul(&columns.t()?.unsqueeze(0)?)?)
    }

    pub(crate) fn sum(windows: &Windows, x: &Raw) -> Backend<Raw> {
        sandwiched(&matrix(windows, 0, x)?, x, &matrix(windows, 1, x)?)
    }

    pub(crate) fn spread(windows: &Windows, g: &Raw) -> Backend<Raw> {
        let turned = |axis| matrix(windows, axis, g)?.t()?.contiguous();
        sandwiched(&turned(0)?, g, &turned(1)?)
    }

    /// Where each window's largest element is, by plane: [planes, windows].
    fn largest(windows: &Windows, x: &Raw) -> Backend<Raw> {
        let deep = |ranges: &[std::ops::Range<usize>]| ranges.iter().map(|range| range.len()).max().unwrap_or(0);
        let (down, across) = (deep(&windows.rows), deep(&windows.columns));
        let mut at: Vec<u32> = Vec::new();
        for rows in windows.rows.iter() {
            for columns in windows.columns.iter() {
                for (i, j) in (0..down).flat_map(|i| (0..across).map(move |j| (i, j))) {
                    // A window cut off at the edge repeats its last element, which changes no maximum.
                    let (row, column) = ((rows.start + i).min(rows.end - 1), (columns.start + j).min(columns.end - 1));
                    at.push((row * windows.size[1] + column) as u32);
                }
            }
        }
        let (planes, count) = (x.dim(0)? * x.dim(1)?, windows.rows.len() * windows.columns.len());
        let at = Raw::from_vec(at, count * down * across, x.device())?;
        let seen = x.reshape((planes, ()))?.index_select(&at, 1)?.reshape((planes, count, down * across))?;
        let which = seen.argmax_keepdim(D::Minus1)?;
        let places =
            at.reshape((1, count, down * across))?.broadcast_as((planes, count, down * across))?.contiguous()?;
        places.gather(&which, D::Minus1)?.squeeze(D::Minus1)
    }

    pub(crate) fn take_largest(windows: &Windows, x: &Raw, of: &Raw) -> Backend<Raw> {
        let planes = x.dim(0)? * x.dim(1)?;
        of.reshape((planes, ()))?.gather(&largest(windows, x)?, 1)
    }

    pub(crate) fn put_largest(windows: &Windows, x: &Raw, g: &Raw) -> Backend<Raw> {
        let planes = x.dim(0)? * x.dim(1)?;
        let zeros = Raw::zeros((planes, windows.size[0] * windows.size[1]), g.dtype(), g.device())?;
        zeros.scatter_add(&largest(windows, x)?, &g.reshape((planes, ()))?.contiguous()?, 1)
    }
}
