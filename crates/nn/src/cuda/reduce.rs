//! Sums. Blocks leave parts of them in double precision, which are added up before they are read.

use super::call::{Call, Grid, gpu_of};
use crate::ops::{Total, waits_for_others};
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

/// Zero, unless something of either is not finite.
pub(crate) fn finite(x: &Tensor, y: Option<&Tensor>) -> Result<Total> {
    let counts = [x.count(), y.map_or(0, Tensor::count)];
    let grid = Grid::Parts(counts[0].max(counts[1]));
    let call = Call::new("finite_parts", x.dtype(), grid).reads(&[x]).may_read(y).sizes(&counts);
    let [parts] = call.write(&*gpu_of(x)?, [(&[grid.blocks()], DType::F64)])?;
    Ok(Total::Parts(parts))
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

/// Tensors whose residuals one kernel computes.
const GROUP: usize = 4;

/// Residuals of (value, target, scale), small ones several at a time.
pub(crate) fn residuals(wanted: &[(&Tensor, &Tensor, f64)]) -> Result<Vec<(Tensor, Total)>> {
    let mut found: Vec<Option<(Tensor, Total)>> = vec![None; wanted.len()];
    let (small, large): (Vec<usize>, Vec<usize>) =
        (0..wanted.len()).partition(|&index| waits_for_others(wanted[index].1));
    for index in large {
        let (value, target, scale) = wanted[index];
        found[index] = Some(residual(value, target, scale)?);
    }
    for group in small.chunks(GROUP) {
        let members: Vec<_> = group.iter().map(|&index| wanted[index]).collect();
        for (&index, residual) in group.iter().zip(residual_each(&members)?) {
            found[index] = Some(residual);
        }
    }
    Ok(found.into_iter().flatten().collect())
}

fn residual_each(group: &[(&Tensor, &Tensor, f64)]) -> Result<Vec<(Tensor, Total)>> {
    let (first, dtype) = (group[0].0, group[0].0.dtype());
    let mut call = Call::new("residual_each", dtype, Grid::Blocks(group.len()));
    for i in 0..GROUP {
        call = call.may_read(group.get(i).map(|member| member.0));
    }
    for i in 0..GROUP {
        call = call.may_read(group.get(i).map(|member| member.1));
    }
    // What is not asked for is written nowhere.
    let shape = |i: usize| group.get(i).map_or(&[][..], |member| member.0.shape());
    let counts: [usize; GROUP] = std::array::from_fn(|i| group.get(i).map_or(0, |member| member.0.count()));
    let scales: [f64; GROUP] = std::array::from_fn(|i| group.get(i).map_or(0.0, |member| member.2));
    let shapes =
        [(shape(0), dtype), (shape(1), dtype), (shape(2), dtype), (shape(3), dtype), (&[group.len()], DType::F64)];
    let [a, b, c, d, squares] = call.sizes(&counts).reals(&scales).write(&*gpu_of(first)?, shapes)?;
    let each = [a, b, c, d].into_iter().take(group.len()).enumerate();
    each.map(|(i, out)| Ok((out, Total::Parts(squares.slice_rows(i..i + 1)?)))).collect()
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
