//! The labels of a batch, from its gradient.
//!
//! *Threat model.* A client of federated learning shares the gradient of a batch; the server wants to know what
//! was in it. Attacks that rebuild the samples take labels for known: this is where they come from.
//!
//! The rules are those of iDLG (Zhao et al., 2020), GradInversion (Yin et al., 2021, equation 8), LLG (Wainakh et
//! al., 2022) and iLRG (Ma et al., 2023).

mod rules;
mod sign;

use afterimage_nn::{LayerKind, Loss, Reduction, Tensor};
use faer::Mat;
use serde::{Deserialize, Serialize};

use rules::Head;
pub use rules::Rule;
pub use sign::Turned;

use crate::dense::{DenseLayer, dense_layers};
use crate::factors::matrix;
use crate::{Attack, AttackError, Card, GradientSeen, Parameter, Reconstruction, Session};

/// Reads the labels of a batch off its gradient.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Labels {
    /// How.
    pub rule: Rule,
    /// Samples of the batch, where the client does not say; found from the gradient if 0.
    pub batch: usize,
    /// The largest batch that is thought of where its size must be found.
    pub largest: usize,
}

impl Default for Labels {
    fn default() -> Self {
        Self { rule: Rule::Best, batch: 0, largest: 64 }
    }
}

const NAME: &str = "labels";

impl Attack for Labels {
    const CARD: Card = Card {
        name: NAME,
        summary: "Reads the labels of a batch off the gradient of a classifier's last layer.",
        attacker: "Anybody who sees the gradient of a batch: the server, or someone on the way to it. It is a matter \
                   of a second.",
        method: "With cross-entropy, the gradient of a class's weights and bias is below zero only if a sample of \
                 that class was there; how far below says how many. `ilrg` solves for the number of samples of \
                 each class, given what the network answers to each class's mean feature.",
        needs: "The gradient of a classifier with cross-entropy and a linear last layer; for `ilrg` and `analytic` \
                one with a bias; for `yin`, `idlg` and `llg` one that reads numbers that are not negative, as after \
                ReLU.",
        limits: "No samples are rebuilt. `yin`, `idlg` and `analytic` find each class at most once. Networks that \
                 are sure of their answers give small gradients: repeated labels are then counted less well.",
        citation: "H. Yin, A. Mallya, A. Vahdat, J. M. Alvarez, J. Kautz, P. Molchanov. See through gradients: image \
                   batch recovery via GradInversion. CVPR 2021. K. Ma, Y. Sun, J. Cui, D. Li, Z. Guan, J. Liu. \
                   Instance-wise batch label restoration via gradients in federated learning. ICLR 2023.",
        defences: &[
            "Aggregate securely over many clients: the sum tells what all of them have, not what one has.",
            "Clip and add noise (differential privacy) at the client.",
            "Do not share the gradient of the last layer: train it at the client alone.",
        ],
        parameters: &[
            Parameter {
                name: "rule",
                default: "\"best\"",
                purpose: "how labels are read off; best is ilrg, or yin where there is no bias",
                range: "best, idlg, analytic, yin, llg, ilrg",
            },
            Parameter {
                name: "batch",
                default: "0",
                purpose: "samples of the batch, where the client does not say; 0 finds out",
                range: "0 or more",
            },
            Parameter {
                name: "largest",
                default: "64",
                purpose: "largest batch that is thought of where its size must be found",
                range: "1 or more",
            },
        ],
    };

    type Sees = GradientSeen;

    fn applies(&self, seen: &GradientSeen) -> Result<(), AttackError> {
        self.restore(seen).map(drop)
    }

    fn reconstruct(&self, seen: &GradientSeen, _: &mut Session<'_>) -> Result<Reconstruction, AttackError> {
        let Restored { labels, notes } = self.restore(seen)?;
        let nothing = Tensor::zeros(&seen.model.network.batch_shape(0), seen.gradient.dtype(), seen.gradient.device())?;
        let mut found = Reconstruction::finished(nothing, 0.0, false);
        found.labels = Some(labels);
        found.notes = notes;
        Ok(found)
    }
}

/// Labels that were read off, in rising order.
pub(crate) struct Restored {
    pub(crate) labels: Vec<usize>,
    pub(crate) notes: Vec<String>,
}

impl Labels {
    /// The labels of the batch behind a gradient.
    pub(crate) fn restore(&self, seen: &GradientSeen) -> Result<Restored, AttackError> {
        let no = |reason: String, hint: &str| AttackError::NotApplicable { attack: NAME, reason, hint: hint.into() };
        if self.largest == 0 {
            return Err(AttackError::setting("largest", 0, "must be 1 or more"));
        }
        if let Some(loss) = seen.model.loss.filter(|loss| *loss != Loss::CrossEntropy) {
            return Err(no(format!("the loss is {loss}"), "labels are read off the gradient of cross-entropy"));
        }
        let last = last_layer(seen).ok_or_else(|| {
            no("the last layer is not linear".into(), "labels are read off a linear layer that gives the outputs")
        })?;
        let mut head = head_of(seen, &last)?;
        if largest_of(&head.weight_gradient) == 0.0 {
            return Err(no(
                "the gradient of the last layer is zero".into(),
                "the network is sure of every label, or nothing was shared",
            ));
        }
        let mut notes = Vec::new();
        let told = seen.batch_size.or((self.batch > 0).then_some(self.batch));
        let samples = match told {
            Some(0) => return Err(AttackError::setting("batch", 0, "is the number of samples, 1 or more")),
            Some(samples) => {
                // Of a sum the gradient is as many times as large.
                if seen.reduction == Some(Reduction::Sum) {
                    head = head.scaled(1.0 / samples as f64);
                }
                samples
            }
            None if seen.reduction == Some(Reduction::Sum) => {
                return Err(no(
                    "the loss is a sum over a batch of unknown size".into(),
                    "give the number of samples as `batch`",
                ));
            }
            None => {
                let samples = head.samples(self.largest).ok_or_else(|| {
                    no("the size of the batch is not known".into(), "the last layer has no bias: give it as `batch`")
                })?;
                notes.push(format!("the batch is taken to have had {samples} samples, by its gradient alone"));
                samples
            }
        };
        let counts = head.counts(self.rule, samples).ok_or_else(|| {
            no(
                "the last layer has no bias, or its gradient explains no number of samples".into(),
                "use the rule `yin`, `idlg` or `llg`",
            )
        })?;
        let labels: Vec<usize> =
            counts.iter().enumerate().flat_map(|(class, &count)| std::iter::repeat_n(class, count)).collect();
        notes.push(format!("labels, by the gradient: {}", written(&counts)));
        if labels.len() < samples {
            notes.push(format!("{} of {samples} labels: the rule finds each class once", labels.len()));
        }
        Ok(Restored { labels, notes })
    }
}

/// The linear layer that gives the outputs, if one does.
fn last_layer(seen: &GradientSeen) -> Option<DenseLayer> {
    let network = &seen.model.network;
    matches!(network.spec().layers.last()?.kind, LayerKind::Linear { .. })
        .then(|| dense_layers(network).pop())
        .flatten()
}

fn head_of(seen: &GradientSeen, layer: &DenseLayer) -> Result<Head, AttackError> {
    let name = format!("{}.weight", layer.name);
    let of = |params: &afterimage_nn::Params| -> Result<Option<Vec<f64>>, AttackError> {
        match layer.bias {
            true => Ok(Some(params.get(&format!("{}.bias", layer.name))?.to_f64_vec()?)),
            false => Ok(None),
        }
    };
    Ok(Head {
        weight: matrix(seen.model.theta.get(&name)?)?,
        bias: of(&seen.model.theta)?,
        weight_gradient: matrix(seen.gradient.get(&name)?)?,
        bias_gradient: of(&seen.gradient)?,
    })
}

impl Head {
    fn scaled(self, factor: f64) -> Self {
        let bias_gradient = self.bias_gradient.map(|slopes| slopes.iter().map(|slope| slope * factor).collect());
        Self { weight_gradient: &self.weight_gradient * faer::Scale(factor), bias_gradient, ..self }
    }
}

/// Classes with how often each is there.
fn written(counts: &[usize]) -> String {
    let classes = counts.iter().enumerate().filter(|(_, count)| **count > 0);
    let classes: Vec<String> = classes
        .map(|(class, &count)| if count == 1 { class.to_string() } else { format!("{class} ({count} times)") })
        .collect();
    classes.join(", ")
}

fn largest_of(matrix: &Mat<f64>) -> f64 {
    matrix.norm_max()
}
