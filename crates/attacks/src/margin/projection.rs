//! Multipliers by variable projection: the best ones for given candidates.

use afterimage_nn::algebra::{Algebra, Plain};
use afterimage_nn::linalg::nnls;
use afterimage_nn::{DType, Error, GradientSink, Network, Params, Result, Tensor};

use super::Labels;
use crate::AttackError;

/// The multipliers λ ≥ 0 that minimise Σ_p w_p ‖θ_p − Σ_i λ_i g_i‖², where g_i is the
/// gradient of Σ_k s_ik f_k(x_i) with s as the labels say, and what they leave of Σ_p w_p ‖θ_p‖².
///
/// The Gram matrix ⟨g_i, g_j⟩ is a product of small ones, layer by layer: no gradient is
/// ever multiplied out.
pub(crate) fn project(
    network: &Network,
    theta: &Params,
    x: &Tensor,
    labels: &Labels,
    weights: &[f64],
) -> std::result::Result<(Vec<f64>, f64), AttackError> {
    let count = x.rows();
    let mut algebra = Plain::default();
    let trace = network.trace(&mut algebra, theta, x)?;
    let seeds = labels.seeds(&trace.output().to_f64_vec()?);
    let c = Tensor::from_f64(&seeds, trace.output().shape(), x.dtype())?.to_device(x.device())?;
    let mut gram = Gram { weights, sum: vec![0.0; count * count], count };
    network.backpropagate(&mut algebra, theta, &trace, c, Some(&mut gram), false)?;
    let mut gram = gram.sum;
    // ⟨w θ, g_i⟩ is a tangent of outputs.
    let mut scaled = weights.iter();
    let direction = theta.map(|value| value.scale(*scaled.next().unwrap_or(&1.0)))?;
    let outputs = seeds.len() / count.max(1);
    let tangents = network.pass(theta, x)?.outputs_along(&direction)?.to_f64_vec()?;
    let rhs: Vec<f64> =
        (0..count).map(|i| (i * outputs..(i + 1) * outputs).map(|k| seeds[k] * tangents[k]).sum()).collect();
    let trace: f64 = (0..count).map(|i| gram[i * count + i]).sum();
    for i in 0..count {
        // Candidates that are one: any split of their weight is as good.
        gram[i * count + i] += 1e-10 * trace / count as f64;
    }
    let lambda = nnls(&Tensor::from_f64(&gram, &[count, count], DType::F64)?, &rhs)?;
    let total = theta.zip(&direction, |value, scaled| value.dot(scaled))?.values().iter().sum::<f64>();
    let along: f64 = lambda.iter().zip(&rhs).map(|(lambda, rhs)| lambda * rhs).sum();
    let square: f64 =
        (0..count).map(|i| lambda[i] * (0..count).map(|j| gram[i * count + j] * lambda[j]).sum::<f64>()).sum();
    Ok((lambda, (total - 2.0 * along + square).max(0.0)))
}

/// Σ_p w_p ⟨∂f(x_i)/∂θ_p, ∂f(x_j)/∂θ_p⟩.
struct Gram<'a> {
    weights: &'a [f64],
    sum: Vec<f64>,
    count: usize,
}

impl Gram<'_> {
    fn add(&mut self, parameter: usize, delta: &Tensor, input: Option<&Tensor>) -> Result<()> {
        let weight = self.weights[parameter];
        let products = |x: &Tensor| {
            let x = x.reshape(&[x.rows(), x.row_len()])?;
            x.matmul_transposed(&x)?.to_f64_vec()
        };
        if delta.rows() != self.count {
            return Err(Error::Shape {
                what: "gradients of candidates".into(),
                expected: format!("[{}, …]", self.count),
                found: delta.shape().to_vec(),
            });
        }
        let deltas = products(delta)?;
        let inputs = input.map(products).transpose()?;
        for (place, sum) in self.sum.iter_mut().enumerate() {
            *sum += weight * deltas[place] * inputs.as_ref().map_or(1.0, |inputs| inputs[place]);
        }
        Ok(())
    }
}

impl<A: Algebra<Value = Tensor>> GradientSink<A> for Gram<'_> {
    fn outer(&mut self, _: &mut A, parameter: usize, delta: &Tensor, input: &Tensor) -> Result<()> {
        self.add(parameter, delta, Some(input))
    }

    fn sum(&mut self, _: &mut A, parameter: usize, delta: &Tensor) -> Result<()> {
        self.add(parameter, delta, None)
    }

    fn direct(&mut self, _: &mut A, _: usize, _: Tensor) -> Result<()> {
        Err(Error::Algebra {
            operation: "Gram matrix of gradients",
            problem: "a layer of this network gives gradients that are not told apart by record".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterimage_nn::zoo::{Bias, Mlp};
    use afterimage_nn::{Init, Seed, Stream};

    #[test]
    fn the_multipliers_of_a_sum_are_found_again() {
        let network = Network::new(Mlp { bias: Bias::First, ..Mlp::new(4, &[9, 8], 1) }.spec()).unwrap();
        let theta = network.init(&Init::Pytorch.into(), 1, DType::F64).unwrap();
        let x = Stream::new(2, "x", 0).normal_tensor(1.0, &[3, 4], DType::F64).unwrap();
        let (seeds, weights) = ([1.0, -1.0, 1.0], [1.0, 0.5, 2.0, 1.0]);
        let labels = Labels::Signs(seeds.to_vec());
        let (lambda, left) = project(&network, &theta, &x, &labels, &weights).unwrap();
        // By another route: the residual of the engine at these multipliers, and around them.
        let value = |lambda: &[f64]| {
            let c: Vec<f64> = lambda.iter().zip(&seeds).map(|(lambda, seed)| lambda * seed).collect();
            let c = Tensor::from_f64(&c, &[3, 1], DType::F64).unwrap();
            let residual = network.pass(&theta, &x).unwrap().residual(Seed::Fixed(c), &theta, &weights).unwrap();
            residual.squares.iter().zip(&weights).map(|(square, weight)| weight * square).sum::<f64>()
        };
        assert!((value(&lambda) - left).abs() < 1e-8 * left, "{left} for {}", value(&lambda));
        for index in 0..3 {
            for step in [-1e-3, 1e-3] {
                let mut moved = lambda.clone();
                moved[index] = (moved[index] + step).max(0.0);
                assert!(value(&moved) >= left * (1.0 - 1e-9));
            }
        }
    }
}
