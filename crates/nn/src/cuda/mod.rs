//! The operations of [`ops`](crate::ops) on an NVIDIA device.
//!
//! Each is a kernel of ours ([`Call`]) or a product of cuBLAS (`gemm`, `biased`): these alone
//! touch the device's memory by address. Kernels are
//! compiled when a device is first used, once for each number type.
//!
//! Everything runs on one stream of the device: a kernel sees what those before it wrote, and
//! memory that is let go is given back after the last kernel that was told of it. What is to be repeated is
//! recorded on another ([`Replay`]), but done on that one.

mod biased;
mod call;
mod channels;
mod convolve;
mod gemm;
mod gpu;
mod matrix;
mod pointwise;
mod pool;
mod reduce;
mod replay;

pub(crate) use call::concat_rows;
pub(crate) use channels::{combine_channels, dot_channels, sum_channels};
pub(crate) use convolve::{convolve_inputs, convolve_sum, convolve_weights};
pub(crate) use gpu::{open, recording};
pub(crate) use matrix::{matmul_residual, matmul_sum};
pub(crate) use pointwise::{
    activate, adam, add, clamp, clamp_rows, combine, excess, full, inverse_sqrt, mul, pull_back_tangent, scale, signs,
    sub,
};
pub(crate) use pool::{pool, put_largest, spread, take_largest};
pub(crate) use reduce::{add_rows, distance, dot, dot_rows, finite, residual, residuals, steps, sum_each, sum_rows};
pub(crate) use replay::{Replay, duplicate_of};
