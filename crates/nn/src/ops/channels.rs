//! Operations in which each channel, the second axis, has numbers of its own.

use super::{on_device, same_kind, same_shape};
use crate::kernel::channels;
use crate::tensor::on_host;
use crate::{Error, Result, Tensor};

/// Channels of a batch, and pixels of a channel.
fn sizes(what: &'static str, x: &Tensor) -> Result<(usize, usize)> {
    if x.count() == 0 {
        return Err(Error::EmptyBatch { what: what.into() });
    }
    let channels = x.shape().get(1).copied().unwrap_or(1);
    Ok((channels, x.row_len() / channels))
}

/// Fails unless there is one number for each channel, or one for all.
fn check(what: &'static str, numbers: usize, channels: usize) -> Result<()> {
    if numbers == 1 || numbers == channels {
        return Ok(());
    }
    Err(Error::shape(what, format!("[1] or [{channels}]"), &[numbers]))
}

/// Terms that one pass over memory adds up: two values and their tangents.
const MOST_TERMS: usize = 4;

/// Σ_t x_t ⊙ factor_t (+ shift): each channel with its own factors and shift, or all with one.
pub(crate) fn combine_channels(terms: &[(&Tensor, &Tensor)], shift: Option<&Tensor>) -> Result<Tensor> {
    const WHAT: &str = "channel factors";
    let Some(&(first, _)) = terms.first() else {
        return Err(Error::Algebra { operation: WHAT, problem: "no terms".into() });
    };
    let (inputs, factors): (Vec<&Tensor>, Vec<&Tensor>) = terms.iter().copied().unzip();
    same_shape(WHAT, &inputs)?;
    let numbers: Vec<&Tensor> = factors.iter().copied().chain(shift).collect();
    same_kind(WHAT, &[&[first], numbers.as_slice()].concat())?;
    let (channels, pixels) = sizes(WHAT, first)?;
    numbers.iter().try_for_each(|numbers| check(WHAT, numbers.count(), channels))?;
    if let Some((head, tail)) = terms.split_at_checked(MOST_TERMS).filter(|(_, tail)| !tail.is_empty()) {
        return super::add(&combine_channels(head, shift)?, &combine_channels(tail, None)?);
    }
    on_device!(first, crate::cuda::combine_channels(terms, shift, (channels, pixels)));
    on_host!(first.dtype(), T => {
        let inputs = inputs.iter().map(|x| x.host::<T>()).collect::<Result<Vec<_>>>()?;
        let factors = factors.iter().map(|factors| factors.host::<T>()).collect::<Result<Vec<_>>>()?;
        let shift = shift.map(|shift| shift.host::<T>()).transpose()?;
        let term = |t: usize| -> (&[T], &[T]) { (&inputs[t], &factors[t]) };
        let shift = shift.as_deref();
        let out = match terms.len() {
            1 => channels::combine([term(0)], shift, channels, pixels),
            2 => channels::combine([term(0), term(1)], shift, channels, pixels),
            3 => channels::combine([term(0), term(1), term(2)], shift, channels, pixels),
            _ => channels::combine([term(0), term(1), term(2), term(3)], shift, channels, pixels),
        };
        Tensor::from_vec(out, first.shape())
    })
}

/// Sums of `x` over batch and pixels; `factors` of them, one for each channel or one for all.
pub(crate) fn sum_channels(x: &Tensor, factors: usize) -> Result<Tensor> {
    let (channels, pixels) = checked("channel sums", x, factors)?;
    on_device!(x, crate::cuda::sum_channels(x, factors, (channels, pixels)));
    on_host!(x.dtype(), T => reduced(channels::sums(&x.host::<T>()?, channels, pixels), factors, x))
}

/// Sums of a ⊙ b over batch and pixels; `factors` of them.
pub(crate) fn dot_channels(a: &Tensor, b: &Tensor, factors: usize) -> Result<Tensor> {
    same_shape("channel products", &[a, b])?;
    let (channels, pixels) = checked("channel products", a, factors)?;
    on_device!(a, crate::cuda::dot_channels(a, b, factors, (channels, pixels)));
    on_host!(a.dtype(), T => reduced(channels::dots(&a.host::<T>()?, &b.host::<T>()?, channels, pixels), factors, a))
}

fn checked(what: &'static str, x: &Tensor, factors: usize) -> Result<(usize, usize)> {
    let (channels, pixels) = sizes(what, x)?;
    check(what, factors, channels)?;
    Ok((channels, pixels))
}

fn reduced(mut sums: Vec<f64>, factors: usize, like: &Tensor) -> Result<Tensor> {
    if factors == 1 {
        sums = vec![sums.iter().sum()];
    }
    Tensor::from_f64(&sums, &[factors], like.dtype())
}
