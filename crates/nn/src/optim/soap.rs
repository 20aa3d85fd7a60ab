//! Adam in the eigenbasis of Shampoo's preconditioner: for what Adam alone comes to the bottom of slowly.
//!
//! Vyas, Morwani, Zhao, Shapira, Brandfonbrener, Janson & Kakade (2024), "SOAP: improving and stabilizing Shampoo using
//! Adam", algorithm 3.
//!
//! | symbol | here | shape |
//! | --- | --- | --- |
//! | G | the gradient of a weight; of a convolution, a row for each output | r x c |
//! | L, R | running means of GGᵀ and GᵀG | r x r, c x c |
//! | Q_L, Q_R | their eigenvectors, one a column | r x r, c x c |
//! | M, V | mean of G; mean square of Q_Lᵀ G Q_R | r x c |
//!
//! Each step is Adam's on Q_Lᵀ G Q_R, turned back. The bases are turned a little further every few steps: one pass of
//! orthogonal iteration, Q ← qr(L Q). The first step measures and moves nothing. Biases, and sides longer than
//! `longest`, are not turned: with neither side turned it is Adam.

use super::AdamRates;
use crate::ops::{self, Factor};
use crate::{Result, Tensor, linalg};

/// Tensors that are kept for each value: M, V, L, Q_L, R, Q_R.
pub(super) const KEPT: usize = 6;

/// The numbers of one step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rates {
    /// Adam's, β₂ for the preconditioner too.
    pub(super) adam: AdamRates,
    /// Whether the bases are turned after this step.
    pub(super) turn: bool,
}

/// A value and what is kept for it, after one more gradient.
pub(super) fn step(value: &Tensor, gradient: &Tensor, kept: &mut [Tensor], rates: Rates) -> Result<Tensor> {
    let (shape, g) = (value.shape().to_vec(), flat(gradient)?);
    let [mean, square, left, left_basis, right, right_basis] = kept else { return Ok(value.clone()) };
    let AdamRates { beta1, beta2, .. } = rates.adam;
    // Adam's own step, from nothing, in the bases as they are.
    let turned = |x: &Tensor| turn(&turn_left(x, left_basis, true)?, right_basis, false);
    let (g_turned, mean_turned) = (turned(&g)?, turned(mean)?);
    let nothing = g.zeros_like()?;
    let [moved, _, square_new] = ops::adam(&nothing, &g_turned, &mean_turned, square, rates.adam)?;
    let back = turn(&turn_left(&moved, left_basis, false)?, right_basis, true)?;
    let value = ops::combine(1.0, value, 1.0, &back.reshape(&shape)?)?;
    (*mean, *square) = (ops::combine(beta1, mean, 1.0 - beta1, &g)?, square_new);
    let [rows, columns] = [g.rows(), g.row_len()];
    if has_basis(left, rows) {
        let outer = ops::matmul(Factor::plain(&g), Factor::transposed(&g))?;
        *left = ops::combine(beta2, left, 1.0 - beta2, &outer)?;
    }
    if has_basis(right, columns) {
        let outer = ops::matmul(Factor::transposed(&g), Factor::plain(&g))?;
        *right = ops::combine(beta2, right, 1.0 - beta2, &outer)?;
    }
    if rates.turn {
        if has_basis(left, rows) {
            let (basis, order) = further(left, left_basis)?;
            (*left_basis, *square) = (basis, square.select_rows(&order)?);
        }
        if has_basis(right, columns) {
            let (basis, order) = further(right, right_basis)?;
            (*right_basis, *square) = (basis, square.transpose()?.select_rows(&order)?.transpose()?);
        }
    }
    Ok(value)
}

/// What is kept for a value after its first gradient.
pub(super) fn begin(gradient: &Tensor, beta2: f64, longest: usize) -> Result<Vec<Tensor>> {
    let g = flat(gradient)?;
    let [rows, columns] = [g.rows(), g.row_len()];
    let side = |length: usize, outer: (Factor<'_>, Factor<'_>)| -> Result<[Tensor; 2]> {
        // A vector has one side, and that stays as it is.
        if rows == 1 || !(2..=longest).contains(&length) {
            let one = Tensor::full(1.0, &[1, 1], g.dtype(), g.device())?;
            return Ok([one.clone(), one]);
        }
        let mean = ops::scale(1.0 - beta2, &ops::matmul(outer.0, outer.1)?)?;
        let basis = linalg::eigh(&mean)?.vectors;
        // Largest first, as orthogonal iteration leaves them.
        let order: Vec<usize> = (0..length).rev().collect();
        let basis = basis.transpose()?.select_rows(&order)?.transpose()?;
        Ok([mean, like(&basis, &g)?])
    };
    let [left, left_basis] = side(rows, (Factor::plain(&g), Factor::transposed(&g)))?;
    let [right, right_basis] = side(columns, (Factor::transposed(&g), Factor::plain(&g)))?;
    let nothing = g.zeros_like()?;
    Ok(vec![nothing.clone(), nothing, left, left_basis, right, right_basis])
}

/// A weight as a matrix, one row for each output; a vector as one row.
fn flat(x: &Tensor) -> Result<Tensor> {
    match x.shape() {
        [] | [_] => x.reshape(&[1, x.count()]),
        _ => x.reshape(&[x.rows(), x.row_len()]),
    }
}

/// A side without a basis is kept as a single number.
fn has_basis(side: &Tensor, length: usize) -> bool {
    length > 1 && side.rows() == length
}

/// Qᵀx or Qx.
fn turn_left(x: &Tensor, basis: &Tensor, transposed: bool) -> Result<Tensor> {
    if !has_basis(basis, x.rows()) {
        return Ok(x.clone());
    }
    let basis = if transposed { Factor::transposed(basis) } else { Factor::plain(basis) };
    ops::matmul(basis, Factor::plain(x))
}

/// xQ or xQᵀ.
fn turn(x: &Tensor, basis: &Tensor, transposed: bool) -> Result<Tensor> {
    if !has_basis(basis, x.row_len()) {
        return Ok(x.clone());
    }
    let basis = if transposed { Factor::transposed(basis) } else { Factor::plain(basis) };
    ops::matmul(Factor::plain(x), basis)
}

/// A basis one pass of orthogonal iteration further, its directions by falling size, and how they were ordered before.
fn further(side: &Tensor, basis: &Tensor) -> Result<(Tensor, Vec<usize>)> {
    let image = ops::matmul(Factor::plain(side), Factor::plain(basis))?;
    let rows = |x: &Tensor| x.transpose();
    let sizes = rows(&image)?.dot_rows(&rows(basis)?)?;
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by(|&a, &b| sizes[b].total_cmp(&sizes[a]));
    let (q, _) = linalg::qr(&rows(&rows(&image)?.select_rows(&order)?)?)?;
    Ok((like(&q, basis)?, order))
}

/// The same numbers, kept as another tensor keeps its own.
fn like(x: &Tensor, other: &Tensor) -> Result<Tensor> {
    x.to_dtype(other.dtype())?.to_device(other.device())
}

#[cfg(test)]
mod tests {
    use super::super::{Optimizer, UpdateRule};
    use super::*;
    use crate::{DType, Stream};

    /// A X B − C for a badly conditioned A and B; the loss is half its square.
    struct Problem {
        a: Tensor,
        b: Tensor,
        c: Tensor,
    }

    impl Problem {
        fn new(rows: usize, columns: usize) -> Self {
            let mut stream = Stream::new(1, "soap", 0);
            let mut spread = |n: usize| {
                let q = linalg::qr(&stream.normal_tensor(1.0, &[n, n], DType::F64).unwrap()).unwrap().0;
                let scaled = q.to_f64_vec().unwrap().into_iter().enumerate();
                let scaled = scaled.map(|(i, x)| x * 10_f64.powf(-2.0 * (i / n) as f64 / (n - 1) as f64)).collect();
                let other = linalg::qr(&stream.normal_tensor(1.0, &[n, n], DType::F64).unwrap()).unwrap().0;
                other.matmul(&Tensor::from_vec(scaled, &[n, n]).unwrap()).unwrap()
            };
            let (a, b) = (spread(rows), spread(columns));
            let c = a.matmul(&stream.normal_tensor(1.0, &[rows, columns], DType::F64).unwrap()).unwrap();
            Self { c: c.matmul(&b).unwrap(), a, b }
        }

        /// (loss, gradient) at x.
        fn at(&self, x: &Tensor) -> (f64, Tensor) {
            let off = self.a.matmul(x).unwrap().matmul(&self.b).unwrap().combine(1.0, &self.c, -1.0).unwrap();
            let gradient = self.a.transpose().unwrap().matmul(&off).unwrap().matmul_transposed(&self.b).unwrap();
            (0.5 * off.dot(&off).unwrap(), gradient)
        }

        fn run(&self, rule: UpdateRule, steps: usize) -> Vec<f64> {
            let mut optimizer = Optimizer::new(rule).unwrap();
            let mut x = vec![Tensor::zeros(self.c.shape(), DType::F64, crate::Device::Cpu).unwrap()];
            (0..steps)
                .map(|step| {
                    let (loss, gradient) = self.at(&x[0]);
                    let factor = 1.0 - step as f64 / steps as f64;
                    optimizer.step(&mut x, &[gradient], factor).unwrap();
                    loss
                })
                .collect()
        }
    }

    #[test]
    fn it_comes_further_down_than_adam() {
        let problem = Problem::new(12, 8);
        let end = |rule| *problem.run(rule, 800).last().unwrap();
        let (soap, adam) = (end(UpdateRule::soap(0.03)), end(UpdateRule::adam(0.03)));
        assert!(soap < 1e-2 * adam, "{soap:e} against {adam:e}");
    }

    #[test]
    fn turning_the_problem_turns_the_way() {
        // min f(UX) from 0 goes through the points of min f(X), turned: the losses are the same.
        let problem = Problem::new(6, 5);
        let mut stream = Stream::new(2, "soap", 1);
        let mut rotation = |n: usize| linalg::qr(&stream.normal_tensor(1.0, &[n, n], DType::F64).unwrap()).unwrap().0;
        let (u, v) = (rotation(6), rotation(5));
        let turned =
            Problem { a: problem.a.matmul(&u).unwrap(), b: v.matmul(&problem.b).unwrap(), c: problem.c.clone() };
        let rule = UpdateRule::soap(0.02);
        for (a, b) in problem.run(rule, 60).iter().zip(turned.run(rule, 60)) {
            assert!((a - b).abs() < 1e-6 * a.abs(), "{a} and {b}");
        }
        let adam = UpdateRule::adam(0.02);
        assert!((problem.run(adam, 60)[50] - turned.run(adam, 60)[50]).abs() > 1e-3, "Adam's way depends on the axes");
    }

    #[test]
    fn vectors_are_moved_as_adam_moves_them_after_the_first_gradient() {
        let gradient = |step: usize| Tensor::from_vec(vec![1.0 + step as f64, -0.5, 0.1 * step as f64], &[3]).unwrap();
        let start = || vec![Tensor::from_vec(vec![0.0_f64; 3], &[3]).unwrap()];
        let (mut soap, mut x) = (Optimizer::new(UpdateRule::soap(0.1)).unwrap(), start());
        soap.step(&mut x, &[gradient(9)], 1.0).unwrap();
        assert_eq!(x[0].to_f64_vec().unwrap(), [0.0; 3], "the first gradient measures");
        let UpdateRule::Soap { beta1, beta2, epsilon, .. } = UpdateRule::soap(0.1) else { unreachable!() };
        let mut adam = Optimizer::new(UpdateRule::Adam { lr: 0.1, beta1, beta2, epsilon }).unwrap();
        let mut y = start();
        for step in 0..5 {
            soap.step(&mut x, &[gradient(step)], 1.0).unwrap();
            adam.step(&mut y, &[gradient(step)], 1.0).unwrap();
        }
        let off = x[0].combine(1.0, &y[0], -1.0).unwrap();
        assert!(off.dot(&off).unwrap() < 1e-24);
    }
}
