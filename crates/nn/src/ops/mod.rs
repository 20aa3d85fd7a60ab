//! Tensor operations, in main memory or on a device.
//!
//! Every function checks shapes, number types and devices before it computes,
//! so that kernels may rely on them: those of [`kernel`](crate::kernel) here, those of `cuda` on a device.
//! Tests compare the former with the tensor backend's own operations, in `reference`,
//! and the latter with the former.

mod channels;
mod convolve;
mod pool;
#[cfg(test)]
mod reference;
mod rows;
mod total;
mod update;

pub(crate) use channels::{combine_channels, dot_channels, sum_channels};
pub(crate) use convolve::{convolve_inputs, convolve_sum, convolve_weights};
pub(crate) use pool::{pool, put_largest, spread, take_largest};
pub(crate) use rows::{add_rows, clamp_rows, dot_rows, excess};
pub(crate) use total::{Total, Totals};
pub(crate) use update::{AdamRates, adam};

use crate::activation::{Activation, Pointwise, with_pointwise};
use crate::device::in_the_open;
use crate::kernel::element::{Element, Lanes, flush, flush_subnormal};
use crate::kernel::gemm::{Epilogue, View, gemm};
use crate::kernel::{elementwise, reduce};
use crate::tensor::on_host;
use crate::{Error, Result, Tensor};

/// Leaves the rest of an operation to the device that a tensor is on. Without the feature there is none.
macro_rules! on_device {
    ($tensor:expr, $call:expr) => {
        #[cfg(feature = "cuda")]
        if !$tensor.on_cpu() {
            return $call;
        }
    };
}
pub(crate) use on_device;

/// A factor of a matrix product: a matrix or the transpose of one.
#[derive(Clone, Copy)]
pub(crate) struct Factor<'a> {
    pub(crate) matrix: &'a Tensor,
    pub(crate) transposed: bool,
}

impl<'a> Factor<'a> {
    pub(crate) fn plain(matrix: &'a Tensor) -> Self {
        Self { matrix, transposed: false }
    }

    pub(crate) fn transposed(matrix: &'a Tensor) -> Self {
        Self { matrix, transposed: true }
    }

    /// (rows, columns) after transposition.
    pub(crate) fn size(self) -> Result<(usize, usize)> {
        match *self.matrix.shape() {
            [rows, columns] => Ok(if self.transposed { (columns, rows) } else { (rows, columns) }),
            ref other => Err(Error::shape("a factor of a matrix product", "[rows, columns]", other)),
        }
    }

    fn view<T: Element>(self, data: &[T]) -> View<'_, T> {
        let shape = self.matrix.shape();
        let view = View::new(data, shape[0], shape[1]);
        if self.transposed { view.t() } else { view }
    }
}

/// Checks that tensors can be combined at all.
fn same_kind(what: &'static str, tensors: &[&Tensor]) -> Result<()> {
    for pair in tensors.windows(2) {
        let describe = |tensor: &Tensor| format!("{} on {}", tensor.dtype(), tensor.device());
        if pair[0].dtype() != pair[1].dtype() || pair[0].device() != pair[1].device() {
            return Err(Error::Mismatch { what: what.into(), expected: describe(pair[0]), found: describe(pair[1]) });
        }
    }
    Ok(())
}

/// Checks that tensors can be stacked: of one kind, with rows of one shape.
#[cfg(feature = "cuda")]
pub(crate) fn same_rows(what: &'static str, tensors: &[&Tensor]) -> Result<()> {
    same_kind(what, tensors)?;
    let row = |tensor: &Tensor| tensor.shape().get(1..).map(<[usize]>::to_vec);
    match tensors.windows(2).find(|pair| row(pair[0]) != row(pair[1])) {
        Some(pair) => Err(Error::shape(what, pair[0].shape(), pair[1].shape())),
        None => Ok(()),
    }
}

fn same_shape(what: &'static str, tensors: &[&Tensor]) -> Result<()> {
    same_kind(what, tensors)?;
    for pair in tensors.windows(2) {
        if pair[0].shape() != pair[1].shape() {
            return Err(Error::shape(what, pair[0].shape(), pair[1].shape()));
        }
    }
    Ok(())
}

/// The shape of so many images.
fn batched(samples: usize, [channels, height, width]: [usize; 3]) -> [usize; 4] {
    [samples, channels, height, width]
}

/// Σ_p A_p B_p (+ bias on every row): one output, visited once for each product.
pub(crate) fn matmul_sum(products: &[(Factor<'_>, Factor<'_>)], bias: Option<&Tensor>) -> Result<Tensor> {
    let Some(&(first, second)) = products.first() else {
        return Err(Error::Algebra { operation: "matrix product", problem: "no factors".into() });
    };
    let shape = [first.size()?.0, second.size()?.1];
    let mut all: Vec<&Tensor> = products.iter().flat_map(|(a, b)| [a.matrix, b.matrix]).collect();
    all.extend(bias);
    same_kind("matrix product", &all)?;
    for (a, b) in products {
        let ((rows, inner), (inner_b, columns)) = (a.size()?, b.size()?);
        if inner != inner_b || [rows, columns] != shape {
            return Err(Error::Shape {
                what: "matrix product".into(),
                expected: format!("{shape:?} from {rows}x{inner} times {inner}x…"),
                found: vec![inner_b, columns],
            });
        }
    }
    if let Some(bias) = bias
        && bias.count() != shape[1]
    {
        return Err(Error::shape("bias of a matrix product", [shape[1]], bias.shape()));
    }
    on_device!(first.matrix, crate::cuda::matmul_sum(&shape, products, bias));
    on_host!(first.matrix.dtype(), T => {
        let bias = bias.map(|bias| bias.host::<T>()).transpose()?;
        let mut sum: Option<Vec<T>> = None;
        for (a, b) in products {
            let (a_data, b_data) = (a.matrix.host::<T>()?, b.matrix.host::<T>()?);
            let epilogue = match (sum.take(), &bias) {
                (Some(previous), _) => Epilogue::Add(previous),
                (None, Some(bias)) => Epilogue::Bias(bias),
                (None, None) => Epilogue::Store,
            };
            sum = Some(gemm(a.view(&a_data), b.view(&b_data), epilogue).0);
        }
        Tensor::from_vec(sum.unwrap_or_default(), &shape)
    })
}

/// A·B.
pub(crate) fn matmul(a: Factor<'_>, b: Factor<'_>) -> Result<Tensor> {
    matmul_sum(&[(a, b)], None)
}

/// scale · (A·B − target), and Σ (A·B − target)².
pub(crate) fn matmul_residual(a: Factor<'_>, b: Factor<'_>, target: &Tensor, scale: f64) -> Result<(Tensor, Total)> {
    same_kind("matrix product", &[a.matrix, b.matrix, target])?;
    let (shape, (inner, columns)) = ([a.size()?.0, b.size()?.1], (a.size()?.1, b.size()?.1));
    if b.size()?.0 != inner {
        return Err(Error::shape("matrix product", [inner, columns], b.matrix.shape()));
    }
    if target.shape() != shape {
        return Err(Error::shape("target of a matrix product", shape, target.shape()));
    }
    on_device!(target, crate::cuda::matmul_residual(a, b, target, scale));
    on_host!(target.dtype(), T => {
        let (a_data, b_data, target) = (a.matrix.host::<T>()?, b.matrix.host::<T>()?, target.host::<T>()?);
        let epilogue = Epilogue::Residual { target: &target, scale: T::of(scale) };
        let (out, squares) = gemm(a.view(&a_data), b.view(&b_data), epilogue);
        Ok((Tensor::from_vec(out, &shape)?, Total::Known(squares)))
    })
}

/// scale · (value − target), and Σ (value − target)².
pub(crate) fn residual(value: &Tensor, target: &Tensor, scale: f64) -> Result<(Tensor, Total)> {
    same_shape("residual", &[value, target])?;
    on_device!(value, crate::cuda::residual(value, target, scale));
    let squares = squared_distance(value, target)?;
    Ok((combine(scale, value, -scale, target)?, Total::Known(squares)))
}

/// The residuals of several (value, target, scale).
pub(crate) fn residuals(wanted: &[(&Tensor, &Tensor, f64)]) -> Result<Vec<(Tensor, Total)>> {
    #[cfg(feature = "cuda")]
    if wanted.first().is_some_and(|(value, ..)| !value.on_cpu()) {
        wanted.iter().try_for_each(|(value, target, _)| same_shape("residual", &[value, target]))?;
        return crate::cuda::residuals(wanted);
    }
    wanted.iter().map(|(value, target, scale)| residual(value, target, *scale)).collect()
}

/// Whether the residual of a product is better computed together with others than with the product: on a device,
/// where every kernel is waited for, that of a small one.
pub(crate) fn waits_for_others(target: &Tensor) -> bool {
    !target.on_cpu() && target.count() <= 1 << 14
}

/// Applies `f` to each element of equally shaped tensors in main memory, or has the device do so.
macro_rules! elementwise {
    ($what:literal, [$first:expr $(, $rest:expr)*], |$args:pat_param| $T:ident => $body:expr, else $other:expr) => {{
        same_shape($what, &[$first $(, $rest)*])?;
        on_device!($first, $other);
        on_host!($first.dtype(), $T => {
            let inputs = [&*$first.host::<$T>()? $(, &*$rest.host::<$T>()?)*];
            let out = elementwise::map(inputs, #[inline(always)] |$args| $body);
            Tensor::from_vec(out, $first.shape())
        })
    }};
}

pub(crate) fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    elementwise!("sum", [a, b], |[a, b]| T => a + b, else crate::cuda::add(a, b))
}

pub(crate) fn sub(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    elementwise!("difference", [a, b], |[a, b]| T => a - b, else crate::cuda::sub(a, b))
}

/// a ⊙ b, with products too small to matter set to zero.
pub(crate) fn mul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    elementwise!("elementwise product", [a, b], |[a, b]| T => flush(a * b), else crate::cuda::mul(a, b))
}

/// factor · a.
pub(crate) fn scale(factor: f64, a: &Tensor) -> Result<Tensor> {
    elementwise!("scaling", [a], |[a]| T => T::of(factor) * a, else crate::cuda::scale(factor, a))
}

/// α a + β b.
pub(crate) fn combine(alpha: f64, a: &Tensor, beta: f64, b: &Tensor) -> Result<Tensor> {
    elementwise!("linear combination", [a, b], |[a, b]| T => flush_subnormal(T::of(alpha).fma(a, T::of(beta) * b)),
        else crate::cuda::combine(alpha, a, beta, b))
}

/// Every element moved into a range.
pub(crate) fn clamp(a: &Tensor, low: f64, high: f64) -> Result<Tensor> {
    elementwise!("clamping", [a], |[a]| T => {
        let a = if a > T::of(high) { T::of(high) } else { a };
        if a < T::of(low) { T::of(low) } else { a }
    }, else crate::cuda::clamp(a, low, high))
}

/// The sign of each element; zero has none.
pub(crate) fn signs(a: &Tensor) -> Result<Tensor> {
    elementwise!("signs", [a], |[a]| T => sign(a), else crate::cuda::signs(a))
}

#[inline(always)]
fn sign<T: Element>(a: T) -> T {
    let up = if a > T::ZERO { T::ONE } else { T::ZERO };
    let down = if a < T::ZERO { T::ONE } else { T::ZERO };
    if a.wide().is_nan() { a } else { up - down }
}

/// (a + shift)^(−1/2).
pub(crate) fn inverse_sqrt(a: &Tensor, shift: f64) -> Result<Tensor> {
    elementwise!("inverse root", [a], |[a]| T => T::of((a.wide() + shift).sqrt().recip()),
        else crate::cuda::inverse_sqrt(a, shift))
}

/// (φ(z), φ'(z)).
pub(crate) fn activate(f: Activation, z: &Tensor) -> Result<(Tensor, Tensor)> {
    on_device!(z, crate::cuda::activate(f, z));
    on_host!(z.dtype(), T => {
        let [value, slope] = with_pointwise!(f, T, f => elementwise::map_many([&z.host::<T>()?], #[inline(always)] |[z]| {
            let (value, slope) = f.value_and_slope(z);
            [value, slope]
        }));
        Ok((Tensor::from_vec(value, z.shape())?, Tensor::from_vec(slope, z.shape())?))
    })
}

/// An activation at z: what was given and what came out, for the dual pass.
#[derive(Clone, Copy)]
pub(crate) struct Activated<'a> {
    pub(crate) z: &'a Tensor,
    pub(crate) value: &'a Tensor,
    pub(crate) slope: &'a Tensor,
}

/// The tangent of grad ⊙ φ'(z): grad_t ⊙ φ' + grad ⊙ φ'' ⊙ z_t, in one pass.
pub(crate) fn pull_back_tangent(
    f: Activation,
    at: Activated<'_>,
    grad: &Tensor,
    grad_tangent: Option<&Tensor>,
    z_tangent: &Tensor,
) -> Result<Tensor> {
    let Activated { z, value, slope } = at;
    same_shape("activation tangent", &[z, value, slope, grad, z_tangent])?;
    if let Some(grad_tangent) = grad_tangent {
        same_shape("activation tangent", &[z_tangent, grad_tangent])?;
    }
    on_device!(z, crate::cuda::pull_back_tangent(f, at, grad, grad_tangent, z_tangent));
    on_host!(z.dtype(), T => {
        let inputs = [
            &*z.host::<T>()?, &*value.host::<T>()?, &*slope.host::<T>()?, &*grad.host::<T>()?, &*z_tangent.host::<T>()?,
        ];
        let out = with_pointwise!(f, T, f => match grad_tangent {
            None => elementwise::map(inputs, #[inline(always)] |[z, value, slope, grad, z_t]| {
                flush(grad * f.curvature(z, value, slope) * z_t)
            }),
            Some(grad_t) => {
                let [z, value, slope, grad, z_t] = inputs;
                elementwise::map([z, value, slope, grad, z_t, &grad_t.host::<T>()?], #[inline(always)] |[z, value, slope, grad, z_t, grad_t]| {
                    flush(grad_t.fma(slope, grad * f.curvature(z, value, slope) * z_t))
                })
            }
        });
        Tensor::from_vec(out, z.shape())
    })
}

/// Σ over the batch (first axis); the result has the shape of one row.
pub(crate) fn sum_rows(x: &Tensor) -> Result<Tensor> {
    on_device!(x, crate::cuda::sum_rows(x));
    let shape = x.shape().get(1..).unwrap_or(&[]);
    on_host!(x.dtype(), T => Tensor::from_vec(reduce::column_sums(&x.host::<T>()?, x.row_len()), shape))
}

/// Tensors joined along the second axis.
pub(crate) fn concat(parts: &[&Tensor]) -> Result<Tensor> {
    same_kind("concatenation", parts)?;
    in_the_open("concatenation")?;
    let parts: Vec<&candle_core::Tensor> = parts.iter().map(|part| &part.0).collect();
    candle_core::Tensor::cat(&parts, 1)
        .and_then(|joined| joined.contiguous())
        .map(Tensor)
        .map_err(Error::backend("concatenation"))
}

/// `length` entries of the second axis, from `start` on.
pub(crate) fn narrow(x: &Tensor, start: usize, length: usize) -> Result<Tensor> {
    in_the_open("taking channels")?;
    let part = x.0.narrow(1, start, length).and_then(|part| part.contiguous());
    part.map(Tensor).map_err(Error::backend("taking channels"))
}

/// Σ a_i b_i, summed in double precision.
pub(crate) fn dot(a: &Tensor, b: &Tensor) -> Result<f64> {
    dot_total(a, b)?.read()
}

/// The same, to be read later.
pub(crate) fn dot_total(a: &Tensor, b: &Tensor) -> Result<Total> {
    same_shape("inner product", &[a, b])?;
    on_device!(a, crate::cuda::dot(a, b));
    on_host!(a.dtype(), T => Ok(Total::Known(reduce::dot(&a.host::<T>()?, &b.host::<T>()?))))
}

/// Zero, or not a number where not everything in either is finite; to be read later.
pub(crate) fn finite_total(x: &Tensor, y: &Tensor) -> Result<Total> {
    on_device!(x, crate::cuda::finite(x, Some(y)));
    on_host!(x.dtype(), T => {
        let spoilt = |tensor: &Tensor| Ok::<_, Error>(reduce::first_non_finite(&tensor.host::<T>()?).is_some());
        Ok(Total::Known(if spoilt(x)? || spoilt(y)? { f64::NAN } else { 0.0 }))
    })
}

/// Σ (a_i − b_i)², summed in double precision.
pub(crate) fn squared_distance(a: &Tensor, b: &Tensor) -> Result<f64> {
    same_shape("distance", &[a, b])?;
    on_device!(a, crate::cuda::distance(a, b)?.read());
    on_host!(a.dtype(), T => Ok(reduce::squared_distance(&a.host::<T>()?, &b.host::<T>()?)))
}

#[cfg(test)]
mod tests;
