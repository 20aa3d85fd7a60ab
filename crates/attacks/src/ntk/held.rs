//! Where candidates may move, by what is known of the columns of the first layer's change.
//!
//! In coordinates that change is D = A C, with a column of A and a row of C for each record.
//! Columns of A are a_j = D p_j, so C P = 1: who knows the column of record j knows that the
//! coordinates of every other record satisfy ⟨c, p_j⟩ = 0. Each column found takes a dimension
//! from the search for the others, and from the errors of those found: where all columns are
//! known, nothing is left to search.

use std::collections::BTreeMap;

use afterimage_nn::linalg::{least_squares, qr};
use afterimage_nn::{DType, Device, Tensor};

use super::space::ChangeSpace;
use crate::{AttackError, Evaluation, Problem};

/// A column of the change, and the candidate that led to it.
pub(super) struct Known {
    /// p, of length 1.
    pub(super) dual: Vec<f64>,
    /// c.
    pub(super) candidate: Vec<f64>,
}

/// c = base + v · free, and for the records of known columns, which are the first,
/// + t · own: what these say nothing of.
pub(super) struct Held {
    /// One row a candidate, all alike.
    base: Tensor,
    /// Directions that every candidate may move in, orthonormal.
    free: Tensor,
    /// For each known column the direction in which its own record alone may move.
    own: Vec<Vec<f64>>,
}

impl Held {
    /// For so many candidates, the known ones first.
    pub(super) fn of(
        space: &ChangeSpace,
        known: &[Known],
        candidates: usize,
        dtype: DType,
        device: Device,
    ) -> Result<Self, AttackError> {
        Self::over(space.rank, space.fixed, known, candidates, dtype, device)
    }

    /// The same for so many coordinates, of which the last may be fixed.
    pub(super) fn over(
        rank: usize,
        fixed: Option<f64>,
        known: &[Known],
        candidates: usize,
        dtype: DType,
        device: Device,
    ) -> Result<Self, AttackError> {
        let unit = |place: usize| (0..rank).map(|at| f64::from(u8::from(at == place))).collect::<Vec<f64>>();
        // G: what ⟨c, ·⟩ is known of.
        let last = fixed.map(|_| unit(rank - 1));
        let told: Vec<Vec<f64>> = last.into_iter().chain(known.iter().map(|known| known.dual.clone())).collect();
        // Q of (G, 1) begins with a basis of G's columns; the others are orthogonal to it.
        let rows: Vec<f64> = told.iter().cloned().chain((0..rank).map(unit)).flatten().collect();
        let (q, _) = qr(&Tensor::from_vec(rows, &[told.len() + rank, rank])?.transpose()?)?;
        let free = q.transpose()?.slice_rows(told.len().min(rank)..rank)?;
        let duals = match told.is_empty() {
            true => Vec::new(),
            false => {
                let g = Tensor::from_vec(told.concat(), &[told.len(), rank])?.transpose()?;
                let identity = Tensor::from_vec((0..rank).flat_map(unit).collect(), &[rank, rank])?;
                least_squares(&g, &identity)?.to_f64_vec()?
            }
        };
        let mut duals = duals.chunks_exact(rank);
        let base: Vec<f64> = match fixed {
            Some(fixed) => duals.next().unwrap_or(&[]).iter().map(|dual| fixed * dual).collect(),
            None => vec![0.0; rank],
        };
        let own = duals.map(|dual| {
            let length = dual.iter().map(|d| d * d).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
            dual.iter().map(|d| d / length).collect()
        });
        let own = own.collect();
        let base = Tensor::from_f64(&base.repeat(candidates), &[candidates, rank], dtype)?.to_device(device)?;
        Ok(Self { base, free: free.to_dtype(dtype)?.to_device(device)?, own })
    }

    /// Dimensions that every candidate may move in.
    pub(super) fn dimensions(&self) -> usize {
        self.free.rows()
    }

    /// Where candidates are before they move.
    pub(super) fn base(&self) -> Tensor {
        self.base.clone()
    }

    /// Where a search starts: the known records from their candidates, the others from `noise`.
    pub(super) fn start(&self, known: &[Known], noise: &Tensor) -> Result<Vec<Tensor>, AttackError> {
        if known.is_empty() {
            return Ok(vec![noise.clone()]);
        }
        let (dtype, device) = (noise.dtype(), noise.device());
        let flat: Vec<f64> = known.iter().flat_map(|known| known.candidate.iter().copied()).collect();
        let from = Tensor::from_f64(&flat, &[known.len(), self.free.row_len()], dtype)?.to_device(device)?;
        let off = from.combine(1.0, &self.base.slice_rows(0..known.len())?, -1.0)?;
        let free = off.matmul_transposed(&self.free)?;
        let own = Tensor::from_f64(&self.along(&off)?, &[known.len(), 1], dtype)?.to_device(device)?;
        Ok(vec![Tensor::concat_rows(&[&free, &noise.slice_rows(known.len()..noise.rows())?])?, own])
    }

    /// The variables of a search with candidates for coordinates: v and t where columns are
    /// known, else v and something else in turns.
    pub(super) fn coordinates(&self, at: &[Tensor]) -> Result<Vec<Tensor>, AttackError> {
        let moved = |v: &Tensor| -> Result<Tensor, AttackError> {
            let base = self.base.slice_rows(0..v.rows())?;
            Ok(base.combine(1.0, &v.matmul(&self.free)?, 1.0)?)
        };
        if self.own.is_empty() {
            let each = at.iter().enumerate();
            return each.map(|(place, one)| if place % 2 == 0 { moved(one) } else { Ok(one.clone()) }).collect();
        }
        let all = moved(&at[0])?;
        let far = at[1].to_f64_vec()?;
        let steps: Vec<f64> = self.own.iter().zip(far).flat_map(|(own, t)| own.iter().map(move |d| t * d)).collect();
        let steps = Tensor::from_f64(&steps, &[self.own.len(), all.row_len()], all.dtype())?.to_device(all.device())?;
        let first = all.slice_rows(0..steps.rows())?.combine(1.0, &steps, 1.0)?;
        Ok(vec![Tensor::concat_rows(&[&first, &all.slice_rows(steps.rows()..all.rows())?])?])
    }

    /// Gradients in the coordinates as gradients in the variables.
    fn pulled_back(&self, gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>, AttackError> {
        let free = |gradient: &Tensor| gradient.matmul_transposed(&self.free);
        if self.own.is_empty() {
            let each = gradients.into_iter().enumerate().map(|(place, gradient)| match gradient {
                Some(gradient) if place % 2 == 0 => Ok(Some(free(&gradient)?)),
                other => Ok(other),
            });
            return each.collect();
        }
        let Some(gradient) = gradients.into_iter().next().flatten() else { return Ok(vec![None, None]) };
        let own = self.along(&gradient.slice_rows(0..self.own.len())?)?;
        let own = Tensor::from_f64(&own, &[own.len(), 1], gradient.dtype())?.to_device(gradient.device())?;
        Ok(vec![Some(free(&gradient)?), Some(own)])
    }

    /// ⟨row, own⟩ of each of the first rows.
    fn along(&self, rows: &Tensor) -> Result<Vec<f64>, AttackError> {
        let values = rows.to_f64_vec()?;
        let pairs = values.chunks_exact(rows.row_len()).zip(&self.own);
        Ok(pairs.map(|(row, own)| row.iter().zip(own).map(|(x, d)| x * d).sum()).collect())
    }
}

/// A problem over coordinates, as one over what may move of them; or as it is.
pub(super) struct Within<'a, P> {
    pub(super) problem: P,
    pub(super) held: Option<&'a Held>,
}

impl<P: Problem> Problem for Within<'_, P> {
    fn evaluate(&mut self, iteration: usize, at: &[Tensor]) -> Result<Evaluation, AttackError> {
        let Some(held) = self.held else { return self.problem.evaluate(iteration, at) };
        let found = self.problem.evaluate(iteration, &held.coordinates(at)?)?;
        Ok(Evaluation { gradients: held.pulled_back(found.gradients)?, ..found })
    }

    fn after_step(&mut self, iteration: usize, values: &mut [Tensor]) -> Result<(), AttackError> {
        match self.held {
            Some(held) => self.problem.after_step(iteration, &mut held.coordinates(values)?),
            None => self.problem.after_step(iteration, values),
        }
    }

    fn memory(&self) -> Result<Vec<(String, Tensor)>, AttackError> {
        self.problem.memory()
    }

    fn remember(&mut self, memory: BTreeMap<String, Tensor>) -> Result<(), AttackError> {
        self.problem.remember(memory)
    }
}
