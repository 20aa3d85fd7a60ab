//! One element at a time.

use super::call::{Call, Grid, gpu_of};
use super::gpu::Gpu;
use crate::ops::{Activated, AdamRates};
use crate::{Activation, DType, Result, Tensor};

/// A kernel over all elements of tensors of one shape.
fn over(name: &'static str, like: &Tensor) -> Call {
    Call::new(name, like.dtype(), Grid::Elements(like.count())).sizes(&[like.count()])
}

/// out_i = f(inputs_i, reals)
fn map(name: &'static str, inputs: &[&Tensor], reals: &[f64]) -> Result<Tensor> {
    let first = inputs[0];
    over(name, first).reads(inputs).reals(reals).write_one(&*gpu_of(first)?, first.shape())
}

pub(crate) fn full(value: f64, shape: &[usize], dtype: DType, device: usize) -> Result<Tensor> {
    let count = crate::tensor::addressable(shape)?;
    let call = Call::new("fill", dtype, Grid::Elements(count)).sizes(&[count]).reals(&[value]);
    call.write_one(&*Gpu::open(device)?, shape)
}

pub(crate) fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    map("add", &[a, b], &[])
}

pub(crate) fn sub(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    map("sub", &[a, b], &[])
}

pub(crate) fn mul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    map("mul", &[a, b], &[])
}

pub(crate) fn scale(factor: f64, a: &Tensor) -> Result<Tensor> {
    map("scale", &[a], &[factor])
}

pub(crate) fn combine(alpha: f64, a: &Tensor, beta: f64, b: &Tensor) -> Result<Tensor> {
    map("combine", &[a, b], &[alpha, beta])
}

pub(crate) fn inverse_sqrt(a: &Tensor, shift: f64) -> Result<Tensor> {
    map("inverse_sqrt", &[a], &[shift])
}

pub(crate) fn clamp(a: &Tensor, low: f64, high: f64) -> Result<Tensor> {
    map("clamp", &[a], &[low, high])
}

pub(crate) fn signs(a: &Tensor) -> Result<Tensor> {
    map("signs", &[a], &[])
}

fn ranged(name: &'static str, x: &Tensor, low: &Tensor, high: &Tensor) -> Result<Tensor> {
    let call = over(name, x).sizes(&[x.row_len()]).reads(&[x, low, high]);
    call.write_one(&*gpu_of(x)?, x.shape())
}

pub(crate) fn excess(x: &Tensor, low: &Tensor, high: &Tensor) -> Result<Tensor> {
    ranged("excess", x, low, high)
}

pub(crate) fn clamp_rows(x: &Tensor, low: &Tensor, high: &Tensor) -> Result<Tensor> {
    ranged("clamp_rows", x, low, high)
}

/// The kernels' number for an activation, and its parameter.
fn code(f: Activation) -> (usize, f64) {
    match f {
        Activation::Identity => (0, 0.0),
        Activation::Relu => (1, 0.0),
        Activation::LeakyRelu { slope } => (1, slope),
        Activation::Softplus { beta } => (2, beta),
        Activation::Sigmoid => (3, 0.0),
        Activation::Tanh => (4, 0.0),
        Activation::Silu => (5, 0.0),
        Activation::Relu6 => (6, 0.0),
        Activation::Square => (7, 0.0),
        Activation::SquareCube => (8, 0.0),
        Activation::SurrogateRelu { alpha } => (9, alpha),
    }
}

pub(crate) fn activate(f: Activation, z: &Tensor) -> Result<(Tensor, Tensor)> {
    let (kind, parameter) = code(f);
    let call = over("activate", z).reads(&[z]).sizes(&[kind]).reals(&[parameter]);
    let [value, slope] = call.write(&*gpu_of(z)?, [(z.shape(), z.dtype()); 2])?;
    Ok((value, slope))
}

pub(crate) fn pull_back_tangent(
    f: Activation,
    at: Activated<'_>,
    grad: &Tensor,
    grad_tangent: Option<&Tensor>,
    z_tangent: &Tensor,
) -> Result<Tensor> {
    let (kind, parameter) = code(f);
    over("pull_back_tangent", at.z)
        .reads(&[at.z, at.value, at.slope, grad, z_tangent])
        .may_read(grad_tangent)
        .sizes(&[kind])
        .reals(&[parameter])
        .write_one(&*gpu_of(at.z)?, at.z.shape())
}

pub(crate) fn adam(p: &Tensor, g: &Tensor, m: &Tensor, v: &Tensor, rates: AdamRates) -> Result<[Tensor; 3]> {
    let AdamRates { step, beta1, beta2, correction1, correction2, epsilon } = rates;
    over("adam", p)
        .reads(&[p, g, m, v])
        .reals(&[step / correction1, beta1, beta2, 1.0 / correction2.sqrt(), epsilon])
        .write(&*gpu_of(p)?, [(p.shape(), p.dtype()); 3])
}
