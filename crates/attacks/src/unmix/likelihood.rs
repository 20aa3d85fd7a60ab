//! How likely the first layer is, given candidates.

use afterimage_nn::{Params, Seed, Tensor};
use faer::linalg::solvers::Solve;
use faer::{Mat, Side};

use crate::factors::matrix;
use crate::margin::{Labels, Reduced};
use crate::{AttackError, Contribution, Term};

/// −(2/h) log p(first layer | candidates), over coordinates c (variable 0) and
/// ℓ = log λ (variable 1).
pub(super) struct Likelihood<'a> {
    pub(super) space: &'a Reduced,
    pub(super) labels: &'a Labels,
    /// ρ, the mean square of a unit's gradient.
    pub(super) gain: f64,
    /// σ and κ by iteration.
    pub(super) plan: Annealing,
}

/// σ and κ fall geometrically to their last values over the first part of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Annealing {
    /// Iterations until both stay.
    pub(super) iterations: f64,
    /// σ at the start and later.
    pub(super) noise: [f64; 2],
    /// κ at the start and later.
    pub(super) spread: [f64; 2],
}

impl Annealing {
    /// (σ, κ).
    fn at(self, iteration: usize) -> (f64, f64) {
        let part = (iteration as f64 / self.iterations.max(1.0)).min(1.0);
        let between = |[first, last]: [f64; 2]| first * (last / first).powf(part);
        (between(self.noise), between(self.spread))
    }
}

/// Σ and what follows from it.
struct Weighing {
    /// u_i = (c_i, 1), one a row; without the 1 where the layer has no bias.
    u: Mat<f64>,
    /// R Σ⁻¹, where R is what the candidates leave of the layer.
    weighed: Mat<f64>,
    /// Σ⁻¹ − Σ⁻¹ RᵀR Σ⁻¹ / h, the derivative of the value by Σ.
    slope: Mat<f64>,
    value: f64,
}

impl Weighing {
    fn new(residual: &Mat<f64>, u: Mat<f64>, variances: &[f64], noise: f64) -> Result<Self, AttackError> {
        let (units, size) = (residual.nrows() as f64, u.ncols());
        let scaled = Mat::from_fn(u.nrows(), size, |i, k| variances[i] * u[(i, k)]);
        let mut sigma = u.transpose() * scaled;
        for k in 0..size {
            sigma[(k, k)] += noise * noise;
        }
        let factor = sigma.llt(Side::Lower).map_err(|_| afterimage_nn::Error::Algebra {
            operation: "likelihood of the first layer",
            problem: "the covariance is not positive definite; raise `noise`".into(),
        })?;
        let log_determinant = 2.0 * (0..size).map(|k| factor.L()[(k, k)].ln()).sum::<f64>();
        let weighed = factor.solve(residual.transpose()).transpose().to_owned();
        let squares: f64 = (0..size).map(|k| weighed.col(k).transpose() * residual.col(k)).sum();
        let inverse = factor.solve(Mat::<f64>::identity(size, size));
        let outer = weighed.transpose() * &weighed;
        let slope = Mat::from_fn(size, size, |a, b| inverse[(a, b)] - outer[(a, b)] / units);
        Ok(Self { u, weighed, slope, value: squares / units + log_determinant })
    }
}

impl Likelihood<'_> {
    /// The residual G − T of the first layer, weight and bias beside each other.
    fn first_layer(&self, direction: &Params) -> Result<Mat<f64>, AttackError> {
        let weight = matrix(direction.get(&self.weight())?)?;
        let Ok(bias) = direction.get(&self.bias()) else { return Ok(weight) };
        let (bias, inputs) = (bias.to_f64_vec()?, weight.ncols());
        Ok(Mat::from_fn(weight.nrows(), inputs + 1, |unit, k| if k < inputs { weight[(unit, k)] } else { bias[unit] }))
    }

    fn weight(&self) -> String {
        format!("{}.weight", self.space.layer)
    }

    fn bias(&self) -> String {
        format!("{}.bias", self.space.layer)
    }

    /// `weighed`, scaled, as a direction in parameter space that is zero beyond the first layer.
    fn direction(&self, weighed: &Mat<f64>, scale: f64) -> Result<Params, AttackError> {
        let theta = &self.space.theta;
        let (weight, bias, inputs) = (self.weight(), self.bias(), self.space.span.basis.rows());
        let named = theta.iter().map(|(name, value)| {
            let columns = match name {
                _ if name == weight => 0..inputs,
                _ if name == bias => inputs..inputs + 1,
                _ => return Ok((name.to_owned(), value.zeros_like()?)),
            };
            let entries = (0..weighed.nrows()).flat_map(|unit| columns.clone().map(move |k| (unit, k)));
            let entries: Vec<f64> = entries.map(|at| scale * weighed[at]).collect();
            let part = Tensor::from_f64(&entries, value.shape(), value.dtype())?.to_device(value.device())?;
            Ok((name.to_owned(), part))
        });
        let named = named.collect::<Result<_, AttackError>>()?;
        Ok(self.space.network.params(named, theta.dtype(), theta.device())?)
    }
}

impl Term for Likelihood<'_> {
    fn evaluate(&mut self, iteration: usize, at: &[Tensor]) -> Result<Contribution, AttackError> {
        let (network, theta) = (&self.space.network, &self.space.theta);
        let (coordinates, device) = (&at[0], at[0].device());
        let lambda: Vec<f64> = at[1].to_f64_vec()?.iter().map(|log| log.exp()).collect();
        let mut pass = network.pass(theta, coordinates)?;
        let shape = pass.outputs().shape().to_vec();
        let seeds = self.labels.seeds(&pass.outputs().to_f64_vec()?);
        let outputs = seeds.len() / lambda.len().max(1);
        let c: Vec<f64> = seeds.iter().enumerate().map(|(i, s)| s * lambda[i / outputs]).collect();
        let c = Tensor::from_f64(&c, &shape, coordinates.dtype())?.to_device(device)?;
        let residuals = pass.residual(Seed::Fixed(c), theta, &vec![1.0; theta.values().len()])?;
        let residual = self.first_layer(&residuals.direction)?;

        let (noise, spread) = self.plan.at(iteration);
        let variances: Vec<f64> = lambda.iter().map(|lambda| (spread * lambda).powi(2) * self.gain).collect();
        let (m, inputs, size) = (lambda.len(), coordinates.row_len(), residual.ncols());
        let flat = coordinates.to_f64_vec()?;
        let u = Mat::from_fn(m, size, |i, k| if k < inputs { flat[i * inputs + k] } else { 1.0 });
        let Weighing { u, weighed, slope, value } = Weighing::new(&residual, u, &variances, noise)?;

        let along = pass.along(&self.direction(&weighed, 2.0 / residual.nrows() as f64)?)?;
        let sloped = &u * slope;
        // Through the sum of gradients, and through Σ.
        let (mut of_c, slopes) = (along.inputs.to_f64_vec()?, along.outputs.to_f64_vec()?);
        let mut of_log = vec![0.0; m];
        for i in 0..m {
            let own: f64 = (0..size).map(|k| sloped[(i, k)] * u[(i, k)]).sum();
            let margin: f64 = (i * outputs..(i + 1) * outputs).map(|k| seeds[k] * slopes[k]).sum();
            of_log[i] = lambda[i] * margin + 2.0 * variances[i] * own;
            for k in 0..inputs {
                of_c[i * inputs + k] += 2.0 * variances[i] * sloped[(i, k)];
            }
        }
        let tensor = |values: &[f64], like: &Tensor| -> Result<Tensor, AttackError> {
            Ok(Tensor::from_f64(values, like.shape(), like.dtype())?.to_device(device)?)
        };
        let gradients = vec![Some(tensor(&of_c, &at[0])?), Some(tensor(&of_log, &at[1])?)];
        Ok(Contribution { value, gradients })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objective::check_gradients;
    use afterimage_nn::zoo::{Bias, Mlp};
    use afterimage_nn::{Activation, DType, Init, Network, Stream};

    #[test]
    fn gradients_are_those_of_the_value() {
        for (outputs, bias) in [(1, Bias::First), (3, Bias::All), (1, Bias::None)] {
            let mlp = Mlp { bias, ..Mlp::new(6, &[9, 7], outputs) };
            let network = Network::new(mlp.with_activation(Activation::Softplus { beta: 3.0 }).spec()).unwrap();
            let theta = network.init(&Init::Pytorch.into(), 1, DType::F64).unwrap();
            let space = Reduced::of(&network, &theta, Some(4), "unmix").unwrap();
            let labels = Labels::new(5, outputs, false);
            let plan = Annealing { iterations: 10.0, noise: [0.3, 0.1], spread: [1.0, 0.5] };
            let mut term = Likelihood { space: &space, labels: &labels, gain: 0.7, plan };
            let at = [
                Stream::new(2, "c", 0).normal_tensor(1.0, &[5, 4], DType::F64).unwrap(),
                Stream::new(2, "log", 0).normal_tensor(0.5, &[5], DType::F64).unwrap(),
            ];
            check_gradients(&mut term, 3, &at, 1e-6);
        }
    }
}
