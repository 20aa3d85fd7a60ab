//! From candidates to samples: which k of them belong together.
//!
//! With Q = [q_1 … q_k] and s = Q⁻¹ L⁺ ∇b, the columns of Δᵀ are s_i L q_i and
//! the samples the rows of diag(s)⁻¹ Q⁻¹ diag(r) V. Differences of similar
//! samples can be as sparse as samples, so the sparsest k need not be the right
//! ones. What is right shows: unit k is on in column i exactly where
//! W_k x_i + b_k > 0. Exchanging one candidate changes only the samples it is a
//! combination of, so wrong ones are found by exchanging and looking again.

use faer::Mat;
use faer::linalg::solvers::DenseSolveCore;

use super::search::{Candidate, dot};
use super::states::States;

/// Share of units that must agree for a sample to count as consistent. Units
/// that let something through where they are off cannot all be told from units
/// that are barely on.
pub(super) fn consistent_share(slope: f64) -> f64 {
    if slope == 0.0 { 0.98 } else { 0.9 }
}

/// What the checks need: the layer seen from the samples' own space.
pub(super) struct Layer {
    /// r.
    pub(super) scale: Vec<f64>,
    /// L⁺ ∇b.
    pub(super) bias: Vec<f64>,
    /// W Vᵀ of the live units.
    pub(super) weight: Mat<f64>,
    /// b of the live units.
    pub(super) offset: Vec<f64>,
    /// Share of units that must agree.
    pub(super) consistent: f64,
}

/// A choice of k candidates with what follows from it.
#[derive(Clone)]
pub(super) struct Assembly {
    /// Places among the candidates.
    pub(super) chosen: Vec<usize>,
    /// Q⁻¹, one row a sample.
    inverse: Vec<Vec<f64>>,
    /// s.
    pub(super) scales: Vec<f64>,
    /// For each sample, the states that the layer gives it.
    pub(super) states: Vec<States>,
    /// For each sample, the share of units whose state agrees.
    pub(super) agreement: Vec<f64>,
}

/// The sparsest independent candidates, and an orthonormal basis of their span.
pub(super) fn basis(candidates: &[Candidate], k: usize) -> (Vec<usize>, Vec<Vec<f64>>) {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by(|&a, &b| candidates[b].zeros.cmp(&candidates[a].zeros).then(a.cmp(&b)));
    let (mut chosen, mut orthonormal): (Vec<usize>, Vec<Vec<f64>>) = (Vec::new(), Vec::new());
    for index in order {
        if chosen.len() == k {
            break;
        }
        let rest = outside(candidates[index].q.clone(), &orthonormal);
        let norm = dot(&rest, &rest).sqrt();
        if norm > 1e-3 {
            orthonormal.push(rest.iter().map(|x| x / norm).collect());
            chosen.push(index);
        }
    }
    (chosen, orthonormal)
}

/// What of a vector is orthogonal to the others.
pub(crate) fn outside(mut vector: Vec<f64>, orthonormal: &[Vec<f64>]) -> Vec<f64> {
    for direction in orthonormal {
        let along = dot(&vector, direction);
        vector.iter_mut().zip(direction).for_each(|(x, d)| *x -= along * d);
    }
    vector
}

impl Assembly {
    /// Puts k independent candidates together.
    pub(super) fn of(layer: &Layer, candidates: &[Candidate], chosen: Vec<usize>) -> Self {
        let k = chosen.len();
        let q = Mat::from_fn(k, k, |i, j| candidates[chosen[j]].q[i]);
        let inverse = q.partial_piv_lu().inverse();
        let inverse: Vec<Vec<f64>> = (0..k).map(|i| inverse.row(i).iter().copied().collect()).collect();
        let scales: Vec<f64> = inverse.iter().map(|row| dot(row, &layer.bias)).collect();
        let states = vec![States::new(std::iter::empty()); k];
        let mut assembly = Self { chosen, inverse, scales, states, agreement: vec![0.0; k] };
        (0..k).for_each(|sample| assembly.look(layer, candidates, sample));
        assembly
    }

    /// The sample's coordinates in V.
    pub(super) fn coordinates(&self, layer: &Layer, sample: usize) -> Vec<f64> {
        let factors = self.inverse[sample].iter().zip(&layer.scale);
        factors.map(|(x, r)| x * r / self.scales[sample]).collect()
    }

    /// Compares the units' states with the support, for one sample.
    fn look(&mut self, layer: &Layer, candidates: &[Candidate], sample: usize) {
        let x = self.coordinates(layer, sample);
        let z = &layer.weight * Mat::from_fn(x.len(), 1, |i, _| x[i]);
        let z: Vec<f64> = z.col(0).iter().zip(&layer.offset).map(|(z, b)| z + b).collect();
        self.states[sample] = States::new(z.iter().map(|z| *z > 0.0));
        self.agreement[sample] = self.states[sample].agreement(&candidates[self.chosen[sample]].support);
    }

    /// Samples that are consistent.
    pub(super) fn consistent(&self, layer: &Layer) -> usize {
        self.agreement.iter().filter(|agreement| **agreement > layer.consistent).count()
    }

    /// The same with candidate `new` in the place of sample `place`; `a` are its
    /// coordinates in the present choice.
    fn exchanged(&self, layer: &Layer, candidates: &[Candidate], place: usize, new: usize, a: &[f64]) -> Self {
        let mut next = self.clone();
        next.chosen[place] = new;
        next.scales[place] = self.scales[place] / a[place];
        next.inverse[place].iter_mut().for_each(|x| *x /= a[place]);
        let pivot = next.inverse[place].clone();
        for sample in (0..a.len()).filter(|sample| *sample != place) {
            next.inverse[sample].iter_mut().zip(&pivot).for_each(|(x, p)| *x -= a[sample] * p);
            next.scales[sample] -= a[sample] * next.scales[place];
        }
        // Its own x stays what it was. What others lose to it matters once it is more than rounding.
        next.agreement[place] = self.states[place].agreement(&candidates[new].support);
        for sample in (0..a.len()).filter(|&sample| sample != place && a[sample].abs() > 1e-5) {
            next.look(layer, candidates, sample);
        }
        next
    }

    /// Exchanges inconsistent candidates for others as long as that makes more
    /// samples consistent, or, with as many, all of them together more so.
    pub(super) fn improved(mut self, layer: &Layer, candidates: &[Candidate]) -> Self {
        'again: loop {
            if self.consistent(layer) == self.chosen.len() {
                return self;
            }
            let (good, total) = (self.consistent(layer), self.agreement.iter().sum::<f64>());
            for (new, candidate) in candidates.iter().enumerate().filter(|(new, _)| !self.chosen.contains(new)) {
                // An exchange leaves the x of its place as it is: only a candidate that agrees better with it is one.
                let agrees = |place: usize| self.states[place].agreement(&candidate.support);
                let wrong = (0..self.chosen.len()).filter(|&place| {
                    self.agreement[place] <= layer.consistent && agrees(place) > self.agreement[place] + 0.02
                });
                let wrong: Vec<usize> = wrong.collect();
                if wrong.is_empty() {
                    continue;
                }
                let a: Vec<f64> = self.inverse.iter().map(|row| dot(row, &candidate.q)).collect();
                for place in wrong.into_iter().filter(|&place| a[place].abs() > 0.02) {
                    let next = self.exchanged(layer, candidates, place, new, &a);
                    let better = next.consistent(layer);
                    if better > good || (better == good && next.agreement.iter().sum::<f64>() > total + 0.02) {
                        self = next;
                        continue 'again;
                    }
                }
            }
            return self;
        }
    }
}
