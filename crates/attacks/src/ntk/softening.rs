//! ReLU made smooth, and sharper as the search goes on.

use afterimage_nn::{Activation, Network};

use crate::AttackError;
use crate::margin::with_relu_as;

/// softplus(βz)/β in the place of ReLU, with β = min(first + 10^(4i/T), last) in step i of T.
#[derive(Debug, Clone, Copy)]
pub(super) struct Softening {
    pub(super) first: f64,
    pub(super) last: f64,
    pub(super) iterations: usize,
}

impl Softening {
    /// β in an iteration; `None` leaves ReLU as it is.
    fn beta(self, iteration: usize) -> Option<f64> {
        let progress = iteration as f64 / self.iterations.max(1) as f64;
        (self.last > 0.0).then(|| (self.first + 10_f64.powf(4.0 * progress)).min(self.last))
    }

    /// The network as it is searched with in an iteration.
    pub(super) fn network(self, network: &Network, iteration: usize) -> Result<Network, AttackError> {
        match self.beta(iteration) {
            Some(beta) => with_relu_as(network, Activation::Softplus { beta }),
            None => Ok(network.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sharpness_rises_to_its_last_value_whatever_the_length() {
        for iterations in [100, 80_000] {
            let softening = Softening { first: 10.0, last: 200.0, iterations };
            assert_eq!(softening.beta(0), Some(11.0));
            assert_eq!(softening.beta(iterations / 2), Some(110.0));
            assert_eq!(softening.beta(iterations), Some(200.0));
        }
        assert_eq!(Softening { first: 10.0, last: 0.0, iterations: 5 }.beta(3), None);
    }
}
