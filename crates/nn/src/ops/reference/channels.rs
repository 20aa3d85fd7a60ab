use candle_core::{D, Result as Backend, Tensor as Raw};

use crate::Tensor;

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
