//! The layer's gradient as a product of small factors.

use afterimage_nn::{Stream, Tensor};
use faer::Mat;

use crate::rowspace::rank_by_gap;

/// ∇W = L diag(r) V, of rank k: the columns of L span those of Δᵀ, the rows of
/// V (orthonormal) the samples.
pub(crate) struct Factors {
    /// L, units x k, with columns of length √units.
    pub(crate) left: Mat<f64>,
    /// r.
    pub(crate) scale: Vec<f64>,
    /// V, k x features.
    pub(crate) right: Mat<f64>,
    /// Where the next singular value lies beside the last that counts.
    pub(crate) gap: f64,
}

/// Where the next singular value is below this part of the last that counts, noise is not the reason.
const CLEAR: f64 = 1e-3;
/// Columns beyond the expected rank in a sketch.
const SPARE: usize = 12;

/// A matrix of doubles from a tensor with two axes or more, one row a first-axis entry.
pub(crate) fn matrix(tensor: &Tensor) -> afterimage_nn::Result<Mat<f64>> {
    let (rows, columns) = (tensor.rows(), tensor.row_len());
    let data = tensor.to_f64_vec()?;
    Ok(Mat::from_fn(rows, columns, |row, column| data[row * columns + column]))
}

impl Factors {
    /// The factors of a matrix of low rank: `rank` if it is known, else where
    /// its singular values fall off. `None` if they never do.
    ///
    /// A random sketch of the range (Halko, Martinsson & Tropp, 2011), widened
    /// until the rest is rounding.
    pub(crate) fn of(gradient: &Mat<f64>, rank: Option<usize>, stream: &mut Stream) -> Option<Self> {
        let smaller = gradient.nrows().min(gradient.ncols());
        let mut width = rank.unwrap_or(32).saturating_add(SPARE).min(smaller);
        loop {
            let sketch = Mat::from_fn(gradient.ncols(), width, |_, _| stream.normal());
            let range = (gradient * sketch).qr().compute_thin_Q();
            // Once more through the matrix, so that what is left out is the smallest.
            let range = (gradient * (gradient.transpose() * range)).qr().compute_thin_Q();
            let svd = (range.transpose() * gradient).thin_svd().ok()?;
            let values: Vec<f64> = svd.S().column_vector().iter().copied().collect();
            let (found, gap) = rank_by_gap(&values);
            let found = rank.filter(|rank| *rank <= values.len()).unwrap_or(found);
            if found == 0 {
                return None;
            }
            // At full width nothing is hidden any more, and a clear fall is one.
            let clear = width == smaller && found < smaller && gap < CLEAR;
            if rank.is_some() || found + SPARE / 2 <= width || clear {
                let root = (gradient.nrows() as f64).sqrt();
                let left = &range * svd.U().subcols(0, found);
                return Some(Self {
                    left: Mat::from_fn(left.nrows(), found, |i, j| root * left[(i, j)]),
                    scale: values[..found].iter().map(|value| value / root).collect(),
                    right: svd.V().subcols(0, found).transpose().to_owned(),
                    gap,
                });
            }
            if width == smaller {
                return None;
            }
            width = (2 * width).min(smaller);
        }
    }

    /// Number of samples the gradient is made of.
    pub(crate) fn rank(&self) -> usize {
        self.scale.len()
    }
}
