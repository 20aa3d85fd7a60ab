//! An observation as the method needs it: one hidden layer of random units
//! over an input to be found, whatever lies below.

use afterimage_nn::{Activation, DType, Device, Stream};
use faer::linalg::solvers::Solve;
use faer::{Mat, Side};

use super::layers::{Layer, as_matrix, invertible};
use super::moments::Units;
use super::no;
use crate::dense::{DenseLayer, perceptron};
use crate::{AttackError, GradientSeen};

/// f = M + Σ_j a_j σ(z_j · p + b_j), with p = s h: h is the input, or what the layers below make of it.
pub(super) struct Query {
    pub(super) units: Units,
    /// s, the spread of the hidden layer's weights.
    pub(super) spread: f64,
    /// σ.
    pub(super) sigma: Activation,
    /// M.
    pub(super) bias: f64,
    /// What must be undone to get from h to the input.
    pub(super) below: Vec<Layer>,
    /// Fourth moment of the weights beside its square: 3 of normal ones.
    pub(super) kurtosis: f64,
}

/// A unit whose output weight is below this part of the largest is left out.
const SMALL: f64 = 0.1;

impl Query {
    pub(super) fn of(seen: &GradientSeen, stream: &mut Stream) -> Result<Self, AttackError> {
        let shape_hint =
            "a network of fully connected layers, one activation between each two, and one output is needed";
        let layers = perceptron(&seen.model.network)
            .filter(|layers| layers.len() > 1)
            .ok_or_else(|| no("the network is no plain perceptron with a hidden layer", shape_hint))?;
        let [below @ .., hidden, output] = layers.as_slice() else {
            return Err(no("the network has no hidden layer", shape_hint));
        };
        let outputs = seen.model.network.output_shape().iter().product::<usize>();
        if outputs != 1 {
            return Err(no(format!("the network has {outputs} outputs"), shape_hint));
        }
        let theta = seen.model.theta.to_dtype(DType::F64)?.to_device(Device::Cpu)?;
        let gradient = seen.gradient.to_dtype(DType::F64)?.to_device(Device::Cpu)?;
        let activation = |layer: &DenseLayer| {
            layer.activation.ok_or_else(|| no(format!("layer `{}` has no activation", layer.name), shape_hint))
        };
        let below: Vec<Layer> = (below.iter())
            .map(|layer| {
                let (weight, bias) = layer.parameters(&theta)?;
                Ok(Layer { bias, sigma: activation(layer)?, weight })
            })
            .collect::<Result<_, AttackError>>()?;
        let row = |m: &Mat<f64>| m.row(0).iter().copied().collect::<Vec<f64>>();
        let (last, biases) = output.parameters(&theta)?;
        let (a, outer) = (row(&last), row(&output.parameters(&gradient)?.0));
        let ((mut top, offset), mut inner) = (hidden.parameters(&theta)?, hidden.parameters(&gradient)?.0);
        if inner.norm_max() == 0.0 || outer.iter().all(|g| *g == 0.0) {
            let hint = "no unit was active, or the loss is flat there: nothing was shared";
            return Err(no("the gradient of the last two layers is zero", hint));
        }
        // ∇W is divided by a: where that is small, noise is all that would come out.
        let largest = a.iter().fold(0.0_f64, |largest, a| largest.max(a.abs()));
        let live: Vec<usize> = (0..a.len()).filter(|&j| a[j].abs() > SMALL * largest).collect();
        if live.len() < a.len() {
            let keep = |m: &Mat<f64>| Mat::from_fn(live.len(), m.ncols(), |i, j| m[(live[i], j)]);
            (top, inner) = (keep(&top), keep(&inner));
        }
        let only = |values: &[f64]| live.iter().map(|&j| values[j]).collect::<Vec<f64>>();
        let (a, outer, offset) = (only(&a), only(&outer), only(&offset));
        for (j, a) in a.iter().enumerate() {
            inner.row_mut(j).iter_mut().for_each(|g| *g /= a);
        }
        let mut kept = below;
        let inputs = kept.first().map_or(top.ncols(), |layer| layer.weight.ncols());
        if !kept.is_empty()
            && top.nrows() >= inputs
            && let Some(z) = as_matrix(&kept, &top, inputs, stream)
            && let Ok(factor) = (z.transpose() * &z).llt(Side::Lower)
        {
            // W h = Z x, so x = (Z⁺ W) h: the same takes ĝ from the space of h to that of x.
            let back = factor.solve(z.transpose() * &top);
            inner = &inner * back.transpose();
            (top, kept) = (z, Vec::new());
        }
        if let Some(layer) = kept.iter().find(|layer| !invertible(layer.sigma)) {
            let reason = format!("layers below the last hidden one apply {}, which cannot be undone", layer.sigma);
            return Err(no(reason, "layers of tanh, sigmoid, softplus, ReLU or leaky ReLU can"));
        }
        let count = (top.nrows() * top.ncols()).max(1) as f64;
        let power = |k: i32| top.col_iter().map(|c| c.iter().map(|w| w.powi(k)).sum::<f64>()).sum::<f64>() / count;
        let (square, fourth) = (power(2), power(4));
        if !(square > 0.0 && square.is_finite()) {
            return Err(no("the hidden layer's weights are zero", "its units cannot tell samples apart"));
        }
        let spread = square.sqrt();
        let units = Units { z: top * faer::Scale(1.0 / spread), inner: inner * faer::Scale(spread), outer, offset };
        let bias = biases.first().copied().unwrap_or(0.0);
        let sigma = activation(hidden)?;
        Ok(Self { units, spread, sigma, bias, below: kept, kurtosis: fourth / (square * square) })
    }
}
