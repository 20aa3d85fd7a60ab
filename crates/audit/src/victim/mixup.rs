//! Samples mixed in pairs at the client, with their labels: a defence by data.

use afterimage_nn::{Stream, Targets, Tensor};

use crate::{AuditError, Result};

/// λ x_i + (1 − λ) x_j and the same of the labels, j a permutation of i, λ drawn from Beta(α, α) for each pair
/// (Zhang et al., 2018).
pub(super) fn mixed(
    x: Tensor,
    targets: &Targets,
    outputs: &[usize],
    alpha: f64,
    stream: &mut Stream,
) -> Result<(Tensor, Targets)> {
    let width: usize = outputs.iter().product();
    let y = match targets {
        Targets::Values(values) => values.to_f64_vec()?,
        Targets::Classes(classes) => {
            let row = |&class: &usize| (0..width).map(move |output| f64::from(u8::from(output == class)));
            classes.iter().flat_map(row).collect()
        }
    };
    if y.len() != x.rows() * width {
        return Err(AuditError::plan("victim.mixup", "needs one number for each output", "leave it out"));
    }
    let others = stream.permutation(x.rows());
    let shares: Vec<f64> = (0..x.rows()).map(|_| beta(alpha, stream)).collect();
    let mix = |values: &[f64]| -> Vec<f64> {
        let length = values.len() / x.rows().max(1);
        let row = |row: usize| {
            let (own, other) = (&values[row * length..][..length], &values[others[row] * length..][..length]);
            let share = shares[row];
            own.iter().zip(other).map(move |(a, b)| share * a + (1.0 - share) * b).collect::<Vec<f64>>()
        };
        (0..x.rows()).flat_map(row).collect()
    };
    let samples = Tensor::from_f64(&mix(&x.to_f64_vec()?), x.shape(), x.dtype())?.to_device(x.device())?;
    let labels = Tensor::from_f64(&mix(&y), &[x.rows(), width], x.dtype())?;
    Ok((samples, Targets::Values(labels)))
}

/// A number drawn from Beta(α, α): by the ratio of two gamma variables, each by Jöhnk's method for α ≤ 1 and as a
/// sum of such for more.
fn beta(alpha: f64, stream: &mut Stream) -> f64 {
    let mut gamma = || -> f64 {
        let mut sum = 0.0;
        let whole = alpha.floor() as usize;
        for _ in 0..whole.min(1000) {
            sum -= (1.0 - stream.uniform(0.0, 1.0)).max(f64::MIN_POSITIVE).ln();
        }
        let rest = alpha - whole as f64;
        if rest > 0.0 {
            loop {
                let (u, v) =
                    (stream.uniform(0.0, 1.0).powf(1.0 / rest), stream.uniform(0.0, 1.0).powf(1.0 / (1.0 - rest)));
                if u + v <= 1.0 && u + v > 0.0 {
                    let exponential = -(1.0 - stream.uniform(0.0, 1.0)).max(f64::MIN_POSITIVE).ln();
                    break sum + exponential * u / (u + v);
                }
            }
        } else {
            sum
        }
    };
    let (a, b) = (gamma(), gamma());
    if a + b > 0.0 { a / (a + b) } else { 0.5 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_the_moments_of_beta() {
        for alpha in [0.3, 1.0, 2.5] {
            let mut stream = Stream::new(1, "beta", 0);
            let drawn: Vec<f64> = (0..20_000).map(|_| beta(alpha, &mut stream)).collect();
            let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
            let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / drawn.len() as f64;
            assert!((mean - 0.5).abs() < 0.01, "{alpha}: {mean}");
            assert!((variance - 0.25 / (2.0 * alpha + 1.0)).abs() < 0.005, "{alpha}: {variance}");
        }
    }

    #[test]
    fn samples_and_labels_are_mixed_alike() {
        let x = Tensor::from_vec(vec![0.0, 1.0, 2.0], &[3, 1]).unwrap();
        let mut stream = Stream::new(2, "mixup", 0);
        let (samples, labels) = mixed(x, &Targets::Classes(vec![0, 1, 2]), &[3], 1.0, &mut stream).unwrap();
        let Targets::Values(labels) = labels else { panic!("classes cannot be mixed") };
        let (samples, labels) = (samples.to_f64_vec().unwrap(), labels.to_f64_vec().unwrap());
        for (sample, label) in samples.iter().zip(labels.chunks_exact(3)) {
            assert!((label.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            assert!((label[1] + 2.0 * label[2] - sample).abs() < 1e-12, "{label:?} {sample}");
        }
    }
}
