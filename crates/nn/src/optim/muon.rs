//! Steps of equal length along every direction of a weight: for what Adam comes to the bottom of slowly.
//!
//! Jordan et al. (2024), "Muon: an optimizer for hidden layers in neural networks"; the length of a step as in Liu et al.
//! (2025), "Muon is scalable for LLM training", so that a learning rate means about what it does for Adam.
//!
//! | symbol | here | shape |
//! | --- | --- | --- |
//! | G | the gradient of a weight; of a convolution, a row for each of its first side | r x c |
//! | M | mean of G | r x c |
//! | O | what is nearest to M (looked ahead) among matrices with orthonormal rows or columns | r x c |
//!
//! ```text
//! M ← μ M + (1 − μ) G        W ← W − lr · 0.2 √max(r, c) · O,   O ≈ (N Nᵀ)^(−1/2) N   for N = μ M + (1 − μ) G
//! ```
//!
//! The root is five rounds of Newton and Schulz's iteration with Jordan's coefficients, which bring the singular values to
//! within 0.7 to 1.2. All rounds are polynomials of N Nᵀ: they are made on that, which is small, and N is multiplied with
//! the outcome once. Vectors (biases, slopes) are moved as Adam moves them.

use super::AdamRates;
use crate::ops::{self, Factor};
use crate::{Error, Result, Tensor};

/// Tensors that are kept for each value: mean, and mean square (of weights, a single zero).
pub(super) const KEPT: usize = 2;

/// X ← aX + bAX + cA²X with A = XXᵀ, as many times.
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];
const ROUNDS: usize = 5;

/// ‖N‖² where steps become shorter rather than longer than the gradient: far below any that single precision computes.
const NOTHING: f64 = 1e-36;

/// Root mean square of a step of Adam, about.
const USUAL_STEP: f64 = 0.2;

/// What is kept for a value before its first gradient.
pub(super) fn begin(value: &Tensor) -> Result<[Tensor; KEPT]> {
    let square = match is_weight(value) {
        true => Tensor::zeros(&[1], value.dtype(), value.device())?,
        false => value.zeros_like()?,
    };
    Ok([value.zeros_like()?, square])
}

/// The identity of every size that is wanted, where the values are.
#[derive(Debug, Clone, Default)]
pub(super) struct Identities(Vec<Tensor>);

impl Identities {
    /// Adds those of values that are new.
    pub(super) fn of(mut self, values: &[Tensor]) -> Result<Self> {
        for value in values.iter().filter(|value| is_weight(value)) {
            let side = value.rows().min(value.row_len());
            if !self.0.iter().any(|one| fits(one, side, value)) {
                let mut entries = vec![0.0; side * side];
                entries.iter_mut().step_by(side + 1).for_each(|entry| *entry = 1.0);
                let one = Tensor::from_vec(entries, &[side, side])?;
                self.0.push(one.to_dtype(value.dtype())?.to_device(value.device())?);
            }
        }
        Ok(self)
    }

    fn like(&self, gram: &Tensor) -> Result<&Tensor> {
        let missing = || Error::Algebra { operation: "a step of Muon", problem: "the values are others".into() };
        self.0.iter().find(|one| fits(one, gram.rows(), gram)).ok_or_else(missing)
    }
}

fn fits(one: &Tensor, side: usize, value: &Tensor) -> bool {
    one.rows() == side && one.dtype() == value.dtype() && one.device() == value.device()
}

/// A value after one more gradient; `rates` are Adam's, β₁ for μ.
pub(super) fn step(
    value: &Tensor,
    gradient: &Tensor,
    kept: &mut [Tensor],
    rates: AdamRates,
    ones: &Identities,
) -> Result<Tensor> {
    let [mean, square] = kept else { return Ok(value.clone()) };
    if !is_weight(value) {
        let moved;
        [moved, *mean, *square] = ops::adam(value, gradient, mean, square, rates)?;
        return Ok(moved);
    }
    let keep = rates.beta1;
    *mean = ops::combine(keep, mean, 1.0 - keep, gradient)?;
    let ahead = ops::combine(keep, mean, 1.0 - keep, gradient)?;
    let [rows, columns] = [value.rows(), value.row_len()];
    let direction = orthogonal(&ahead.reshape(&[rows, columns])?, ones)?;
    let length = rates.step * USUAL_STEP * (rows.max(columns) as f64).sqrt();
    ops::combine(1.0, value, -length, &direction.reshape(value.shape())?)
}

/// Whether a value is a matrix or a stack of kernels, not a vector.
fn is_weight(value: &Tensor) -> bool {
    value.shape().len() > 1 && value.rows() > 1 && value.row_len() > 1
}

/// (XXᵀ)^(−1/2) X, nearly; nothing where X is nothing.
fn orthogonal(x: &Tensor, ones: &Identities) -> Result<Tensor> {
    if x.rows() > x.row_len() {
        return orthogonal(&x.transpose()?, ones)?.transpose();
    }
    let x = unit(x)?;
    let [a, b, c] = COEFFICIENTS;
    let mut gram = ops::matmul(Factor::plain(&x), Factor::transposed(&x))?;
    let one = ones.like(&gram)?;
    let mut root: Option<Tensor> = None;
    for left in (0..ROUNDS).rev() {
        // All of these are polynomials of the first: they commute, and the root's Gram matrix follows it.
        let squared = product(&gram, &gram)?;
        let round = ops::combine(a, one, 1.0, &ops::combine(b, &gram, c, &squared)?)?;
        if left > 0 {
            gram = product(&round, &product(&gram, &round)?)?;
        }
        root = Some(match root {
            Some(root) => product(&round, &root)?,
            None => round,
        });
    }
    product(root.as_ref().unwrap_or(one), &x)
}

/// X / ‖X‖, without the processor waiting for the norm; nothing where X is nothing.
fn unit(x: &Tensor) -> Result<Tensor> {
    let rows = x.reshape(&[1, x.rows(), x.row_len()])?;
    let squares = ops::dot_channels(&rows, &rows, x.rows())?;
    let square = ops::sum_channels(&squares.reshape(&[1, 1, x.rows()])?, 1)?;
    let inverse = ops::inverse_sqrt(&square, NOTHING)?;
    ops::combine_channels(&[(&rows, &inverse)], None)?.reshape(x.shape())
}

fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    ops::matmul(Factor::plain(a), Factor::plain(b))
}

#[cfg(test)]
mod tests {
    use super::super::{Optimizer, UpdateRule};
    use super::*;
    use crate::{DType, Stream, linalg};

    fn normal(name: &'static str, shape: &[usize], dtype: DType) -> Tensor {
        Stream::new(1, name, 0).normal_tensor(1.0, shape, dtype).unwrap()
    }

    fn turn(x: &Tensor) -> Result<Tensor> {
        orthogonal(x, &Identities::default().of(std::slice::from_ref(x))?)
    }

    #[test]
    fn singular_values_are_brought_to_one_and_vectors_stay() {
        for (dtype, shape) in [(DType::F64, [7, 20]), (DType::F64, [20, 7]), (DType::F32, [12, 12])] {
            let x = normal("muon", &shape, dtype);
            let turned = linalg::svd(&turn(&x).unwrap()).unwrap();
            assert!(turned.s.iter().all(|value| (0.65..1.25).contains(value)), "{:?}", turned.s);
            // The same singular vectors: Xᵀ O is symmetric, and so is O Xᵀ.
            let inner = x.transpose().unwrap().matmul(&turn(&x).unwrap()).unwrap();
            let off = inner.combine(1.0, &inner.transpose().unwrap(), -1.0).unwrap();
            assert!(off.dot(&off).unwrap() < 1e-9 * inner.dot(&inner).unwrap());
        }
    }

    #[test]
    fn a_gradient_of_nothing_moves_nothing() {
        let weight = normal("weight", &[4, 3], DType::F32);
        let mut values = vec![weight.clone()];
        let mut muon = Optimizer::new(UpdateRule::muon(0.1)).unwrap();
        muon.step(&mut values, &[weight.zeros_like().unwrap()], 1.0).unwrap();
        assert_eq!(values[0].to_f64_vec().unwrap(), weight.to_f64_vec().unwrap());
    }

    #[test]
    fn rounds_on_the_gram_matrix_are_newton_and_schulz() {
        // The iteration as it is written down, on X itself.
        let x = normal("muon", &[5, 9], DType::F64);
        let mut plain = ops::scale(1.0 / x.dot(&x).unwrap().sqrt(), &x).unwrap();
        let [a, b, c] = COEFFICIENTS;
        for _ in 0..ROUNDS {
            let gram = plain.matmul_transposed(&plain).unwrap();
            let inner = gram.combine(b, &gram.matmul(&gram).unwrap(), c).unwrap();
            plain = plain.combine(a, &inner.matmul(&plain).unwrap(), 1.0).unwrap();
        }
        let off = plain.combine(1.0, &turn(&x).unwrap(), -1.0).unwrap();
        assert!(off.dot(&off).unwrap() < 1e-20);
    }
}
