//! How far the gradient of candidates is from the one that was seen, and which way is nearer.

use afterimage_nn::{Params, Pass, Seed, Want};
use serde::{Deserialize, Serialize};

use crate::{AttackError, Defence, GradientSeen, Quantise};

/// How gradients are compared; G is that of the candidates, T the one that was seen, p a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distance {
    /// Σ_p ‖G_p − T_p‖: equation 3 of GradInversion.
    Layers,
    /// Σ_p ‖G_p − T_p‖²: deep leakage from gradients.
    Squared,
    /// 1 − ⟨G, T⟩ / (‖G‖ ‖T‖), all parameters together: inverting gradients.
    #[default]
    Cosine,
}

/// What the gradient of candidates is compared with, after what is known of its defence.
pub(super) struct Target {
    seen: Params,
    distance: Distance,
    /// 1 where a number survived pruning.
    survived: Option<Params>,
    /// w_p: 1 over the noise of a parameter, relative to the others.
    weights: Vec<f64>,
    /// The norm to which longer gradients were clipped.
    clipped: Option<f64>,
}

/// A distance and its derivative in the gradient.
pub(super) struct Compared {
    pub(super) value: f64,
    pub(super) direction: Params,
}

impl Target {
    /// Of an observation. What the client did to its gradient, where that is known, is allowed for:
    /// numbers that were dropped are not compared, noisier parameters count less (but for an angle),
    /// gradients are clipped as the client's was, and signs are compared by their angle.
    pub(super) fn new(seen: &GradientSeen, distance: Distance) -> Result<Self, AttackError> {
        let gradient = &seen.gradient;
        let defence = seen.client.defence.unwrap_or_default();
        let survived = match defence.prune > 0.0 {
            true => Some(gradient.map(|value| value.map(|x| f64::from(u8::from(x != 0.0))))?),
            false => None,
        };
        let distance = if defence.quantise == Some(Quantise::Sign) { Distance::Cosine } else { distance };
        let weights = weights(gradient, defence)?;
        Ok(Self { seen: gradient.clone(), distance, survived, weights, clipped: defence.clip })
    }

    /// Compares the gradient of a pass with it.
    pub(super) fn compare(&self, pass: &mut Pass<'_>, seed: Seed) -> Result<Compared, AttackError> {
        if self.clipped.is_some() || self.distance == Distance::Cosine {
            let gradient = pass.backward(seed, Want::Weights)?.weights;
            return self.compare_gradient(&gradient.map_or_else(|| self.seen.zeros_like(), Ok)?);
        }
        // Subtracted while it is multiplied out: the gradient itself is never stored.
        let residuals = pass.residual(seed, &self.seen, &vec![1.0; self.weights.len()])?;
        self.by_difference(residuals.direction, Some(residuals.squares))
    }

    /// ‖G − T‖ / ‖T‖ where numbers survived, whatever distance is minimised; none of a gradient of zero.
    pub(super) fn misfit(&self, gradient: &Params) -> Result<Option<f64>, AttackError> {
        let norm = gradient.norm_squared()?.sqrt();
        let gradient = match self.clipped.filter(|clip| norm > *clip) {
            Some(clip) => gradient.scale(clip / norm)?,
            None => gradient.clone(),
        };
        let (off, size) = (self.where_survived(&gradient.sub(&self.seen)?)?, self.seen.norm_squared()?);
        Ok((size > 0.0).then_some((off.norm_squared()? / size.max(f64::MIN_POSITIVE)).sqrt()))
    }

    /// Compares a gradient with it.
    pub(super) fn compare_gradient(&self, gradient: &Params) -> Result<Compared, AttackError> {
        let Some(clip) = self.clipped else { return self.compare_scaled(gradient) };
        let norm = gradient.norm_squared()?.sqrt().max(f64::MIN_POSITIVE);
        if norm <= clip {
            return self.compare_scaled(gradient);
        }
        // u = c G / ‖G‖, and dD/dG = c / ‖G‖ (v − G ⟨v, G⟩ / ‖G‖²) for v = dD/du.
        let Compared { value, direction } = self.compare_scaled(&gradient.scale(clip / norm)?)?;
        let along = direction.dot(gradient)? / (norm * norm);
        Ok(Compared { value, direction: direction.combine(clip / norm, gradient, -along * clip / norm)? })
    }

    fn compare_scaled(&self, gradient: &Params) -> Result<Compared, AttackError> {
        match self.distance {
            Distance::Cosine => self.angle(gradient),
            _ => self.by_difference(gradient.sub(&self.seen)?, None),
        }
    }

    /// From G − T and, where they are known, its squares.
    fn by_difference(&self, difference: Params, squares: Option<Vec<f64>>) -> Result<Compared, AttackError> {
        let difference = self.where_survived(&difference)?;
        let squares = match squares.filter(|_| self.survived.is_none()) {
            Some(squares) => squares,
            None => difference.values().iter().map(|value| value.dot(value)).collect::<Result<_, _>>()?,
        };
        let terms: Vec<(f64, f64)> = (squares.iter().zip(&self.weights))
            .map(|(square, weight)| match self.distance {
                Distance::Squared => (weight * weight * square, 2.0 * weight * weight),
                // At 0 any direction is a descent: none is taken.
                _ if *square == 0.0 => (0.0, 0.0),
                _ => (weight * square.sqrt(), weight / square.sqrt()),
            })
            .collect();
        let mut factors = terms.iter().map(|(_, factor)| *factor);
        let direction = difference.map(|value| value.scale(factors.next().unwrap_or(0.0)))?;
        Ok(Compared { value: terms.iter().map(|(value, _)| value).sum(), direction })
    }

    /// 1 − ⟨G, T⟩ / (‖G‖ ‖T‖); 1 where either is zero.
    fn angle(&self, gradient: &Params) -> Result<Compared, AttackError> {
        let gradient = self.where_survived(gradient)?;
        let norm = gradient.norm_squared()?.sqrt();
        let size = self.seen.norm_squared()?.sqrt();
        if norm == 0.0 || size == 0.0 {
            return Ok(Compared { value: 1.0, direction: gradient.zeros_like()? });
        }
        let cosine = gradient.dot(&self.seen)? / (norm * size);
        let direction = self.seen.combine(-1.0 / (norm * size), &gradient, cosine / (norm * norm))?;
        Ok(Compared { value: 1.0 - cosine, direction })
    }

    fn where_survived(&self, params: &Params) -> Result<Params, AttackError> {
        Ok(match &self.survived {
            Some(survived) => params.zip(survived, |value, mask| value.multiply(mask))?,
            None => params.clone(),
        })
    }
}

/// 1 over each parameter's noise, relative to their mean; ones where all have the same.
fn weights(gradient: &Params, defence: Defence) -> Result<Vec<f64>, AttackError> {
    let count = gradient.values().len();
    if !(defence.noise > 0.0 && defence.noise_by_parameter) {
        return Ok(vec![1.0; count]);
    }
    // The noise was scaled by the size of the clean gradient: √(1 + noise²) smaller than the noisy one's, in every
    // parameter alike.
    let sizes: Vec<f64> = (gradient.values().iter())
        .map(|value| Ok((value.dot(value)? / value.count().max(1) as f64).sqrt()))
        .collect::<Result<_, AttackError>>()?;
    let mean = sizes.iter().sum::<f64>() / count.max(1) as f64;
    Ok(sizes.iter().map(|size| if *size > 0.0 { mean / size } else { 1.0 }).collect())
}

#[cfg(test)]
mod tests {
    use afterimage_nn::zoo::Mlp;
    use afterimage_nn::{DType, Init, Network};

    use super::*;
    use crate::{Client, Model};

    fn params(seed: u64) -> (Network, Params) {
        let network = Network::new(Mlp::new(4, &[5], 3).spec()).unwrap();
        let theta = network.init(&Init::Pytorch.into(), seed, DType::F64).unwrap();
        (network, theta)
    }

    fn target(distance: Distance, defence: Option<Defence>, pruned: bool) -> Target {
        let (network, theta) = params(1);
        let gradient =
            if pruned { theta.map(|v| v.map(|x| if x.abs() < 0.2 { 0.0 } else { x })).unwrap() } else { theta.clone() };
        let model = Model { network, theta, loss: None, preprocess: None };
        let client = Client { defence, ..Client::default() };
        let seen = GradientSeen { model, gradient, reduction: None, batch_size: None, labels: None, client };
        Target::new(&seen, distance).unwrap()
    }

    #[test]
    fn directions_are_derivatives_of_distances() {
        let clip = params(1).1.norm_squared().unwrap().sqrt();
        let defences = [
            None,
            Some(Defence { prune: 0.5, ..Defence::default() }),
            Some(Defence { noise: 0.1, noise_by_parameter: true, ..Defence::default() }),
            Some(Defence { clip: Some(clip), ..Defence::default() }),
        ];
        let (at, along) = (params(2).1.scale(3.0).unwrap(), params(3).1);
        for distance in [Distance::Layers, Distance::Squared, Distance::Cosine] {
            for defence in defences {
                let target = target(distance, defence, defence.is_some_and(|defence| defence.prune > 0.0));
                let value = |h: f64| target.compare_gradient(&at.combine(1.0, &along, h).unwrap()).unwrap().value;
                let slope = target.compare_gradient(&at).unwrap().direction.dot(&along).unwrap();
                let expected = (value(1e-6) - value(-1e-6)) / 2e-6;
                assert!((slope - expected).abs() < 1e-6 * (1.0 + expected.abs()), "{distance:?} {defence:?}");
            }
        }
    }

    #[test]
    fn the_same_gradient_is_at_no_distance() {
        for distance in [Distance::Layers, Distance::Squared, Distance::Cosine] {
            let found = target(distance, None, false).compare_gradient(&params(1).1).unwrap();
            assert!(found.value.abs() < 1e-15, "{distance:?}: {}", found.value);
            assert!(found.direction.norm_squared().unwrap() < 1e-20);
        }
    }

    #[test]
    fn numbers_that_were_dropped_are_not_compared() {
        let defence = Defence { prune: 0.5, ..Defence::default() };
        let target = target(Distance::Squared, Some(defence), true);
        assert!(target.compare_gradient(&params(1).1).unwrap().value < 1e-30);
    }
}
