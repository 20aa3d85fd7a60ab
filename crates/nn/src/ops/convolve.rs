//! Convolution and its two gradients.

use candle_core::{Result as Backend, Tensor as Raw};

use super::{batched, same_kind};
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

/// Adds up products of pairs into one batch of the given shape, in main memory or elsewhere.
macro_rules! accumulate {
    ($convolution:expr, $pairs:expr, $bias:expr, $shape:expr, $kernel:path, $fallback:path) => {{
        let first = $pairs[0].0;
        if !first.on_cpu() {
            let mut sum = Tensor::zeros(&$shape, first.dtype(), first.device())?;
            for (a, b) in $pairs {
                let product = $fallback($convolution, &a.0, &b.0).map_err(Error::backend("convolution"))?;
                sum = super::add(&sum, &Tensor(product.reshape(&$shape).map_err(Error::backend("convolution"))?))?;
            }
            let Some(bias) = $bias else { return Ok(sum) };
            let one = Tensor::full(1.0, &[1], first.dtype(), first.device())?;
            return super::combine_channels(&[(&sum, &one)], Some(bias));
        }
        on_host!(first.dtype(), T => {
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
    accumulate!(convolution, pairs, bias, shape, convolve::forward, fallback::forward)
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
    accumulate!(convolution, pairs, bias, shape, convolve::inputs, fallback::inputs)
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
    accumulate!(convolution, [(g, x)], None::<&Tensor>, shape, convolve::weights, fallback::weights)
}

/// The same by candle's own operations: patches are picked out by index and multiplied.
pub(super) mod fallback {
    use super::*;

    /// Where each (weight, pixel) of a sample reads in the sample with zeros around it.
    fn reads(convolution: &Convolution, device: &candle_core::Device) -> Backend<Raw> {
        let [rows, columns] = convolution.axes;
        let width = columns.size + columns.before + columns.after;
        let plane = width * (rows.size + rows.before + rows.after);
        let mut at: Vec<u32> = Vec::new();
        for channel in 0..convolution.inputs {
            for (i, j) in (0..rows.kernel).flat_map(|i| (0..columns.kernel).map(move |j| (i, j))) {
                for p in 0..rows.outputs() {
                    let row = channel * plane + (p * rows.stride + i * rows.dilation) * width + j * columns.dilation;
                    at.extend((0..columns.outputs()).map(|q| (row + q * columns.stride) as u32));
                }
            }
        }
        let count = at.len();
        Raw::from_vec(at, count, device)
    }

    /// [samples, groups, weights of a group, pixels]
    fn patches(convolution: &Convolution, x: &Raw) -> Backend<Raw> {
        let [rows, columns] = convolution.axes;
        let padded = x.pad_with_zeros(2, rows.before, rows.after)?.pad_with_zeros(3, columns.before, columns.after)?;
        let weights = convolution.inputs / convolution.groups * convolution.taps();
        padded.flatten_from(1)?.contiguous()?.index_select(&reads(convolution, x.device())?, 1)?.reshape((
            x.dim(0)?,
            convolution.groups,
            weights,
            convolution.pixels(),
        ))
    }

    /// [1, groups, outputs of a group, weights of a group]
    fn kernels(convolution: &Convolution, w: &Raw) -> Backend<Raw> {
        w.reshape((1, convolution.groups, convolution.outputs / convolution.groups, ()))
    }

    /// [samples, groups, outputs of a group, pixels]
    fn grouped(convolution: &Convolution, g: &Raw) -> Backend<Raw> {
        g.reshape((g.dim(0)?, convolution.groups, convolution.outputs / convolution.groups, convolution.pixels()))
    }

    pub(crate) fn forward(convolution: &Convolution, x: &Raw, w: &Raw) -> Backend<Raw> {
        kernels(convolution, w)?.broadcast_matmul(&patches(convolution, x)?)
    }

    pub(crate) fn inputs(convolution: &Convolution, g: &Raw, w: &Raw) -> Backend<Raw> {
        let [rows, columns] = convolution.axes;
        let (height, width) = (rows.size + rows.before + rows.after, columns.size + columns.before + columns.after);
        let turned = kernels(convolution, w)?.transpose(2, 3)?.contiguous()?;
        let spread = turned.broadcast_matmul(&grouped(convolution, g)?)?;
        let samples = g.dim(0)?;
        let padded = Raw::zeros((samples, convolution.inputs * height * width), g.dtype(), g.device())?
            .index_add(&reads(convolution, g.device())?, &spread.reshape((samples, ()))?, 1)?
            .reshape((samples, convolution.inputs, height, width))?;
        padded.narrow(2, rows.before, rows.size)?.narrow(3, columns.before, columns.size)?.contiguous()
    }

    pub(crate) fn weights(convolution: &Convolution, g: &Raw, x: &Raw) -> Backend<Raw> {
        let turned = patches(convolution, x)?.transpose(2, 3)?.contiguous()?;
        grouped(convolution, g)?.matmul(&turned)?.sum(0)
    }
}
