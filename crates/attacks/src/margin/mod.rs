//! What attacks on the weights of a classifier share: labels of candidates, a
//! derivative for ReLU that can be followed, the row space of the first layer,
//! and which candidates are worth showing.

mod labels;
mod merge;
mod projection;
mod reduced;
mod spectrum;

use afterimage_nn::{Activation, LayerKind, Loss, Network, Params};

pub(crate) use labels::Labels;
pub(crate) use merge::Merge;
pub(crate) use projection::project;
pub(crate) use reduced::{Reduced, Through};

use crate::{AttackError, Model, Parameter, PixelRange};

/// A setting that attacks on weights share.
pub(crate) const RANGE_WEIGHT: Parameter = Parameter {
    name: "range_weight",
    default: "1",
    purpose: "weight of the penalty outside the range of pixels",
    range: "0 or more; 0 for data that are no images",
};

/// A setting that attacks on weights share.
pub(crate) const RANGE: Parameter = Parameter {
    name: "range",
    default: "none",
    purpose: "range of network inputs, if not what the preprocessing says",
    range: "[low, high]",
};

/// A setting that attacks on weights share.
pub(crate) const KEEP_ABOVE: Parameter = Parameter {
    name: "keep_above",
    default: "0",
    purpose: "drop candidates whose multiplier is below this part of the largest",
    range: "0 to 1",
};

/// A setting that attacks on weights share.
pub(crate) const MERGE_WITHIN: Parameter = Parameter {
    name: "merge_within",
    default: "0",
    purpose: "drop candidates nearer than this to a stronger one",
    range: "0 or more",
};

/// Fails where the conditions of a largest margin say nothing of records; else
/// the number of outputs.
pub(crate) fn outputs_of(model: &Model, attack: &'static str) -> Result<usize, AttackError> {
    let network = &model.network;
    let outputs: usize = network.output_shape().iter().product();
    let no = |reason: String, hint: &str| AttackError::NotApplicable { attack, reason, hint: hint.into() };
    let curved = |kind: &LayerKind| match kind {
        LayerKind::Activation { function } => *function != Activation::Identity,
        LayerKind::Prelu { .. } => true,
        _ => false,
    };
    if !network.spec().layers.iter().any(|layer| curved(&layer.kind)) {
        let reason = "records are not identifiable from a linear model: its weights are one sum of them all";
        return Err(no(reason.into(), "the attack is for classifiers with a hidden layer"));
    }
    let classifies = matches!(model.loss, Some(Loss::CrossEntropy | Loss::Logistic));
    if outputs > 1 && outputs == network.input_shape().iter().product::<usize>() && !classifies {
        let reason = format!("the network puts out as many numbers as it takes ({outputs}): it is an autoencoder");
        return Err(no(reason, "`autoencoder` and `ae-iterations` are for those"));
    }
    Ok(outputs)
}

/// The network with σ(αz) for the derivative of ReLU, which has a slope to
/// follow, and its weights; the network as it is for α = 0.
pub(crate) fn smoothed(model: &Model, alpha: f64) -> Result<(Network, Params), AttackError> {
    let mut spec = model.network.spec().clone();
    for layer in &mut spec.layers {
        match &mut layer.kind {
            LayerKind::Activation { function } if *function == Activation::Relu && alpha > 0.0 => {
                *function = Activation::SurrogateRelu { alpha };
            }
            _ => {}
        }
    }
    let network = Network::new(spec)?;
    let named = model.theta.iter().map(|(name, value)| (name.to_owned(), value.clone())).collect();
    let theta = network.params(named, model.theta.dtype(), model.theta.device())?;
    Ok((network, theta))
}

/// The range of network inputs: the one given, or what the known preprocessing says.
pub(crate) fn pixel_range(given: Option<[f64; 2]>, model: &Model) -> Result<Option<PixelRange>, AttackError> {
    let shape = model.network.input_shape();
    match (given, &model.preprocess) {
        (Some([low, high]), _) if low.partial_cmp(&high) != Some(std::cmp::Ordering::Less) => {
            Err(AttackError::setting("range", format!("[{low}, {high}]"), "must be [low, high]"))
        }
        (Some(range), _) => Ok(Some(PixelRange::between(range, shape, 0))),
        (None, Some(preprocess)) => Ok(Some(PixelRange::new(preprocess, shape, 0)?)),
        (None, None) => Ok(None),
    }
}
