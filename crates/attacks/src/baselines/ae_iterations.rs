//! An autoencoder applied to its own output, again and again: the baseline of
//! recovery from autoencoders.
//!
//! *Threat model.* An autoencoder is public, and damaged training samples are at
//! hand. Radhakrishnan, Belkin & Uhler (2020), "Overparameterized neural
//! networks implement associative memory": training samples can be attractors
//! of x ← f(x).

use afterimage_nn::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::{Attack, AttackError, Card, DegradedSeen, Parameter, Reconstruction, Session, Stop, Tick, TracePoint};

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
        let mut x = seen.degraded.to_dtype(theta.dtype())?.to_device(theta.device())?;
        let (mut trace, mut stop, mut iterations) = (Vec::new(), Stop::IterationsUsed, 0);
        while iterations < self.iterations {
            let next = network.forward(theta, &x)?.reshape(x.shape())?;
            let change = mean_square(&next.combine(1.0, &x, -1.0)?)?;
            (x, iterations) = (next, iterations + 1);
            trace.push(TracePoint { iteration: iterations, loss: change });
            let tick = Tick { iteration: iterations, total: self.iterations, loss: Some(change) };
            if session.tick(tick).is_break() {
                stop = Stop::Interrupted;
                break;
            }
            if change <= self.tolerance {
                stop = Stop::Finished;
                break;
            }
        }
        let found = Reconstruction::finished(x.to_device(Device::Cpu)?, 0.0, false);
        Ok(Reconstruction { trace, stop, iterations, ..found })
    }
}

fn mean_square(x: &Tensor) -> Result<f64, AttackError> {
    Ok(x.dot(x)? / x.count().max(1) as f64)
}
