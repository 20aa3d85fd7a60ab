//! The few tests a verdict rests on, in closed form.

use statrs::distribution::{Beta, ContinuousCDF, StudentsT};
use statrs::function::gamma::ln_gamma;

fn ln_choose(n: u64, k: u64) -> f64 {
    let ln_factorial = |n: u64| ln_gamma(n as f64 + 1.0);
    ln_factorial(n) - ln_factorial(k) - ln_factorial(n - k)
}

/// Fisher's exact test, one-sided: the probability that, were members and
/// controls alike, at least `k` of the `k + c` that pass were members.
///
/// ```
/// // 3 of 4 members and 1 of 4 controls: the lady tasting tea.
/// let p = afterimage_audit::statistics::fisher(3, 4, 1, 4);
/// assert!((p - 17.0 / 70.0).abs() < 1e-12);
/// ```
pub fn fisher(k: usize, members: usize, c: usize, controls: usize) -> f64 {
    let (k, n, c, big_n) = (k as u64, members as u64, c as u64, controls as u64);
    let passed = k + c;
    if k > n || c > big_n || passed == 0 {
        return 1.0;
    }
    let total = ln_choose(n + big_n, passed);
    let tail = (k..=n.min(passed)).filter(|&i| passed - i <= big_n);
    tail.map(|i| (ln_choose(n, i) + ln_choose(big_n, passed - i) - total).exp()).sum::<f64>().min(1.0)
}

/// The 95 % interval of the mean of a few runs, by Student's t; none of fewer than two.
///
/// ```
/// let [low, high] = afterimage_audit::statistics::mean_interval(&[1.0, 2.0, 3.0]).unwrap();
/// assert!((low - (2.0 - 2.484)).abs() < 1e-3 && (high - (2.0 + 2.484)).abs() < 1e-3);
/// ```
pub fn mean_interval(values: &[f64]) -> Option<[f64; 2]> {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let t = StudentsT::new(0.0, 1.0, n - 1.0).ok()?.inverse_cdf(0.975);
    let half = t * (variance / n).sqrt();
    half.is_finite().then_some([mean - half, mean + half])
}

/// The Clopper–Pearson interval for a proportion, of the given level.
///
/// ```
/// let (low, high) = afterimage_audit::statistics::clopper_pearson(0, 20, 0.95);
/// assert_eq!(low, 0.0);
/// assert!((high - (1.0 - 0.025_f64.powf(1.0 / 20.0))).abs() < 1e-9);
/// ```
pub fn clopper_pearson(k: usize, n: usize, level: f64) -> (f64, f64) {
    if n == 0 {
        return (0.0, 1.0);
    }
    let tail = (1.0 - level) / 2.0;
    let (k, n) = (k.min(n) as f64, n as f64);
    let quantile = |a: f64, b: f64, p: f64| Beta::new(a, b).map_or(f64::NAN, |beta| beta.inverse_cdf(p));
    let low = if k == 0.0 { 0.0 } else { quantile(k, n - k + 1.0, tail) };
    let high = if k == n { 1.0 } else { quantile(k + 1.0, n - k, 1.0 - tail) };
    (low, high)
}

/// The expected share of false finds among the members that pass:
/// n (c + 1) / ((N + 1) k), at most 1; 1 when none pass.
pub fn false_discovery(k: usize, members: usize, c: usize, controls: usize) -> f64 {
    if k == 0 {
        return 1.0;
    }
    (members as f64 * (c as f64 + 1.0) / ((controls as f64 + 1.0) * k as f64)).min(1.0)
}

/// Holm's correction: p-values adjusted for having been looked at together.
///
/// ```
/// let adjusted = afterimage_audit::statistics::holm(&[0.01, 0.04, 0.03]);
/// assert_eq!(adjusted, [0.03, 0.06, 0.06]);
/// ```
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| p[a].total_cmp(&p[b]));
    let mut adjusted = vec![0.0; p.len()];
    let mut floor = 0.0_f64;
    for (rank, &index) in order.iter().enumerate() {
        floor = floor.max(((p.len() - rank) as f64 * p[index]).min(1.0));
        adjusted[index] = floor;
    }
    adjusted
}

/// Spearman's rank correlation, ties at their mean rank; none with fewer than three pairs, or
/// where one side is all the same.
///
/// ```
/// use afterimage_audit::statistics::spearman;
/// assert_eq!(spearman(&[1.0, 2.0, 9.0], &[3.0, 5.0, 6.0]), Some(1.0));
/// assert_eq!(spearman(&[1.0, 2.0], &[3.0, 5.0]), None);
/// ```
pub fn spearman(a: &[f64], b: &[f64]) -> Option<f64> {
    let (a, b) = (ranks(a), ranks(b));
    let n = a.len() as f64;
    let mean = (n + 1.0) / 2.0;
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - mean) * (b - mean)).sum::<f64>();
    let sizes = (product(&a, &a) * product(&b, &b)).sqrt();
    (a.len() == b.len() && n > 2.0 && sizes > 0.0).then(|| product(&a, &b) / sizes)
}

/// The rank of each value from 1, equal ones at their mean.
fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |value: &f64| {
        let below = values.iter().filter(|other| *other < value).count() as f64;
        let equal = values.iter().filter(|other| *other == value).count() as f64;
        below + (equal + 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fisher_sums_to_one_and_is_monotone() {
        // All tables with 5 passes among 6 members and 9 controls.
        assert!((fisher(0, 6, 5, 9) - 1.0).abs() < 1e-12);
        let tails: Vec<f64> = (0..=5).map(|k| fisher(k, 6, 5 - k, 9)).collect();
        assert!(tails.windows(2).all(|pair| pair[0] > pair[1]));
        assert_eq!(fisher(0, 10, 0, 10), 1.0);
        // One member of one, none of two hundred controls.
        assert!((fisher(1, 1, 0, 200) - 1.0 / 201.0).abs() < 1e-12);
    }

    #[test]
    fn clopper_pearson_agrees_with_scipy() {
        // 10 of 50 at 95 %, by SciPy: beta.ppf(0.025, 10, 41), beta.ppf(0.975, 11, 40).
        let (low, high) = clopper_pearson(10, 50, 0.95);
        assert!((low - 0.100_302_237).abs() < 1e-8 && (high - 0.337_183_108).abs() < 1e-8, "{low} {high}");
        assert_eq!(clopper_pearson(5, 5, 0.95).1, 1.0);
        assert_eq!(clopper_pearson(0, 0, 0.95), (0.0, 1.0));
    }

    #[test]
    fn spearman_agrees_with_scipy() {
        // scipy.stats.spearmanr([3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2, 8])
        let found = spearman(&[3.0, 1.0, 4.0, 1.0, 5.0, 9.0], &[2.0, 7.0, 1.0, 8.0, 2.0, 8.0]).unwrap();
        assert!((found + 0.134_343_322_656).abs() < 1e-11, "{found}");
        assert_eq!(spearman(&[1.0; 4], &[1.0, 2.0, 3.0, 4.0]), None);
    }

    #[test]
    fn false_discovery_is_the_expected_share() {
        assert_eq!(false_discovery(0, 10, 0, 100), 1.0);
        assert!((false_discovery(10, 10, 0, 200) - 1.0 / 201.0).abs() < 1e-12);
        assert_eq!(false_discovery(1, 50, 9, 10), 1.0);
    }
}
