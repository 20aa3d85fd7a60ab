//! Algorithm 1: the sample for a given Θ, by the alternating direction method of multipliers.

use afterimage_nn::Tensor;

use super::damage::Damaged;
use crate::{AttackError, Model};

/// What a run of it is made of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Admm {
    pub(super) gamma: f64,
    pub(super) steps: usize,
    /// ξ is taken for α ξ + (1 − α) v in what follows it: over-relaxation above 1.
    pub(super) relaxation: f64,
}

/// Samples that run away beyond this are of no use any more, and must not spoil the others.
const RUNAWAY: f64 = 1e6;

impl Admm {
    /// ξ after the last step, for samples y of which Θ is kept.
    pub(super) fn run(self, model: &Model, y: &Tensor, kept: &Tensor) -> Result<Tensor, AttackError> {
        let Self { gamma, steps, relaxation } = self;
        let (mut v, mut u) = (y.zeros_like()?, y.zeros_like()?);
        let mut xi = y.clone();
        for _ in 0..steps {
            xi = Damaged::explain(y, kept, &v.combine(1.0, &u, -1.0)?, gamma)?;
            let ahead = if relaxation == 1.0 { xi.clone() } else { xi.combine(relaxation, &v, 1.0 - relaxation)? };
            let inner = ahead.combine(1.0, &u, 1.0)?.map(|x| x.clamp(-RUNAWAY, RUNAWAY))?;
            v = model.network.forward(&model.theta, &inner)?.reshape(y.shape())?;
            u = u.combine(1.0, &ahead, 1.0)?.combine(1.0, &v, -1.0)?;
        }
        Ok(xi)
    }
}

#[cfg(test)]
mod tests {
    use afterimage_nn::{DType, Init, Network, NetworkSpec};

    use super::*;

    /// An autoencoder that changes nothing: s_f is constant, and the data alone decide.
    #[test]
    fn without_a_prior_the_data_decide() {
        let spec = NetworkSpec::from_toml(
            "input = [3]\nlayers = [{ name = \"same\", kind = \"activation\", function = \"identity\" }]",
        )
        .unwrap();
        let network = Network::new(spec).unwrap();
        let theta = network.init(&Init::Pytorch.into(), 1, DType::F64).unwrap();
        let model = Model { network, theta, loss: None, preprocess: None };
        let y = Tensor::from_vec(vec![0.3, 0.0, 0.9], &[1, 3]).unwrap();
        let kept = Tensor::from_vec(vec![1.0, 0.0, 1.0], &[1, 3]).unwrap();
        for relaxation in [1.0, 1.6] {
            let found = Admm { gamma: 0.5, steps: 200, relaxation }.run(&model, &y, &kept).unwrap();
            let off = found.combine(1.0, &y, -1.0).unwrap();
            assert!(off.dot(&off).unwrap() < 1e-20);
        }
    }
}
