//! Features of a perceptron, as factors.
//!
//! A feature of a layer is an outer product δ ⊗ (a, 1), so that inner products of
//! features are products of inner products of factors, and a weighted sum of
//! features is never multiplied out.

use super::perceptron::{Factors, by_record, for_outputs};
use crate::ops::{self, Factor};
use crate::{Error, Network, Params, Result, Tensor};

/// Features as factors.
pub(super) struct Factored {
    at: Vec<Factors>,
    records: usize,
    outputs: usize,
    layers: Vec<Layer>,
}

/// The factors of one layer at all parameter vectors, one row a feature, and their inner products.
struct Layer {
    inputs: Tensor,
    deltas: Tensor,
    /// ⟨(a, 1), (a', 1)⟩ where the layer has a bias, ⟨a, a'⟩ where not.
    input_products: Tensor,
    delta_products: Tensor,
}

impl Factored {
    /// The features of a batch; the network must be a plain perceptron.
    pub(super) fn of(network: &Network, thetas: &[&Params], x: &Tensor) -> Result<Self> {
        let at = thetas.iter().map(|theta| Factors::of(network, theta, x)).collect::<Result<Vec<_>>>()?;
        let Some(first) = at.first() else { return Err(Error::EmptyBatch { what: "parameter vectors".into() }) };
        let (records, outputs) = (x.rows(), first.outputs());
        let layer = |(place, dense): (usize, &super::perceptron::Dense)| {
            let inputs: Vec<Tensor> =
                at.iter().map(|at| for_outputs(&at.inputs[place], outputs)).collect::<Result<_>>()?;
            let inputs = Tensor::concat_rows(&inputs.iter().collect::<Vec<_>>())?;
            let deltas = Tensor::concat_rows(&at.iter().map(|at| &at.deltas[place]).collect::<Vec<_>>())?;
            let one = dense.bias.map(|_| Tensor::full(1.0, &[inputs.rows()], x.dtype(), x.device())).transpose()?;
            let input_products =
                ops::matmul_sum(&[(Factor::plain(&inputs), Factor::transposed(&inputs))], one.as_ref())?;
            let delta_products = deltas.matmul_transposed(&deltas)?;
            Ok(Layer { inputs, deltas, input_products, delta_products })
        };
        let layers = first.layers().iter().enumerate().map(layer).collect::<Result<_>>()?;
        Ok(Self { at, records, outputs, layers })
    }

    /// How many features there are.
    pub(super) fn count(&self) -> usize {
        self.at.len() * self.records * self.outputs
    }

    /// Inner products of all features with each other.
    pub(super) fn gram(&self) -> Result<Vec<f64>> {
        added(self.layers.iter().map(|layer| ops::mul(&layer.input_products, &layer.delta_products)))?.to_f64_vec()
    }

    /// Inner products of all features with a direction, and δ V of every layer.
    pub(super) fn toward(&self, direction: &Params) -> Result<(Vec<f64>, Vec<Tensor>)> {
        let (mut products, mut pulled) = (Vec::new(), Vec::new());
        for (dense, layer) in self.at[0].layers().iter().zip(&self.layers) {
            let own = layer.deltas.matmul(&direction.values()[dense.weight])?;
            products.push(row_products(&own, &layer.inputs)?);
            if let Some(bias) = dense.bias {
                let bias = &direction.values()[bias];
                products.push(layer.deltas.matmul(&bias.reshape(&[bias.count(), 1])?)?.reshape(&[self.count()])?);
            }
            pulled.push(own);
        }
        Ok((added(products.into_iter().map(Ok))?.to_f64_vec()?, pulled))
    }

    /// The gradient in the records of ‖v − Σ_r c_r feature_r‖², at fixed c.
    pub(super) fn pull_back(&self, c: &[f64], direction: &Params, pulled: &[Tensor]) -> Result<Tensor> {
        let (dtype, device) = (self.layers[0].inputs.dtype(), self.layers[0].inputs.device());
        let c = Tensor::from_f64(c, &[c.len()], dtype)?.to_device(device)?;
        let [twice, minus] = [ops::scale(2.0, &c)?, ops::scale(-2.0, &c)?];
        let (mut of_deltas, mut of_inputs) = (Vec::new(), Vec::new());
        for (place, (dense, layer)) in self.at[0].layers().iter().zip(&self.layers).enumerate() {
            // ∂/∂δ_r = 2 c_r (Σ_s c_s ⟨a_r, a_s⟩ δ_s − V a_r), and likewise for the inputs.
            let left = |products: &Tensor, factors: &Tensor, along: &Tensor| {
                let mixed = products.matmul(&row_sum(&[(factors, &c)])?)?;
                row_sum(&[(&mixed, &twice), (along, &minus)])
            };
            // The last deltas are units, whatever the records are.
            if place + 1 < self.layers.len() {
                let bias = dense.bias.map(|bias| &direction.values()[bias]);
                let v = Factor::transposed(&direction.values()[dense.weight]);
                let pushed = ops::matmul_sum(&[(Factor::plain(&layer.inputs), v)], bias)?;
                of_deltas.push(left(&layer.input_products, &layer.deltas, &pushed)?);
            }
            of_inputs.push(left(&layer.delta_products, &layer.inputs, &pulled[place])?);
        }
        let each = self.records * self.outputs;
        added(self.at.iter().enumerate().map(|(place, at)| {
            let own = |all: &Tensor| all.slice_rows(place * each..(place + 1) * each);
            let of_deltas = of_deltas.iter().map(own).collect::<Result<_>>()?;
            let of_inputs = of_inputs.iter().map(|all| by_record(&own(all)?, self.outputs)).collect::<Result<_>>()?;
            at.pull_back(of_deltas, of_inputs)
        }))
    }
}

/// The sum of some tensors.
fn added(parts: impl Iterator<Item = Result<Tensor>>) -> Result<Tensor> {
    let mut total: Option<Tensor> = None;
    for part in parts {
        total = Some(match total {
            None => part?,
            Some(total) => ops::add(&total, &part?)?,
        });
    }
    total.ok_or_else(|| Error::EmptyBatch { what: "parameter vectors".into() })
}

/// Rows as the channels of one picture.
fn channels(x: &Tensor) -> Result<Tensor> {
    x.reshape(&[1, x.rows(), x.row_len()])
}

/// Σ of matrices, each row times its own number.
fn row_sum(terms: &[(&Tensor, &Tensor)]) -> Result<Tensor> {
    let wide = terms.iter().map(|(x, _)| channels(x)).collect::<Result<Vec<_>>>()?;
    let terms: Vec<(&Tensor, &Tensor)> = wide.iter().zip(terms).map(|(x, (_, numbers))| (x, *numbers)).collect();
    let sum = ops::combine_channels(&terms, None)?;
    sum.reshape(&[sum.shape()[1], sum.shape()[2]])
}

/// The inner product of each row with the other's.
fn row_products(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    ops::dot_channels(&channels(a)?, &channels(b)?, a.rows())
}
