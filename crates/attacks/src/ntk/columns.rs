//! Columns of the first layer's change, as candidates show them.

use afterimage_nn::linalg::least_squares;
use afterimage_nn::{DType, Device, Tensor};

use super::held::Known;
use super::space::ChangeSpace;
use super::zeros::Zeros;
use crate::exact::{Hunt, dot, normalised as unit, outside};
use crate::{AttackError, Descended};

/// A column with less than this outside of those known is one of them again, or a mixture: it would
/// leave a record no place.
const NEW: f64 = 1e-2;

/// What is known after some starts.
pub(super) struct Columns<'a> {
    zeros: &'a Zeros<'a>,
    space: &'a ChangeSpace,
    hunt: Hunt<'a>,
    /// D, the change of the first layer in coordinates.
    change: Tensor,
    known: Vec<Known>,
    /// An orthonormal basis of the columns.
    basis: Vec<Vec<f64>>,
    /// Whether searches are held to what is known, and so begin with a candidate for each column.
    holds: bool,
    /// Starts that were learnt from.
    read: usize,
}

impl<'a> Columns<'a> {
    /// Nothing yet.
    pub(super) fn of(zeros: &'a Zeros<'a>, space: &'a ChangeSpace, holds: bool) -> Result<Self, AttackError> {
        let change = space.first_layer(&zeros.change()?)?.to_dtype(DType::F64)?.to_device(Device::Cpu)?;
        let (known, basis) = (Vec::new(), Vec::new());
        Ok(Self { zeros, space, hunt: zeros.hunt(0.5)?, change, known, basis, holds, read: 0 })
    }

    /// What the next start is held to.
    pub(super) fn known(&self) -> &[Known] {
        if self.holds { &self.known } else { &[] }
    }

    /// All that candidates led to.
    pub(super) fn hunt(&self) -> &Hunt<'a> {
        &self.hunt
    }

    /// Whether a search would have nothing left to move.
    pub(super) fn complete(&self) -> bool {
        self.known.len() + usize::from(self.space.fixed.is_some()) >= self.space.rank
    }

    /// Learns from the starts that it has not yet seen: from the units that are off for their
    /// candidates at both ends. The first candidates of a start are those of columns known to it.
    pub(super) fn learn(&mut self, found: &[Descended]) -> Result<(), AttackError> {
        for start in &found[self.read.min(found.len())..] {
            // Multipliers that move stand between the candidates.
            let parts: Vec<&Tensor> = start.values.iter().step_by(2).collect();
            let basis = &self.space.span.basis;
            let candidates = Tensor::concat_rows(&parts)?.to_dtype(basis.dtype())?.to_device(basis.device())?;
            let rows = candidates.to_f64_vec()?;
            let rows: Vec<&[f64]> = rows.chunks_exact(candidates.row_len()).collect();
            let again = self.known().len();
            for (known, row) in self.known.iter_mut().zip(&rows).take(again) {
                known.candidate = row.to_vec();
            }
            let fresh: Vec<usize> = (again..rows.len()).collect();
            let records = self.space.span.records(&candidates.select_rows(&fresh)?)?;
            let columns = self.hunt.offer(self.zeros.off(&records)?);
            let (mut from, mut new) = (Vec::new(), Vec::new());
            for (row, column) in fresh.into_iter().zip(columns) {
                let Some(column) = column.and_then(unit) else { continue };
                let rest = outside(column.clone(), &self.basis);
                let length = dot(&rest, &rest).sqrt();
                if length > NEW {
                    self.basis.push(rest.iter().map(|x| x / length).collect());
                    new.push(column);
                    from.push(row);
                }
            }
            for (row, dual) in from.into_iter().zip(self.duals(&new)?) {
                self.known.push(Known { dual, candidate: rows[row].to_vec() });
            }
        }
        self.read = found.len();
        Ok(())
    }

    /// p with D p = a for each column, of length 1.
    fn duals(&self, columns: &[Vec<f64>]) -> Result<Vec<Vec<f64>>, AttackError> {
        if columns.is_empty() {
            return Ok(Vec::new());
        }
        let all = Tensor::from_vec(columns.concat(), &[columns.len(), self.change.rows()])?.transpose()?;
        let duals = least_squares(&self.change, &all)?.transpose()?.to_f64_vec()?;
        Ok(duals
            .chunks_exact(self.space.rank)
            .map(|dual| unit(dual.to_vec()).unwrap_or_else(|| dual.to_vec()))
            .collect())
    }
}
