//! Sums. Blocks leave parts of them in double precision, which are added up before they are read.

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

/// Lists that one kernel adds up.
const LISTS: usize = 8;

/// The sum of each list of parts.
pub(crate) fn sum_each(lists: &[&Tensor]) -> Result<Tensor> {
    if lists.len() > LISTS {
        let parts = lists.chunks(LISTS).map(sum_each).collect::<Result<Vec<_>>>()?;
        return super::concat_rows(&parts.iter().collect::<Vec<_>>(), &[lists.len()]);
    }
    let mut call = Call::new("sum_each", DType::F64, Grid::Blocks(lists.len()));
    for i in 0..LISTS {
        call = call.may_read(lists.get(i).copied());
    }
    let counts: [usize; LISTS] = std::array::from_fn(|i| lists.get(i).map_or(0, |list| list.count()));
    call.sizes(&counts).write_one(&*gpu_of(lists[0])?, &[lists.len()])
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

/// Σ a · b over each row.
pub(crate) fn dot_rows(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let call = Call::new("dot_rows", a.dtype(), Grid::Blocks(a.rows())).reads(&[a, b]).sizes(&[a.row_len()]);
    let [dots] = call.write(&*gpu_of(a)?, [(&[a.rows()], DType::F64)])?;
    Ok(dots)
}

/// a + factor · b, each row with a factor of its own.
pub(crate) fn add_rows(a: &Tensor, factors: &[f64], b: &Tensor) -> Result<Tensor> {
    let factors = Tensor::from_f64(factors, &[factors.len()], DType::F64)?.to_device(a.device())?;
    let call = Call::new("add_rows", a.dtype(), Grid::Elements(a.count())).reads(&[a, b, &factors]);
    call.sizes(&[a.count(), a.row_len()]).write_one(&*gpu_of(a)?, a.shape())
}

pub(crate) fn sum_rows(x: &Tensor) -> Result<Tensor> {
    let (rows, width) = (x.rows(), x.row_len());
    let call = Call::new("sum_rows", x.dtype(), Grid::Columns(width)).reads(&[x]).sizes(&[rows, width]);
    call.write_one(&*gpu_of(x)?, x.shape().get(1..).unwrap_or(&[]))
}
