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

/// How many records are looked at at once: networks may be deep, and controls many.
const AT_ONCE: usize = 64;

/// (loss, accuracy) on records; none where labels and outputs do not fit, or outputs are out of all bounds.
fn made_of(model: &Model, truth: &Truth, sample: &Sample) -> Result<Option<(f64, f64)>> {
    let (Some(loss), &[outputs]) = (model.loss, model.network.output_shape()) else { return Ok(None) };
    let classes = if outputs == 1 { 2 } else { outputs };
    let (rows, labels) = (sample.pixels.rows(), &sample.labels);
    if rows == 0 || labels.len() != rows || labels.iter().any(|label| *label >= classes) {
        return Ok(None);
    }
    let targets = match loss {
        Loss::CrossEntropy if outputs == 1 => return Ok(None),
        Loss::CrossEntropy => Targets::Classes(labels.clone()),
        _ => Targets::Values(Tensor::from_f64(&values_of(labels, outputs), &[rows, outputs], DType::F64)?),
    };
    let theta = model.theta.to_device(Device::Cpu)?.to_dtype(DType::F64)?;
    let mut answers = Vec::new();
    for from in (0..rows).step_by(AT_ONCE) {
        let x = truth.preprocess.apply(&sample.pixels.slice_rows(from..rows.min(from + AT_ONCE))?)?;
        let x = x.reshape(&model.network.batch_shape(x.rows()))?.to_device(Device::Cpu)?.to_dtype(DType::F64)?;
        answers.push(model.network.forward(&theta, &x)?);
    }
    let answers = Tensor::concat_rows(&answers.iter().collect::<Vec<_>>())?;
    let value = match Objective::new(loss, Reduction::Mean, targets).value(&answers) {
        Err(afterimage_nn::Error::NonFinite { .. }) => return Ok(None),
        value => value?,
    };
    let accuracy = Test { x: answers, labels: labels.clone() }.accuracy(|answers| Ok(answers.clone()))?;
    Ok(value.is_finite().then_some((value, accuracy)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterimage_attacks::{Preprocess, WeightsSeen};
    use afterimage_nn::{Network, Params, zoo::Mlp};

    #[test]
    fn loss_and_accuracy_are_those_of_the_closed_form() {
        // f(x) = x, so that a record's loss is ln(1 + e^(−yx)).
        let network = Network::new(Mlp { bias: afterimage_nn::zoo::Bias::None, ..Mlp::new(1, &[], 1) }.spec()).unwrap();
        let theta = network.init(&afterimage_nn::Init::Pytorch.into(), 1, DType::F64).unwrap();
        let theta: Params = theta.map(|value| value.map(|_| 1.0)).unwrap();
        let model = Model { network, theta, loss: Some(Loss::Logistic), preprocess: None };
        let sample = |values: Vec<f64>, labels: Vec<usize>| {
            let pixels = Tensor::from_vec(values, &[labels.len(), 1]).unwrap();
            Sample { pixels, labels }
        };
        // More controls than are looked at at once, one in four of them on the wrong side.
        let controls = sample((0..200).map(|n| if n % 4 == 0 { -1.0 } else { 1.0 }).collect(), vec![1; 200]);
        let (members, preprocess) = (sample(vec![2.0, -3.0], vec![1, 0]), Preprocess::default());
        let ids = vec!["a".into(), "b".into()];
        let truth = Truth { members, controls, preprocess, ids, driven: None, damaged: None };
        let learnt = Learnt::of_observation(&Observation::Weights(WeightsSeen { model }), &truth).unwrap().unwrap();
        let loss = |margin: f64| (-margin).exp().ln_1p();
        assert!((learnt.loss - (loss(2.0) + loss(3.0)) / 2.0).abs() < 1e-12);
        assert!((learnt.control_loss - (loss(-1.0) + 3.0 * loss(1.0)) / 4.0).abs() < 1e-12);
        assert_eq!((learnt.accuracy, learnt.control_accuracy), (1.0, 0.75));
    }
}
