//! The arithmetic that has to be fast: a matrix product with fused epilogues,
//! fused elementwise loops, and reductions that sum in double precision.
//!
//! Everything here works on plain slices of `f32` or `f64`, picks the vector
//! instructions at run time ([`isa`]) and gives the same bits whatever the
//! number of threads: work is cut into pieces by size alone, and partial sums
//! are added in the order of the pieces. This folder is the only place with
//! `unsafe` code; each block says why it is sound.

pub(crate) mod channels;
pub(crate) mod convolve;
mod depthwise;
pub(crate) mod element;
pub(crate) mod elementwise;
pub(crate) mod gather;
pub(crate) mod gemm;
pub(crate) mod isa;
mod pack;
pub(crate) mod pool;
pub(crate) mod reduce;
mod tile;
mod transpose;

/// Elements below which a loop is not worth sending to other threads.
const PARALLEL_FROM: usize = 1 << 15;

/// Elements a thread takes at a time. Fixed, so that results never depend on
/// how many threads there are.
const CHUNK: usize = 1 << 14;
