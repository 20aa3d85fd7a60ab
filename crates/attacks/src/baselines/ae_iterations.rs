//! An autoencoder applied to its own output, again and again: the baseline of
//! recovery from autoencoders.
//!
//! *Threat model.* An autoencoder is public, and damaged training samples are at
//! hand. Radhakrishnan, Belkin & Uhler (2020), "Overparameterized neural
//! networks implement associative memory": training samples can be attractors
//! of x ← f(x).

use afterimage_nn::Tensor;
use afterimage_nn::optim::UpdateRule;
use serde::{Deserialize, Serialize};

use crate::{
    Attack, AttackError, Card, DegradedSeen, Descent, Evaluation, Model, Parameter, Problem, Reconstruction, Session,
    Variable,
};

/// x ← f(x) from the damaged samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AeIterations {
    /// Most applications of the autoencoder.
    pub iterations: usize,
    /// Mean squared change at which to stop.
    pub tolerance: f64,
}

impl Default for AeIterations {
    fn default() -> Self {
        Self { iterations: 1000, tolerance: 1e-12 }
    }
}

impl Attack for AeIterations {
    const CARD: Card = Card {
        name: "ae-iterations",
        summary: "Applies an autoencoder to its own output until nothing changes; a baseline.",
        attacker: "Anybody who has the published autoencoder and damaged copies of samples it may have been trained on.",
        method: "The network is applied to a damaged sample, then to the result, and so on. Training samples of a \
                 network with many more parameters than samples can be points that this iteration runs into.",
        needs: "A network that gives back what it takes.",
        limits: "It uses neither the samples' intact parts nor what is known of the damage: it is here to be beaten.",
        citation: "A. Radhakrishnan, M. Belkin, C. Uhler. Overparameterized neural networks implement associative \
                   memory. PNAS 2020.",
        defences: &[
            "Stop training before the loss reaches numerical zero, or train on more samples than the network can store.",
            "Do not publish an autoencoder together with damaged copies of its training samples.",
        ],
        parameters: &[
            Parameter {
                name: "iterations",
                default: "1000",
                purpose: "most applications of the autoencoder",
                range: "1 or more",
            },
            Parameter {
                name: "tolerance",
                default: "1e-12",
                purpose: "mean squared change at which to stop",
                range: "0 or more",
            },
        ],
    };

    type Sees = DegradedSeen;

    fn reconstruct(&self, seen: &DegradedSeen, session: &mut Session<'_>) -> Result<Reconstruction, AttackError> {
        let (network, theta) = (&seen.model.network, &seen.model.theta);
        let (inputs, outputs) = (network.input_shape(), network.output_shape());
        if inputs.iter().product::<usize>() != outputs.iter().product::<usize>() {
            return Err(AttackError::NotApplicable {
                attack: Self::CARD.name,
                reason: format!("the network takes {inputs:?} and gives {outputs:?}"),
                hint: "an autoencoder gives back what it takes".into(),
            });
        }
        if self.iterations == 0 {
            return Err(AttackError::setting("iterations", 0, "must be 1 or more"));
        }
        let start = seen.degraded.to_dtype(theta.dtype())?.to_device(theta.device())?;
        // A step of length 1 against x − f(x) is x ← f(x).
        let x = Variable { name: "x".into(), start, update: UpdateRule::sgd(1.0) };
        let descent = Descent { iterations: self.iterations, stop_loss: Some(self.tolerance), ..Descent::default() };
        let found = descent.run(&[x], &mut FixedPoint { model: &seen.model }, session)?;
        Reconstruction::descended(found, 0)
    }
}

/// Samples that run away beyond this stay where they are, and leave the others alone.
const RUNAWAY: f64 = 1e6;

/// The search for x = f(x).
struct FixedPoint<'a> {
    model: &'a Model,
}

impl Problem for FixedPoint<'_> {
    fn evaluate(&mut self, _: usize, at: &[Tensor]) -> Result<Evaluation, AttackError> {
        let x = &at[0];
        let next = self.model.network.forward(&self.model.theta, x)?.reshape(x.shape())?;
        let mut off = x.combine(1.0, &next, -1.0)?.to_f64_vec()?;
        for (off, next) in off.chunks_mut(x.row_len().max(1)).zip(next.to_f64_vec()?.chunks(x.row_len().max(1))) {
            if next.iter().any(|value| value.abs() > RUNAWAY) {
                off.fill(0.0);
            }
        }
        let loss = off.iter().map(|off| off * off).sum::<f64>() / off.len().max(1) as f64;
        let gradient = Tensor::from_f64(&off, x.shape(), x.dtype())?.to_device(x.device())?;
        Ok(Evaluation { loss, gradients: vec![Some(gradient)] })
    }
}
