//! The tangent kernel of infinitely wide perceptrons, in closed form.

use std::f64::consts::PI;

use crate::{DType, Device, Error, Result, Tensor};

/// The neural tangent kernel of a perceptron with infinitely wide ReLU layers and no
/// biases (Jacot et al., 2018), every layer scaled by √(its inputs) and `weight_std`.
///
/// With r = ‖x‖ and u the cosine of an angle, a ReLU layer takes u to
/// κ₁(u) = (√(1 − u²) + u (π − arccos u)) / π, whose slope is κ₀(u) = (π − arccos u) / π (Cho &
/// Saul, 2009). Layer after layer,
///
/// ```text
/// Σ_l = r r'/d · w^{2(l+1)} 2^{-l} κ₁(κ₁(…u))      Θ_l = Σ_l + w² Θ_{l−1} κ₀(u_{l−1}) / 2
/// ```
///
/// so that Θ(x, x') = (r r'/d) κ(u) with a κ of the depth alone.
///
/// ```
/// use afterimage_nn::{Tensor, tangent::InfiniteWidth};
/// let kernel = InfiniteWidth { hidden: 1, weight_std: 1.0 };
/// let x = Tensor::from_vec(vec![1.0, 0.0, 0.0, 2.0], &[2, 2])?;
/// let k = kernel.between(&x, None)?.to_f64_vec()?;
/// // At one point: Σ₁ + Σ₀/2; at right angles κ₁ = 1/π and Θ₀ = 0.
/// assert!((k[0] - 0.5).abs() < 1e-15);
/// assert!((k[1] - 2.0 / 2.0 * 0.5 / std::f64::consts::PI).abs() < 1e-15);
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InfiniteWidth {
    /// Hidden layers.
    pub hidden: usize,
    /// w.
    pub weight_std: f64,
}

impl InfiniteWidth {
    /// κ(u) and κ'(u).
    fn profile(self, u: f64) -> (f64, f64) {
        let w2 = self.weight_std * self.weight_std;
        // The angle's cosine after so many layers, its slope in u, Σ and Θ with theirs.
        let (mut v, mut v_slope, mut scale) = (u, 1.0, w2);
        let (mut theta, mut theta_slope) = (w2 * u, w2);
        for _ in 0..self.hidden {
            // 1 − v² as a product keeps its relative precision near 1.
            let sine = ((1.0 - v) * (1.0 + v)).max(0.0).sqrt();
            let angle = sine.atan2(v);
            let slope = (PI - angle) / PI;
            let bend = 1.0 / (PI * sine.max(SHARPEST));
            scale *= 0.5 * w2;
            theta_slope = 0.5 * w2 * (theta_slope * slope + theta * bend * v_slope);
            theta *= 0.5 * w2 * slope;
            v = (sine + v * (PI - angle)) / PI;
            v_slope *= slope;
            theta += scale * v;
            theta_slope += scale * v_slope;
        }
        (theta, theta_slope)
    }

    /// Θ(x_i, y_j) in double precision; y is x again if there is none.
    pub fn between(self, x: &Tensor, y: Option<&Tensor>) -> Result<Tensor> {
        let (x, y) = pair(x, y)?;
        let (angles, _) = angles(&x, &y)?;
        let values: Vec<f64> = angles.iter().map(|at| at.size * self.profile(at.cosine).0).collect();
        Tensor::from_vec(values, &[x.rows(), y.rows()])
    }

    /// The gradient in x of Σ_ij a_ij Θ(x_i, y_j), for an y that does not move with x.
    pub fn pull_back(self, a: &Tensor, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let shape = x.shape().to_vec();
        let (x, y) = pair(x, Some(y))?;
        if a.shape() != [x.rows(), y.rows()] {
            return Err(Error::shape("weights of a kernel", [x.rows(), y.rows()], a.shape()));
        }
        // With κ of the angle: ∂(r r' κ)/∂x = κ' (y − u r'/r x) + κ r'/r x.
        let (angles, [of_x, of_y]) = angles(&x, &y)?;
        let weights = a.to_f64_vec()?;
        let features = x.row_len() as f64;
        let (mut across, mut own) = (vec![0.0; weights.len()], vec![0.0; x.rows()]);
        for (at, (angle, weight)) in angles.iter().zip(&weights).enumerate() {
            let (i, j) = (at / y.rows(), at % y.rows());
            let (value, slope) = self.profile(angle.cosine);
            across[at] = weight * slope / features;
            own[i] += weight * (of_y[j] / of_x[i]) * (value - angle.cosine * slope) / features;
        }
        let across = Tensor::from_vec(across, &[x.rows(), y.rows()])?.matmul(&y)?;
        let row = x.row_len();
        let own: Vec<f64> = x.to_f64_vec()?.iter().enumerate().map(|(at, x)| own[at / row] * x).collect();
        across.combine(1.0, &Tensor::from_vec(own, across.shape())?, 1.0)?.reshape(&shape)
    }
}

/// Below this sine, two records are one, and the kernel's bend there is that of this sine.
const SHARPEST: f64 = 1e-8;

/// r r'/d and the cosine of the angle.
struct Angle {
    size: f64,
    cosine: f64,
}

/// Records as rows of a matrix in double precision.
fn pair(x: &Tensor, y: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
    let rows = |x: &Tensor| x.reshape(&[x.rows(), x.row_len()])?.to_dtype(DType::F64)?.to_device(Device::Cpu);
    let x = rows(x)?;
    let y = match y {
        Some(y) => rows(y)?,
        None => x.clone(),
    };
    if x.row_len() != y.row_len() || x.row_len() == 0 {
        return Err(Error::shape("records of a kernel", format!("[…, {}]", x.row_len()), y.shape()));
    }
    Ok((x, y))
}

/// Between every two records, and the lengths of both.
fn angles(x: &Tensor, y: &Tensor) -> Result<(Vec<Angle>, [Vec<f64>; 2])> {
    let lengths = |x: &Tensor| -> Result<Vec<f64>> {
        // A record of zeros has some length: the product of two must not be zero.
        let length = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-150);
        Ok(x.to_f64_vec()?.chunks_exact(x.row_len()).map(length).collect())
    };
    let (of_x, of_y, features) = (lengths(x)?, lengths(y)?, x.row_len() as f64);
    let products = x.matmul_transposed(y)?.to_f64_vec()?;
    let angle = |(at, product): (usize, &f64)| {
        let size = of_x[at / y.rows()] * of_y[at % y.rows()];
        let cosine = (product / size).clamp(-1.0, 1.0);
        // The kernel goes as an angle goes, and rounding of a cosine near 1 is an angle of 1e-8.
        Angle { size: size / features, cosine: if cosine > 1.0 - 4.0 * f64::EPSILON { 1.0 } else { cosine } }
    };
    Ok((products.iter().enumerate().map(angle).collect(), [of_x, of_y]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tangent::written::rows;
    use crate::zoo::{Bias, Mlp};
    use crate::{Init, Network, Stream};

    fn random(name: &str, rows: usize) -> Tensor {
        Stream::new(4, name, 0).normal_tensor(1.0, &[rows, 6], DType::F64).unwrap()
    }

    #[test]
    fn gradients_are_those_of_the_kernel() {
        let kernel = InfiniteWidth { hidden: 2, weight_std: 1.3 };
        let (x, y) = (random("x", 3), random("y", 4));
        let a = Stream::new(4, "a", 0).normal_tensor(1.0, &[3, 4], DType::F64).unwrap();
        let gradient = kernel.pull_back(&a, &x, &y).unwrap().to_f64_vec().unwrap();
        for index in 0..18 {
            let value = |step: f64| {
                let mut moved = x.to_f64_vec().unwrap();
                moved[index] += step;
                let moved = Tensor::from_vec(moved, &[3, 6]).unwrap();
                kernel.between(&moved, Some(&y)).unwrap().dot(&a).unwrap()
            };
            let numeric = (value(1e-5) - value(-1e-5)) / 2e-5;
            assert!((numeric - gradient[index]).abs() < 1e-8, "{index}");
        }
        // Of a record with itself: Θ(x, x) = κ(1) ‖x‖²/d, each side half of its gradient.
        let one = random("one", 1);
        let value = kernel.between(&one, None).unwrap().to_scalar().unwrap();
        let own = kernel.pull_back(&Tensor::from_vec(vec![1.0], &[1, 1]).unwrap(), &one, &one).unwrap();
        let expected = one.scale(value / one.dot(&one).unwrap()).unwrap();
        let off = own.combine(1.0, &expected, -1.0).unwrap();
        assert!(off.dot(&off).unwrap().sqrt() < 1e-6 * value);
    }

    #[test]
    fn a_record_of_zeros_is_nothing_to_others() {
        let x =
            Tensor::concat_rows(&[&Tensor::zeros(&[2, 6], DType::F64, crate::Device::Cpu).unwrap(), &random("x", 1)]);
        let kernel = InfiniteWidth { hidden: 2, weight_std: 1.0 }.between(&x.unwrap(), None).unwrap();
        let kernel = kernel.to_f64_vec().unwrap();
        assert!(kernel[..8].iter().all(|value| value.abs() < 1e-100), "{kernel:?}");
        assert!(kernel[8] > 0.1);
    }

    #[test]
    fn wide_networks_come_near_it() {
        const WIDTH: usize = 20_000;
        const DRAWS: u64 = 4;
        let x = random("x", 3);
        let network = Network::new(Mlp { bias: Bias::None, ..Mlp::new(6, &[WIDTH], 1) }.spec()).unwrap();
        let mut sums = [0.0; 9];
        for seed in 0..DRAWS {
            let theta = network.init(&Init::FanIn.into(), seed, DType::F64).unwrap();
            let rows = rows(&network, &theta, &x).unwrap().to_f64_vec().unwrap();
            let rows: Vec<&[f64]> = rows.chunks_exact(7 * WIDTH).collect();
            for (at, sum) in sums.iter_mut().enumerate() {
                // The theory's parameters are √inputs times ours, and their gradients so many times smaller.
                let part = |range: std::ops::Range<usize>| -> f64 {
                    rows[at / 3][range.clone()].iter().zip(&rows[at % 3][range]).map(|(a, b)| a * b).sum()
                };
                *sum += (part(0..6 * WIDTH) / 6.0 + part(6 * WIDTH..7 * WIDTH) / WIDTH as f64) / DRAWS as f64;
            }
        }
        let kernel = InfiniteWidth { hidden: 1, weight_std: 1.0 }.between(&x, None).unwrap().to_f64_vec().unwrap();
        let size = kernel[0].max(kernel[4]).max(kernel[8]);
        for (found, expected) in sums.iter().zip(&kernel) {
            assert!((found - expected).abs() < 0.02 * size, "{found} {expected}");
        }
    }
}
