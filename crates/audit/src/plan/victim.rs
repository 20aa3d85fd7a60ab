//! How a victim is made and what of it is shared, as a plan writes it.

use std::path::PathBuf;

use afterimage_attacks::{Defence, Kind, LocalTraining};
use afterimage_nn::train::Recipe;
use afterimage_nn::{Loss, Mode, Reduction};
use serde::{Deserialize, Serialize};

/// How the victim leaks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum VictimPlan {
    /// A classifier whose weights are shared.
    Classifier(ClassifierPlan),
    /// An autoencoder that is shared with damaged records.
    Autoencoder(AutoencoderPlan),
    /// A client of federated learning that shares a gradient.
    Federated(FederatedPlan),
}

/// A classifier, trained on all members or loaded, whose weights are shared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassifierPlan {
    /// The loss.
    #[serde(default = "cross_entropy")]
    pub loss: Loss,
    /// How it is trained; of a loaded victim, how its twin is.
    #[serde(default)]
    pub train: Recipe,
    /// Training starts from the weights in this file: fine-tuning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_weights: Option<PathBuf>,
    /// With `start_weights`: layers that start anew, such as a last one for other classes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fresh_layers: Vec<String>,
    /// Final weights from this file instead of training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<PathBuf>,
    /// What is shared.
    #[serde(default)]
    pub share: Shared,
    /// What released weights are rounded to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounding: Option<Rounding>,
    /// With `checkpoints`: epochs after which the earlier one is taken; 0 is the start.
    #[serde(default)]
    pub before_epoch: usize,
    /// With `checkpoints`: epochs after which further ones are taken between the two.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub between_epochs: Vec<usize>,
    /// With `checkpoints` and `weights`: the earlier one from this file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before_weights: Option<PathBuf>,
    /// Whether the preprocessing is known to the attacker.
    #[serde(default = "yes")]
    pub share_preprocessing: bool,
}

/// An autoencoder, trained on all members or loaded, that is shared with damaged
/// records: all members and all controls, mixed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AutoencoderPlan {
    /// How it is trained; of a loaded victim, how its twin is.
    #[serde(default)]
    pub train: Recipe,
    /// Weights from this file instead of training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<PathBuf>,
    /// Where training starts: weights from this file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_weights: Option<PathBuf>,
    /// What is shared are the weights as they were when the loss first reached this, on the way to those at the
    /// end: one training serves several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_loss: Option<f64>,
    /// What the released weights are rounded to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounding: Option<Rounding>,
    /// What is done to the records.
    #[serde(default)]
    pub degrade: Degrade,
    /// Members, and controls, of which damaged copies are shared, at most: an attack's time grows with them. All if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damaged: Option<usize>,
    /// Whether the mask is known to the attacker.
    #[serde(default)]
    pub share_mask: bool,
    /// Whether the strength of the noise is.
    #[serde(default = "yes")]
    pub share_noise: bool,
    /// Whether the preprocessing is.
    #[serde(default = "yes")]
    pub share_preprocessing: bool,
}

/// Who is in a client's batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Population {
    /// Anybody.
    #[default]
    Random,
    /// Among members and controls those whose own gradients are the largest; the others are controls.
    Vulnerable,
}

/// A client of federated learning that shares one gradient of all members.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FederatedPlan {
    /// Samples in the batch: all members, and no other number; of an observed gradient, what its client says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<usize>,
    /// What a client was seen to share, from this file, with `weights`; a gradient is computed for its twin alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient: Option<PathBuf>,
    /// Who is in the batch.
    #[serde(default)]
    pub population: Population,
    /// The loss.
    #[serde(default = "cross_entropy")]
    pub loss: Loss,
    /// How the model was trained before, on records that are neither members
    /// nor controls; fresh parameters if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pretrain: Option<Recipe>,
    /// Regression: class k of so many as the number −1 + 2k/(classes − 1). Needs one output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes_as_numbers: Option<usize>,
    /// The model from this file instead of fresh parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<PathBuf>,
    /// Clients that the members are dealt out to; what they share is averaged.
    #[serde(default = "one_client")]
    pub clients: usize,
    /// What batch normalisation divides by.
    #[serde(default)]
    pub mode: Mode,
    /// Steps of training at the client, instead of one gradient.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalTraining>,
    /// α of mixup at the client: samples are mixed in pairs by shares drawn from Beta(α, α); 0 for none.
    #[serde(default)]
    pub mixup: f64,
    /// What the client does to the gradient before it shares it.
    #[serde(default)]
    pub defence: Defence,
    /// Whether the attacker is told what was done to it.
    #[serde(default)]
    pub share_defence: bool,
    /// What the client shares of batch normalisation.
    #[serde(default)]
    pub share_statistics: SharedStatistics,
    /// Whether the attacker is told what batch normalisation divided by.
    #[serde(default = "yes")]
    pub share_mode: bool,
    /// Mean or sum over the batch.
    #[serde(default)]
    pub reduction: Reduction,
    /// Whether the batch size is known to the attacker.
    #[serde(default = "yes")]
    pub share_batch_size: bool,
    /// Whether the labels are.
    #[serde(default)]
    pub share_labels: bool,
    /// Whether the preprocessing is.
    #[serde(default = "yes")]
    pub share_preprocessing: bool,
}

fn cross_entropy() -> Loss {
    Loss::CrossEntropy
}

fn yes() -> bool {
    true
}

fn one_client() -> usize {
    1
}

impl VictimPlan {
    /// The same victim with nothing done to what it shares: no noise, clipping, pruning or rounding, and no mixing of
    /// samples. What is made so must leak.
    ///
    /// ```
    /// use afterimage_audit::plan::{Plan, VictimPlan};
    /// let noisy = r#"
    ///     data = { source = "builtin:digits", members = 1 }
    ///     network = { kind = "mlp", hidden = [8], outputs = 10 }
    ///     victim = { kind = "federated", defence = { noise = 0.1 } }
    ///     attack = { kind = "analytic" }
    /// "#;
    /// let plan = Plan::parse(noisy, &[])?;
    /// let VictimPlan::Federated(client) = plan.victim.undefended() else { unreachable!() };
    /// assert_eq!(client.defence.noise, 0.0);
    /// # Ok::<(), afterimage_audit::AuditError>(())
    /// ```
    pub fn undefended(&self) -> Self {
        match self.clone() {
            VictimPlan::Classifier(plan) => VictimPlan::Classifier(ClassifierPlan { rounding: None, ..plan }),
            VictimPlan::Autoencoder(plan) => VictimPlan::Autoencoder(AutoencoderPlan { rounding: None, ..plan }),
            VictimPlan::Federated(plan) => {
                VictimPlan::Federated(FederatedPlan { defence: Defence::default(), mixup: 0.0, ..plan })
            }
        }
    }

    /// The kind of observation it gives.
    pub fn gives(&self) -> Kind {
        match self {
            VictimPlan::Classifier(ClassifierPlan { share: Shared::Weights, .. }) => Kind::Weights,
            VictimPlan::Classifier(_) => Kind::WeightPair,
            VictimPlan::Autoencoder(_) => Kind::Degraded,
            VictimPlan::Federated(_) => Kind::Gradient,
        }
    }
}

/// What a client shares of batch normalisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SharedStatistics {
    /// Nothing.
    #[default]
    None,
    /// The running statistics after its batch, as a model in training mode sends them back.
    Running,
    /// The means and variances of its batch.
    Batch,
}

/// What released weights are rounded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rounding {
    /// Eight bits of mantissa.
    Bf16,
    /// Whole multiples of a 127th of each parameter's largest.
    Int8,
}

/// What of a trained classifier is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shared {
    /// The final weights.
    #[default]
    Weights,
    /// The final weights and an earlier checkpoint.
    Checkpoints,
}

/// How records are damaged: blurred, or some elements lost, which become 0; then noise is added to all of them.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Degrade {
    /// Which elements are lost.
    pub mask: Mask,
    /// Standard deviation, in pixels, of a Gaussian blur; 0 for none. With `mask = "none"`; the attacker knows it.
    pub blur: f64,
    /// Standard deviation of the noise.
    pub noise: f64,
}

/// Which elements of a record are lost; of an image, a pixel is lost in all channels.
///
/// The papers show theirs as pictures alone; these are ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Mask {
    /// None.
    None,
    /// A quarter of the pixels, at random by the seed.
    #[serde(rename = "random-25")]
    Random25,
    /// Half of the pixels, at random.
    #[default]
    #[serde(rename = "random-50")]
    Random50,
    /// Three quarters of the pixels, at random.
    #[serde(rename = "random-75")]
    Random75,
    /// The right half.
    Half,
    /// Every other row.
    Stripes,
    /// A block of half the height and width in the middle.
    Center,
    /// A frame of an eighth of the sides.
    Border,
    /// Three wavy lines, like writing across the picture.
    Scribble,
}

impl Mask {
    /// Its name in a plan.
    pub fn name(self) -> &'static str {
        match self {
            Mask::None => "none",
            Mask::Random25 => "random-25",
            Mask::Random50 => "random-50",
            Mask::Random75 => "random-75",
            Mask::Half => "half",
            Mask::Stripes => "stripes",
            Mask::Center => "center",
            Mask::Border => "border",
            Mask::Scribble => "scribble",
        }
    }
}
