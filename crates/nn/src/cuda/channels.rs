//! Operations in which each channel has numbers of its own.

use super::call::{Call, Grid, gpu_of};
use crate::{Result, Tensor};

/// Terms that one kernel adds up.
const TERMS: usize = 4;

/// Σ_t x_t ⊙ factor_t (+ shift), for channels of so many pixels.
pub(crate) fn combine_channels(
    terms: &[(&Tensor, &Tensor)],
    shift: Option<&Tensor>,
    (channels, pixels): (usize, usize),
) -> Result<Tensor> {
    let (first, count) = (terms[0].0, terms[0].0.count());
    let mut call = Call::new("combine_channels", first.dtype(), Grid::Elements(count));
    for t in 0..TERMS {
        call = call.may_read(terms.get(t).map(|(x, _)| *x));
    }
    for t in 0..TERMS {
        call = call.may_read(terms.get(t).map(|(_, factors)| *factors));
    }
    let single = |numbers: &Tensor| usize::from(numbers.count() == 1);
    let mut singles: usize = terms.iter().enumerate().map(|(t, (_, factors))| single(factors) << t).sum();
    singles += shift.map_or(0, single) << TERMS;
    call.may_read(shift).sizes(&[count, channels, pixels, singles]).write_one(&*gpu_of(first)?, first.shape())
}

fn sums(x: &Tensor, y: Option<&Tensor>, channels: usize, pixels: usize) -> Result<Tensor> {
    let batch = x.count() / (channels * pixels);
    let call = Call::new("channel_sums", x.dtype(), Grid::Blocks(channels));
    call.reads(&[x]).may_read(y).sizes(&[batch, channels, pixels]).write_one(&*gpu_of(x)?, &[channels])
}

/// Sums over everything but the channels, or over everything.
pub(crate) fn sum_channels(x: &Tensor, factors: usize, (channels, pixels): (usize, usize)) -> Result<Tensor> {
    match factors {
        1 => sums(x, None, 1, x.count()),
        _ => sums(x, None, channels, pixels),
    }
}

/// The same of a ⊙ b.
pub(crate) fn dot_channels(a: &Tensor, b: &Tensor, factors: usize, sizes: (usize, usize)) -> Result<Tensor> {
    match factors {
        1 => sums(a, Some(b), 1, a.count()),
        _ => sums(a, Some(b), sizes.0, sizes.1),
    }
}
