//! What the attacker has in the end: samples as the network takes them, labels,
//! and how sure it can be of each.

use afterimage_nn::{DType, Device, Tensor};
use faer::Mat;

use super::TensorDecomposition;
use super::estimate::{Guess, dot, target};
use super::layers::{invert, invert_direction};
use super::moments::{Units, product};
use super::polish::Fit;
use super::query::Query;
use crate::{AttackError, GradientSeen, Reconstruction};

/// A fit, and what it is a fit of.
pub(super) struct Outcome<'a> {
    pub(super) settings: &'a TensorDecomposition,
    pub(super) seen: &'a GradientSeen,
    pub(super) query: &'a Query,
    /// The basis of the samples' span, and the units in it.
    pub(super) basis: &'a Mat<f64>,
    pub(super) units: &'a Units,
    pub(super) fit: &'a Fit,
    /// Whether the samples' signs are known.
    pub(super) oriented: bool,
    /// Whether their lengths are.
    pub(super) length_known: bool,
}

impl Outcome<'_> {
    /// The reconstruction with its notes.
    pub(super) fn reconstruction(&self) -> Result<Reconstruction, AttackError> {
        let signs: &[f64] = if self.oriented { &[1.0] } else { &[1.0, -1.0] };
        let (mut rows, mut residues, mut certified) = (Vec::new(), Vec::new(), Vec::new());
        let mut lost = 0;
        for guess in &self.fit.guesses {
            for sign in signs {
                let turned = Guess { p: guess.p.iter().map(|p| sign * p).collect(), residue: sign * guess.residue };
                match self.input(&turned.p) {
                    None => lost += 1,
                    Some(x) => {
                        rows.extend(x);
                        certified.push(self.certain(&turned));
                        residues.push(turned.residue);
                    }
                }
            }
        }
        let (count, dtype) = (residues.len(), self.seen.gradient.dtype());
        let samples = Tensor::from_f64(&rows, &self.seen.model.network.batch_shape(count), DType::F64)?;
        let targets = self.targets(&samples, &residues)?;
        let confidence = (1.0 - self.fit.misfit).clamp(0.0, 1.0) / signs.len() as f64;
        let mut found = Reconstruction::finished(samples.to_dtype(dtype)?, confidence, false);
        found.certified = certified;
        found.coefficients = Some(Tensor::from_f64(&residues, &[count], DType::F64)?);
        if let Some(targets) = targets {
            found.labels = Some(targets.iter().map(|y| usize::from(*y > 0.0)).collect());
            found.targets = Some(Tensor::from_f64(&targets, &[count], DType::F64)?);
        }
        found.notes = self.notes(lost);
        Ok(found)
    }

    /// The input that gives p.
    fn input(&self, p: &[f64]) -> Option<Vec<f64>> {
        let h: Vec<f64> = product(self.basis, p).iter().map(|h| h / self.query.spread).collect();
        // A fit of smooth units has the right length; else the known norm of the input gives it.
        let rough = !self.length_known || self.fit.misfit > self.settings.tolerance;
        let x = match self.query.below.is_empty() {
            true => Some(h),
            false if rough && self.settings.norm > 0.0 => invert_direction(&self.query.below, &h, self.settings.norm),
            false => invert(&self.query.below, &h),
        };
        x.filter(|x| x.iter().all(|x| x.is_finite()))
    }

    /// What the outputs should have been; `None` where the gradient does not say.
    fn targets(&self, samples: &Tensor, residues: &[f64]) -> Result<Option<Vec<f64>>, AttackError> {
        let (seen, found) = (self.seen, self.fit.guesses.len());
        // Duplicates share a residue between them, and of samples of unknown length it is unknown too.
        if seen.batch_size.is_some_and(|batch| batch > found) || !self.length_known || residues.is_empty() {
            return Ok(None);
        }
        let theta = seen.model.theta.to_dtype(DType::F64)?.to_device(Device::Cpu)?;
        let outputs = seen.model.network.forward(&theta, samples)?.to_f64_vec()?;
        let batch = seen.batch_size.unwrap_or(found);
        let each = outputs.iter().zip(residues);
        Ok(each.map(|(f, r)| target(seen.model.loss, seen.reduction, batch, *f, *r)).collect())
    }

    /// Whether what is left unexplained is little beside the sample's own part of the gradient.
    fn certain(&self, guess: &Guess) -> bool {
        let at = product(&self.units.z, &guess.p);
        let slope = |(z, b): (&f64, &f64)| self.query.sigma.triple(z + b)[1].powi(2);
        let slopes: f64 = at.iter().zip(&self.units.offset).map(slope).sum();
        let own = guess.residue.abs() * (slopes * dot(&guess.p, &guess.p)).sqrt();
        let left = self.fit.misfit * self.units.inner.norm_l2();
        // Without a length there are many samples that explain the gradient as well.
        let known = self.oriented && (self.length_known || self.settings.norm > 0.0 && self.query.below.is_empty());
        known && left <= self.settings.tolerance * own
    }

    fn notes(&self, lost: usize) -> Vec<String> {
        let (query, mut notes) = (self.query, Vec::new());
        let samples = self.fit.guesses.len();
        match self.seen.batch_size {
            None => notes.push(format!("the gradient was made of {samples} samples")),
            Some(batch) if batch > samples => notes.push(format!(
                "{batch} samples span {samples} dimensions only: some are duplicates or mixtures of others"
            )),
            _ => {}
        }
        if !self.length_known {
            notes.push(format!(
                "of {} units without offsets the gradient does not tell how long a sample is, nor its label: length 1 \
                 was taken (set `norm` if it is known)",
                query.sigma
            ));
        }
        if !self.oriented {
            notes.push(format!(
                "each sample is given with both signs: of {} units, without a large bias at the output, the gradient \
                 does not tell which",
                query.sigma
            ));
        }
        if (query.kurtosis - 3.0).abs() > 0.5 {
            notes.push(format!(
                "the hidden layer's weights are not normal (fourth moment {:.2}, normal ones have 3): the tensor's \
                 estimate is rough, and the polish has to do the work",
                query.kurtosis
            ));
        }
        if self.settings.polish > 0 && self.fit.misfit > self.settings.tolerance {
            notes.push(format!(
                "the samples leave {:.2} % of the gradient unexplained: noise, or some of them are wrong",
                100.0 * self.fit.misfit
            ));
        }
        if lost > 0 {
            notes.push(format!(
                "{lost} inputs of the last hidden layer could not be taken back through the layers below"
            ));
        }
        notes
    }
}
