//! Equations 6 and 7 in turn: x by ADMM for the mask there is, the mask for that x, until neither changes.

use afterimage_nn::Tensor;

use super::admm::{Admm, Split};
use super::damage::{Damaged, Operator};
use super::search::{Part, Way, mean, mean_squares, put_rows};
use crate::{AttackError, Model};

/// A search for samples and what is left of each.
pub(super) struct Alternating<'a> {
    pub(super) model: &'a Model,
    pub(super) admm: Admm,
    pub(super) damaged: Damaged,
    pub(super) y: &'a Tensor,
    /// Steps of ADMM for one estimate of Θ.
    pub(super) steps: usize,
    /// Mean squared change between passes that is taken for none, and passes in a row with none that are enough.
    pub(super) tolerance: f64,
    pub(super) settled: usize,
    pub(super) x: Tensor,
    pub(super) kept: Tensor,
    /// Passes in a row without a change, each sample's; below 0 before its first.
    pub(super) calm: Vec<f64>,
}

impl Alternating<'_> {
    /// The samples that still change.
    fn open(&self) -> Vec<usize> {
        (0..self.y.rows()).filter(|&row| self.calm[row] < self.settled as f64).collect()
    }

    /// Those that do not any more.
    pub(super) fn settled(&self) -> usize {
        self.y.rows() - self.open().len()
    }
}

impl Way for Alternating<'_> {
    fn pass(&mut self) -> Result<Option<f64>, AttackError> {
        let open = self.open();
        if open.is_empty() {
            return Ok(None);
        }
        let y = self.y.select_rows(&open)?;
        let mut split = Split::start(&y)?;
        let theta = Operator::Kept(self.kept.select_rows(&open)?);
        self.admm.run(self.model, &y, &theta, self.steps, &mut split)?;
        let kept = self.damaged.kept(&split.xi, &y)?;
        let changes = mean_squares(&split.xi.combine(1.0, &self.x.select_rows(&open)?, -1.0)?)?;
        for (&row, change) in open.iter().zip(&changes) {
            let same = self.calm[row] >= 0.0 && *change < self.tolerance;
            self.calm[row] = if same { self.calm[row] + 1.0 } else { 0.0 };
        }
        put_rows(&mut self.x, &open, &split.xi)?;
        put_rows(&mut self.kept, &open, &kept)?;
        Ok(Some(mean(&changes)))
    }

    fn state(&mut self) -> Vec<(&'static str, Part<'_>)> {
        let Self { x, kept, calm, .. } = self;
        vec![("x", Part::Tensor(x)), ("kept", Part::Tensor(kept)), ("calm", Part::Each(calm))]
    }

    fn samples(&self) -> (&Tensor, Option<&Tensor>) {
        (&self.x, Some(&self.kept))
    }
}
