//! Pooling, upsampling, and the adjoints of both.

use super::{batched, on_device, same_kind};
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
    ($what:literal, $windows:expr, [$first:expr $(, $second:expr)?], $shape:expr, $name:ident) => {{
        let shape = $shape;
        same_kind($what, &[$first $(, $second)?])?;
        on_device!($first, crate::cuda::$name($windows, $first $(, $second)?, &shape));
        on_host!($first.dtype(), T => {
            Tensor::from_vec(pool::$name($windows, &$first.host::<T>()? $(, &$second.host::<T>()?)?), &shape)
        })
    }};
}

/// Each window's scaled sum.
pub(crate) fn pool(windows: &Windows, x: &Tensor) -> Result<Tensor> {
    let batch = planes("pooling", x, windows.size)?;
    mapped!("pooling", windows, [x], batch_of(batch, windows.count()), pool)
}

/// Each window's scaled value added to all its pixels.
pub(crate) fn spread(windows: &Windows, g: &Tensor) -> Result<Tensor> {
    let batch = planes("spreading", g, windows.count())?;
    mapped!("spreading", windows, [g], batch_of(batch, windows.size), spread)
}

/// From each window the element of `of` where `x` is largest.
pub(crate) fn take_largest(windows: &Windows, x: &Tensor, of: &Tensor) -> Result<Tensor> {
    let batch = planes("largest of a window", x, windows.size)?;
    if of.shape() != x.shape() {
        return Err(Error::shape("largest of a window", x.shape(), of.shape()));
    }
    let shape = batch_of(batch, windows.count());
    mapped!("largest of a window", windows, [x, of], shape, take_largest)
}

/// Each window's value put where `x` is largest.
pub(crate) fn put_largest(windows: &Windows, x: &Tensor, g: &Tensor) -> Result<Tensor> {
    let batch = planes("largest of a window", x, windows.size)?;
    if planes("largest of a window", g, windows.count())? != batch {
        return Err(Error::shape("largest of a window", x.shape(), g.shape()));
    }
    let shape = batch_of(batch, windows.size);
    mapped!("largest of a window", windows, [x, g], shape, put_largest)
}
