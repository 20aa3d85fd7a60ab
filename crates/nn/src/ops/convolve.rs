//! Convolution and its two gradients.

use super::{batched, on_device, same_kind};
use crate::kernel::convolve;
use crate::kernel::element::Element;
use crate::tensor::on_host;
use crate::{Convolution, Error, Result, Tensor};

/// Fails unless a tensor is a batch of the given samples.
fn check_batch(what: &'static str, tensor: &Tensor, sample: &[usize; 3]) -> Result<()> {
    if tensor.shape().get(1..) == Some(sample) {
        return Ok(());
    }
    Err(Error::shape(what, format!("[batch, {}, {}, {}]", sample[0], sample[1], sample[2]), tensor.shape()))
}

fn check_weight(convolution: &Convolution, w: &Tensor) -> Result<()> {
    if w.shape() == convolution.weight_shape() {
        return Ok(());
    }
    Err(Error::shape("weight of a convolution", convolution.weight_shape(), w.shape()))
}

/// What the products are added to: zero, or each channel's bias.
fn started<T: Element>([samples, channels, height, width]: [usize; 4], bias: Option<&[T]>) -> Vec<T> {
    let pixels = height * width;
    match bias {
        None => vec![T::ZERO; samples * channels * pixels],
        Some(bias) => {
            let sample: Vec<T> = bias.iter().flat_map(|&bias| std::iter::repeat_n(bias, pixels)).collect();
            sample.repeat(samples)
        }
    }
}

/// Adds up products of pairs into one batch of the given shape.
macro_rules! accumulate {
    ($convolution:expr, $pairs:expr, $bias:expr, $shape:expr, $kernel:path) => {{
        on_host!($pairs[0].0.dtype(), T => {
            let bias: Option<&Tensor> = $bias;
            let bias = bias.map(|bias| bias.host::<T>()).transpose()?;
            let mut sum = started($shape, bias.as_deref());
            for (a, b) in $pairs {
                $kernel($convolution, &a.host::<T>()?, &b.host::<T>()?, &mut sum);
            }
            Tensor::from_vec(sum, &$shape)
        })
    }};
}

/// Samples of pairs that can be multiplied at all, with a bias for each of so many channels.
fn check_pairs(
    what: &'static str,
    pairs: &[(&Tensor, &Tensor)],
    bias: Option<&Tensor>,
    channels: usize,
) -> Result<usize> {
    let Some((first, _)) = pairs.first() else {
        return Err(Error::Algebra { operation: "convolution", problem: "no factors".into() });
    };
    let all: Vec<&Tensor> = pairs.iter().flat_map(|(a, b)| [*a, *b]).chain(bias).collect();
    same_kind(what, &all)?;
    if let Some((other, _)) = pairs.iter().find(|(a, _)| a.rows() != first.rows()) {
        return Err(Error::shape(what, first.shape(), other.shape()));
    }
    match bias {
        Some(bias) if bias.count() != channels => Err(Error::shape("bias of a convolution", [channels], bias.shape())),
        _ => Ok(first.rows()),
    }
}

/// Σ_p w_p ⋆ x_p (+ bias of each channel), for pairs (x, w).
pub(crate) fn convolve_sum(
    convolution: &Convolution,
    pairs: &[(&Tensor, &Tensor)],
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let samples = check_pairs("convolution", pairs, bias, convolution.outputs)?;
    for (x, w) in pairs {
        check_batch("input of a convolution", x, &convolution.input_shape())?;
        check_weight(convolution, w)?;
    }
    let shape = batched(samples, convolution.output_shape());
    on_device!(pairs[0].0, crate::cuda::convolve_sum(convolution, pairs, bias, &shape));
    accumulate!(convolution, pairs, bias, shape, convolve::forward)
}

/// The adjoint in the input: Σ_p w_pᵀ ⋆ g_p (+ bias), for pairs (g, w).
pub(crate) fn convolve_inputs(
    convolution: &Convolution,
    pairs: &[(&Tensor, &Tensor)],
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let samples = check_pairs("transposed convolution", pairs, bias, convolution.inputs)?;
    for (g, w) in pairs {
        check_batch("input of a transposed convolution", g, &convolution.output_shape())?;
        check_weight(convolution, w)?;
    }
    let shape = batched(samples, convolution.input_shape());
    on_device!(pairs[0].0, crate::cuda::convolve_inputs(convolution, pairs, bias, &shape));
    accumulate!(convolution, pairs, bias, shape, convolve::inputs)
}

/// The adjoint in the weight: Σ_samples g ⊗ patches of x.
pub(crate) fn convolve_weights(convolution: &Convolution, g: &Tensor, x: &Tensor) -> Result<Tensor> {
    check_pairs("weight gradient of a convolution", &[(g, x)], None, 0)?;
    check_batch("gradient of a convolution", g, &convolution.output_shape())?;
    check_batch("input of a convolution", x, &convolution.input_shape())?;
    if g.rows() != x.rows() {
        return Err(Error::shape("weight gradient of a convolution", g.shape(), x.shape()));
    }
    let shape = convolution.weight_shape();
    on_device!(g, crate::cuda::convolve_weights(convolution, g, x, &shape));
    accumulate!(convolution, [(g, x)], None::<&Tensor>, shape, convolve::weights)
}
