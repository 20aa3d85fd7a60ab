//! The best multipliers for the candidates at every step: variable projection.

use afterimage_nn::linalg::cholesky_solve;
use afterimage_nn::tangent::{Tangents, Toward};
use afterimage_nn::{DType, Network, Params, Tensor};

use super::matching::added;
use super::softening::Softening;
use super::steps::Step;
use crate::{AttackError, Contribution, Term};

/// Σ_steps min_c ‖Δθ − Σ_at Σ_i c_i ∇f(x_i)‖² / ‖Δθ‖² over x (variable 0).
///
/// c solves K c = t, with K the Gram matrix of the gradients and t their products with Δθ.
/// At the best c the gradient in x is that at fixed c: c has nothing to gain.
pub(super) struct Projected<'a> {
    pub(super) network: &'a Network,
    pub(super) steps: &'a [Step],
    pub(super) softening: Softening,
}

/// What candidates explain of one change.
struct Explained<'a> {
    tangents: Tangents<'a>,
    toward: Toward<'a>,
    /// K with its ridge.
    gram: Tensor,
    c: Vec<f64>,
    /// What is left of ‖Δθ‖².
    left: f64,
}

impl<'a> Explained<'a> {
    fn of(network: &'a Network, step: &'a Step, x: &Tensor) -> Result<Self, AttackError> {
        let at: Vec<&Params> = step.at.iter().collect();
        let tangents = Tangents::of(network, &at, x)?;
        let toward = tangents.toward(&step.change)?;
        let count = tangents.count();
        let mut gram = tangents.gram()?.to_f64_vec()?;
        let mean = (0..count).map(|i| gram[i * count + i]).sum::<f64>() / count as f64;
        // Candidates that are one, or have no gradient: any split of their weight is as good.
        let ridge = mean.max(f64::MIN_POSITIVE) * if x.dtype() == DType::F64 { 1e-8 } else { 1e-5 };
        (0..count).for_each(|i| gram[i * count + i] += ridge);
        let gram = Tensor::from_vec(gram, &[count, count])?;
        let t = Tensor::from_vec(toward.products().to_vec(), &[count, 1])?;
        let c = cholesky_solve(&gram, &t)?.to_f64_vec()?;
        // ‖Δθ‖² − 2 cᵀt + cᵀKc at K c = t.
        let left = step.size - c.iter().zip(toward.products()).map(|(c, t)| c * t).sum::<f64>();
        Ok(Self { tangents, toward, gram, c, left })
    }
}

impl Term for Projected<'_> {
    fn evaluate(&mut self, iteration: usize, at: &[Tensor]) -> Result<Contribution, AttackError> {
        let network = self.softening.network(self.network, iteration)?;
        let (mut value, mut of_x) = (0.0, None);
        for step in self.steps {
            let mut explained = Explained::of(&network, step, &at[0])?;
            value += explained.left / step.size;
            let gradient = explained.tangents.pull_back(&explained.c, &explained.toward)?.scale(1.0 / step.size)?;
            of_x = Some(added(of_x, gradient.reshape(at[0].shape())?)?);
        }
        let mut gradients = vec![None; at.len()];
        gradients[0] = of_x;
        Ok(Contribution { value, gradients })
    }
}

/// What the attacker knows of candidates, without the truth.
pub(super) struct Weighed {
    /// What is left of the changes, beside their size: mean over steps.
    pub(super) left: f64,
    /// The sum of a candidate's multipliers over steps and places, one for every output.
    pub(super) multipliers: Vec<Vec<f64>>,
    /// The part of the changes that would be left without a candidate, and is not with it.
    pub(super) needed: Vec<f64>,
}

/// Weighs candidates by what the changes would lack without them.
pub(super) fn weigh(network: &Network, steps: &[Step], x: &Tensor) -> Result<Weighed, AttackError> {
    let (records, outputs) = (x.rows(), network.output_shape().iter().product::<usize>());
    let mut weighed = Weighed { left: 0.0, multipliers: vec![vec![0.0; outputs]; records], needed: vec![0.0; records] };
    for step in steps {
        let Explained { gram, c, left, .. } = Explained::of(network, step, x)?;
        weighed.left += left / step.size / steps.len() as f64;
        let count = c.len();
        let identity: Vec<f64> = (0..count * count).map(|at| f64::from(u8::from(at / count == at % count))).collect();
        let inverse = cholesky_solve(&gram, &Tensor::from_vec(identity, &[count, count])?)?.to_f64_vec()?;
        for record in 0..records {
            // Its features at every place: leaving them out costs cᵀ (K⁻¹ over them)⁻¹ c.
            let own: Vec<usize> = (0..count).filter(|feature| feature / outputs % records == record).collect();
            for &feature in &own {
                weighed.multipliers[record][feature % outputs] += c[feature];
            }
            let block: Vec<f64> =
                own.iter().flat_map(|i| own.iter().map(move |j| (i, j))).map(|(i, j)| inverse[i * count + j]).collect();
            let weights: Vec<f64> = own.iter().map(|&feature| c[feature]).collect();
            let solved = cholesky_solve(
                &Tensor::from_vec(block, &[own.len(), own.len()])?,
                &Tensor::from_vec(weights.clone(), &[own.len(), 1])?,
            )?;
            let cost: f64 = weights.iter().zip(solved.to_f64_vec()?).map(|(c, s)| c * s).sum();
            weighed.needed[record] += cost / step.size / steps.len() as f64;
        }
    }
    Ok(weighed)
}
