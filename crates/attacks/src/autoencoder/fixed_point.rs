//! Beyond the paper: training samples are points with f(x) = x, and much of x is known.
//!
//! The lost pixels solve F(x) = f(x) − x = 0 with the others held at what is seen: as many equations as a sample has
//! pixels, for fewer unknowns. Levenberg–Marquardt, every sample with a damping of its own,
//! (JᵀJ + λ I) s = −Jᵀ F on the lost pixels, solved by conjugate gradients with products of J and Jᵀ alone.
//! Whether a training sample attracts iterations of f, on which ADMM and plain iteration depend, does not matter.
//!
//! What is seen through noise or a blur is not held but weighed against the equations. What is noisy loses nearly all of
//! its weight once it gains nothing any more: the fixed point nearby is the sample without the noise.

use afterimage_nn::{DType, Pass, Seed, Tensor, Want};

use super::damage::Operator;
use super::search::{Part, Way, mean, mean_squares, put_rows};
use crate::conjugate::Conjugate;
use crate::{AttackError, Model};

/// A search for fixed points.
pub(super) struct FixedPoint<'a> {
    pub(super) model: &'a Model,
    pub(super) y: &'a Tensor,
    /// What of the samples is seen.
    pub(super) seen: &'a Operator,
    /// Most steps of conjugate gradients for one of Levenberg–Marquardt.
    pub(super) inner: usize,
    pub(super) x: Tensor,
    /// How much an observation weighs beside an equation, each sample's; none holds a pixel at what is seen of it.
    trust: Option<Vec<f64>>,
    /// What is left of that in the end.
    least: f64,
    /// λ, each sample's.
    damping: Vec<f64>,
    /// Mean squares of F, each sample's.
    costs: Vec<f64>,
    /// Passes in a row that gained next to nothing, each sample's.
    idle: Vec<f64>,
}

/// How much an observation weighs beside an equation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trust {
    pub(super) at_first: f64,
    /// Once that gains nothing any more.
    pub(super) in_the_end: f64,
}

/// The damping of a first step, and the least: ten steps that fail raise it to where one must help.
const DAMPED: f64 = 1e-3;
const LEAST_DAMPED: f64 = 1e-6;
/// A damping beyond which no step is left to try.
const STUCK: f64 = 1e9;
/// A pass that lowers the cost by less than this part of it gains next to nothing; after so many in a row a sample is
/// given up: it is none that the autoencoder keeps.
const GAIN: f64 = 0.02;
const IDLE: f64 = 10.0;
/// A cost below which a sample is done.
const DONE: f64 = 1e-16;
/// Candidates stay within this: what a network does beyond means nothing.
const FARTHEST: f64 = 10.0;

impl<'a> FixedPoint<'a> {
    /// Samples at their start.
    pub(super) fn start(
        model: &'a Model,
        y: &'a Tensor,
        seen: &'a Operator,
        start: Tensor,
        inner: usize,
        trust: Option<Trust>,
    ) -> Result<Self, AttackError> {
        let x = start.map(|x| if x.is_finite() { x.clamp(-FARTHEST, FARTHEST) } else { 0.0 })?;
        let rows = x.rows();
        let (damping, costs, idle) = (vec![DAMPED; rows], vec![f64::INFINITY; rows], vec![0.0; rows]);
        let (trust, least) = match trust {
            None => (None, 0.0),
            Some(Trust { at_first, in_the_end }) => (Some(vec![at_first; rows]), in_the_end),
        };
        Ok(Self { model, y, seen, inner, x, trust, least, damping, costs, idle })
    }

    fn improves(&self, row: usize) -> bool {
        self.costs[row] > DONE && self.damping[row] < STUCK && self.idle[row] < IDLE
    }

    /// The samples that can still be improved; those that cannot with all that is seen go on with next to nothing of it.
    fn open(&mut self) -> Vec<usize> {
        for row in 0..self.costs.len() {
            let ended = !self.improves(row);
            let lets_go = self.trust.as_mut().and_then(|trust| trust.get_mut(row)).filter(|trust| **trust > self.least);
            if let Some(trust) = lets_go.filter(|_| ended) {
                *trust = self.least;
                (self.costs[row], self.damping[row], self.idle[row]) = (f64::INFINITY, DAMPED, 0.0);
            }
        }
        (0..self.costs.len()).filter(|&row| self.improves(row)).collect()
    }
}

impl Way for FixedPoint<'_> {
    /// One step of Levenberg–Marquardt; a sample keeps its own only if that helped.
    fn pass(&mut self) -> Result<Option<f64>, AttackError> {
        let rows = self.open();
        if rows.is_empty() {
            return Ok(None);
        }
        let (y, seen) = (self.y.select_rows(&rows)?, self.seen.of(&rows)?);
        let trust = self.trust.as_ref().map(|trust| rows.iter().map(|&row| trust[row]).collect());
        let problem = Equations { model: self.model, y, seen, trust };
        let x = self.x.select_rows(&rows)?;
        let damping: Vec<f64> = rows.iter().map(|&row| self.damping[row]).collect();
        let mut pass = self.model.network.pass(&self.model.theta, &x)?;
        let (before, slope) = problem.cost_and_slope(&mut pass, &x)?;
        let step = problem.step(&mut pass, &slope, &damping, self.inner)?;
        let trial = x.combine(1.0, &step, 1.0)?.clamp(-FARTHEST, FARTHEST)?;
        let after = problem.costs(&trial)?;
        let better: Vec<usize> = (0..rows.len()).filter(|&place| after[place] < before[place]).collect();
        for (place, &row) in rows.iter().enumerate() {
            let gained = after[place] < (1.0 - GAIN) * before[place];
            self.idle[row] = if gained { 0.0 } else { self.idle[row] + 1.0 };
            (self.costs[row], self.damping[row]) = match after[place] < before[place] {
                true => (after[place], (self.damping[row] / 5.0).max(LEAST_DAMPED)),
                false => (before[place], self.damping[row] * 5.0),
            };
        }
        let places: Vec<usize> = better.iter().map(|&place| rows[place]).collect();
        if !better.is_empty() {
            put_rows(&mut self.x, &places, &trial.select_rows(&better)?)?;
        }
        Ok(Some(mean(&self.costs)))
    }

    fn state(&mut self) -> Vec<(&'static str, Part<'_>)> {
        let Self { x, damping, costs, idle, trust, .. } = self;
        let mut state = vec![
            ("x", Part::Tensor(x)),
            ("damping", Part::Each(damping)),
            ("costs", Part::Each(costs)),
            ("idle", Part::Each(idle)),
        ];
        state.extend(trust.as_mut().map(|trust| ("trust", Part::Each(trust))));
        state
    }

    fn samples(&self) -> (&Tensor, Option<&Tensor>) {
        (&self.x, None)
    }
}

/// F = 0 of some samples.
struct Equations<'a> {
    model: &'a Model,
    y: Tensor,
    seen: Operator,
    trust: Option<Vec<f64>>,
}

impl Equations<'_> {
    /// Mean squares of F, and of what observations are off by, at x with outputs f.
    fn costs_at(&self, x: &Tensor, outputs: &Tensor) -> Result<(Vec<f64>, Tensor), AttackError> {
        let residual = outputs.reshape(x.shape())?.combine(1.0, x, -1.0)?;
        let (residuals, off) = (mean_squares(&residual)?, mean_squares(&self.seen.off(x, &self.y)?)?);
        let costs = match &self.trust {
            None => residuals,
            Some(trust) => residuals.iter().zip(off).zip(trust).map(|((r, o), trust)| r + trust * o).collect(),
        };
        Ok((costs, residual))
    }

    fn costs(&self, x: &Tensor) -> Result<Vec<f64>, AttackError> {
        Ok(self.costs_at(x, &self.model.network.forward(&self.model.theta, x)?)?.0)
    }

    /// Jᵀ w on what may move, J = ∂f/∂x − I.
    fn pulled(&self, pass: &mut Pass<'_>, w: &Tensor) -> Result<Tensor, AttackError> {
        let c = w.reshape(pass.outputs().shape())?;
        let inputs = pass.backward(Seed::Fixed(c), Want::Inputs)?.inputs;
        let inputs = inputs.map_or_else(|| w.zeros_like(), Ok)?;
        let pulled = inputs.reshape(w.shape())?.combine(1.0, w, -1.0)?;
        match (&self.seen, &self.trust) {
            // Zero where a pixel is held.
            (Operator::Kept(kept), None) => Ok(pulled.combine(1.0, &pulled.multiply(kept)?, -1.0)?),
            _ => Ok(pulled),
        }
    }

    /// Half the slope of the cost, times the number of pixels.
    fn cost_and_slope(&self, pass: &mut Pass<'_>, x: &Tensor) -> Result<(Vec<f64>, Tensor), AttackError> {
        let (costs, residual) = self.costs_at(x, &pass.outputs().clone())?;
        let slope = self.pulled(pass, &residual)?;
        Ok((costs, self.weighed(slope, || self.seen.off(x, &self.y))?))
    }

    /// With Hᵀ of what is seen, by its weight; if it is held, without.
    fn weighed(
        &self,
        equations: Tensor,
        seen: impl FnOnce() -> Result<Tensor, AttackError>,
    ) -> Result<Tensor, AttackError> {
        let Some(trust) = &self.trust else { return Ok(equations) };
        Ok(equations.add_rows(trust, &self.seen.transposed(&seen()?)?)?)
    }

    /// (JᵀJ + trust HᵀH + λ I) s = −slope, every sample on its own.
    fn step(&self, pass: &mut Pass<'_>, slope: &Tensor, damping: &[f64], most: usize) -> Result<Tensor, AttackError> {
        let solve = Conjugate { steps: most, tolerance: 1e-4 };
        // The sums of the search in double precision, products with J in that of the network.
        let dtype = slope.dtype();
        let step = solve.solve(&slope.scale(-1.0)?.to_dtype(DType::F64)?, |direction| {
            let along = direction.to_dtype(dtype)?;
            let pushed = pass.outputs_moved(&along)?.reshape(along.shape())?.combine(1.0, &along, -1.0)?;
            let curved = self.weighed(self.pulled(pass, &pushed)?, || self.seen.apply(&along))?;
            Ok(curved.to_dtype(DType::F64)?.add_rows(damping, direction)?)
        })?;
        Ok(step.to_dtype(dtype)?)
    }
}
