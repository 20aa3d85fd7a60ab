use candle_core::{D, Result as Backend, Tensor as Raw};

use crate::Windows;

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
    let places = at.reshape((1, count, down * across))?.broadcast_as((planes, count, down * across))?.contiguous()?;
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
