//! Layers below the last hidden one: what they carry upwards, and the way back.
//!
//! Algorithm 2: layers chosen to keep their input whole act as one matrix, and
//! the network is a two-layer one on the input itself. Random layers that are
//! injective are inverted one by one; where only the direction of their output
//! is known, its scale is the one that gives an input of the known norm.

use afterimage_nn::{Activation, Stream};
use faer::Mat;
use faer::linalg::solvers::SolveLstsq;

/// h = σ(Wx + b).
pub(super) struct Layer {
    pub(super) weight: Mat<f64>,
    pub(super) bias: Vec<f64>,
    pub(super) sigma: Activation,
}

/// Values this near the end of σ's range are taken as this near.
const EDGE: f64 = 1e-9;
/// Points of a grid over the logarithm of a scale, and how often it is refined.
const GRID: usize = 60;
const ZOOMS: usize = 10;
/// A unit that gives less than this part of the largest was off.
const OFF: f64 = 1e-7;

impl Layer {
    /// Outputs for inputs in columns.
    fn forward(&self, x: &Mat<f64>) -> Mat<f64> {
        let z = &self.weight * x;
        Mat::from_fn(z.nrows(), z.ncols(), |i, j| self.sigma.triple(z[(i, j)] + self.bias[i])[0])
    }

    /// The input that gives an output; `None` if σ cannot be undone, or too few units say anything.
    fn backward(&self, h: &[f64]) -> Option<Vec<f64>> {
        let largest = h.iter().fold(0.0_f64, |largest, h| largest.max(h.abs()));
        let before: Vec<Option<f64>> = h.iter().map(|&h| undo(self.sigma, h, OFF * largest)).collect();
        let known: Vec<(usize, f64)> =
            before.iter().enumerate().filter_map(|(unit, z)| Some((unit, (*z)? - self.bias[unit]))).collect();
        let inputs = self.weight.ncols();
        if known.len() < inputs {
            return None;
        }
        let rows = Mat::from_fn(known.len(), inputs, |i, j| self.weight[(known[i].0, j)]);
        let right = Mat::from_fn(known.len(), 1, |i, _| known[i].1);
        let x = rows.qr().solve_lstsq(&right);
        Some((0..inputs).map(|i| x[(i, 0)]).collect())
    }
}

/// σ⁻¹(h); `None` where it is not known.
fn undo(sigma: Activation, h: f64, off: f64) -> Option<f64> {
    match sigma {
        Activation::Identity => Some(h),
        Activation::Relu => (h > off).then_some(h),
        Activation::LeakyRelu { slope } => (slope > 0.0).then(|| if h > 0.0 { h } else { h / slope }),
        Activation::Tanh => Some(h.clamp(EDGE - 1.0, 1.0 - EDGE).atanh()),
        Activation::Sigmoid => {
            let h = h.clamp(EDGE, 1.0 - EDGE);
            Some((h / (1.0 - h)).ln())
        }
        // ln(e^(βh) − 1) / β, without the overflow.
        Activation::Softplus { beta } => {
            let h = h.max(EDGE);
            Some(h + (-(-beta * h).exp_m1()).ln() / beta)
        }
        _ => None,
    }
}

/// Whether an activation can be undone.
pub(super) fn invertible(sigma: Activation) -> bool {
    undo(sigma, 0.5, 0.0).is_some()
}

/// W h(x) for inputs in columns.
pub(super) fn forward(layers: &[Layer], weight: &Mat<f64>, x: &Mat<f64>) -> Mat<f64> {
    let mut h = x.clone();
    for layer in layers {
        h = layer.forward(&h);
    }
    weight * h
}

/// The matrix A with W h(x) = A x for all x, if there is one.
pub(super) fn as_matrix(layers: &[Layer], weight: &Mat<f64>, inputs: usize, stream: &mut Stream) -> Option<Mat<f64>> {
    let matrix = forward(layers, weight, &Mat::identity(inputs, inputs));
    let x = Mat::from_fn(inputs, 4, |_, j| stream.normal() * [0.1, 1.0, 3.0, 10.0][j]);
    let (expected, found) = (&matrix * &x, forward(layers, weight, &x));
    ((&expected - &found).norm_l2() <= 1e-9 * expected.norm_l2()).then_some(matrix)
}

/// The input that the layers turn into h.
pub(super) fn invert(layers: &[Layer], h: &[f64]) -> Option<Vec<f64>> {
    layers.iter().rev().try_fold(h.to_vec(), |h, layer| layer.backward(&h))
}

/// The input of this norm that the layers turn into a multiple of h. The right
/// multiple gives an input of that norm which leads to it again; it is searched
/// on ever finer grids, because neither need be monotonous in it.
pub(super) fn invert_direction(layers: &[Layer], h: &[f64], norm: f64) -> Option<Vec<f64>> {
    let at = |scale: f64| invert(layers, &h.iter().map(|h| scale * h).collect::<Vec<_>>());
    let size = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let off = |scale: f64| {
        let Some(x) = at(scale) else { return f64::INFINITY };
        let column = Mat::from_fn(x.len(), 1, |i, _| x[i]);
        let again = layers.iter().fold(column, |h, layer| layer.forward(&h));
        let wanted = scale * size(&mut h.iter().copied());
        let missed = size(&mut again.col(0).iter().zip(h).map(|(again, h)| again - scale * h));
        (size(&mut x.iter().copied()) / norm - 1.0).abs() + missed / wanted.max(f64::MIN_POSITIVE)
    };
    let (mut low, mut high) = (1e-3_f64.ln(), 1e3_f64.ln());
    for _ in 0..ZOOMS {
        let place = |index: usize| low + (high - low) * index as f64 / GRID as f64;
        let offs: Vec<f64> = (0..=GRID).map(|index| off(place(index).exp())).collect();
        let best = (0..=GRID).min_by(|&a, &b| offs[a].total_cmp(&offs[b]))?;
        (low, high) = (place(best.saturating_sub(1)), place((best + 1).min(GRID)));
    }
    at((0.5 * (low + high)).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(sigma: Activation, sizes: &[usize]) -> Vec<Layer> {
        let mut stream = Stream::new(4, "layers", 0);
        let layer = |pair: &[usize]| {
            let spread = 1.0 / (pair[0] as f64).sqrt();
            Layer {
                weight: Mat::from_fn(pair[1], pair[0], |_, _| spread * stream.normal()),
                bias: vec![0.0; pair[1]],
                sigma,
            }
        };
        sizes.windows(2).map(layer).collect()
    }

    fn carried(layers: &[Layer], x: &[f64]) -> Vec<f64> {
        let column = Mat::from_fn(x.len(), 1, |i, _| x[i]);
        let width = layers.last().unwrap().weight.nrows();
        forward(layers, &Mat::identity(width, width), &column).col(0).iter().copied().collect()
    }

    fn distance(a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
    }

    #[test]
    fn what_is_carried_up_comes_back_down() {
        let x = [0.6, -0.3, 0.2, 0.1, -0.7];
        let x: Vec<f64> = x.iter().map(|v| v / 0.994_987_437_106_62).collect();
        for sigma in ["tanh", "sigmoid", "softplus", "leaky-relu", "relu"] {
            let layers = layers(sigma.parse().unwrap(), &[5, 30, 90]);
            let h = carried(&layers, &x);
            assert!(distance(&invert(&layers, &h).unwrap(), &x) < 1e-7, "{sigma}");
            // The scale is lost, the norm is known.
            let doubled: Vec<f64> = h.iter().map(|h| 2.0 * h).collect();
            let found = invert_direction(&layers, &doubled, 1.0).unwrap();
            assert!(distance(&found, &x) < 1e-6, "{sigma}: {found:?}");
        }
        assert!(invert(&layers(Activation::Square, &[5, 30]), &[1.0; 30]).is_none());
        assert!(invert(&layers(Activation::Relu, &[5, 6]), &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0]).is_none());
    }

    #[test]
    fn layers_that_keep_their_input_are_one_matrix() {
        let mirror = |rows: usize, columns: usize| {
            let entry = |i: usize, j: usize| f64::from(u8::from(i == j)) - f64::from(u8::from(i == j + rows / 2));
            Mat::from_fn(rows, columns, entry)
        };
        for (sigma, factor) in [(Activation::Relu, 1.0), (Activation::LeakyRelu { slope: 0.01 }, 1.01)] {
            let below = [Layer { weight: mirror(6, 3), bias: vec![0.0; 6], sigma }];
            let z = Mat::from_fn(4, 3, |i, j| (i as f64 + 1.0) * (j as f64 - 0.5));
            let top = Mat::from_fn(4, 6, |i, j| if j < 3 { z[(i, j)] } else { -z[(i, j - 3)] });
            let found = as_matrix(&below, &top, 3, &mut Stream::new(1, "x", 0)).unwrap();
            assert!((found - z * faer::Scale(factor)).norm_l2() < 1e-12);
        }
        let random = layers(Activation::Relu, &[3, 9]);
        let top = Mat::from_fn(4, 9, |i, j| (i + j) as f64);
        assert!(as_matrix(&random, &top, 3, &mut Stream::new(1, "x", 0)).is_none());
    }
}
