//! How exposed each record is to an attack from two checkpoints, told by its owner without
//! running one.
//!
//! While a network is trained near its start θ₀, its weights change by Σ_i α_i ∇f(x_i) with
//! α = K₀⁻¹ (y − f₀), K₀ the tangent kernel of the records at the start (Loo et al., 2023,
//! eq. 3). A record with a small |α| is one that the others predict: it adds little to the
//! change, and little of it can be rebuilt. No training is needed to know α.

use afterimage_attacks::{Observation, PairSeen};
use afterimage_nn::tangent::{kernel, kernel_distance};
use afterimage_nn::{DType, Device, Network, Params, Tensor};
use serde::{Deserialize, Serialize};

use crate::distill::solved;
use crate::statistics::spearman;
use crate::victim::{row_lengths, values_of};
use crate::{Result, Truth};

/// Rows of a kernel, at most: one for each record and output. 200 MB.
const LARGEST: usize = 5000;
/// Beside the mean of the kernel's diagonal: records that are there twice share their weight.
const RIDGE: f64 = 1e-10;

/// What the owner knows of the records.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Exposure {
    /// |α| of each record, over the outputs.
    pub alpha: Vec<f64>,
    /// d(K₀, K_f): how far training went from where the kernel was taken; absent before training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_distance: Option<f64>,
    /// |∫ ∂loss/∂f dt| of each record over training, where it was kept: what α foretells
    /// (Loo et al., 2023, appendix C); absent before training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driven: Option<Vec<f64>>,
    /// Spearman's correlation of |α| with the distance of the nearest candidate, once attacked:
    /// negative where |α| tells who is exposed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation: Option<f64>,
}

impl Exposure {
    /// Of records (as the network is fed with them) with labels, at a start; `after` is the end of
    /// training, if there was one. `None` where there are too many records, or their kernel cannot be
    /// solved with.
    pub fn of(
        network: &Network,
        start: &Params,
        after: Option<&Params>,
        x: &Tensor,
        labels: &[usize],
    ) -> Result<Option<Self>> {
        let outputs: usize = network.output_shape().iter().product();
        let (records, classes) = (x.rows(), if outputs == 1 { 2 } else { outputs });
        if records == 0 || records * outputs > LARGEST || labels.iter().any(|&label| label >= classes) {
            return Ok(None);
        }
        let x = x.to_dtype(start.dtype())?.to_device(start.device())?;
        let own = kernel(network, start, &x, None)?;
        let f = network.forward(start, &x)?.to_f64_vec()?;
        let missing: Vec<f64> = values_of(labels, outputs).iter().zip(f).map(|(y, f)| y - f).collect();
        let missing = Tensor::from_vec(missing, &[records * outputs, 1])?;
        // What cannot be solved with tells nothing; the findings of an attack do not hang on it.
        let Ok(alpha) = solved(&own, RIDGE, &missing) else { return Ok(None) };
        let alpha = row_lengths(&alpha.reshape(&[records, outputs])?)?;
        let kernel_distance = match after {
            Some(after) => kernel_distance(&own, &kernel(network, after, &x, None)?).ok(),
            None => None,
        };
        Ok(Some(Self { alpha, kernel_distance, driven: None, correlation: None }))
    }

    /// Of the members behind an observation of two checkpoints; `None` for others.
    pub fn of_observation(observation: &Observation, truth: &Truth) -> Result<Option<Self>> {
        let Observation::WeightPair(PairSeen { model, before, .. }) = observation else { return Ok(None) };
        let x = truth.preprocess.apply(&truth.members.pixels)?;
        let x = x.reshape(&model.network.batch_shape(x.rows()))?.to_device(Device::Cpu)?.to_dtype(DType::F64)?;
        let [before, after] = [before, &model.theta].map(|theta| theta.to_dtype(DType::F64));
        let exposure = Self::of(&model.network, &before?, Some(&after?), &x, &truth.members.labels)?;
        Ok(exposure.map(|exposure| Self { driven: truth.driven.clone(), ..exposure }))
    }

    /// Spearman's correlation of |α|, known before training, with what drove it.
    pub fn foretold(&self) -> Option<f64> {
        spearman(&self.alpha, self.driven.as_ref()?)
    }

    /// With its correlation to errors, one for each record.
    #[must_use]
    pub fn beside(self, errors: &[Option<f64>]) -> Self {
        let pairs = self.alpha.iter().zip(errors).filter_map(|(alpha, error)| Some((*alpha, (*error)?)));
        let (alpha, errors): (Vec<f64>, Vec<f64>) = pairs.unzip();
        Self { correlation: spearman(&alpha, &errors), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterimage_nn::zoo::Mlp;
    use afterimage_nn::{Init, Stream};

    #[test]
    fn a_record_that_is_there_twice_is_half_as_exposed() {
        let network = Network::new(Mlp::new(6, &[64, 64], 1).spec()).unwrap();
        let start = network.init(&Init::LecunNormal.into(), 1, DType::F64).unwrap();
        let x = Stream::new(1, "x", 0).normal_tensor(1.0, &[4, 6], DType::F64).unwrap();
        let once = Exposure::of(&network, &start, None, &x, &[1, 0, 1, 0]).unwrap().unwrap();
        let twice = x.select_rows(&[0, 1, 2, 3, 0]).unwrap();
        let twice = Exposure::of(&network, &start, Some(&start), &twice, &[1, 0, 1, 0, 1]).unwrap().unwrap();
        assert!((twice.alpha[0] - once.alpha[0] / 2.0).abs() < 1e-4 * once.alpha[0], "{once:?} {twice:?}");
        assert!((twice.alpha[1] - once.alpha[1]).abs() < 1e-4 * once.alpha[1]);
        assert!(twice.kernel_distance.unwrap().abs() < 1e-12);
        // The more weight, the nearer: a correlation of −1.
        let errors: Vec<Option<f64>> = once.alpha.iter().map(|alpha| Some(-alpha)).collect();
        assert_eq!(once.beside(&errors).correlation, Some(-1.0));
        assert!(Exposure::of(&network, &start, None, &x, &[1, 0, 1, 7]).unwrap().is_none());
    }
}
