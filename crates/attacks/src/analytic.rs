//! One sample through a linear layer, in closed form.
//!
//! *Threat model.* A client of federated learning shares the gradient of a
//! batch of one. Phong et al. (2017), "Privacy-preserving deep learning:
//! revisited and enhanced".
//!
//! | symbol | here | shape |
//! | --- | --- | --- |
//! | x | the sample | d |
//! | W, b | weight and bias of the layer that reads the input | h x d, h |
//! | δ | ∂L/∂(Wx + b) | h |
//!
//! For one sample ∂L/∂W = δ xᵀ and ∂L/∂b = δ, so every row k with δ_k ≠ 0
//! gives the sample: x = ∂W_k / ∂b_k. Under noise the rows disagree; taking
//! x_j to minimise Σ_k |∂W_kj − ∂b_k x_j| is a median of the rows' estimates,
//! each weighted by |∂b_k|, which a minority of spoilt rows cannot move.

use afterimage_nn::Tensor;
use serde::{Deserialize, Serialize};

use crate::dense::{DenseLayer, dense_layers};
use crate::{Attack, AttackError, Card, GradientSeen, Parameter, Reconstruction, Session};

/// The closed form for a batch of one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Analytic {
    /// Relative misfit of ∂W = δ xᵀ up to which the sample counts as certain.
    pub tolerance: f64,
}

impl Default for Analytic {
    fn default() -> Self {
        Self { tolerance: 1e-4 }
    }
}

const NAME: &str = "analytic";

impl Attack for Analytic {
    const CARD: Card = Card {
        name: NAME,
        summary: "Reads a single sample out of the gradient of a linear layer with a bias.",
        attacker: "Anybody who sees the gradient that a client computed on one sample: the server, or \
                   someone on the way to it. No computation beyond a division is needed.",
        method: "For one sample the gradient of the first layer's weight is the outer product of the \
                 bias gradient and the sample itself. Dividing a row of the one by the matching entry of \
                 the other gives the sample; all rows are combined by a weighted median.",
        needs: "The gradient of a batch of one; a fully connected layer with a bias that reads the input.",
        limits: "Batches of more than one sample come back as a mixture: use `exact`. Layers without \
                 a bias give the sample up to its scale only.",
        citation: "L. T. Phong, Y. Aono, T. Hayashi, L. Wang, S. Moriai. Privacy-preserving deep learning: \
                   revisited and enhanced. ATIS 2017.",
        defences: &[
            "Average over a larger batch before anything is shared; a batch of one is the sample itself.",
            "Aggregate securely over many clients, so that no single gradient is seen.",
            "Clip and add noise (differential privacy) at the client.",
        ],
        parameters: &[Parameter {
            name: "tolerance",
            default: "1e-4",
            purpose: "relative misfit of the layer's gradient up to which the sample is certified",
            range: "between 0 and 1",
        }],
    };

    type Sees = GradientSeen;

    fn applies(&self, seen: &GradientSeen) -> Result<(), AttackError> {
        self.target(seen).map(drop)
    }

    fn reconstruct(&self, seen: &GradientSeen, _: &mut Session<'_>) -> Result<Reconstruction, AttackError> {
        let layer = self.target(seen)?;
        let network = &seen.model.network;
        let weight = seen.gradient.get(&format!("{}.weight", layer.name))?;
        let delta = seen.gradient.get(&format!("{}.bias", layer.name))?.to_f64_vec()?;
        let features = weight.row_len();
        let weight = weight.to_f64_vec()?;
        if delta.iter().all(|&delta| delta == 0.0) {
            return Err(no(
                "the gradient of the layer that reads the input is zero",
                "no unit of the layer was active, or the loss is flat there: nothing was shared",
            ));
        }
        let sample = weighted_medians(&weight, &delta, features);
        let misfit = misfit(&weight, &delta, &sample);
        let shape = network.batch_shape(1);
        let samples = Tensor::from_f64(&sample, &shape, seen.gradient.dtype())?;
        let explains = misfit <= self.tolerance;
        // A mixture can have a rank-one gradient too (one active unit): only a known batch of one is proof.
        let certain = explains && seen.batch_size == Some(1);
        let mut found = Reconstruction::finished(samples, 1.0 / (1.0 + misfit), certain);
        if !explains {
            found.notes.push(format!(
                "one sample explains the layer's gradient only up to {:.1} %: the batch held more than one, \
                 or noise was added",
                100.0 * misfit
            ));
        }
        Ok(found)
    }
}

fn no(reason: impl Into<String>, hint: &str) -> AttackError {
    AttackError::NotApplicable { attack: NAME, reason: reason.into(), hint: hint.into() }
}

impl Analytic {
    /// The layer that the sample is read off.
    fn target(&self, seen: &GradientSeen) -> Result<DenseLayer, AttackError> {
        if !(self.tolerance > 0.0 && self.tolerance < 1.0) {
            return Err(AttackError::setting("tolerance", self.tolerance, "must lie between 0 and 1"));
        }
        if let Some(size) = seen.batch_size.filter(|&size| size != 1) {
            return Err(no(format!("the batch has {size} samples"), "`exact` and `gradinversion` take whole batches"));
        }
        let mut layers = dense_layers(&seen.model.network).into_iter();
        layers.find(|layer| layer.bias && layer.reads_input).ok_or_else(|| {
            no(
                "no fully connected layer with a bias reads the input",
                "attacks by optimisation, such as `gradinversion`, need no such layer",
            )
        })
    }
}

/// For each feature j, the x_j that minimises Σ_k |w_kj − δ_k x_j|.
fn weighted_medians(weight: &[f64], delta: &[f64], features: usize) -> Vec<f64> {
    let rows: Vec<usize> = (0..delta.len()).filter(|&k| delta[k] != 0.0).collect();
    let half: f64 = rows.iter().map(|&k| delta[k].abs()).sum::<f64>() / 2.0;
    (0..features)
        .map(|j| {
            let mut estimates: Vec<(f64, f64)> =
                rows.iter().map(|&k| (weight[k * features + j] / delta[k], delta[k].abs())).collect();
            estimates.sort_by(|a, b| a.0.total_cmp(&b.0));
            let mut passed = 0.0;
            let middle = estimates.iter().find(|(_, mass)| {
                passed += mass;
                passed >= half
            });
            middle.map_or(0.0, |(estimate, _)| *estimate)
        })
        .collect()
}

/// ‖∂W − δ xᵀ‖ / ‖∂W‖.
fn misfit(weight: &[f64], delta: &[f64], sample: &[f64]) -> f64 {
    let (mut off, mut total) = (0.0, 0.0);
    for (row, delta) in weight.chunks_exact(sample.len().max(1)).zip(delta) {
        for (w, x) in row.iter().zip(sample) {
            off += (w - delta * x).powi(2);
            total += w * w;
        }
    }
    if total > 0.0 { (off / total).sqrt() } else { 0.0 }
}
