//! Random numbers that do not depend on the order in which they are drawn.
//!
//! Every use has a stream of its own, keyed by (seed, name, index). A new draw
//! somewhere shifts no other, nothing has to be saved to resume, and threads
//! may take streams in any order and still get the same bits.

use rand::rngs::ChaCha8Rng;
use rand::{Rng, RngExt, SeedableRng};
use rand_distr::{Distribution, StandardNormal};

use crate::tensor::addressable;
use crate::{DType, Result, Tensor};

/// One stream of random numbers: ChaCha8, a counter-based generator.
///
/// ```
/// use afterimage_nn::Stream;
/// let mut a = Stream::new(1, "x", 0);
/// let mut b = Stream::new(1, "x", 0);
/// assert_eq!(a.uniform(0.0, 1.0), b.uniform(0.0, 1.0));
/// assert_ne!(a.uniform(0.0, 1.0), Stream::new(1, "y", 0).uniform(0.0, 1.0));
/// ```
#[derive(Debug)]
pub struct Stream(ChaCha8Rng);

impl Stream {
    /// The stream of this seed, name and index.
    pub fn new(seed: u64, name: &str, index: u64) -> Self {
        // The generator's 256-bit key, written out: seed, two independent
        // 64-bit hashes of the name, index.
        let mut key = [0; 32];
        let words = [seed, fnv(name, 0xcbf2_9ce4_8422_2325), fnv(name, 0x9e37_79b9_7f4a_7c15), index];
        for (bytes, word) in key.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Self(ChaCha8Rng::from_seed(key))
    }

    /// A number in [low, high).
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.0.random::<f64>()
    }

    /// A standard normal number.
    pub fn normal(&mut self) -> f64 {
        StandardNormal.sample(&mut self.0)
    }

    /// A whole number below `bound`; 0 when there is none.
    pub fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { self.0.random_range(0..bound) }
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A random order of `0..count` (Fisher–Yates).
    pub fn permutation(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            order.swap(last, self.below(last + 1));
        }
        order
    }

    /// A tensor of draws.
    pub fn tensor(
        &mut self,
        shape: &[usize],
        dtype: DType,
        mut draw: impl FnMut(&mut Stream) -> f64,
    ) -> Result<Tensor> {
        let data: Vec<f64> = (0..addressable(shape)?).map(|_| draw(self)).collect();
        Tensor::from_f64(&data, shape, dtype)
    }

    /// A tensor of `std · N(0, 1)`.
    pub fn normal_tensor(&mut self, std: f64, shape: &[usize], dtype: DType) -> Result<Tensor> {
        self.tensor(shape, dtype, |stream| std * stream.normal())
    }
}

/// FNV-1a with a chosen start.
fn fnv(text: &str, start: u64) -> u64 {
    text.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_pinned() {
        // Changing these changes every seeded result of the project.
        let mut stream = Stream::new(1, "init/0.weight", 0);
        assert_eq!(stream.bits(), 646_299_567_694_010_561);
        assert_eq!(stream.normal(), 1.348_812_309_860_284_9);
    }

    #[test]
    fn any_part_of_the_key_makes_another_stream() {
        let first = |seed, name, index| Stream::new(seed, name, index).bits();
        let base = first(1, "a", 0);
        assert!([first(2, "a", 0), first(1, "b", 0), first(1, "a", 1), first(1, "", 0)].iter().all(|x| *x != base));
    }

    #[test]
    fn moments_are_right() {
        let mut stream = Stream::new(3, "moments", 0);
        let draws: Vec<f64> = (0..100_000).map(|_| stream.normal()).collect();
        let mean = draws.iter().sum::<f64>() / 1e5;
        let variance = draws.iter().map(|x| x * x).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
        let mut order = stream.permutation(1000);
        assert_ne!(order, (0..1000).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<_>>());
        assert_eq!(stream.below(0), 0);
    }
}
