//! How far the weights are from a sum of gradients at the candidates.

use afterimage_nn::{Form, Matched, Matching, Network, Params, Tensor};

use crate::margin::{Labels, project};
use crate::{AttackError, Contribution, Term};

/// Σ_p w_p ‖θ_p − share Σ_i λ_i Σ_k s_ik ∂f_k(x_i)/∂θ_p‖², over x (variable 0) and λ (variable 1).
pub(super) struct Stationarity<'a> {
    network: &'a Network,
    theta: &'a Params,
    labels: &'a Labels,
    share: f64,
    weights: Vec<f64>,
    /// The comparison of gradients with θ; a residual is scaled by 2 w_p on its way into the gradient.
    matching: Matching<'a>,
    /// Whether λ is the best there is, whatever variable 1 says.
    projected: bool,
}

impl<'a> Stationarity<'a> {
    pub(super) fn new(
        network: &'a Network,
        theta: &'a Params,
        labels: &'a Labels,
        share: f64,
        weights: &[f64],
    ) -> Result<Self, AttackError> {
        let scales: Vec<f64> = weights.iter().map(|w| 2.0 * w).collect();
        let matching = Matching::new(network, theta, theta, &scales, Form::Cheaper)?;
        Ok(Self { network, theta, labels, share, weights: weights.to_vec(), matching, projected: false })
    }

    /// With the best λ at every step, if so.
    pub(super) fn projected(self, projected: bool) -> Self {
        Self { projected, ..self }
    }

    /// The best λ ≥ 0 for candidates.
    pub(super) fn best_duals(&self, x: &Tensor) -> Result<Vec<f64>, AttackError> {
        let (lambda, _) = project(self.network, self.theta, x, self.labels, &self.weights)?;
        Ok(lambda.iter().map(|lambda| lambda / self.share).collect())
    }
}

impl Term for Stationarity<'_> {
    fn evaluate(&mut self, _: usize, at: &[Tensor]) -> Result<Contribution, AttackError> {
        let x = &at[0];
        // At the best λ the gradient in x is that at fixed λ: λ has nothing to gain.
        let lambda = if self.projected { self.best_duals(x)? } else { at[1].to_f64_vec()? };
        let outputs: usize = self.network.output_shape().iter().product();
        let weighed = |seeds: &[f64]| -> afterimage_nn::Result<Tensor> {
            let c = seeds.iter().enumerate().map(|(i, s)| self.share * s * lambda[i / outputs]);
            let shape = [x.rows(), outputs];
            Tensor::from_f64(&c.collect::<Vec<_>>(), &shape, x.dtype())?.to_device(x.device())
        };
        let mut seeds = self.labels.fixed_seeds().map_or_else(Vec::new, <[f64]>::to_vec);
        let Matched { squares, along } = if seeds.is_empty() {
            self.matching.evaluate_with(x, |f| {
                seeds = self.labels.seeds(&f.to_f64_vec()?);
                weighed(&seeds)
            })?
        } else {
            let c = weighed(&seeds)?;
            self.matching.evaluate(x, &c)?
        };
        let value = squares.iter().zip(&self.weights).map(|(square, w)| w * square).sum();
        let slopes = along.outputs.to_f64_vec()?;
        let of = |i: usize| (i * outputs..(i + 1) * outputs).map(|k| self.share * seeds[k] * slopes[k]).sum();
        let of_lambda: Vec<f64> = (0..lambda.len()).map(of).collect();
        let of_lambda = Tensor::from_f64(&of_lambda, at[1].shape(), at[1].dtype())?.to_device(x.device())?;
        let of_lambda = (!self.projected).then_some(of_lambda);
        Ok(Contribution { value, gradients: vec![Some(along.inputs), of_lambda] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objective::check_gradients;
    use afterimage_nn::zoo::{Bias, Mlp};
    use afterimage_nn::{Activation, DType, Init, Stream};

    fn setting(outputs: usize) -> (Network, Params, Tensor, Tensor) {
        let mlp = Mlp { bias: Bias::First, ..Mlp::new(3, &[8, 7], outputs) };
        let network = Network::new(mlp.with_activation(Activation::Softplus { beta: 3.0 }).spec()).unwrap();
        let theta = network.init(&Init::Pytorch.into(), 1, DType::F64).unwrap();
        let x = Stream::new(2, "x", 0).normal_tensor(1.0, &[5, 3], DType::F64).unwrap();
        let lambda = Stream::new(2, "lambda", 0).normal_tensor(1.0, &[5], DType::F64).unwrap();
        (network, theta, x, lambda)
    }

    #[test]
    fn gradients_are_those_of_the_value() {
        for outputs in [1, 3] {
            let (network, theta, x, lambda) = setting(outputs);
            let labels = Labels::new(5, outputs, false);
            let weights: Vec<f64> = (0..theta.values().len()).map(|p| 0.5 + p as f64).collect();
            let mut term = Stationarity::new(&network, &theta, &labels, 0.2, &weights).unwrap();
            check_gradients(&mut term, 0, &[x, lambda], 1e-6);
        }
    }

    #[test]
    fn at_the_best_multipliers_the_gradient_is_that_of_what_is_left() {
        let (network, theta, x, lambda) = setting(1);
        let labels = Labels::new(5, 1, false);
        let weights = vec![1.0; theta.values().len()];
        let mut term = Stationarity::new(&network, &theta, &labels, 0.2, &weights).unwrap().projected(true);
        check_gradients(&mut term, 0, &[x, lambda], 1e-4);
    }

    #[test]
    fn candidates_without_weight_and_halves_of_one_change_nothing() {
        let (network, theta, x, _) = setting(1);
        let labels = Labels::Signs(vec![1.0; 5]);
        let weights = vec![1.0; theta.values().len()];
        let value = |x: &Tensor, lambda: &[f64]| {
            let lambda = Tensor::from_f64(lambda, &[5], DType::F64).unwrap();
            let mut term = Stationarity::new(&network, &theta, &labels, 1.0, &weights).unwrap();
            term.evaluate(0, &[x.clone(), lambda]).unwrap().value
        };
        let base = value(&x, &[0.7, 0.3, 0.4, 0.0, 0.0]);
        // A candidate with no weight may be anywhere.
        let elsewhere = x.select_rows(&[0, 1, 2, 2, 0]).unwrap();
        assert!((value(&elsewhere, &[0.7, 0.3, 0.4, 0.0, 0.0]) - base).abs() < 1e-12);
        // One candidate may be two.
        assert!((value(&elsewhere, &[0.2, 0.3, 0.1, 0.3, 0.5]) - base).abs() < 1e-12);
    }
}
