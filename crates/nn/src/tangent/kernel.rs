//! The empirical neural tangent kernel, block by block.

use super::perceptron::{Factors, dense_layers};
use super::written::rows;
use crate::{DType, Device, Error, Network, Params, Result, Tensor};

/// Numbers of features that are held at once, at most: 128 MiB of doubles.
const HELD: usize = 1 << 24;
/// Records of a block, at most.
const BLOCK: usize = 512;

/// K = ⟨∇_θ f_k(x_i), ∇_θ f_l(y_j)⟩ in double precision: one row for each record and
/// output of `x`, one column for each of `y`, or of `x` again if there is none.
///
/// Records are taken in blocks: beside the result, memory holds the features of two.
///
/// ```
/// use afterimage_nn::{DType, Init, Network, Tensor, tangent, zoo::Mlp};
/// let network = Network::new(Mlp::new(3, &[8], 1).spec())?;
/// let theta = network.init(&Init::Pytorch.into(), 1, DType::F64)?;
/// let x = Tensor::from_vec(vec![0.5, -0.2, 0.1, 0.3, 0.3, -0.4], &[2, 3])?;
/// let kernel = tangent::kernel(&network, &theta, &x, None)?;
/// let first = network.backward(&theta, &x.slice_rows(0..1)?, &Tensor::from_vec(vec![1.0], &[1, 1])?, afterimage_nn::Want::Weights)?;
/// let norm = first.weights.map(|gradient| gradient.norm_squared()).transpose()?;
/// assert!((kernel.to_f64_vec()?[0] - norm.unwrap()).abs() < 1e-12);
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
pub fn kernel(network: &Network, theta: &Params, x: &Tensor, y: Option<&Tensor>) -> Result<Tensor> {
    blocked(network, theta, x, y, BLOCK)
}

/// The same, with at most so many records in a block.
pub(super) fn blocked(
    network: &Network,
    theta: &Params,
    x: &Tensor,
    y: Option<&Tensor>,
    block: usize,
) -> Result<Tensor> {
    let other = y.unwrap_or(x);
    for records in [x, other] {
        network.check_input(theta, records)?;
    }
    let outputs: usize = network.output_shape().iter().product();
    let (rows, columns) = (x.rows() * outputs, other.rows() * outputs);
    let size = match dense_layers(network) {
        Some(_) => block,
        None => block.min(HELD / (theta.count() * outputs).max(1)).max(1),
    };
    let mut values = vec![0.0; rows * columns];
    for top in (0..x.rows()).step_by(size) {
        let of_rows = Block::of(network, theta, &x.slice_rows(top..(top + size).min(x.rows()))?)?;
        // A symmetric kernel is known from its upper half.
        let from = if y.is_some() { 0 } else { top };
        for left in (from..other.rows()).step_by(size) {
            let own = y.is_none() && left == top;
            let of_columns = match own {
                true => None,
                false => Some(Block::of(network, theta, &other.slice_rows(left..(left + size).min(other.rows()))?)?),
            };
            let products = of_rows.products(of_columns.as_ref().unwrap_or(&of_rows))?;
            let (height, width) = (products.rows(), products.row_len());
            let products = products.to_f64_vec()?;
            for i in 0..height {
                for j in 0..width {
                    let (row, column) = (top * outputs + i, left * outputs + j);
                    values[row * columns + column] = products[i * width + j];
                    if y.is_none() {
                        values[column * columns + row] = products[i * width + j];
                    }
                }
            }
        }
    }
    Tensor::from_vec(values, &[rows, columns])
}

/// d(K, K') = 1 − tr(Kᵀ K') / (‖K‖ ‖K'‖): 0 where one is a multiple of the other.
///
/// ```
/// use afterimage_nn::{Tensor, tangent::kernel_distance};
/// let [a, b] = [vec![2.0, 0.0, 0.0, 2.0], vec![1.0, 1.0, 1.0, 1.0]].map(|k| Tensor::from_vec(k, &[2, 2]));
/// let (a, b) = (a?, b?);
/// assert!(kernel_distance(&a, &a.scale(3.0)?)?.abs() < 1e-12);
/// assert!((kernel_distance(&a, &b)? - (1.0 - 0.5_f64.sqrt())).abs() < 1e-12);
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
pub fn kernel_distance(a: &Tensor, b: &Tensor) -> Result<f64> {
    let sizes = (a.dot(a)? * b.dot(b)?).sqrt();
    if sizes > 0.0 {
        return Ok(1.0 - a.dot(b)? / sizes);
    }
    Err(Error::Algebra { operation: "distance of kernels", problem: "one of them is zero".into() })
}

/// The features of some records.
enum Block {
    /// As factors.
    Factors(Factors),
    /// Written out, one a row.
    Rows(Tensor),
}

impl Block {
    fn of(network: &Network, theta: &Params, x: &Tensor) -> Result<Self> {
        if dense_layers(network).is_some() {
            return Ok(Block::Factors(Factors::of(network, theta, x)?));
        }
        let rows = rows(network, theta, x)?;
        Ok(Block::Rows(rows.to_dtype(DType::F64)?.to_device(Device::Cpu)?))
    }

    /// Inner products of these features with others.
    fn products(&self, other: &Self) -> Result<Tensor> {
        match (self, other) {
            (Block::Rows(a), Block::Rows(b)) => a.matmul_transposed(b),
            (Block::Factors(a), Block::Factors(b)) => factored(a, b),
            _ => Err(Error::Algebra { operation: "tangent kernel", problem: "blocks of two networks".into() }),
        }
    }
}

/// Σ_layers ⟨δ, δ'⟩ ⟨(a, 1), (a', 1)⟩.
fn factored(a: &Factors, b: &Factors) -> Result<Tensor> {
    let (height, width) = (a.deltas[0].rows(), b.deltas[0].rows());
    let mut sum = vec![0.0; height * width];
    for (place, dense) in a.layers().iter().enumerate() {
        // Products of two numbers too many in f32 would not be symmetric to the last bit.
        let wide = |x: &Tensor| x.to_dtype(DType::F64)?.to_device(Device::Cpu);
        let deltas = wide(&a.deltas[place])?.matmul_transposed(&wide(&b.deltas[place])?)?.to_f64_vec()?;
        let inputs = wide(&a.inputs[place])?.matmul_transposed(&wide(&b.inputs[place])?)?.to_f64_vec()?;
        let shift = if dense.bias.is_some() { 1.0 } else { 0.0 };
        let columns = width / b.outputs();
        for (at, (sum, delta)) in sum.iter_mut().zip(deltas).enumerate() {
            let (i, j) = (at / width / a.outputs(), at % width / b.outputs());
            *sum += delta * (inputs[i * columns + j] + shift);
        }
    }
    Tensor::from_vec(sum, &[height, width])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zoo::{Lenet, Mlp};
    use crate::{Activation, Init, Stream, Want};

    fn random(name: &str, shape: &[usize]) -> Tensor {
        Stream::new(3, name, 0).normal_tensor(1.0, shape, DType::F64).unwrap()
    }

    fn off(a: &Tensor, b: &Tensor) -> f64 {
        let difference = a.combine(1.0, b, -1.0).unwrap();
        (difference.dot(&difference).unwrap() / b.dot(b).unwrap()).sqrt()
    }

    #[test]
    fn blocks_of_any_size_and_both_routes_agree() {
        let network =
            Network::new(Mlp::new(4, &[7, 5], 3).with_activation(Activation::Softplus { beta: 2.0 }).spec()).unwrap();
        let theta = network.init(&Init::Pytorch.into(), 1, DType::F64).unwrap();
        let (x, y) = (random("x", &[5, 4]), random("y", &[4, 4]));
        let whole = kernel(&network, &theta, &x, Some(&y)).unwrap();
        assert_eq!(whole.shape(), [15, 12]);
        assert!(off(&blocked(&network, &theta, &x, Some(&y), 2).unwrap(), &whole) < 1e-14);
        // Written out, gradient by gradient.
        let rows = |x: &Tensor| -> Vec<Vec<f64>> {
            let unit = |k: usize| Tensor::from_vec((0..3).map(|j| f64::from(u8::from(j == k))).collect(), &[1, 3]);
            (0..x.rows() * 3)
                .map(|row| {
                    let one = x.slice_rows(row / 3..row / 3 + 1).unwrap();
                    let gradient = network.backward(&theta, &one, &unit(row % 3).unwrap(), Want::Weights).unwrap();
                    gradient.weights.unwrap().values().iter().flat_map(|v| v.to_f64_vec().unwrap()).collect()
                })
                .collect()
        };
        let (a, b) = (rows(&x), rows(&y));
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let written: Vec<f64> = a.iter().flat_map(|a| b.iter().map(move |b| dot(a, b))).collect();
        assert!(off(&whole, &Tensor::from_vec(written, &[15, 12]).unwrap()) < 1e-13);
        let own = kernel(&network, &theta, &x, None).unwrap();
        assert!(off(&blocked(&network, &theta, &x, None, 2).unwrap(), &own) < 1e-14);
        assert!(off(&kernel(&network, &theta, &x, Some(&x)).unwrap(), &own) < 1e-14);
    }

    #[test]
    fn convolutional_networks_have_one_too() {
        let network = Network::new(Lenet::new(&[1, 28, 28], 1).spec()).unwrap();
        let theta = network.init(&Init::Pytorch.into(), 1, DType::F64).unwrap();
        let x = random("x", &[3, 1, 28, 28]);
        let own = kernel(&network, &theta, &x, None).unwrap();
        let all = Tensor::from_vec(vec![1.0; 3], &[3, 1]).unwrap();
        let sum = network.backward(&theta, &x, &all, Want::Weights).unwrap().weights.unwrap();
        let total: f64 = own.to_f64_vec().unwrap().iter().sum();
        assert!((total - sum.norm_squared().unwrap()).abs() < 1e-10 * total);
        assert!(off(&blocked(&network, &theta, &x, None, 1).unwrap(), &own) < 1e-14);
    }
}
