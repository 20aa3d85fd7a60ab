//! Metrics against scikit-image and SciPy: `golden/metrics/make.py` made the numbers.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::path::PathBuf;

use afterimage_attacks::registration::phase_correlation;
use afterimage_audit::align::optimal;
use afterimage_audit::metrics::Metric;
use afterimage_nn::Tensor;
use afterimage_nn::io::TensorFile;

fn golden() -> BTreeMap<String, Tensor> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/metrics/golden.safetensors");
    TensorFile::read(path).unwrap().tensors
}

/// All but the registered PSNR, which is PSNR after a registration of our own.
const GOLDEN: [Metric; 7] =
    [Metric::Mse, Metric::L2, Metric::Psnr, Metric::Ssim, Metric::Ssim3, Metric::Ncc, Metric::Fft2d];

#[test]
fn shifts_are_those_of_scikit_image() {
    let golden = golden();
    let rows = |name: &str| {
        let width = golden[name].row_len();
        let values = golden[name].to_f64_vec().unwrap();
        values.chunks_exact(width).map(<[f64]>::to_vec).collect::<Vec<_>>()
    };
    let (fixed, moved, shifts) = (rows("shift/fixed"), rows("shift/moved"), rows("shift/found"));
    let mut not_zero = 0;
    for ((fixed, moved), expected) in fixed.iter().zip(&moved).zip(shifts) {
        let found = phase_correlation(moved, fixed, [1, 24, 31]).map(|shift| shift as f64);
        assert_eq!(found, expected[..]);
        not_zero += usize::from(found != [0.0, 0.0]);
        // Back in its place, a picture scores better than where it was.
        let score = |metric: Metric| metric.measure(fixed, moved, &[1, 24, 31]).unwrap();
        assert!(score(Metric::RegisteredPsnr) > score(Metric::Psnr) + 3.0 || found == [0.0, 0.0]);
    }
    assert!(not_zero >= 6);
}

#[test]
fn pairs_are_those_of_scipy() {
    let golden = golden();
    let costs: Vec<Vec<f64>> =
        golden["pairs/costs"].to_f64_vec().unwrap().chunks_exact(30).map(<[f64]>::to_vec).collect();
    let expected = golden["pairs/columns"].to_f64_vec().unwrap();
    let found: Vec<f64> = optimal(&costs).into_iter().map(|column| column.unwrap() as f64).collect();
    assert_eq!(found, expected);
}

#[test]
fn agrees_with_scikit_image() {
    let golden = golden();
    let mut compared = 0;
    for name in ["digits", "photos", "odd"] {
        let values = |key: &str| golden[&format!("{name}/{key}")].to_f64_vec().unwrap();
        let shape = &golden[&format!("{name}/a")].shape()[1..];
        let row: usize = shape.iter().product();
        let (a, b) = (values("a"), values("b"));
        for metric in GOLDEN {
            for (index, expected) in values(metric.name()).into_iter().enumerate() {
                let sample = index * row..(index + 1) * row;
                let found = metric.measure(&a[sample.clone()], &b[sample], shape).unwrap();
                assert!(
                    (found - expected).abs() < 1e-9 * expected.abs().max(1.0),
                    "{name} {metric} {index}: {found} for {expected}"
                );
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 15 * GOLDEN.len());
}
