//! How many singular values stand out of noise, and how strong the noise is.

/// The noise of a matrix of low rank plus independent entries.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Noise {
    /// Standard deviation of the entries.
    pub(crate) sigma: f64,
    /// Singular values above what noise alone would have.
    pub(crate) rank: usize,
}

/// Beyond the edge by this part, a singular value is not noise.
const MARGIN: f64 = 1.02;
/// Values that noise must have to be told from records.
const LEAST_NOISE: usize = 10;
/// Below this part of the largest, a singular value is rounding.
const ROUNDING: f64 = 1e-7;

impl Noise {
    /// From all singular values (largest first) of a matrix with so many rows and columns.
    ///
    /// Singular values of noise follow the law of Marchenko & Pastur (1967), which
    /// ends at σ (√rows + √columns). Its median tells σ (Gavish & Donoho, 2014); the
    /// median is taken of those below the edge, in turns. With fewer of them than can be
    /// called a law, everything above rounding counts.
    pub(crate) fn of(s: &[f64], rows: usize, columns: usize) -> Self {
        let largest = s.first().copied().unwrap_or(0.0);
        let (small, large) = (rows.min(columns) as f64, rows.max(columns) as f64);
        let shape = |rank: usize| (small - rank as f64).max(1.0) / (large - rank as f64).max(1.0);
        let above_rounding = s.iter().take_while(|value| **value > ROUNDING * largest).count();
        let mut found = Self { sigma: 0.0, rank: 0 };
        for _ in 0..20 {
            let rest = &s[found.rank.min(s.len())..];
            let Some(&middle) = rest.get(rest.len() / 2) else { break };
            let sigma = middle / (median(shape(found.rank)) * (large - found.rank as f64).max(1.0)).sqrt();
            let edge = (MARGIN * sigma * (small.sqrt() + large.sqrt())).max(ROUNDING * largest);
            let rank = s.iter().take_while(|value| **value > edge).count();
            let done = rank == found.rank && found.sigma > 0.0;
            found = Self { sigma, rank };
            if done {
                break;
            }
        }
        if s.len().saturating_sub(found.rank) < LEAST_NOISE {
            return Self { sigma: 0.0, rank: above_rounding };
        }
        found
    }
}

/// The median of the law of Marchenko & Pastur for a ratio β ≤ 1 of the sides, in
/// units of σ² times the larger side.
fn median(beta: f64) -> f64 {
    const POINTS: usize = 2000;
    let (low, high) = ((1.0 - beta.sqrt()).powi(2), (1.0 + beta.sqrt()).powi(2));
    // In the angle of x = middle − radius cos φ the density has no poles.
    let at = |step: usize| {
        let angle = std::f64::consts::PI * (step as f64 + 0.5) / POINTS as f64;
        let x = 0.5 * (low + high) - 0.5 * (high - low) * angle.cos();
        (x, angle.sin().powi(2) / x.max(f64::MIN_POSITIVE))
    };
    let total: f64 = (0..POINTS).map(|step| at(step).1).sum();
    let mut sum = 0.0;
    for step in 0..POINTS {
        let (x, density) = at(step);
        sum += density;
        if sum >= 0.5 * total {
            return x;
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterimage_nn::linalg::svd;
    use afterimage_nn::{DType, Stream};

    #[test]
    fn the_median_is_known_for_squares_and_slim_matrices() {
        // Gavish & Donoho (2014): the median for β = 1 is 0.6528, for β = 0.5 0.8304.
        assert!((median(1.0) - 0.6528).abs() < 2e-3, "{}", median(1.0));
        assert!((median(0.5) - 0.8304).abs() < 2e-3, "{}", median(0.5));
        assert!((median(1e-6) - 1.0).abs() < 1e-2);
    }

    #[test]
    fn rank_and_noise_of_a_sum_are_found() {
        for (rows, columns) in [(120, 300), (200, 60)] {
            let mut stream = Stream::new(3, "sum", rows as u64);
            let left = stream.normal_tensor(1.0, &[rows, 7], DType::F64).unwrap();
            let right = stream.normal_tensor(0.01, &[7, columns], DType::F64).unwrap();
            let noise = stream.normal_tensor(1e-4, &[rows, columns], DType::F64).unwrap();
            let matrix = left.matmul(&right).unwrap().combine(1.0, &noise, 1.0).unwrap();
            let found = Noise::of(&svd(&matrix).unwrap().s, rows, columns);
            assert_eq!(found.rank, 7);
            assert!((found.sigma / 1e-4 - 1.0).abs() < 0.1, "{}", found.sigma);
        }
    }

    #[test]
    fn without_noise_the_rank_is_what_is_not_rounding() {
        let exact = [3.0, 2.0, 1.0, 1e-15, 1e-16, 1e-16, 1e-16, 1e-16];
        assert_eq!(Noise::of(&exact, 8, 30).rank, 3);
        assert_eq!(Noise::of(&[2.0, 1.0], 100, 2), Noise { sigma: 0.0, rank: 2 });
        assert_eq!(Noise::of(&[], 0, 0).rank, 0);
        assert_eq!(Noise::of(&[0.0, 0.0], 2, 2).rank, 0);
    }
}
