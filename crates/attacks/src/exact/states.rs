//! Which units are on: one bit each.

/// The states of all live units for one sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct States {
    words: Vec<u64>,
    units: usize,
}

impl States {
    /// From one state after another.
    pub(super) fn new(states: impl ExactSizeIterator<Item = bool>) -> Self {
        let units = states.len();
        let mut words = vec![0; units.div_ceil(64)];
        for (unit, on) in states.enumerate() {
            words[unit / 64] |= u64::from(on) << (unit % 64);
        }
        Self { words, units }
    }

    /// Whether a unit is on.
    pub(super) fn on(&self, unit: usize) -> bool {
        self.words[unit / 64] >> (unit % 64) & 1 == 1
    }

    /// Units that are off.
    pub(super) fn off(&self) -> usize {
        self.units - self.words.iter().map(|word| word.count_ones() as usize).sum::<usize>()
    }

    /// The share of units in the same state.
    pub(super) fn agreement(&self, other: &Self) -> f64 {
        let different: u32 = self.words.iter().zip(&other.words).map(|(a, b)| (a ^ b).count_ones()).sum();
        1.0 - f64::from(different) / self.units.max(1) as f64
    }
}
