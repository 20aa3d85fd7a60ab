//! Operations in which each channel, the second axis, has numbers of its own.

use candle_core::{D, Result as Backend, Tensor as Raw};

use super::{same_kind, same_shape};
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
    if !first.on_cpu() {
        return fallback::combine(terms, shift).map(Tensor).map_err(Error::backend(WHAT));
    }
    if let Some((head, tail)) = terms.split_at_checked(MOST_TERMS).filter(|(_, tail)| !tail.is_empty()) {
        return super::add(&combine_channels(head, shift)?, &combine_channels(tail, None)?);
    }
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
    reduced("channel sums", x, factors, |channels, pixels| {
        if !x.on_cpu() {
            return fallback::sums(&x.0).map_err(Error::backend("channel sums"));
        }
        on_host!(x.dtype(), T => Ok(channels::sums(&x.host::<T>()?, channels, pixels)))
    })
}

/// Sums of a ⊙ b over batch and pixels; `factors` of them.
pub(crate) fn dot_channels(a: &Tensor, b: &Tensor, factors: usize) -> Result<Tensor> {
    same_shape("channel products", &[a, b])?;
    reduced("channel products", a, factors, |channels, pixels| {
        if !a.on_cpu() {
            return a
                .0
                .mul(&b.0)
                .and_then(|product| fallback::sums(&product))
                .map_err(Error::backend("channel products"));
        }
        on_host!(a.dtype(), T => Ok(channels::dots(&a.host::<T>()?, &b.host::<T>()?, channels, pixels)))
    })
}

fn reduced(
    what: &'static str,
    x: &Tensor,
    factors: usize,
    sums: impl FnOnce(usize, usize) -> Result<Vec<f64>>,
) -> Result<Tensor> {
    let (channels, pixels) = sizes(what, x)?;
    check(what, factors, channels)?;
    let mut sums = sums(channels, pixels)?;
    if factors == 1 {
        sums = vec![sums.iter().sum()];
    }
    Tensor::from_f64(&sums, &[factors], x.dtype())?.to_device(x.device())
}

/// The same by candle's own operations.
pub(super) mod fallback {
    use super::*;

    /// Numbers in a shape that is stretched over batch and pixels.
    fn stretched(numbers: &Tensor, x: &Tensor) -> Backend<Raw> {
        let shape: Vec<usize> = (0..x.shape().len()).map(|axis| if axis == 1 { numbers.count() } else { 1 }).collect();
        numbers.0.reshape(shape)
    }

    pub(crate) fn combine(terms: &[(&Tensor, &Tensor)], shift: Option<&Tensor>) -> Backend<Raw> {
        let mut sum: Option<Raw> = None;
        for (x, factors) in terms {
            let term = x.0.broadcast_mul(&stretched(factors, x)?)?;
            sum = Some(match sum {
                Some(sum) => (sum + term)?,
                None => term,
            });
        }
        let sum = sum.ok_or_else(|| candle_core::Error::msg("no terms"))?;
        match (shift, terms.first()) {
            (Some(shift), Some((x, _))) => sum.broadcast_add(&stretched(shift, x)?),
            _ => Ok(sum),
        }
    }

    /// One sum for each channel.
    pub(crate) fn sums(x: &Raw) -> Backend<Vec<f64>> {
        let pixels = if x.rank() > 2 { x.flatten_from(2)?.sum(D::Minus1)? } else { x.clone() };
        let sums = if pixels.rank() > 1 { pixels.sum(0)? } else { pixels.sum_all()?.reshape(1)? };
        sums.to_dtype(candle_core::DType::F64)?.to_vec1::<f64>()
    }
}
