//! Inputs that the network answers most strongly: the baseline every attack on
//! final weights is compared with.
//!
//! *Threat model.* The final weights are public. Fredrikson et al. (2015);
//! section 5.4 of Haim et al. (2022).
//!
//! | symbol | here | shape |
//! | --- | --- | --- |
//! | x_i | candidates, σ N(0, 1) at the start | m x d |
//! | k_i, s_i | the output candidate i is for, and its sign | m |
//!
//! minimise − mean_i s_i f_{k_i}(x_i) + w · Σ (what lies outside the pixel range)²
//!
//! With one output half of the candidates raise it (s = +1) and half lower it;
//! with several, candidates take the classes in turn.

use afterimage_nn::optim::UpdateRule;
use afterimage_nn::{Seed, Tensor, Want};
use serde::{Deserialize, Serialize};

use crate::descent::{Descent, Variable};
use crate::{
    Attack, AttackError, Card, Contribution, Model, Parameter, PixelRange, Reconstruction, Session, Term, WeightedSum,
    WeightsSeen,
};

/// Candidates that the network answers most strongly.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelInversion {
    /// m, candidates.
    pub candidates: usize,
    /// Steps.
    pub iterations: usize,
    /// Learning rate of gradient descent with momentum 0.9.
    pub lr: f64,
    /// σ, scale of the start.
    pub sigma: f64,
    /// w, weight of the pixel range; 0 leaves it out.
    pub range_weight: f64,
}

impl Default for ModelInversion {
    fn default() -> Self {
        Self { candidates: 100, iterations: 2000, lr: 0.1, sigma: 0.1, range_weight: 1.0 }
    }
}

impl Attack for ModelInversion {
    const CARD: Card = Card {
        name: "model-inversion",
        summary: "Searches inputs that the network answers most strongly; a baseline.",
        attacker: "Anybody who has the published weights. The search is a few minutes of gradient descent.",
        method: "Starting from noise, inputs are changed until the network's output for a class is as large (or, \
                 with one output, as large or as small) as it gets inside the range of pixels.",
        needs: "The final weights of a classifier.",
        limits: "It finds what a class looks like to the network, rarely a record: it is here to be beaten.",
        citation: "M. Fredrikson, S. Jha, T. Ristenpart. Model inversion attacks that exploit confidence information \
                   and basic countermeasures. CCS 2015.",
        defences: &[
            "Train on more records of each class: the network then has no reason to answer one of them alone.",
            "Train with differential privacy, which bounds what any single record can leave in the weights.",
        ],
        parameters: &[
            Parameter { name: "candidates", default: "100", purpose: "inputs searched at once", range: "1 or more" },
            Parameter { name: "iterations", default: "2000", purpose: "steps", range: "0 or more" },
            Parameter {
                name: "lr",
                default: "0.1",
                purpose: "learning rate (gradient descent with momentum 0.9)",
                range: "positive; the paper searches 1e-6 to 1",
            },
            Parameter {
                name: "sigma",
                default: "0.1",
                purpose: "scale of the random start",
                range: "positive; the paper searches 1e-7 to 1",
            },
            Parameter {
                name: "range_weight",
                default: "1",
                purpose: "weight of the penalty outside the range of pixels, where the attacker knows it",
                range: "0 or more",
            },
        ],
    };

    type Sees = WeightsSeen;

    fn reconstruct(&self, seen: &WeightsSeen, session: &mut Session<'_>) -> Result<Reconstruction, AttackError> {
        let model = &seen.model;
        let (theta, network) = (&model.theta, &model.network);
        if self.candidates == 0 {
            return Err(AttackError::setting("candidates", 0, "must be 1 or more"));
        }
        let outputs: usize = network.output_shape().iter().product();
        let shape = network.batch_shape(self.candidates);
        let start = session.stream("start", 0).normal_tensor(self.sigma, &shape, theta.dtype())?;
        let x = Variable {
            name: "x".into(),
            start: start.to_device(theta.device())?,
            update: UpdateRule::Sgd { lr: self.lr, momentum: 0.9 },
        };
        let answer = Answer::new(model, self.candidates, outputs)?;
        let mut objective = WeightedSum::new().with(1.0, answer);
        if let Some(preprocess) = &model.preprocess {
            objective = objective.with(self.range_weight, PixelRange::new(preprocess, network.input_shape(), 0)?);
        }
        let descent = Descent { iterations: self.iterations, ..Descent::default() };
        let found = descent.run(&[x], &mut objective, session)?;
        Reconstruction::descended(found, 0)
    }
}

/// − mean_i s_i f_{k_i}(x_i).
struct Answer<'a> {
    model: &'a Model,
    /// ∂ value / ∂ f: −s_i/m at output k_i.
    seed: Tensor,
}

impl<'a> Answer<'a> {
    fn new(model: &'a Model, candidates: usize, outputs: usize) -> Result<Self, AttackError> {
        let mut seed = vec![0.0; candidates * outputs];
        for candidate in 0..candidates {
            let sign = if outputs == 1 && 2 * candidate < candidates { -1.0 } else { 1.0 };
            seed[candidate * outputs + candidate % outputs.max(1)] = -sign / candidates as f64;
        }
        let seed = Tensor::from_f64(&seed, &[candidates, outputs], model.theta.dtype())?;
        Ok(Self { model, seed: seed.to_device(model.theta.device())? })
    }
}

impl Term for Answer<'_> {
    fn evaluate(&mut self, _: usize, at: &[Tensor]) -> Result<Contribution, AttackError> {
        let mut pass = self.model.network.pass(&self.model.theta, &at[0])?;
        let value = pass.outputs().dot(&self.seed)?;
        let gradients = pass.backward(Seed::Fixed(self.seed.clone()), Want::Inputs)?;
        Ok(Contribution { value, gradients: vec![gradients.inputs] })
    }
}
