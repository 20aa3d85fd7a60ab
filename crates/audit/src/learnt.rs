//! How well a classifier that was shared learnt: what it makes of its own records, and of others.

use afterimage_attacks::{Model, Observation};
use afterimage_nn::{DType, Device, Loss, Objective, Reduction, Targets, Tensor};
use serde::{Deserialize, Serialize};

use crate::accuracy::Test;
use crate::truth::Sample;
use crate::victim::values_of;
use crate::{Result, Truth};

/// Mean loss and the share of records told right.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Learnt {
    /// Loss of members.
    pub loss: f64,
    /// Members told right.
    pub accuracy: f64,
    /// Loss of all controls, those that calibrate too.
    pub control_loss: f64,
    /// Controls told right.
    pub control_accuracy: f64,
}

impl Learnt {
    /// Of a classifier whose weights were shared; none of other observations, or where labels and outputs do not fit.
    pub fn of_observation(observation: &Observation, truth: &Truth) -> Result<Option<Self>> {
        let (Observation::Weights(_) | Observation::WeightPair(_)) = observation else { return Ok(None) };
        let model = observation.model();
        let (members, controls) = (made_of(model, truth, &truth.members)?, made_of(model, truth, &truth.controls)?);
        Ok(members.zip(controls).map(|((loss, accuracy), (control_loss, control_accuracy))| Self {
            loss,
            accuracy,
            control_loss,
            control_accuracy,
        }))
    }
}

/// (loss, accuracy) on records.
fn made_of(model: &Model, truth: &Truth, sample: &Sample) -> Result<Option<(f64, f64)>> {
    let (Some(loss), &[outputs]) = (model.loss, model.network.output_shape()) else { return Ok(None) };
    let classes = if outputs == 1 { 2 } else { outputs };
    let (rows, labels) = (sample.pixels.rows(), &sample.labels);
    if rows == 0 || labels.len() != rows || labels.iter().any(|label| *label >= classes) {
        return Ok(None);
    }
    let x = truth.preprocess.apply(&sample.pixels)?.to_device(Device::Cpu)?.to_dtype(DType::F64)?;
    let x = x.reshape(&model.network.batch_shape(rows))?;
    let theta = model.theta.to_device(Device::Cpu)?.to_dtype(DType::F64)?;
    let forward = |x: &Tensor| -> Result<Tensor> { Ok(model.network.forward(&theta, x)?) };
    let targets = match loss {
        Loss::CrossEntropy if outputs == 1 => return Ok(None),
        Loss::CrossEntropy => Targets::Classes(labels.clone()),
        _ => Targets::Values(Tensor::from_f64(&values_of(labels, outputs), &[rows, outputs], DType::F64)?),
    };
    let value = Objective::new(loss, Reduction::Mean, targets).value(&forward(&x)?)?;
    let accuracy = Test { x, labels: labels.clone() }.accuracy(forward)?;
    Ok(Some((value, accuracy)))
}
