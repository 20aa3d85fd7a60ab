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
        citation: "Linear algebra alone; the module documentation has the equation.",
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
        let (rank, gap) = rank_by_gap(&s);
        let basis = decomposition.vt.slice_rows(0..rank)?;
        Ok(Self { singular_values: s, rank, gap, basis })
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

    /// Whether so small a part outside the space makes a candidate one of the samples: less than a thousandth. Where the
    /// samples span everything, everybody lies inside, and nothing is said.
    pub fn holds(&self, residual: f64) -> bool {
        residual < INSIDE && self.rank < self.basis.row_len()
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
