//! From nearly right samples to right ones, through a perceptron of leaky units.
//!
//! Of a leaky unit that is off something comes through, so that no direction of
//! L has zeros, and what a search finds is right up to about the slope. That is
//! enough to read off the state of every unit in every layer: given what layer l
//! reads of the samples, its own gradient tells its Δ_l by least squares, and the
//! layer above tells what Δ_l would be if every unit were on; the ratio of the two
//! is 1 or the slope, however near its threshold a unit is.
//!
//! With the states known, the column of a sample is Σ_c r_c u_c for known u_c, and
//! it is a column of L: the two small spaces meet in it, exactly.

use afterimage_nn::{Activation, Params};
use faer::linalg::solvers::{DenseSolveCore, Solve};
use faer::{Mat, Side};

use super::certificate::Rows;
use super::harvest::rows;
use super::search::dot;
use crate::AttackError;
use crate::dense::DenseLayer;
use crate::factors::Factors;

/// Rounds of states and samples.
const ROUNDS: usize = 4;
/// The two spaces meet if the sine of their angle is below this.
const MEET: f64 = 1e-3;

/// A layer with its gradient.
struct Layer {
    weight: Mat<f64>,
    bias: Vec<f64>,
    gradient: Mat<f64>,
    /// σ' where a unit is off; 1 of the layer that gives the outputs.
    slope: f64,
}

/// The layers of a perceptron of leaky units, the one that gives the outputs last.
pub(super) struct Perceptron {
    layers: Vec<Layer>,
}

/// Samples with the columns of Δᵀ that belong to them.
pub(super) struct Settled {
    pub(super) samples: Rows,
    /// One column a sample.
    pub(super) columns: Mat<f64>,
}

impl Perceptron {
    /// From its layers, parameters and their gradient; `None` if a unit is no leaky one.
    pub(super) fn of(layers: &[DenseLayer], theta: &Params, gradient: &Params) -> Result<Option<Self>, AttackError> {
        let mut all = Vec::new();
        for (index, layer) in layers.iter().enumerate() {
            let slope = match layer.activation {
                Some(Activation::LeakyRelu { slope }) => slope,
                None if index + 1 == layers.len() => 1.0,
                _ => return Ok(None),
            };
            let (weight, bias) = layer.parameters(theta)?;
            all.push(Layer { bias, gradient: layer.parameters(gradient)?.0, slope, weight });
        }
        Ok((all.len() > 1).then_some(Self { layers: all }))
    }

    /// Settles samples, as many as the factors of the first layer's gradient have
    /// directions; `bias` is the gradient of its bias. `None` if the spaces do not meet in each of them.
    pub(super) fn settled(&self, factors: &Factors, bias: &[f64], mut samples: Rows) -> Option<Settled> {
        let (k, units) = (factors.rank(), factors.left.nrows() as f64);
        if samples.len() != k {
            return None;
        }
        let own = factors.left.transpose() * Mat::from_fn(bias.len(), 1, |i, _| bias[i] / units);
        let own: Vec<f64> = own.col(0).iter().copied().collect();
        let mut found = None;
        for _ in 0..ROUNDS {
            let Some(states) = self.states(&samples) else { break };
            let mut apart: f64 = 0.0;
            let mut directions = Mat::<f64>::zeros(k, k);
            for sample in 0..k {
                let column = self.column_space(&states, sample).qr().compute_thin_Q();
                let Ok(svd) = (factors.left.transpose() * column).thin_svd() else { return found };
                let cosine = svd.S().column_vector()[0] / units.sqrt();
                apart = apart.max((1.0 - cosine * cosine).max(0.0).sqrt());
                (0..k).for_each(|row| directions[(row, sample)] = svd.U()[(row, 0)]);
            }
            let inverse = directions.partial_piv_lu().inverse();
            let row = |i: usize| inverse.row(i).iter().copied().collect::<Vec<f64>>();
            let scales: Vec<f64> = (0..k).map(|i| dot(&row(i), &own)).collect();
            let coordinates = Mat::from_fn(k, k, |i, j| inverse[(i, j)] * factors.scale[j] / scales[i]);
            samples = rows(&(coordinates * &factors.right));
            if !samples.iter().flatten().all(|x| x.is_finite()) {
                break;
            }
            let columns = &factors.left * Mat::from_fn(k, k, |i, j| directions[(i, j)] * scales[j]);
            if apart < MEET {
                found = Some(Settled { samples: samples.clone(), columns });
            }
        }
        found
    }

    /// For each hidden layer what every unit lets through, one row a sample.
    fn states(&self, samples: &[Vec<f64>]) -> Option<Vec<Mat<f64>>> {
        let width = samples.first()?.len();
        let mut read = Mat::from_fn(samples.len(), width, |i, j| samples[i][j]);
        let mut deltas = Vec::new();
        for layer in &self.layers {
            // ∇W = Δᵀ H: the Δ that fits.
            let gram = (&read * read.transpose()).llt(Side::Lower).ok()?;
            deltas.push(gram.solve(&read * layer.gradient.transpose()));
            let z = &read * layer.weight.transpose();
            read = Mat::from_fn(z.nrows(), z.ncols(), |i, j| {
                let z = z[(i, j)] + layer.bias[j];
                if z > 0.0 { z } else { layer.slope * z }
            });
        }
        let hidden = self.layers.len() - 1;
        let states = (0..hidden).map(|l| {
            let (slope, delta) = (self.layers[l].slope, &deltas[l]);
            let above = &deltas[l + 1] * &self.layers[l + 1].weight;
            Mat::from_fn(delta.nrows(), delta.ncols(), |i, j| {
                let ratio = delta[(i, j)] / above[(i, j)];
                if (ratio - 1.0).abs() < (ratio - slope).abs() { 1.0 } else { slope }
            })
        });
        Some(states.collect())
    }

    /// The columns that some residues give to a sample in these states, one for each output.
    fn column_space(&self, states: &[Mat<f64>], sample: usize) -> Mat<f64> {
        let mut space =
            Mat::<f64>::identity(self.layers[states.len()].weight.nrows(), self.layers[states.len()].weight.nrows());
        for (l, state) in states.iter().enumerate().rev() {
            let below = self.layers[l + 1].weight.transpose() * &space;
            space = Mat::from_fn(below.nrows(), below.ncols(), |j, c| state[(sample, j)] * below[(j, c)]);
        }
        space
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dense::perceptron;
    use crate::factors::matrix;
    use afterimage_nn::zoo::Mlp;
    use afterimage_nn::{DType, Init, Loss, Network, Objective, Reduction, Seed, Stream, Targets, Want};

    #[test]
    fn nearly_right_samples_become_right_and_wrong_ones_do_not() {
        for slope in [0.01, 0.3] {
            let mlp = Mlp::new(40, &[120, 50, 30], 4).with_activation(Activation::LeakyRelu { slope });
            let network = Network::new(mlp.spec()).unwrap();
            let theta = network.init(&Init::Pytorch.into(), 3, DType::F64).unwrap();
            let x = Stream::new(7, "batch", 0).normal_tensor(1.0, &[5, 40], DType::F64).unwrap();
            let objective = Objective::new(Loss::CrossEntropy, Reduction::Mean, Targets::Classes(vec![0, 1, 2, 3, 1]));
            let mut pass = network.pass(&theta, &x).unwrap();
            let gradient = pass.backward(Seed::Loss(objective), Want::Weights).unwrap().weights.unwrap();
            let bias = gradient.get("0.bias").unwrap().to_f64_vec().unwrap();
            let of_layer = matrix(gradient.get("0.weight").unwrap()).unwrap();
            let factors = Factors::of(&of_layer, Some(5), &mut Stream::new(1, "sketch", 0)).unwrap();
            let leaky = Perceptron::of(&perceptron(&network).unwrap(), &theta, &gradient).unwrap().unwrap();
            let truth = rows(&matrix(&x).unwrap());
            let mut stream = Stream::new(2, "off", 0);
            let mut off = |by: f64| -> Rows {
                truth.iter().map(|row| row.iter().map(|x| x + by * stream.normal()).collect()).collect()
            };
            let settled = leaky.settled(&factors, &bias, off(0.02)).unwrap();
            for (found, truth) in settled.samples.iter().zip(&truth) {
                assert!(found.iter().zip(truth).all(|(a, b)| (a - b).abs() < 1e-8), "slope {slope}");
            }
            assert!(leaky.settled(&factors, &bias, off(3.0)).is_none(), "slope {slope}");
        }
        let relu = Network::new(Mlp::new(4, &[5], 2).spec()).unwrap();
        let theta = relu.init(&Init::Pytorch.into(), 3, DType::F64).unwrap();
        assert!(Perceptron::of(&perceptron(&relu).unwrap(), &theta, &theta).unwrap().is_none());
    }
}
