//! The weights of the first layer, looked at as records: a baseline.
//!
//! *Threat model.* The final weights are public. Section 5.4 of Haim et al. (2022).
//!
//! A unit of the first layer answers most to inputs that look like its weights, and
//! training adds records to them. So every row is a candidate, stretched to half of
//! the pixel range.

use afterimage_nn::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::dense::dense_layers;
use crate::{Attack, AttackError, Card, Parameter, Reconstruction, Session, WeightsSeen};

/// Rows of the first layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WeightRows {
    /// Rows to show, the longest first.
    pub most: usize,
}

impl Default for WeightRows {
    fn default() -> Self {
        Self { most: 10_000 }
    }
}

impl Attack for WeightRows {
    const CARD: Card = Card {
        name: "weight-rows",
        summary: "Shows the first layer's weights as if they were records; a baseline.",
        attacker: "Anybody who has the published weights. Nothing is computed.",
        method: "Every row of the first layer is a candidate, the longest first.",
        needs: "A fully connected layer that reads the input.",
        limits: "Rows are sums of many records: it is here to be beaten.",
        citation: "N. Haim, G. Vardi, G. Yehudai, O. Shamir, M. Irani. Reconstructing training data from trained \
                   neural networks. NeurIPS 2022, section 5.4.",
        defences: &["Share outputs, not weights."],
        parameters: &[Parameter {
            name: "most",
            default: "10000",
            purpose: "rows to show, the longest first",
            range: "1 or more",
        }],
    };

    type Sees = WeightsSeen;

    fn reconstruct(&self, seen: &WeightsSeen, _: &mut Session<'_>) -> Result<Reconstruction, AttackError> {
        let model = &seen.model;
        if self.most == 0 {
            return Err(AttackError::setting("most", 0, "must be 1 or more"));
        }
        let Some(first) = dense_layers(&model.network).into_iter().find(|layer| layer.reads_input) else {
            return Err(AttackError::NotApplicable {
                attack: "weight-rows",
                reason: "no fully connected layer reads the input".into(),
                hint: "`model-inversion` is a baseline for any classifier".into(),
            });
        };
        let weight = model.theta.get(&format!("{}.weight", first.name))?.to_device(Device::Cpu)?;
        let [low, high] = model.preprocess.as_ref().map_or([0.0, 1.0], |preprocess| preprocess.range);
        let (row, values) = (weight.row_len().max(1), weight.to_f64_vec()?);
        let mut rows: Vec<(f64, &[f64])> =
            values.chunks_exact(row).map(|row| (row.iter().map(|w| w * w).sum::<f64>(), row)).collect();
        rows.sort_by(|a, b| b.0.total_cmp(&a.0));
        rows.truncate(self.most);
        let longest = rows.first().map_or(1.0, |(size, _)| *size).max(f64::MIN_POSITIVE);
        let stretched = rows.iter().flat_map(|(_, row)| {
            let largest = row.iter().map(|w| w.abs()).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
            row.iter().map(move |w| 0.5 * (high - low) * w / largest)
        });
        let stretched: Vec<f64> = stretched.collect();
        let samples = Tensor::from_f64(&stretched, &model.network.batch_shape(rows.len()), model.theta.dtype())?;
        let confidence = rows.iter().map(|(size, _)| (size / longest).sqrt()).collect();
        Ok(Reconstruction { confidence, ..Reconstruction::finished(samples, 0.0, false) })
    }
}
