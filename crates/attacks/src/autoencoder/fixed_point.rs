//! Beyond the paper: training samples are points with f(x) = x, and much of x is known.
//!
//! The lost pixels solve F(x) = f(x) − x = 0 with the others held at what is seen: as many equations as a sample has
//! pixels, for fewer unknowns. Levenberg–Marquardt, every sample with a damping of its own,
//! (JᵀJ + λ I) s = −Jᵀ F on the lost pixels, solved by conjugate gradients with products of J and Jᵀ alone.
//! Whether a training sample attracts iterations of f, on which ADMM and plain iteration depend, does not matter.

use afterimage_nn::{Pass, Seed, Tensor, Want};

use crate::{AttackError, Model};

/// How hard it is tried.
#[derive(Debug, Clone, Copy)]
pub(super) struct FixedPoint {
    /// Most steps of conjugate gradients for one of Levenberg–Marquardt.
    pub(super) inner: usize,
    /// How much an observed pixel weighs beside an equation; none holds it where it is.
    pub(super) trust: Option<f64>,
}

/// Where samples are, and how each is damped.
#[derive(Debug, Clone)]
pub(super) struct Solving {
    pub(super) x: Tensor,
    pub(super) damping: Vec<f64>,
    /// Mean squares of F, each sample's.
    pub(super) costs: Vec<f64>,
}

/// A damping beyond which no step is left to try.
const STUCK: f64 = 1e9;
/// A cost below which a sample is done.
const DONE: f64 = 1e-16;
/// Candidates stay within this: what a network does beyond means nothing.
const FARTHEST: f64 = 10.0;

impl Solving {
    /// Samples at their start.
    pub(super) fn start(x: Tensor) -> Self {
        let rows = x.rows();
        Self { x, damping: vec![1e-3; rows], costs: vec![f64::INFINITY; rows] }
    }

    /// The samples that can still be improved.
    pub(super) fn open(&self) -> Vec<usize> {
        let open = |&row: &usize| self.costs[row] > DONE && self.damping[row] < STUCK;
        (0..self.costs.len()).filter(open).collect()
    }
}

impl FixedPoint {
    /// One step of every sample that can still be improved.
    pub(super) fn step(self, model: &Model, y: &Tensor, kept: &Tensor, state: &mut Solving) -> Result<(), AttackError> {
        let rows = state.open();
        let pick = |all: &Tensor| all.select_rows(&rows);
        let problem = Equations { model, y: pick(y)?, kept: pick(kept)?, trust: self.trust };
        let x = pick(&state.x)?;
        let damping: Vec<f64> = rows.iter().map(|&row| state.damping[row]).collect();
        let mut pass = model.network.pass(&model.theta, &x)?;
        let (before, slope) = problem.cost_and_slope(&mut pass, &x)?;
        let step = problem.solve(&mut pass, &slope, &damping, self.inner)?;
        let trial: Vec<f64> =
            x.to_f64_vec()?.iter().zip(&step).map(|(x, s)| (x + s).clamp(-FARTHEST, FARTHEST)).collect();
        let trial = problem.like(&trial)?;
        let after = problem.costs(&trial)?;
        // A sample keeps its step only if that helped.
        let length = x.row_len();
        let (mut all, trial) = (state.x.to_f64_vec()?, trial.to_f64_vec()?);
        for (place, &row) in rows.iter().enumerate() {
            if after[place] < before[place] {
                all[row * length..(row + 1) * length].copy_from_slice(&trial[place * length..(place + 1) * length]);
                state.costs[row] = after[place];
                state.damping[row] = (state.damping[row] / 5.0).max(1e-12);
            } else {
                state.costs[row] = before[place];
                state.damping[row] *= 5.0;
            }
        }
        state.x = Tensor::from_f64(&all, state.x.shape(), state.x.dtype())?.to_device(state.x.device())?;
        Ok(())
    }
}

/// F = 0 of some samples.
struct Equations<'a> {
    model: &'a Model,
    y: Tensor,
    kept: Tensor,
    trust: Option<f64>,
}

impl Equations<'_> {
    fn like(&self, values: &[f64]) -> Result<Tensor, AttackError> {
        Ok(Tensor::from_f64(values, self.y.shape(), self.y.dtype())?.to_device(self.y.device())?)
    }

    /// Mean squares of F, and of what observed pixels are off by, at x with outputs f.
    fn costs_at(&self, x: &Tensor, outputs: &Tensor) -> Result<(Vec<f64>, Tensor), AttackError> {
        let residual = outputs.reshape(x.shape())?.combine(1.0, x, -1.0)?;
        let off = x.combine(1.0, &self.y, -1.0)?.multiply(&self.kept)?;
        let squares = |values: &Tensor| -> Result<Vec<f64>, AttackError> {
            let values = values.to_f64_vec()?;
            Ok(values.chunks(x.row_len().max(1)).map(|row| row.iter().map(|v| v * v).sum::<f64>()).collect())
        };
        let (residuals, off) = (squares(&residual)?, squares(&off)?);
        let each = 1.0 / x.row_len().max(1) as f64;
        let costs = residuals.iter().zip(off).map(|(r, o)| each * (r + self.trust.unwrap_or(0.0) * o));
        Ok((costs.collect(), residual))
    }

    fn costs(&self, x: &Tensor) -> Result<Vec<f64>, AttackError> {
        Ok(self.costs_at(x, &self.model.network.forward(&self.model.theta, x)?)?.0)
    }

    /// Jᵀ w on what may move, J = ∂f/∂x − I.
    fn pulled(&self, pass: &mut Pass<'_>, w: &Tensor) -> Result<Vec<f64>, AttackError> {
        let c = w.reshape(pass.outputs().shape())?;
        let inputs = pass.backward(Seed::Fixed(c), Want::Inputs)?.inputs;
        let inputs = inputs.map_or_else(|| w.zeros_like(), Ok)?;
        self.free(inputs.reshape(w.shape())?.combine(1.0, w, -1.0)?.to_f64_vec()?)
    }

    /// Zero where a pixel is held.
    fn free(&self, mut values: Vec<f64>) -> Result<Vec<f64>, AttackError> {
        if self.trust.is_none() {
            for (value, kept) in values.iter_mut().zip(self.kept.to_f64_vec()?) {
                *value *= 1.0 - kept;
            }
        }
        Ok(values)
    }

    /// Half the slope of the cost, times the number of pixels.
    fn cost_and_slope(&self, pass: &mut Pass<'_>, x: &Tensor) -> Result<(Vec<f64>, Vec<f64>), AttackError> {
        let (costs, residual) = self.costs_at(x, &pass.outputs().clone())?;
        let mut slope = self.pulled(pass, &residual)?;
        if let Some(trust) = self.trust {
            let off = x.combine(1.0, &self.y, -1.0)?.multiply(&self.kept)?.to_f64_vec()?;
            slope.iter_mut().zip(off).for_each(|(slope, off)| *slope += trust * off);
        }
        Ok((costs, slope))
    }

    /// (JᵀJ + trust Θ + λ I) s = −slope, by conjugate gradients, every sample on its own.
    fn solve(&self, pass: &mut Pass<'_>, slope: &[f64], damping: &[f64], most: usize) -> Result<Vec<f64>, AttackError> {
        let length = self.y.row_len().max(1);
        let dots = |a: &[f64], b: &[f64]| -> Vec<f64> {
            let dot = |(a, b): (&[f64], &[f64])| a.iter().zip(b).map(|(a, b)| a * b).sum();
            a.chunks(length).zip(b.chunks(length)).map(dot).collect()
        };
        let kept = self.kept.to_f64_vec()?;
        let mut step = vec![0.0; slope.len()];
        let mut rest: Vec<f64> = slope.iter().map(|slope| -slope).collect();
        let mut direction = rest.clone();
        let mut size = dots(&rest, &rest);
        let enough: Vec<f64> = size.iter().map(|size| 1e-12 * size).collect();
        for _ in 0..most {
            if size.iter().zip(&enough).all(|(size, enough)| size <= enough) {
                break;
            }
            let along = self.like(&direction)?;
            let pushed = pass.outputs_moved(&along)?.reshape(along.shape())?.combine(1.0, &along, -1.0)?;
            let mut curved = self.pulled(pass, &pushed)?;
            for (place, value) in curved.iter_mut().enumerate() {
                *value += (damping[place / length] + self.trust.unwrap_or(0.0) * kept[place]) * direction[place];
            }
            let bend = dots(&direction, &curved);
            let far: Vec<f64> = (size.iter().zip(&bend).zip(&enough))
                .map(|((size, bend), enough)| if *size > *enough && *bend > 0.0 { size / bend } else { 0.0 })
                .collect();
            for place in 0..step.len() {
                step[place] += far[place / length] * direction[place];
                rest[place] -= far[place / length] * curved[place];
            }
            let left = dots(&rest, &rest);
            for place in 0..direction.len() {
                let row = place / length;
                let again = if size[row] > 0.0 { left[row] / size[row] } else { 0.0 };
                direction[place] = rest[place] + again * direction[place];
            }
            size = left;
        }
        Ok(step)
    }
}
