//! Features of a perceptron, as factors.
//!
//! A feature of a layer is an outer product δ ⊗ (a, 1), so that inner products of
//! features are products of inner products of factors, and a weighted sum of
//! features is never multiplied out.

use super::perceptron::Factors;
use crate::ops::{self, Factor};
use crate::{Error, Network, Params, Result, Tensor};

/// Features as factors.
pub(super) struct Factored {
    at: Vec<Factors>,
    records: usize,
    outputs: usize,
    layers: Vec<Layer>,
}

/// The factors of one layer at all parameter vectors, and their inner products.
struct Layer {
    inputs: Tensor,
    deltas: Tensor,
    /// ⟨(a, 1), (a', 1)⟩ where the layer has a bias, ⟨a, a'⟩ where not.
    input_products: Vec<f64>,
    delta_products: Vec<f64>,
}

impl Factored {
    /// The features of a batch; the network must be a plain perceptron.
    pub(super) fn of(network: &Network, thetas: &[&Params], x: &Tensor) -> Result<Self> {
        let at = thetas.iter().map(|theta| Factors::of(network, theta, x)).collect::<Result<Vec<_>>>()?;
        let Some(first) = at.first() else { return Err(Error::EmptyBatch { what: "parameter vectors".into() }) };
        let (records, outputs) = (x.rows(), first.outputs());
        let layer = |(place, dense): (usize, &super::perceptron::Dense)| {
            let inputs = Tensor::concat_rows(&at.iter().map(|at| &at.inputs[place]).collect::<Vec<_>>())?;
            let deltas = Tensor::concat_rows(&at.iter().map(|at| &at.deltas[place]).collect::<Vec<_>>())?;
            let mut input_products = inputs.matmul_transposed(&inputs)?.to_f64_vec()?;
            if dense.bias.is_some() {
                input_products.iter_mut().for_each(|product| *product += 1.0);
            }
            let delta_products = deltas.matmul_transposed(&deltas)?.to_f64_vec()?;
            Ok(Layer { inputs, deltas, input_products, delta_products })
        };
        let layers = first.layers().iter().enumerate().map(layer).collect::<Result<_>>()?;
        Ok(Self { at, records, outputs, layers })
    }

    /// How many features there are.
    pub(super) fn count(&self) -> usize {
        self.at.len() * self.records * self.outputs
    }

    /// The place of a feature's record among the rows of inputs.
    fn row(&self, feature: usize) -> usize {
        feature / self.outputs
    }

    /// Inner products of all features with each other, in double precision.
    pub(super) fn gram(&self) -> Result<Vec<f64>> {
        let (count, rows) = (self.count(), self.at.len() * self.records);
        let mut gram = vec![0.0; count * count];
        for layer in &self.layers {
            for (i, line) in gram.chunks_exact_mut(count).enumerate() {
                let inputs = &layer.input_products[self.row(i) * rows..][..rows];
                let deltas = &layer.delta_products[i * count..][..count];
                for (j, (sum, delta)) in line.iter_mut().zip(deltas).enumerate() {
                    *sum += delta * inputs[j / self.outputs];
                }
            }
        }
        Ok(gram)
    }

    /// Inner products of all features with a direction, and δ V of every vector and layer.
    pub(super) fn toward(&self, direction: &Params) -> Result<(Vec<f64>, Vec<Vec<Tensor>>)> {
        let each = self.records * self.outputs;
        let (mut products, mut pulled) = (vec![0.0; self.count()], Vec::new());
        for (place, at) in self.at.iter().enumerate() {
            let products = &mut products[place * each..(place + 1) * each];
            let mut own = Vec::new();
            for (dense, (inputs, deltas)) in at.layers().iter().zip(at.inputs.iter().zip(&at.deltas)) {
                let pulled = deltas.matmul(&direction.values()[dense.weight])?;
                let with_all = pulled.matmul_transposed(inputs)?.to_f64_vec()?;
                let shift = match dense.bias {
                    None => vec![0.0; each],
                    Some(bias) => {
                        let bias = &direction.values()[bias];
                        deltas.matmul(&bias.reshape(&[bias.count(), 1])?)?.to_f64_vec()?
                    }
                };
                for (feature, product) in products.iter_mut().enumerate() {
                    *product += with_all[feature * self.records + feature / self.outputs] + shift[feature];
                }
                own.push(pulled);
            }
            pulled.push(own);
        }
        Ok((products, pulled))
    }

    /// The gradient in the records of ‖v − Σ_r c_r feature_r‖², at fixed c.
    pub(super) fn pull_back(&self, c: &[f64], direction: &Params, pulled: &[Vec<Tensor>]) -> Result<Tensor> {
        let each = self.records * self.outputs;
        let mut total: Option<Tensor> = None;
        // ∂/∂δ_r = 2 c_r Σ_s c_s ⟨a_r, a_s⟩ δ_s − 2 c_r V a_r, and likewise for the inputs.
        let mixed: Vec<[Tensor; 2]> = self.layers.iter().map(|layer| self.mixed(c, layer)).collect::<Result<_>>()?;
        for (place, at) in self.at.iter().enumerate() {
            let own = &c[place * each..(place + 1) * each];
            let (dtype, device) = (at.inputs[0].dtype(), at.inputs[0].device());
            let matrix = |rows: usize, columns: usize, value: &dyn Fn(usize, usize) -> f64| {
                let values: Vec<f64> = (0..rows * columns).map(|at| value(at / columns, at % columns)).collect();
                Tensor::from_f64(&values, &[rows, columns], dtype)?.to_device(device)
            };
            let owner = |feature: usize, record: usize| -> f64 {
                if feature / self.outputs == record { -2.0 * own[feature] } else { 0.0 }
            };
            let to_features = matrix(each, self.records, &|feature, record| owner(feature, record))?;
            let to_records = matrix(self.records, each, &|record, feature| owner(feature, record))?;
            let (mut of_deltas, mut of_inputs) = (Vec::new(), Vec::new());
            for (layer, (dense, [by_deltas, by_inputs])) in at.layers().iter().zip(&mixed).enumerate() {
                let (v, inputs) = (&direction.values()[dense.weight], &at.inputs[layer]);
                // The last deltas are units, whatever the records are.
                if layer + 1 < at.layers().len() {
                    let bias = dense.bias.map(|bias| &direction.values()[bias]);
                    let pushed = ops::matmul_sum(&[(Factor::plain(inputs), Factor::transposed(v))], bias)?;
                    let by_deltas = by_deltas.slice_rows(place * each..(place + 1) * each)?;
                    of_deltas.push(ops::add(&by_deltas, &to_features.matmul(&pushed)?)?);
                }
                let by_inputs = by_inputs.slice_rows(place * self.records..(place + 1) * self.records)?;
                of_inputs.push(ops::add(&by_inputs, &to_records.matmul(&pulled[place][layer])?)?);
            }
            let gradient = at.pull_back(of_deltas, of_inputs)?;
            total = Some(match total {
                None => gradient,
                Some(total) => ops::add(&total, &gradient)?,
            });
        }
        total.ok_or_else(|| Error::EmptyBatch { what: "parameter vectors".into() })
    }

    /// 2 c_r Σ_s c_s ⟨a_r, a_s⟩ δ_s for every feature, and 2 Σ_r,s c_r c_s ⟨δ_r, δ_s⟩ a_s for every row of inputs.
    fn mixed(&self, c: &[f64], layer: &Layer) -> Result<[Tensor; 2]> {
        let (count, rows) = (self.count(), self.at.len() * self.records);
        let (mut of_deltas, mut of_inputs) = (vec![0.0; count * count], vec![0.0; rows * rows]);
        for r in 0..count {
            for s in 0..count {
                let (weight, place) = (2.0 * c[r] * c[s], self.row(r) * rows + self.row(s));
                of_deltas[r * count + s] = weight * layer.input_products[place];
                of_inputs[place] += weight * layer.delta_products[r * count + s];
            }
        }
        let matrix = |values: &[f64], size: usize, like: &Tensor| {
            Tensor::from_f64(values, &[size, size], like.dtype())?.to_device(like.device())
        };
        let of_deltas = matrix(&of_deltas, count, &layer.deltas)?.matmul(&layer.deltas)?;
        let of_inputs = matrix(&of_inputs, rows, &layer.inputs)?.matmul(&layer.inputs)?;
        Ok([of_deltas, of_inputs])
    }
}
