//! Several starts that should agree: what is common to them is more likely to be true.

use std::collections::BTreeMap;

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
    pub(super) weight: f64,
    pub(super) consensus: Consensus,
    /// Part of the run before starts are held to it, and between two renewals.
    pub(super) from: f64,
    pub(super) every: f64,
    pub(super) iterations: usize,
    /// Places whose labels are the same: starts may hold those samples in any order.
    pub(super) alike: Vec<Vec<usize>>,
    /// E in the order of each start, if there is one yet.
    pub(super) means: Vec<Tensor>,
}

impl Group {
    /// Renews the consensus where it is time to.
    pub(super) fn renew(&mut self, iteration: usize, starts: &[Tensor]) -> Result<(), AttackError> {
        let begin = (self.from * self.iterations as f64) as usize;
        let every = ((self.every * self.iterations as f64) as usize).max(1);
        if iteration < begin || starts.len() < 2 {
            return Ok(());
        }
        let due = self.means.is_empty() || (iteration - begin).is_multiple_of(every);
        if self.consensus == Consensus::Registered && !due {
            return Ok(());
        }
        let orders = starts.iter().map(|start| self.order(&starts[0], start)).collect::<Result<Vec<_>, _>>()?;
        let ordered = starts.iter().zip(&orders).map(|(start, order)| Ok(start.select_rows(order)?));
        let ordered = ordered.collect::<Result<Vec<Tensor>, AttackError>>()?;
        let mean = match self.consensus {
            Consensus::Lazy => mean(&ordered)?,
            Consensus::Registered => registered(&ordered)?,
        };
        let back = |order: &Vec<usize>| {
            let mut back = vec![0; order.len()];
            order.iter().enumerate().for_each(|(place, &from)| back[from] = place);
            Ok(mean.select_rows(&back)?)
        };
        self.means = orders.iter().map(back).collect::<Result<_, AttackError>>()?;
        Ok(())
    }

    /// Which sample of a start stands for each of the first start's: among those of one label the nearest, nearest
    /// pairs first.
    fn order(&self, first: &Tensor, start: &Tensor) -> Result<Vec<usize>, AttackError> {
        let mut order: Vec<usize> = (0..first.rows()).collect();
        if self.alike.is_empty() {
            return Ok(order);
        }
        let (a, b, length) = (first.to_f64_vec()?, start.to_f64_vec()?, first.row_len());
        let row = |values: &[f64], place: usize| values[place * length..(place + 1) * length].to_vec();
        let between =
            |i: usize, j: usize| -> f64 { row(&a, i).iter().zip(row(&b, j)).map(|(x, y)| (x - y) * (x - y)).sum() };
        for places in &self.alike {
            let pairs = places.iter().flat_map(|&i| places.iter().map(move |&j| (i, j)));
            let mut pairs: Vec<(f64, usize, usize)> = pairs.map(|(i, j)| (between(i, j), i, j)).collect();
            pairs.sort_by(|x, y| x.0.total_cmp(&y.0));
            let (mut placed, mut taken) = (vec![false; first.rows()], vec![false; first.rows()]);
            for (_, i, j) in pairs {
                if !placed[i] && !taken[j] {
                    (order[i], placed[i], taken[j]) = (j, true, true);
                }
            }
        }
        Ok(order)
    }

    /// w_g and x − E of a start, whose length equation 11 keeps small; none before there is a consensus.
    pub(super) fn off(&self, start: usize, x: &Tensor) -> Result<Option<(f64, Tensor)>, AttackError> {
        let Some(mean) = self.means.get(start) else { return Ok(None) };
        Ok(Some((self.weight, x.combine(1.0, mean, -1.0)?)))
    }

    /// Whether starts are held together yet.
    pub(super) fn holds(&self) -> bool {
        !self.means.is_empty()
    }

    /// What the next step depends on.
    pub(super) fn memory(&self) -> Result<Vec<(String, Tensor)>, AttackError> {
        let one = |(start, mean): (usize, &Tensor)| Ok((format!("consensus{start}"), mean.to_device(Device::Cpu)?));
        self.means.iter().enumerate().map(one).collect()
    }

    /// Takes it back.
    pub(super) fn remember(
        &mut self,
        memory: &mut BTreeMap<String, Tensor>,
        device: Device,
    ) -> Result<(), AttackError> {
        while let Some(mean) = memory.remove(&format!("consensus{}", self.means.len())) {
            self.means.push(mean.to_device(device)?);
        }
        Ok(())
    }
}

/// Groups of places, two or more, that have the same label.
pub(super) fn alike(labels: &[usize]) -> Vec<Vec<usize>> {
    let mut by_label: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    labels.iter().enumerate().for_each(|(place, &label)| by_label.entry(label).or_default().push(place));
    by_label.into_values().filter(|places| places.len() > 1).collect()
}

/// The mean of images that were each brought onto the plain mean.
fn registered(starts: &[Tensor]) -> Result<Tensor, AttackError> {
    let plain = mean(starts)?;
    let [_, channels, height, width] = *plain.shape() else { return Ok(plain) };
    let (registration, size): (Registration, Size) = (Registration::default(), [channels, height, width]);
    let goal = plain.to_f64_vec()?;
    let length = channels * height * width;
    let moved = starts.iter().map(|start| -> Result<Tensor, AttackError> {
        let images = start.to_f64_vec()?;
        let images: Vec<f64> = (images.par_chunks_exact(length).zip(goal.par_chunks_exact(length)))
            .flat_map(|(image, fixed)| registration.register(image, fixed, size).image)
            .collect();
        Ok(Tensor::from_f64(&images, start.shape(), start.dtype())?.to_device(start.device())?)
    });
    mean(&moved.collect::<Result<Vec<_>, _>>()?)
}

fn mean(starts: &[Tensor]) -> Result<Tensor, AttackError> {
    let each = 1.0 / starts.len() as f64;
    let mut sum = starts[0].scale(each)?;
    for start in &starts[1..] {
        sum = sum.combine(1.0, start, each)?;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(consensus: Consensus, labels: &[usize]) -> Group {
        let (from, every, means) = (0.5, 0.1, Vec::new());
        Group { weight: 1.0, consensus, from, every, iterations: 10, alike: alike(labels), means }
    }

    fn rows(values: &[[f64; 2]]) -> Tensor {
        Tensor::from_vec(values.concat(), &[values.len(), 2]).unwrap()
    }

    #[test]
    fn samples_of_one_label_are_paired_whatever_their_order() {
        let starts = [
            rows(&[[0.0, 0.0], [5.0, 5.0], [9.0, 9.0]]),
            rows(&[[0.0, 1.0], [9.0, 8.0], [5.0, 6.0]]), // the last two change places
        ];
        let mut group = group(Consensus::Lazy, &[3, 7, 7]);
        group.renew(5, &starts).unwrap();
        assert_eq!(group.means[0].to_f64_vec().unwrap(), [0.0, 0.5, 5.0, 5.5, 9.0, 8.5]);
        assert_eq!(group.means[1].to_f64_vec().unwrap(), [0.0, 0.5, 9.0, 8.5, 5.0, 5.5]);
        assert_eq!(group.off(1, &starts[1]).unwrap().unwrap().1.to_f64_vec().unwrap(), [0.0, 0.5, 0.0, -0.5, 0.0, 0.5]);
    }

    #[test]
    fn samples_of_different_labels_stay_in_their_places() {
        let starts = [rows(&[[0.0, 0.0], [9.0, 9.0]]), rows(&[[9.0, 9.0], [0.0, 0.0]])];
        let mut group = group(Consensus::Lazy, &[1, 2]);
        group.renew(5, &starts).unwrap();
        assert_eq!(group.means[0].to_f64_vec().unwrap(), [4.5; 4]);
    }

    #[test]
    fn there_is_none_before_its_time_and_it_survives_a_checkpoint() {
        let starts = [rows(&[[0.0, 0.0]]), rows(&[[2.0, 2.0]])];
        let mut before = group(Consensus::Lazy, &[1]);
        before.renew(4, &starts).unwrap();
        assert!(!before.holds() && before.off(0, &starts[0]).unwrap().is_none());
        before.renew(5, &starts).unwrap();
        let mut after = group(Consensus::Lazy, &[1]);
        after.remember(&mut before.memory().unwrap().into_iter().collect(), Device::Cpu).unwrap();
        let offs = [before, after].map(|group| group.off(1, &starts[1]).unwrap().unwrap().1.to_f64_vec().unwrap());
        assert_eq!(offs[0], offs[1]);
        assert_eq!(offs[0], [1.0, 1.0]);
    }
}
