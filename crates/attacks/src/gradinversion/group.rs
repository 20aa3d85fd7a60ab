//! Several starts that should agree: what is common to them is more likely to be true.

use afterimage_nn::{Device, Tensor};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::AttackError;
use crate::registration::{Registration, Size};

/// What starts are held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Consensus {
    /// Their mean, pixel by pixel.
    Lazy,
    /// The mean of all of them after each was registered to that mean.
    #[default]
    Registered,
}

/// The consensus of several starts, made anew from time to time.
pub(super) struct Group {
    weight: f64,
    consensus: Consensus,
    registration: Registration,
    /// Part of the run before starts are held to it, and between two renewals.
    from: f64,
    every: f64,
    iterations: usize,
    /// E, if there is one yet.
    pub(super) mean: Option<Tensor>,
}

impl Group {
    pub(super) fn new(weight: f64, consensus: Consensus, from: f64, every: f64, iterations: usize) -> Self {
        Self { weight, consensus, registration: Registration::default(), from, every, iterations, mean: None }
    }

    /// Renews the consensus where it is time to.
    pub(super) fn renew(&mut self, iteration: usize, starts: &[&Tensor]) -> Result<(), AttackError> {
        let begin = (self.from * self.iterations as f64) as usize;
        let every = ((self.every * self.iterations as f64) as usize).max(1);
        if iteration < begin || starts.len() < 2 {
            return Ok(());
        }
        if self.consensus == Consensus::Lazy {
            self.mean = Some(mean(starts)?);
        } else if self.mean.is_none() || (iteration - begin).is_multiple_of(every) {
            self.mean = Some(self.registered(starts)?);
        }
        Ok(())
    }

    /// The mean of images that were each brought onto the plain mean.
    fn registered(&self, starts: &[&Tensor]) -> Result<Tensor, AttackError> {
        let plain = mean(starts)?;
        let [_, channels, height, width] = *plain.shape() else { return Ok(plain) };
        let size: Size = [channels, height, width];
        let goal = plain.to_f64_vec()?;
        let length = channels * height * width;
        let moved = starts.iter().map(|start| -> Result<Tensor, AttackError> {
            let images = start.to_f64_vec()?;
            let images: Vec<f64> = (images.par_chunks_exact(length).zip(goal.par_chunks_exact(length)))
                .flat_map(|(image, fixed)| self.registration.register(image, fixed, size).image)
                .collect();
            Ok(Tensor::from_f64(&images, start.shape(), start.dtype())?.to_device(start.device())?)
        });
        let moved = moved.collect::<Result<Vec<_>, _>>()?;
        mean(&moved.iter().collect::<Vec<_>>())
    }

    /// w_g and x − E, whose length equation 12 keeps small; none before there is a consensus.
    pub(super) fn off(&self, x: &Tensor) -> Result<Option<(f64, Tensor)>, AttackError> {
        let Some(mean) = &self.mean else { return Ok(None) };
        Ok(Some((self.weight, x.combine(1.0, mean, -1.0)?)))
    }

    /// What the next step depends on.
    pub(super) fn memory(&self) -> Option<Tensor> {
        self.mean.as_ref().and_then(|mean| mean.to_device(Device::Cpu).ok())
    }
}

fn mean(starts: &[&Tensor]) -> Result<Tensor, AttackError> {
    let each = 1.0 / starts.len() as f64;
    let mut sum = starts[0].scale(each)?;
    for start in &starts[1..] {
        sum = sum.combine(1.0, start, each)?;
    }
    Ok(sum)
}
