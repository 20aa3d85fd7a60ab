//! The fully connected layers of a network, as attacks look for them.

use afterimage_nn::{Activation, LayerKind, Network, Params, Result};
use faer::Mat;

use crate::factors::matrix;

/// A fully connected layer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DenseLayer {
    /// Its name.
    pub(crate) name: String,
    /// Whether it has a bias.
    pub(crate) bias: bool,
    /// Whether it reads the input, directly or flattened.
    pub(crate) reads_input: bool,
    /// What is applied to its outputs, if one function is.
    pub(crate) activation: Option<Activation>,
}

impl DenseLayer {
    /// Its weight and its bias, which is zero if it has none.
    pub(crate) fn parameters(&self, theta: &Params) -> Result<(Mat<f64>, Vec<f64>)> {
        let weight = matrix(theta.get(&format!("{}.weight", self.name))?)?;
        let bias = match self.bias {
            true => theta.get(&format!("{}.bias", self.name))?.to_f64_vec()?,
            false => vec![0.0; weight.nrows()],
        };
        Ok((weight, bias))
    }
}

/// All of them, in the order of the network.
pub(crate) fn dense_layers(network: &Network) -> Vec<DenseLayer> {
    let layers = &network.spec().layers;
    let name = |index: usize| layers[index].name.clone().unwrap_or_else(|| index.to_string());
    let dropout = |index: usize| matches!(layers[index].kind, LayerKind::Dropout { .. });
    let reads = |index: usize| match layers[index].inputs.first() {
        Some(source) => source.clone(),
        None if index == 0 => "input".to_owned(),
        None => name(index - 1),
    };
    // Dropout is never applied: what reads it reads what it reads.
    let source = |index: usize| {
        let mut source = reads(index);
        for before in (0..index).rev().filter(|&before| dropout(before)) {
            if name(before) == source {
                source = reads(before);
            }
        }
        source
    };
    let mut inputs = vec!["input".to_owned()];
    let mut found = Vec::new();
    for index in 0..layers.len() {
        match layers[index].kind {
            LayerKind::Flatten {} if inputs.contains(&source(index)) => inputs.push(name(index)),
            LayerKind::Linear { bias, .. } => {
                let own = name(index);
                let readers: Vec<usize> =
                    (0..layers.len()).filter(|&reader| !dropout(reader) && source(reader) == own).collect();
                let activation = match readers.as_slice() {
                    [reader] => match layers[*reader].kind {
                        LayerKind::Activation { function } => Some(function),
                        _ => None,
                    },
                    _ => None,
                };
                found.push(DenseLayer { bias, reads_input: inputs.contains(&source(index)), activation, name: own });
            }
            _ => {}
        }
    }
    found
}

/// The layers of a plain perceptron, in order: fully connected ones with one
/// activation between each two, behind a flattening at most; dropout, which is never applied, anywhere. `None` for any other
/// network.
pub(crate) fn perceptron(network: &Network) -> Option<Vec<DenseLayer>> {
    let kinds = network.spec().layers.iter().map(|layer| &layer.kind);
    let kinds: Vec<&LayerKind> = kinds.filter(|kind| !matches!(kind, LayerKind::Dropout { .. })).collect();
    let kinds = match kinds.as_slice() {
        [LayerKind::Flatten {}, rest @ ..] => rest,
        all => all,
    };
    let in_turn = |(index, kind): (usize, &&LayerKind)| match kind {
        LayerKind::Linear { .. } => index % 2 == 0,
        LayerKind::Activation { .. } => index % 2 == 1,
        _ => false,
    };
    let straight = network.spec().layers.iter().all(|layer| layer.inputs.is_empty());
    (straight && kinds.len() % 2 == 1 && kinds.iter().enumerate().all(in_turn)).then(|| dense_layers(network))
}

#[cfg(test)]
mod tests {
    use afterimage_nn::NetworkSpec;

    use super::*;

    fn network(layers: &str) -> Network {
        Network::new(NetworkSpec::from_toml(&format!("input = [1, 2, 2]\nlayers = [{layers}]")).unwrap()).unwrap()
    }

    /// Dropout is never applied, so that a perceptron with it is one, wherever it stands.
    #[test]
    fn dropout_hides_no_perceptron() {
        let plain = [
            r#"{ name = "flat", kind = "flatten" }"#,
            r#"{ name = "a", kind = "linear", outputs = 3 }"#,
            r#"{ name = "relu", kind = "activation", function = "relu" }"#,
            r#"{ name = "b", kind = "linear", outputs = 2 }"#,
        ];
        let layers = perceptron(&network(&plain.join(", "))).unwrap();
        assert_eq!((layers[0].activation, layers[0].reads_input), (Some(Activation::Relu), true));
        for place in 0..=plain.len() {
            let mut dropped: Vec<String> = plain.iter().map(|layer| (*layer).to_owned()).collect();
            for name in ["again", "drop"] {
                dropped.insert(place, format!(r#"{{ name = "{name}", kind = "dropout", p = 0.5 }}"#));
            }
            assert_eq!(perceptron(&network(&dropped.join(", "))), Some(layers.clone()), "before layer {place}");
        }
        // Two linear layers in a row are another matter.
        let twice = [plain[0], plain[1], r#"{ name = "drop", kind = "dropout", p = 0.5 }"#, plain[3]];
        assert_eq!(perceptron(&network(&twice.join(", "))), None);
    }
}
