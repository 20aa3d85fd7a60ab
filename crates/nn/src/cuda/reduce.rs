//! Sums. Blocks leave parts of them in double precision, which are added up where they are read.

use super::call::{Call, Grid, gpu_of};
use crate::ops::Total;
use crate::{DType, Result, Steps, Tensor};

fn parts(name: &'static str, inputs: &[&Tensor]) -> Result<Total> {
    let (first, count) = (inputs[0], inputs[0].count());
    let grid = Grid::Parts(count);
    let call = Call::new(name, first.dtype(), grid).reads(inputs).sizes(&[count]);
    let [parts] = call.write(&*gpu_of(first)?, [(&[grid.blocks()], DType::F64)])?;
    Ok(Total::Parts(parts))
}

pub(crate) fn dot(a: &Tensor, b: &Tensor) -> Result<Total> {
    parts("dot_parts", &[a, b])
}

pub(crate) fn distance(a: &Tensor, b: &Tensor) -> Result<Total> {
    parts("distance_parts", &[a, b])
}

/// Zero, unless something is not finite.
pub(crate) fn finite(x: &Tensor) -> Result<Total> {
    parts("finite_parts", &[x])
}

pub(crate) fn residual(value: &Tensor, target: &Tensor, scale: f64) -> Result<(Tensor, Total)> {
    let count = value.count();
    let grid = Grid::Parts(count);
    let call = Call::new("residual", value.dtype(), grid).reads(&[value, target]).sizes(&[count]).reals(&[scale]);
    let [out, parts] =
        call.write(&*gpu_of(value)?, [(value.shape(), value.dtype()), (&[grid.blocks()], DType::F64)])?;
    Ok((out, Total::Parts(parts)))
}

/// The sum over steps between pixels, and its gradient.
pub(crate) fn steps(kind: Steps, x: &Tensor, [height, width]: [usize; 2]) -> Result<(Total, Tensor)> {
    let grid = Grid::Parts(x.count());
    let call = Call::new("steps", x.dtype(), grid).reads(&[x]).sizes(&[x.count(), height, width, kind.code()]);
    let [gradient, parts] = call.write(&*gpu_of(x)?, [(x.shape(), x.dtype()), (&[grid.blocks()], DType::F64)])?;
    Ok((Total::Parts(parts), gradient))
}

pub(crate) fn sum_rows(x: &Tensor) -> Result<Tensor> {
    let (rows, width) = (x.rows(), x.row_len());
    let call = Call::new("sum_rows", x.dtype(), Grid::Columns(width)).reads(&[x]).sizes(&[rows, width]);
    call.write_one(&*gpu_of(x)?, x.shape().get(1..).unwrap_or(&[]))
}
