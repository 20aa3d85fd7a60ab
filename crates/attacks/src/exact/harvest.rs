//! What came back: proven, taken out of the gradient, polished, reported.

use afterimage_nn::{DType, Loss, Params, Tensor};
use faer::Mat;

use super::certificate::{Rows, Witness};
use crate::dense::DenseLayer;
use crate::{AttackError, GradientSeen, Reconstruction, Stop, TracePoint};

/// Misfit of the whole gradient below which the candidates reproduce what was shared.
const REPRODUCED: f64 = 1e-2;

/// A recovered sample.
pub(super) struct Found {
    pub(super) sample: Vec<f64>,
    /// What the loss says of its outputs, ∂L/∂f; empty where the network could not be asked.
    pub(super) residues: Vec<f64>,
    /// How far its own gradient is from the one found for it; 1 where that is not known.
    pub(super) misfit: f64,
    /// Share of the layer's units whose states agree.
    pub(super) agreement: f64,
}

/// What a run has so far.
#[derive(Default)]
pub(super) struct Harvest {
    /// Samples whose own gradients are those observed.
    pub(super) proven: Vec<Found>,
    /// Samples of the last hunt for which that could not be shown.
    pub(super) open: Vec<Found>,
    pub(super) searches: usize,
    pub(super) trace: Vec<TracePoint>,
}

impl Harvest {
    /// Moves samples that the rest of the network proves from open to proven;
    /// `columns` are their columns of Δᵀ.
    pub(super) fn prove(
        &mut self,
        columns: &Mat<f64>,
        weight: &Mat<f64>,
        witness: &Witness<'_>,
        tolerance: f64,
    ) -> Result<(), AttackError> {
        let pulled = rows(&(columns.transpose() * weight));
        let samples: Rows = self.open.iter().map(|found| found.sample.clone()).collect();
        let fits = witness.fits(&samples, &pulled)?;
        let fitted = (std::mem::take(&mut self.open).into_iter().zip(fits)).map(|(found, fit)| Found {
            residues: fit.residues,
            misfit: fit.misfit,
            ..found
        });
        self.sort(fitted.collect(), tolerance);
        Ok(())
    }

    /// Puts samples where their misfits say they belong.
    pub(super) fn sort(&mut self, samples: Vec<Found>, tolerance: f64) {
        for found in samples {
            let list = if found.misfit <= tolerance { &mut self.proven } else { &mut self.open };
            list.push(found);
        }
    }

    /// The gradient that what is proven explains.
    pub(super) fn explained(&self, witness: &Witness<'_>) -> Result<Params, AttackError> {
        let samples: Rows = self.proven.iter().map(|proven| proven.sample.clone()).collect();
        let residues: Rows = self.proven.iter().map(|proven| proven.residues.clone()).collect();
        Ok(witness.gradient(&samples, &residues)?)
    }

    /// ‖g − explained‖ / ‖g‖ over all layers.
    pub(super) fn misfit(&self, witness: &Witness<'_>, gradient: &Params) -> Result<f64, AttackError> {
        let off = gradient.sub(&self.explained(witness)?)?;
        Ok((off.norm_squared()? / gradient.norm_squared()?.max(f64::MIN_POSITIVE)).sqrt())
    }

    /// Moves samples and residues together to where they explain the gradient of
    /// all layers best (L-BFGS).
    pub(super) fn polish(&mut self, steps: usize, witness: &Witness<'_>, gradient: &Params) -> Result<(), AttackError> {
        let samples: Rows = self.proven.iter().map(|found| found.sample.clone()).collect();
        let residues: Rows = self.proven.iter().map(|found| found.residues.clone()).collect();
        let polished = witness.polished(&samples, &residues, gradient, steps)?;
        for (found, (sample, residues)) in self.proven.iter_mut().zip(polished) {
            (found.sample, found.residues) = (sample, residues);
        }
        Ok(())
    }

    /// What the attacker knows in the end.
    pub(super) fn report(
        self,
        seen: &GradientSeen,
        layer: &DenseLayer,
        witness: &Witness<'_>,
        gradient: &Params,
        gap: f64,
        stop: Stop,
    ) -> Result<Reconstruction, AttackError> {
        let misfit = self.misfit(witness, gradient)?;
        let (proven, open) = (self.proven.len(), self.open.len());
        let all = || self.proven.iter().chain(&self.open);
        let samples: Rows = all().map(|found| found.sample.clone()).collect();
        // Nothing may have come back: that is a result too, and the twin says what it means.
        let tensor = match samples.first().filter(|_| !layer.reads_input) {
            Some(inner) => Tensor::from_f64(&samples.concat(), &[samples.len(), inner.len()], DType::F64)?,
            // Nothing of an inner layer is an empty set of its inputs.
            None if !layer.reads_input => Tensor::from_f64(&[], &[0, inputs(witness, layer)?], DType::F64)?,
            None => witness.batch(&samples)?,
        };
        let whole = proven > 0 && open == 0 && misfit < REPRODUCED;
        let mut found = Reconstruction::finished(tensor.to_dtype(seen.gradient.dtype())?, 0.0, false);
        found.layer = (!layer.reads_input).then(|| layer.name.clone());
        found.certified = (0..proven + open).map(|index| index < proven && whole).collect();
        found.confidence = all().map(|found| found.agreement / (1.0 + found.misfit)).collect();
        found.labels = all().map(|found| label(seen, &found.residues)).collect();
        found.iterations = self.searches;
        found.trace = self.trace;
        found.stop = stop;
        found.notes.push(match layer.reads_input {
            _ if samples.is_empty() => {
                "no choice of directions of the gradient is sparse enough to be a batch: noise, \
                                        or units that are on and off together (was a mean subtracted?)"
                    .into()
            }
            true => format!(
                "{proven} samples are proven by recomputing their gradients, {open} are not; together the proven ones \
                 explain the gradient up to {misfit:.1e} (gap of the singular values {gap:.1e})"
            ),
            false => format!(
                "layer `{}` does not read the input: these are {open} inputs of that layer, not samples",
                layer.name
            ),
        });
        if let Some(batch) = seen.batch_size.filter(|batch| !samples.is_empty() && *batch > proven + open) {
            found.notes.push(format!(
                "the batch has {batch} samples, and only {} directions: some are duplicates, or were off in every unit",
                proven + open
            ));
        }
        Ok(found)
    }
}

/// The class that the residues of a loss over classes point to.
fn label(seen: &GradientSeen, residues: &[f64]) -> Option<usize> {
    match seen.model.loss {
        // r = p − e_y: negative at the label alone.
        Some(Loss::CrossEntropy) => (0..residues.len()).min_by(|&a, &b| residues[a].total_cmp(&residues[b])),
        Some(Loss::Logistic) if residues.len() == 1 => Some(usize::from(residues[0] < 0.0)),
        _ => None,
    }
}

/// Number of inputs of a layer.
fn inputs(witness: &Witness<'_>, layer: &DenseLayer) -> Result<usize, AttackError> {
    Ok(witness.theta().get(&format!("{}.weight", layer.name))?.row_len())
}

/// The rows of a matrix.
pub(super) fn rows(matrix: &Mat<f64>) -> Rows {
    (0..matrix.nrows()).map(|row| matrix.row(row).iter().copied().collect()).collect()
}
