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
    let source = |index: usize| match layers[index].inputs.first() {
        Some(source) => source.clone(),
        None if index == 0 => "input".to_owned(),
        None => name(index - 1),
    };
    let mut inputs = vec!["input".to_owned()];
    let mut found = Vec::new();
    for index in 0..layers.len() {
        match layers[index].kind {
            LayerKind::Flatten {} if inputs.contains(&source(index)) => inputs.push(name(index)),
            LayerKind::Linear { bias, .. } => {
                let own = name(index);
                let readers: Vec<usize> = (0..layers.len()).filter(|&reader| source(reader) == own).collect();
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
/// activation between each two, behind a flattening at most. `None` for any other network.
pub(crate) fn perceptron(network: &Network) -> Option<Vec<DenseLayer>> {
    let kinds: Vec<&LayerKind> = network.spec().layers.iter().map(|layer| &layer.kind).collect();
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
