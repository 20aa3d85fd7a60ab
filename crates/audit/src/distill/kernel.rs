//! Kernels that records are distilled by.

use afterimage_nn::tangent::{self, InfiniteWidth};
use afterimage_nn::{DType, Network, Params, Seed, Tensor, Want};

use crate::{AuditError, Result};

/// A tangent kernel, of infinite width or of a network.
pub enum Kernel {
    /// Of infinitely wide perceptrons, in closed form.
    Infinite(InfiniteWidth),
    /// Of a network with one output, at given parameters.
    Empirical {
        /// The network.
        network: Box<Network>,
        /// Its parameters, in double precision.
        theta: Params,
    },
}

impl Kernel {
    /// K(x_i, y_j) in double precision; y is x again if there is none.
    pub fn between(&self, x: &Tensor, y: Option<&Tensor>) -> Result<Tensor> {
        Ok(match self {
            Kernel::Infinite(kernel) => kernel.between(x, y)?,
            Kernel::Empirical { network, theta } => tangent::kernel(network, theta, x, y)?,
        })
    }

    /// The gradient in x of Σ_c leftᵀ_c K(x, y) right_c, for an y that does not move with x;
    /// `left` has a row for every record of x, `right` one for every record of y.
    pub fn pull_back(&self, left: &Tensor, right: &Tensor, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        match self {
            Kernel::Infinite(kernel) => Ok(kernel.pull_back(&left.matmul_transposed(right)?, x, y)?),
            Kernel::Empirical { network, theta } => {
                let mut total: Option<Tensor> = None;
                let (mut of_x, mut of_y) = (network.pass(theta, x)?, network.pass(theta, y)?);
                for column in 0..left.row_len() {
                    let column = |of: &Tensor| -> Result<Tensor> {
                        Ok(of.transpose()?.slice_rows(column..column + 1)?.reshape(&[of.rows(), 1])?)
                    };
                    let sum = of_y.backward(Seed::Fixed(column(right)?), Want::Weights)?.weights;
                    let sum = sum.map_or_else(|| theta.zeros_like(), Ok)?;
                    let gradient = of_x.along_with(Seed::Fixed(column(left)?), &sum)?.inputs;
                    total = Some(match total {
                        None => gradient,
                        Some(total) => total.combine(1.0, &gradient, 1.0)?,
                    });
                }
                Ok(total.map_or_else(|| x.zeros_like(), Ok)?)
            }
        }
    }

    /// The gradient in x of Σ_c leftᵀ_c K(x, x) right_c: both sides move.
    pub fn pull_back_own(&self, left: &Tensor, right: &Tensor, x: &Tensor) -> Result<Tensor> {
        let (one, other) = (self.pull_back(left, right, x, x)?, self.pull_back(right, left, x, x)?);
        Ok(one.combine(1.0, &other, 1.0)?)
    }
}

/// K with a ridge beside its mean diagonal.
fn with_ridge(kernel: &Tensor, ridge: f64) -> Result<Tensor> {
    let count = kernel.rows();
    let mut values = kernel.to_f64_vec()?;
    let mean = (0..count).map(|i| values[i * count + i]).sum::<f64>() / count.max(1) as f64;
    (0..count).for_each(|i| values[i * count + i] += ridge * mean);
    Ok(Tensor::from_f64(&values, &[count, count], DType::F64)?)
}

/// (K + ridge)⁻¹ b.
pub(crate) fn solved(kernel: &Tensor, ridge: f64, b: &Tensor) -> Result<Tensor> {
    let solution = afterimage_nn::linalg::cholesky_solve(&with_ridge(kernel, ridge)?, b);
    solution.map_err(|error| {
        let problem = format!("the kernel cannot be solved with: {error}");
        AuditError::plan("distill.ridge", problem, "are records there twice? raise the ridge")
    })
}
