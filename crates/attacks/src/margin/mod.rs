//! What attacks on the weights of a classifier share: labels of candidates, a
//! derivative for ReLU that can be followed, the row space of the first layer,
//! and which candidates are worth showing.

mod labels;
mod merge;
mod projection;
mod reduced;
mod span;
mod spectrum;

use afterimage_nn::{Activation, LayerKind, Loss, Network, Params};

pub(crate) use labels::Labels;
pub(crate) use merge::Merge;
pub(crate) use projection::project;
pub(crate) use reduced::{Reduced, first_of_perceptron};
pub(crate) use span::{Span, Through};
pub(crate) use spectrum::Noise;

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
    let network = match alpha > 0.0 {
        true => with_relu_as(&model.network, Activation::SurrogateRelu { alpha })?,
        false => model.network.clone(),
    };
    let named = model.theta.state().map(|(name, value)| (name.to_owned(), value.clone())).collect();
    let theta = network.params(named, model.theta.dtype(), model.theta.device())?;
    Ok((network, theta))
}

/// The network with another activation in the place of ReLU; it takes the same parameters.
pub(crate) fn with_relu_as(network: &Network, other: Activation) -> Result<Network, AttackError> {
    let mut spec = network.spec().clone();
    for layer in &mut spec.layers {
        match &mut layer.kind {
            LayerKind::Activation { function } if *function == Activation::Relu => *function = other,
            _ => {}
        }
    }
    Ok(Network::new(spec)?)
}

/// The range of network inputs: the one given, or what the known preprocessing says.
pub(crate) fn pixel_range(given: Option<[f64; 2]>, model: &Model) -> Result<Option<PixelRange>, AttackError> {
    let shape = model.network.input_shape();
    match (given, &model.preprocess) {
        (Some([low, high]), _) if low.partial_cmp(&high) != Some(std::cmp::Ordering::Less) => {
            Err(AttackError::setting("range", format!("[{low}, {high}]"), "must be [low, high]"))
        }
        (Some(range), _) => Ok(Some(PixelRange::between(range, shape, 0)?)),
        (None, Some(preprocess)) => Ok(Some(PixelRange::new(preprocess, shape, 0)?)),
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Observation, WeightsSeen};
    use afterimage_nn::{DType, Device, Init, NetworkSpec, Stream, Tensor};

    /// A normalised network whose running statistics are not those of a fresh one.
    fn normalised() -> Model {
        let text = r#"
            input = [2, 4, 4]
            layers = [
                { kind = "conv", outputs = 3, kernel = 3, bias = false },
                { name = "bn", kind = "batch-norm" },
                { kind = "activation", function = "relu" },
                { kind = "flatten" },
                { kind = "linear", outputs = 1 },
            ]"#;
        let network = Network::new(NetworkSpec::from_toml(text).unwrap()).unwrap();
        let fresh = network.init(&Init::Pytorch.into(), 1, DType::F64).unwrap();
        let mut named: std::collections::BTreeMap<String, Tensor> =
            fresh.state().map(|(name, value)| (name.to_owned(), value.clone())).collect();
        named.insert("bn.running_mean".into(), Tensor::from_vec(vec![0.3, -0.2, 0.1], &[3]).unwrap());
        named.insert("bn.running_var".into(), Tensor::from_vec(vec![0.5, 2.0, 3.0], &[3]).unwrap());
        let theta = network.params(named, DType::F64, Device::Cpu).unwrap();
        Model { network, theta, loss: Some(Loss::Logistic), preprocess: None }
    }

    #[test]
    fn running_statistics_go_where_the_weights_go() {
        let model = normalised();
        let x = Stream::new(1, "x", 0).normal_tensor(1.0, &[3, 2, 4, 4], DType::F64).unwrap();
        let outputs = |network: &Network, theta: &Params| network.forward(theta, &x).unwrap().to_f64_vec().unwrap();
        let expected = outputs(&model.network, &model.theta);
        let (network, theta) = smoothed(&model, 0.0).unwrap();
        assert_eq!(outputs(&network, &theta), expected);

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("observation.safetensors");
        let observation = Observation::Weights(WeightsSeen { model });
        observation.write(&path).unwrap();
        let again = Observation::read(&path, Device::Cpu).unwrap();
        assert_eq!(outputs(&again.model().network, &again.model().theta), expected);

        // Weights without theirs are half of a model.
        let mut file = afterimage_nn::io::TensorFile::read(&path).unwrap();
        file.tensors.remove("theta.bn.running_var").unwrap();
        file.write(&path).unwrap();
        let error = Observation::read(&path, Device::Cpu).unwrap_err().to_string();
        assert!(error.contains("theta.bn.running_var") && error.contains("state dict"), "{error}");
    }
}
