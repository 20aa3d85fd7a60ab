//! What the first linear layer gives away by linear algebra alone.
//!
//! Its gradient is Σ_i δ_i x_iᵀ: the rows span exactly the samples when there
//! are fewer of them than features. One decomposition tells how many there
//! were, a basis V of their span, and whether a candidate lies in it.

use afterimage_nn::linalg::svd;
use afterimage_nn::{DType, Error, Result, Tensor};

use crate::dense::dense_layers;
use crate::{AttackError, Card, Observation};

/// The row space of a matrix, with a robust estimate of its dimension.
#[derive(Debug, Clone)]
pub struct RowSpace {
    /// Singular values, largest first.
    pub singular_values: Vec<f64>,
    /// Estimated number of independent samples.
    pub rank: usize,
    /// s_{rank+1} / s_rank: the smaller, the clearer the estimate; 0 if nothing is left over.
    pub gap: f64,
    /// Orthonormal basis of the estimated space, one vector a row.
    pub basis: Tensor,
    /// Whether nothing is left over that samples could be told from: as many samples or more, or noise.
    pub full: bool,
}

/// Below this part of the largest, a singular value is rounding whatever the gap.
const ROUNDING: f64 = 1e-7;
/// The part outside the space below which a candidate is taken for one of the samples.
const INSIDE: f64 = 1e-3;

impl RowSpace {
    /// What a user should know of it. It rebuilds nothing, so it is no [`Attack`](crate::Attack).
    pub const CARD: Card = Card {
        name: "rowspace",
        summary: "Tells how many samples there were, and whether a candidate is among them.",
        attacker: "Anybody who sees a gradient, two checkpoints or final weights. One decomposition, no search.",
        method: "The gradient of the layer that reads the input is a sum of outer products with the samples: its rows \
                 span them. The number of singular values above rounding counts them; a candidate that is one of them \
                 has no part outside that span.",
        needs: "A fully connected layer that reads the input, and fewer samples than it has inputs and units.",
        limits: "It rebuilds nothing. Final weights show samples only where training started near zero.",
        citation: "Linear algebra alone: the gradient of a fully connected layer is a sum of one outer product for each sample.",
        defences: &[
            "Aggregate securely over many clients, so that no single gradient is seen.",
            "Add noise at the client (differential privacy): every candidate then has a part outside.",
        ],
        parameters: &[],
    };

    /// The row space of ∂W, ΔW or W.
    ///
    /// The rank is where neighbouring singular values differ most, in ratio,
    /// among those above rounding.
    ///
    /// ```
    /// use afterimage_attacks::RowSpace;
    /// use afterimage_nn::Tensor;
    /// // Two samples in three dimensions, four units.
    /// let matrix = vec![1.0, 0.0, 1.0, 0.0, 2.0, 0.0, 1.0, 2.0, 1.0, 3.0, 0.0, 3.0];
    /// let space = RowSpace::of(&Tensor::from_vec(matrix, &[4, 3])?)?;
    /// assert_eq!(space.rank, 2);
    /// let inside = Tensor::from_vec(vec![2.0, 5.0, 2.0], &[1, 3])?;
    /// let outside = Tensor::from_vec(vec![1.0, 0.0, -1.0], &[1, 3])?;
    /// assert!(space.residuals(&inside)?[0] < 1e-12);
    /// assert!(space.residuals(&outside)?[0] > 0.99);
    /// # Ok::<(), afterimage_nn::Error>(())
    /// ```
    pub fn of(matrix: &Tensor) -> Result<Self> {
        let decomposition = svd(matrix)?;
        let s = decomposition.s;
        let most = used(matrix)?;
        let (rank, gap) = rank_above_noise(&s, most).unwrap_or_else(|| rank_by_gap(&s));
        let basis = decomposition.vt.slice_rows(0..rank)?;
        Ok(Self { full: rank >= most, singular_values: s, rank, gap, basis })
    }

    /// The row space of what an observation shows of the layer that reads the
    /// input, and that layer's name: its gradient, its change between two
    /// checkpoints, or the weight itself (which shows samples where training
    /// started near zero).
    pub fn of_observation(observation: &Observation) -> std::result::Result<(String, Self), AttackError> {
        let model = observation.model();
        let layer = dense_layers(&model.network).into_iter().find(|layer| layer.reads_input);
        let Some(layer) = layer else {
            return Err(AttackError::NotApplicable {
                attack: "rowspace",
                reason: "no fully connected layer reads the input".into(),
                hint: "convolutions mix positions: their gradients have no such space".into(),
            });
        };
        let name = format!("{}.weight", layer.name);
        let matrix = match observation {
            Observation::Gradient(seen) => seen.gradient.get(&name)?.clone(),
            Observation::WeightPair(seen) => {
                seen.model.theta.get(&name)?.combine(1.0, seen.before.get(&name)?, -1.0)?
            }
            Observation::Weights(_) | Observation::Degraded(_) => model.theta.get(&name)?.clone(),
        };
        Ok((layer.name, Self::of(&matrix)?))
    }

    /// Whether so small a part outside the space makes a candidate one of the samples: less than a thousandth. Where
    /// nothing is left over, nothing is said of anybody.
    pub fn holds(&self, residual: f64) -> bool {
        residual < INSIDE && !self.full
    }

    /// For each candidate (one a row), the part of it outside the space:
    /// ‖x − VᵀVx‖ / ‖x‖. Zero for a sample of the batch, near one for others.
    pub fn residuals(&self, candidates: &Tensor) -> Result<Vec<f64>> {
        let features = self.basis.row_len();
        if candidates.row_len() != features {
            return Err(Error::Shape {
                what: "candidates".into(),
                expected: format!("[count, {features}]"),
                found: candidates.shape().to_vec(),
            });
        }
        let basis = self.basis.to_f64_vec()?;
        let candidates = candidates.to_dtype(DType::F64)?.to_f64_vec()?;
        Ok(candidates
            .chunks_exact(features.max(1))
            .map(|x| {
                let total: f64 = x.iter().map(|x| x * x).sum();
                let dot = |v: &[f64]| v.iter().zip(x).map(|(v, x)| v * x).sum::<f64>();
                let inside: f64 = basis.chunks_exact(features.max(1)).map(|v| dot(v).powi(2)).sum();
                if total > 0.0 { ((total - inside).max(0.0) / total).sqrt() } else { 0.0 }
            })
            .collect())
    }
}

/// Rows or columns, whichever are fewer, that are not zero: units that no sample reached and pixels that none has say nothing.
fn used(matrix: &Tensor) -> Result<usize> {
    let (values, columns) = (matrix.to_f64_vec()?, matrix.row_len().max(1));
    let rows = values.chunks_exact(columns).filter(|row| row.iter().any(|value| *value != 0.0)).count();
    let seen = (0..columns).filter(|&column| values.iter().skip(column).step_by(columns).any(|value| *value != 0.0));
    Ok(rows.min(seen.count()))
}

/// The rank of a matrix that noise has filled: singular values that stand out from the median as no noise does
/// (2.858 times; Gavish & Donoho, 2014), if there is a gap below them. `None` where something is left over, or nothing
/// stands out.
fn rank_above_noise(s: &[f64], most: usize) -> Option<(usize, f64)> {
    let largest = s.first().copied()?;
    let real = s.iter().take_while(|value| **value > ROUNDING * largest).count();
    if real < most {
        return None;
    }
    let rank = s.iter().take_while(|value| **value > 2.858 * s[real / 2]).count();
    let gap = s.get(rank)? / s[rank.checked_sub(1)?];
    (2 * rank < real && gap < 0.3).then_some((rank, gap))
}

/// Where singular values fall off most, in ratio, among those above rounding:
/// the rank, and the ratio there (0 if nothing is left over).
pub(crate) fn rank_by_gap(s: &[f64]) -> (usize, f64) {
    let largest = s.first().copied().unwrap_or(0.0);
    let real = s.iter().take_while(|value| **value > ROUNDING * largest).count();
    let ratio = |rank: usize| s.get(rank).map_or(0.0, |next| next / s[rank - 1]);
    let floor = |rank: usize| ratio(rank).max(f64::EPSILON);
    let rank = (1..=real).min_by(|&a, &b| floor(a).total_cmp(&floor(b))).unwrap_or(0);
    (rank, if rank == 0 { 0.0 } else { ratio(rank) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterimage_nn::Stream;

    /// Eight samples through 100 units, of which ten are dead, with noise of so much of the gradient's size.
    fn gradient(samples: usize, noise: f64) -> Tensor {
        let mut stream = Stream::new(1, "row space", 0);
        let delta = stream.normal_tensor(1.0, &[samples, 100], DType::F64).unwrap();
        let x = stream.normal_tensor(1.0, &[samples, 60], DType::F64).unwrap();
        let gradient = delta.transpose().unwrap().matmul_transposed(&x.transpose().unwrap()).unwrap();
        let noise = stream.normal_tensor(noise * (samples as f64).sqrt(), &[100, 60], DType::F64).unwrap();
        let mut values = gradient.combine(1.0, &noise, 1.0).unwrap().to_f64_vec().unwrap();
        values[90 * 60..].fill(0.0);
        Tensor::from_vec(values, &[100, 60]).unwrap()
    }

    #[test]
    fn samples_are_counted_below_noise_and_not_where_they_fill_everything() {
        for noise in [0.0, 1e-9, 1e-4, 1e-2] {
            let space = RowSpace::of(&gradient(8, noise)).unwrap();
            assert_eq!((space.rank, space.full), (8, false), "noise {noise}");
        }
        // As many as there are inputs, or noise as large as the gradient: nothing can be told.
        assert!(RowSpace::of(&gradient(70, 0.0)).unwrap().full);
        assert!(RowSpace::of(&gradient(8, 10.0)).unwrap().full);
    }
}
