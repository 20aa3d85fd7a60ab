//! Units with a known batch behind them, for tests.

use afterimage_nn::{Activation, Stream};
use faer::Mat;

use super::moments::{Units, product};

/// Units of a layer on samples, by the definition alone.
pub(super) fn units(sigma: Activation, samples: &[(Vec<f64>, f64)], count: usize, seed: u64) -> Units {
    let n = samples[0].0.len();
    let mut stream = Stream::new(seed, "units", 0);
    let z = Mat::from_fn(count, n, |_, _| stream.normal());
    let (mut inner, mut outer) = (Mat::zeros(count, n), vec![0.0; count]);
    for (p, r) in samples {
        let at = product(&z, p);
        for j in 0..count {
            let [value, slope, _] = sigma.triple(at[j]);
            outer[j] += r * value;
            (0..n).for_each(|c| inner[(j, c)] += r * slope * p[c]);
        }
    }
    Units { z, inner, outer, offset: vec![0.0; count] }
}

/// `count` unit vectors of n elements.
pub(super) fn unit_vectors(count: usize, n: usize, seed: u64) -> Vec<Vec<f64>> {
    let mut stream = Stream::new(seed, "vectors", 0);
    let draw = |_| {
        let x: Vec<f64> = (0..n).map(|_| stream.normal()).collect();
        let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt();
        x.iter().map(|x| x / norm).collect()
    };
    (0..count).map(draw).collect()
}
