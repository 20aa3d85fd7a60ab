//! The published loss: multipliers move with the candidates.

use afterimage_nn::{Network, Params, Pass, Seed, Tensor, Want};

use super::softening::Softening;
use super::steps::Step;
use crate::{AttackError, Contribution, Term};

/// Σ_steps w ‖Δθ − share Σ_at Σ_i α_i ∇f(x_i)‖² over x (variable 0) and α (variable 1), whose rows are
/// those of all candidates at the first place, then at the next.
pub(super) struct Matching<'a> {
    pub(super) network: &'a Network,
    pub(super) steps: &'a [Step],
    pub(super) softening: Softening,
    pub(super) share: f64,
    /// Whether every step counts beside the size of its change.
    pub(super) relative: bool,
}

impl Matching<'_> {
    /// What a step counts.
    pub(super) fn weight(&self, step: &Step) -> f64 {
        if self.relative { 1.0 / step.size } else { 1.0 }
    }
}

impl Term for Matching<'_> {
    fn evaluate(&mut self, iteration: usize, at: &[Tensor]) -> Result<Contribution, AttackError> {
        let (x, alpha) = (&at[0], &at[1]);
        let network = self.softening.network(self.network, iteration)?;
        let mut places = (0..).map(|place| place * x.rows()..(place + 1) * x.rows());
        let (mut value, mut of_x, mut of_alpha) = (0.0, None, Vec::new());
        for step in self.steps {
            let weight = self.weight(step);
            let mut passes = Vec::new();
            for (theta, rows) in step.at.iter().zip(&mut places) {
                let pass = network.pass(theta, x)?;
                let c = coefficients(&pass, &alpha.slice_rows(rows)?, self.share)?;
                passes.push((pass, c));
            }
            let (squares, direction) = left_over(&mut passes, &step.change, weight)?;
            value += weight * squares;
            for (pass, _) in &passes {
                let along = pass.along(&direction)?;
                of_alpha.push(along.outputs.reshape(&[x.rows(), alpha.row_len()])?.scale(self.share)?);
                of_x = Some(added(of_x, along.inputs)?);
            }
        }
        let of_alpha = Tensor::concat_rows(&of_alpha.iter().collect::<Vec<_>>())?;
        Ok(Contribution { value, gradients: vec![of_x, Some(of_alpha)] })
    }
}

/// share α, in the shape of outputs.
pub(super) fn coefficients(pass: &Pass<'_>, alpha: &Tensor, share: f64) -> Result<Tensor, AttackError> {
    Ok(alpha.reshape(pass.outputs().shape())?.scale(share)?)
}

/// One more of a sum.
pub(super) fn added(sum: Option<Tensor>, more: Tensor) -> Result<Tensor, AttackError> {
    match sum {
        None => Ok(more),
        Some(sum) => Ok(sum.combine(1.0, &more, 1.0)?),
    }
}

/// ‖G − Δθ‖² and 2w (G − Δθ), where G is the sum over passes; every pass has its seed set.
fn left_over(passes: &mut [(Pass<'_>, Tensor)], change: &Params, weight: f64) -> Result<(f64, Params), AttackError> {
    let mut target = change.clone();
    let Some(((last, c), others)) = passes.split_last_mut() else { return Ok((0.0, target)) };
    for (pass, c) in others {
        if let Some(sum) = pass.backward(Seed::Fixed(c.clone()), Want::Weights)?.weights {
            target = target.sub(&sum)?;
        }
    }
    let scales = vec![2.0 * weight; target.values().len()];
    let residual = last.residual(Seed::Fixed(c.clone()), &target, &scales)?;
    Ok((residual.squares.iter().sum(), residual.direction))
}
