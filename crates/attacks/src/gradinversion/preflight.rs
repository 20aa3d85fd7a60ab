//! What can be told about a gradient before hours are spent on it.
//!
//! Four identities of cross-entropy and of batch normalisation are tested, each of which fails if something that
//! the attack takes for granted is not so:
//!
//! | identity | fails if |
//! | --- | --- |
//! | Σ_c ∂b_c = 0 in the last layer | the loss is another one, or the gradient was changed |
//! | Σ_c max(0, −∂b_c) ≤ 1 for a mean | losses were added up, not averaged |
//! | −∂b_c ≤ n_c / K, and < 0 only for labels that are there | labels are other ones |
//! | ⟨W_k, ∂W_k⟩ = 0 for each channel k of a convolution that is normalised by the batch itself | the network was in evaluation mode (its own statistics) |

use afterimage_nn::{LayerKind, Loss, Mode, Network, Reduction, Targets};

use crate::{AttackError, GradientSeen};

/// How far from an identity counts as a break, relative to the size of its terms.
const TOLERANCE: f64 = 1e-3;

/// Below this mean cosine, gradients are taken to be at right angles to weights.
const RIGHT_ANGLE: f64 = 1e-2;

/// What is wrong, one sentence each with what to change; nothing if all is well.
pub(super) fn doubts(seen: &GradientSeen) -> Result<Vec<String>, AttackError> {
    let mut doubts = Vec::new();
    let norm = seen.gradient.norm_squared()?.sqrt();
    if norm == 0.0 {
        doubts.push("the gradient is zero: nothing was shared".to_owned());
        return Ok(doubts);
    }
    if seen.client.defence.is_none_or(|defence| defence == crate::Defence::default()) && seen.client.local.is_none() {
        doubts.extend(of_last_layer(seen)?);
        doubts.extend(of_mode(seen)?);
    }
    if seen.model.preprocess.is_none() {
        doubts.push(
            "how inputs are prepared is not known: candidates are in the network's own scale, and a score against \
             pixels means little; share the preprocessing if you can"
                .to_owned(),
        );
    }
    Ok(doubts)
}

/// What the bias of the last layer says about loss, reduction and labels.
fn of_last_layer(seen: &GradientSeen) -> Result<Vec<String>, AttackError> {
    let mut doubts = Vec::new();
    let cross_entropy = seen.model.loss.is_none_or(|loss| loss == Loss::CrossEntropy);
    let layers = &seen.model.network.spec().layers;
    let Some(last) = layers.last().filter(|layer| matches!(layer.kind, LayerKind::Linear { bias: true, .. })) else {
        return Ok(doubts);
    };
    let name = last.name.clone().unwrap_or_else(|| (layers.len() - 1).to_string());
    let slopes = seen.gradient.get(&format!("{name}.bias"))?.to_f64_vec()?;
    let size: f64 = slopes.iter().map(|slope| slope.abs()).sum();
    if !cross_entropy || slopes.len() < 2 || size == 0.0 {
        return Ok(doubts);
    }
    let total: f64 = slopes.iter().sum();
    if total.abs() > TOLERANCE * size {
        doubts.push(format!(
            "the gradient of {name}.bias adds up to {total:.2e}, and that of cross-entropy to 0: is the loss another \
             one, or was the gradient changed? Say so in the observation"
        ));
        return Ok(doubts);
    }
    let negative: f64 = slopes.iter().map(|slope| (-slope).max(0.0)).sum();
    let samples = seen.batch_size.unwrap_or(1) as f64;
    let sums = seen.reduction == Some(Reduction::Sum);
    if !sums && negative > 1.0 + TOLERANCE {
        doubts.push(format!(
            "the negative part of {name}.bias adds up to {negative:.2}, which a mean over the batch cannot: losses were \
             added up (set the reduction to \"sum\"), or an update had more steps or a larger learning rate than is said"
        ));
    } else if sums && seen.batch_size.is_some_and(|size| size > 1) && negative < 0.5 / samples {
        doubts.push(format!(
            "the gradient of {name}.bias is as small as that of a mean over the batch ({negative:.2e}): is the reduction \
             \"mean\"?"
        ));
    }
    if let Some(Targets::Classes(labels)) = &seen.labels {
        let unit = if sums { 1.0 } else { 1.0 / labels.len().max(1) as f64 };
        let count = |class: usize| labels.iter().filter(|label| **label == class).count() as f64;
        let wrong = (0..slopes.len()).find(|&class| -slopes[class] > count(class) * unit + TOLERANCE * size);
        doubts.extend(wrong.map(|class| {
            format!(
                "class {class} is {} times among the labels, and its bias has a gradient of {:.2e}: more samples than \
                 that have the label; are the labels those of this batch?",
                count(class),
                slopes[class]
            )
        }));
    }
    Ok(doubts)
}

/// Whether batch normalisation used the batch: convolutions in front of it then have gradients at right
/// angles to their weights, channel by channel.
fn of_mode(seen: &GradientSeen) -> Result<Option<String>, AttackError> {
    let Some(angle) = cosine_before_normalisation(seen)? else { return Ok(None) };
    let looks = if angle < RIGHT_ANGLE { Mode::Train } else { Mode::Eval };
    let taken = seen.client.mode.unwrap_or_default();
    Ok((looks != taken).then(|| {
        let (is, told) = match looks {
            Mode::Train => ("used the batch's own statistics (model.train())", "running ones"),
            Mode::Eval => ("used running statistics (model.eval())", "those of the batch"),
        };
        format!("by its gradient, batch normalisation {is}, and the attack takes it for {told}: set the mode")
    }))
}

/// Σ |⟨W_k, ∂W_k⟩| / Σ ‖W_k‖ ‖∂W_k‖ over the channels of layers that are normalised next, none if there is no such
/// layer: a channel that hardly varies, where ε counts, does not decide.
fn cosine_before_normalisation(seen: &GradientSeen) -> Result<Option<f64>, AttackError> {
    let (mut along, mut total) = (0.0, 0.0);
    for layer in normalised(&seen.model.network) {
        let name = format!("{layer}.weight");
        let (weight, slope) = (seen.model.theta.get(&name)?, seen.gradient.get(&name)?);
        let row = weight.row_len().max(1);
        let (weight, slope) = (weight.to_f64_vec()?, slope.to_f64_vec()?);
        for (weight, slope) in weight.chunks_exact(row).zip(slope.chunks_exact(row)) {
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            along += dot(weight, slope).abs();
            total += (dot(weight, weight) * dot(slope, slope)).sqrt();
        }
    }
    Ok((total > 0.0).then_some(along / total))
}

/// Names of the layers with weights whose output is read by a batch normalisation.
fn normalised(network: &Network) -> Vec<String> {
    let layers = &network.spec().layers;
    let name = |index: usize| layers[index].name.clone().unwrap_or_else(|| index.to_string());
    let weighted = |kind: &LayerKind| matches!(kind, LayerKind::Conv { .. } | LayerKind::Linear { .. });
    (1..layers.len())
        .filter(|&index| matches!(layers[index].kind, LayerKind::BatchNorm { .. }))
        .filter_map(|index| match layers[index].inputs.first() {
            Some(source) => (0..index).find(|&earlier| name(earlier) == *source),
            None => Some(index - 1),
        })
        .filter(|&source| weighted(&layers[source].kind))
        .map(name)
        .collect()
}
