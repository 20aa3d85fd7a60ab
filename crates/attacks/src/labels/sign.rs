//! Whether what is taken for a gradient points uphill at all: a batch has no more classes than samples.

use afterimage_nn::Loss;

use super::{head_of, last_layer};
use crate::GradientSeen;

/// Slopes of the last layer's bias that count, as a part of the largest: the rest may be rounding or weight decay.
const COUNTS: f64 = 1e-3;

/// A gradient that no batch of its size has, and whose opposite some batch may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turned {
    /// Classes whose slope is below zero.
    pub below: usize,
    /// Classes whose slope is above.
    pub above: usize,
    /// Samples of the batch.
    pub samples: usize,
}

impl Turned {
    /// Of cross-entropy, ∂b_c is mean_i p_ic > 0 for every class c that no sample has: of K samples at most K classes have a
    /// slope below zero. Where more have, and at most K one above, the sign was turned on the way, or noise was added.
    pub fn of(seen: &GradientSeen) -> Option<Self> {
        let samples = seen.batch_size.filter(|_| seen.model.loss == Some(Loss::CrossEntropy))?;
        let slopes = head_of(seen, &last_layer(seen)?).ok()?.bias_gradient?;
        let least = COUNTS * slopes.iter().fold(0.0, |most: f64, slope| most.max(slope.abs()));
        let below = slopes.iter().filter(|slope| **slope < -least).count();
        let above = slopes.iter().filter(|slope| **slope > least).count();
        (below > samples && above <= samples).then_some(Self { below, above, samples })
    }
}

impl std::fmt::Display for Turned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { below, above, samples } = self;
        write!(
            f,
            "the gradient looks as if its sign were turned: {below} classes of the last layer fall and {above} rise, and a batch of \
             {samples} lets at most {samples} fall. Or the batch was larger, labels were smoothed, weights decayed, or noise was added"
        )
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use afterimage_nn::zoo::Mlp;
    use afterimage_nn::{DType, Init, Network, Objective, Reduction, Seed, Stream, Targets, Want};

    use super::*;
    use crate::{Client, Model};

    fn observe(classes: &[usize]) -> GradientSeen {
        let network = Network::new(Mlp::new(12, &[16], 10).spec()).unwrap();
        let theta = network.init(&Init::Pytorch.into(), 3, DType::F64).unwrap();
        let shape = [classes.len(), 12];
        let x = Stream::new(4, "x", 0).tensor(&shape, DType::F64, |stream| stream.uniform(0.0, 1.0)).unwrap();
        let objective = Objective::new(Loss::CrossEntropy, Reduction::Mean, Targets::Classes(classes.to_vec()));
        let gradients = network.pass(&theta, &x).unwrap().backward(Seed::Loss(objective), Want::Weights).unwrap();
        let model = Model { network, theta, loss: Some(Loss::CrossEntropy), preprocess: None };
        GradientSeen {
            model,
            gradient: gradients.weights.unwrap(),
            reduction: Some(Reduction::Mean),
            batch_size: Some(classes.len()),
            labels: None,
            client: Client::default(),
        }
    }

    #[test]
    fn a_gradient_that_points_downhill_is_told_from_one_that_does_not() {
        for classes in [&[3][..], &[1, 7, 7], &[0, 2, 4, 9], &[5; 4]] {
            let seen = observe(classes);
            assert_eq!(Turned::of(&seen), None, "{classes:?}");
            let turned = GradientSeen { gradient: seen.gradient.scale(-1.0).unwrap(), ..seen.clone() };
            let found = Turned::of(&turned).unwrap();
            assert!(found.below + found.above == 10 && found.above <= classes.len(), "{classes:?}: {found:?}");
            // Who does not know how many samples there were cannot tell.
            assert_eq!(Turned::of(&GradientSeen { batch_size: None, ..turned }), None);
        }
        // Six samples of six classes: four fall with the sign turned, which six samples may have made.
        let seen = observe(&[0, 1, 2, 3, 4, 5]);
        assert_eq!(Turned::of(&GradientSeen { gradient: seen.gradient.scale(-1.0).unwrap(), ..seen }), None);
    }
}
