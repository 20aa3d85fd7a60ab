//! One batch through a perceptron at one parameter vector, with the factors of its gradients.

use crate::graph::Node;
use crate::layers::Layer;
use crate::ops::{self, Activated, Factor};
use crate::{Activation, Error, Network, Params, Result, Tensor};

/// A fully connected layer and what follows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dense {
    /// Its weight and bias, by number.
    pub(super) weight: usize,
    pub(super) bias: Option<usize>,
    /// What is applied to its outputs.
    activation: Activation,
}

/// The layers of a plain perceptron: fully connected ones, one activation between
/// each two, behind a flattening at most. `None` for any other network.
pub(super) fn dense_layers(network: &Network) -> Option<Vec<Dense>> {
    let mut layers: Vec<Dense> = Vec::new();
    let mut open = false;
    for (index, node) in network.nodes().iter().enumerate() {
        let Node { layer, inputs, parameters, .. } = node;
        if inputs.as_slice() != [index] {
            return None;
        }
        match layer {
            Layer::Flatten(_) if index == 0 => {}
            Layer::Dropout(_) => {}
            Layer::Linear(linear) if !linear.transposed && !open => {
                let bias = parameters.get(1).copied();
                layers.push(Dense { weight: parameters[0], bias, activation: Activation::Identity });
                open = true;
            }
            Layer::Activate(activate) if open => {
                layers.last_mut()?.activation = activate.function;
                open = false;
            }
            _ => return None,
        }
    }
    // The last layer's outputs are the network's.
    (open && network.uses().iter().all(|&uses| uses == 1)).then_some(layers)
}

/// What a hidden layer did.
struct Hidden {
    z: Tensor,
    value: Tensor,
    slope: Tensor,
    /// ∂f_k/∂a, before the activation's slope: one row for each record and output.
    above: Tensor,
}

/// Forward and backward values of m records with C outputs.
pub(super) struct Factors {
    layers: Vec<Dense>,
    theta: Params,
    outputs: usize,
    hidden: Vec<Hidden>,
    /// What each layer reads, m rows.
    pub(super) inputs: Vec<Tensor>,
    /// ∂f_k/∂z of each layer, m·C rows: those of a record beside each other.
    pub(super) deltas: Vec<Tensor>,
}

impl Factors {
    pub(super) fn of(network: &Network, theta: &Params, x: &Tensor) -> Result<Self> {
        network.check_input(theta, x)?;
        let Some(layers) = dense_layers(network) else {
            return Err(Error::Algebra {
                operation: "factors of gradients",
                problem: "the network is no plain perceptron".into(),
            });
        };
        let weight = |layer: &Dense| &theta.values()[layer.weight];
        let mut inputs = vec![x.reshape(&[x.rows(), x.row_len()])?];
        let mut hidden = Vec::new();
        for layer in &layers[..layers.len() - 1] {
            let bias = layer.bias.map(|bias| &theta.values()[bias]);
            let input = &inputs[inputs.len() - 1];
            let z = ops::matmul_sum(&[(Factor::plain(input), Factor::transposed(weight(layer)))], bias)?;
            let (value, slope) = ops::activate(layer.activation, &z)?;
            inputs.push(value.clone());
            hidden.push(Hidden { above: z.clone(), z, value, slope });
        }
        let outputs = weight(&layers[layers.len() - 1]).rows();
        let (dtype, device) = (x.dtype(), x.device());
        let one_each: Vec<f64> = (0..x.rows() * outputs * outputs)
            .map(|at| f64::from(u8::from(at % outputs == (at / outputs) % outputs)))
            .collect();
        let last = Tensor::from_f64(&one_each, &[x.rows() * outputs, outputs], dtype)?.to_device(device)?;
        let mut deltas = vec![last];
        for (place, hidden) in hidden.iter_mut().enumerate().rev() {
            hidden.above = deltas[deltas.len() - 1].matmul(weight(&layers[place + 1]))?;
            deltas.push(ops::mul(&hidden.above, &for_outputs(&hidden.slope, outputs)?)?);
        }
        deltas.reverse();
        Ok(Self { layers, theta: theta.clone(), outputs, hidden, inputs, deltas })
    }

    pub(super) fn layers(&self) -> &[Dense] {
        &self.layers
    }

    pub(super) fn outputs(&self) -> usize {
        self.outputs
    }

    /// ∂E/∂x of an E that depends on the factors, from its derivatives in every layer's
    /// deltas and inputs.
    ///
    /// The derivatives in deltas go up the network as a tangent would, those in
    /// inputs come down as a gradient does; they meet in the activations' curvature.
    pub(super) fn pull_back(&self, of_deltas: Vec<Tensor>, mut of_inputs: Vec<Tensor>) -> Result<Tensor> {
        let weight = |place: usize| &self.theta.values()[self.layers[place].weight];
        let mut up: Vec<Tensor> = Vec::new();
        for (place, source) in of_deltas.into_iter().enumerate().take(self.hidden.len()) {
            up.push(match place.checked_sub(1) {
                None => source,
                Some(below) => {
                    let moved = ops::mul(&up[below], &for_outputs(&self.hidden[below].slope, self.outputs)?)?;
                    ops::add(&source, &moved.matmul_transposed(weight(place))?)?
                }
            });
        }
        for (place, (hidden, up)) in self.hidden.iter().zip(&up).enumerate().rev() {
            let down = self.through(place, hidden, up, &of_inputs[place + 1])?;
            of_inputs[place] = ops::add(&of_inputs[place], &down.matmul(weight(place))?)?;
        }
        Ok(of_inputs.swap_remove(0))
    }

    /// ∂E/∂z of a hidden layer: what comes down through the slope, and what the slope itself does.
    fn through(&self, place: usize, hidden: &Hidden, up: &Tensor, of_value: &Tensor) -> Result<Tensor> {
        let Hidden { z, value, slope, above } = hidden;
        let f = self.layers[place].activation;
        if self.outputs == 1 {
            return ops::pull_back_tangent(f, Activated { z, value, slope }, above, Some(of_value), up);
        }
        let [z, value, wide] = [z, value, slope].map(|part| for_outputs(part, self.outputs));
        let (z, value, wide) = (z?, value?, wide?);
        let bent = ops::pull_back_tangent(f, Activated { z: &z, value: &value, slope: &wide }, above, None, up)?;
        ops::add(&by_record(&bent, self.outputs)?, &ops::mul(of_value, slope)?)
    }
}

/// Each row once for every output.
pub(super) fn for_outputs(x: &Tensor, outputs: usize) -> Result<Tensor> {
    if outputs == 1 {
        return Ok(x.clone());
    }
    x.select_rows(&(0..x.rows() * outputs).map(|row| row / outputs).collect::<Vec<_>>())
}

/// The rows of a record added up.
pub(super) fn by_record(x: &Tensor, outputs: usize) -> Result<Tensor> {
    if outputs == 1 {
        return Ok(x.clone());
    }
    let records = x.rows() / outputs;
    let sums = x.0.reshape((records, outputs, x.row_len())).and_then(|x| x.sum(1));
    sums.map(Tensor).map_err(Error::backend("sums over outputs"))
}
