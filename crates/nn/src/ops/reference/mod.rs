//! The same operations in the tensor backend's own vocabulary: what kernels are tested against.

pub(crate) mod channels;
pub(crate) mod convolve;
pub(crate) mod pool;

use candle_core::{D, Result as Backend, Tensor as Raw};

use super::{Activated, AdamRates, Factor};
use crate::{Activation, Error, Result, Tensor};

/// Σ of all elements: the last axis by the backend in its own precision, the rest in f64.
pub(crate) fn sum(x: &Raw) -> Result<f64> {
    let total = || -> Backend<f64> {
        let rows = if x.rank() > 1 { x.sum(D::Minus1)? } else { x.clone() };
        Ok(rows.to_dtype(candle_core::DType::F64)?.flatten_all()?.to_vec1::<f64>()?.iter().sum())
    };
    total().map_err(Error::backend("sum"))
}

pub(crate) fn matmul_sum(products: &[(Factor<'_>, Factor<'_>)], bias: Option<&Tensor>) -> Result<Tensor> {
    let compute = || -> Backend<Raw> {
        let mut sum: Option<Raw> = None;
        for (a, b) in products {
            let turned = |factor: &Factor<'_>| {
                if factor.transposed { factor.matrix.0.t() } else { Ok(factor.matrix.0.clone()) }
            };
            let product = turned(a)?.matmul(&turned(b)?)?;
            sum = Some(match sum {
                Some(sum) => (sum + product)?,
                None => product,
            });
        }
        let sum = sum.ok_or_else(|| candle_core::Error::msg("no factors"))?;
        match bias {
            Some(bias) => sum.broadcast_add(&bias.0.flatten_all()?),
            None => Ok(sum),
        }
    };
    compute().map(Tensor).map_err(Error::backend("matrix product"))
}

fn sigmoid(z: &Raw) -> Backend<Raw> {
    (z.neg()?.exp()? + 1.0)?.recip()
}

/// 1 where z > 0, else 0.
fn step(z: &Raw) -> Backend<Raw> {
    z.gt(0.0)?.to_dtype(z.dtype())
}

/// `yes · mask + no · (1 − mask)`
fn choose(mask: &Raw, yes: f64, no: f64) -> Backend<Raw> {
    mask.affine(yes - no, no)
}

fn value_and_slope(f: Activation, z: &Raw) -> Backend<(Raw, Raw)> {
    Ok(match f {
        Activation::Identity => (z.clone(), z.ones_like()?),
        Activation::Relu => (z.relu()?, step(z)?),
        Activation::LeakyRelu { slope } => {
            let slope = choose(&step(z)?, 1.0, slope)?;
            ((z * &slope)?, slope)
        }
        Activation::Softplus { beta } => {
            let decay = z.abs()?.affine(-beta, 0.0)?.exp()?;
            let value = (z.relu()? + (decay + 1.0)?.log()?.affine(1.0 / beta, 0.0)?)?;
            (value, sigmoid(&z.affine(beta, 0.0)?)?)
        }
        Activation::Sigmoid => {
            let s = sigmoid(z)?;
            let slope = (&s * s.affine(-1.0, 1.0)?)?;
            (s, slope)
        }
        Activation::Tanh => {
            let t = z.tanh()?;
            let slope = t.sqr()?.affine(-1.0, 1.0)?;
            (t, slope)
        }
        Activation::Silu => {
            let s = sigmoid(z)?;
            let slope = (&s * ((z * s.affine(-1.0, 1.0)?)? + 1.0)?)?;
            ((z * s)?, slope)
        }
        Activation::Relu6 => {
            let inside = (step(z)? * z.lt(6.0)?.to_dtype(z.dtype())?)?;
            (z.clamp(0.0, 6.0)?, inside)
        }
        Activation::Square => (z.sqr()?, z.affine(2.0, 0.0)?),
        Activation::SquareCube => {
            let square = z.sqr()?;
            ((&square + (&square * z)?)?, (z.affine(2.0, 0.0)? + square.affine(3.0, 0.0)?)?)
        }
        Activation::SurrogateRelu { alpha } => (z.relu()?, sigmoid(&z.affine(alpha, 0.0)?)?),
    })
}

/// φ''; `None` where it is zero everywhere.
fn curvature(f: Activation, at: Activated<'_>) -> Backend<Option<Raw>> {
    let (z, value, slope) = (&at.z.0, &at.value.0, &at.slope.0);
    let logistic = |sharpness: f64| (slope * slope.affine(-1.0, 1.0)?)?.affine(sharpness, 0.0);
    Ok(match f {
        Activation::Identity | Activation::Relu | Activation::LeakyRelu { .. } | Activation::Relu6 => None,
        Activation::Softplus { beta } => Some(logistic(beta)?),
        Activation::SurrogateRelu { alpha } => Some(logistic(alpha)?),
        Activation::Sigmoid => Some((slope * value.affine(-2.0, 1.0)?)?),
        Activation::Tanh => Some((value * slope)?.affine(-2.0, 0.0)?),
        Activation::Silu => {
            let s = sigmoid(z)?;
            let bend = ((z * s.affine(-2.0, 1.0)?)? + 2.0)?;
            Some(((&s * s.affine(-1.0, 1.0)?)? * bend)?)
        }
        Activation::Square => Some(z.ones_like()?.affine(2.0, 0.0)?),
        Activation::SquareCube => Some(z.affine(6.0, 2.0)?),
    })
}

pub(crate) fn activate(f: Activation, z: &Tensor) -> Result<(Tensor, Tensor)> {
    value_and_slope(f, &z.0).map(|(value, slope)| (Tensor(value), Tensor(slope))).map_err(Error::backend("activation"))
}

pub(crate) fn pull_back_tangent(
    f: Activation,
    at: Activated<'_>,
    grad: &Tensor,
    grad_tangent: Option<&Tensor>,
    z_tangent: &Tensor,
) -> Result<Tensor> {
    let compute = || -> Backend<Raw> {
        let bent = curvature(f, at)?.map(|bend| (&grad.0 * bend)? * &z_tangent.0).transpose()?;
        let carried = grad_tangent.map(|tangent| &tangent.0 * &at.slope.0).transpose()?;
        match (carried, bent) {
            (Some(carried), Some(bent)) => carried + bent,
            (Some(only), None) | (None, Some(only)) => Ok(only),
            (None, None) => at.z.0.zeros_like(),
        }
    };
    compute().map(Tensor).map_err(Error::backend("activation tangent"))
}

pub(crate) fn adam(p: &Tensor, g: &Tensor, m: &Tensor, v: &Tensor, rates: AdamRates) -> Result<[Tensor; 3]> {
    let compute = || -> Backend<[Raw; 3]> {
        let m = (m.0.affine(rates.beta1, 0.0)? + g.0.affine(1.0 - rates.beta1, 0.0)?)?;
        let v = (v.0.affine(rates.beta2, 0.0)? + g.0.sqr()?.affine(1.0 - rates.beta2, 0.0)?)?;
        let scale = v.sqrt()?.affine(1.0 / rates.correction2.sqrt(), rates.epsilon)?;
        let p = (&p.0 - (m.affine(rates.step / rates.correction1, 0.0)? / scale)?)?;
        Ok([p, m, v])
    };
    compute().map(|new| new.map(Tensor)).map_err(Error::backend("Adam step"))
}
