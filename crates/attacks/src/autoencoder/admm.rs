//! Algorithm 1: the sample for a given Θ, by the alternating direction method of multipliers.

use afterimage_nn::Tensor;

use super::damage::Operator;
use super::search::{Part, Way, mean, mean_squares};
use crate::{AttackError, Model};

/// What a run of it is made of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Admm {
    pub(super) gamma: f64,
    /// ξ is taken for α ξ + (1 − α) v in what follows it: over-relaxation above 1.
    pub(super) relaxation: f64,
}

/// Where a run is.
#[derive(Debug, Clone)]
pub(super) struct Split {
    pub(super) xi: Tensor,
    v: Tensor,
    u: Tensor,
}

/// Samples that run away beyond this are of no use any more, and must not spoil the others.
const RUNAWAY: f64 = 1e6;

impl Split {
    /// v = u = 0.
    pub(super) fn start(y: &Tensor) -> Result<Self, AttackError> {
        Ok(Self { xi: y.clone(), v: y.zeros_like()?, u: y.zeros_like()? })
    }
}

impl Admm {
    /// So many steps, for samples y of which Θ is left.
    pub(super) fn run(
        self,
        model: &Model,
        y: &Tensor,
        theta: &Operator,
        steps: usize,
        split: &mut Split,
    ) -> Result<(), AttackError> {
        let Self { gamma, relaxation } = self;
        let Split { xi, v, u } = split;
        for _ in 0..steps {
            *xi = theta.explain(y, &v.combine(1.0, u, -1.0)?, gamma)?;
            let ahead = if relaxation == 1.0 { xi.clone() } else { xi.combine(relaxation, v, 1.0 - relaxation)? };
            let inner = ahead.combine(1.0, u, 1.0)?.clamp(-RUNAWAY, RUNAWAY)?;
            *v = model.network.forward(&model.theta, &inner)?.reshape(y.shape())?;
            *u = u.combine(1.0, &ahead, 1.0)?.combine(1.0, v, -1.0)?;
        }
        Ok(())
    }
}

/// Appendix E: Θ is known, one run is all. A pass is a part of it.
pub(super) struct Known<'a> {
    pub(super) model: &'a Model,
    pub(super) admm: Admm,
    pub(super) y: &'a Tensor,
    pub(super) theta: &'a Operator,
    /// Steps of a pass.
    pub(super) steps: usize,
    pub(super) split: Split,
}

impl Way for Known<'_> {
    fn pass(&mut self) -> Result<Option<f64>, AttackError> {
        let before = self.split.xi.clone();
        self.admm.run(self.model, self.y, self.theta, self.steps, &mut self.split)?;
        Ok(Some(mean(&mean_squares(&self.split.xi.combine(1.0, &before, -1.0)?)?)))
    }

    fn state(&mut self) -> Vec<(&'static str, Part<'_>)> {
        let Split { xi, v, u } = &mut self.split;
        vec![("x", Part::Tensor(xi)), ("v", Part::Tensor(v)), ("u", Part::Tensor(u))]
    }

    fn samples(&self) -> (&Tensor, Option<&Tensor>) {
        (&self.split.xi, None)
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
        let kept = Operator::Kept(Tensor::from_vec(vec![1.0, 0.0, 1.0], &[1, 3]).unwrap());
        for relaxation in [1.0, 1.6] {
            let mut split = Split::start(&y).unwrap();
            Admm { gamma: 0.5, relaxation }.run(&model, &y, &kept, 200, &mut split).unwrap();
            let off = split.xi.combine(1.0, &y, -1.0).unwrap();
            assert!(off.dot(&off).unwrap() < 1e-20);
        }
    }
}
