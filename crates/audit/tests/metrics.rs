//! Metrics against scikit-image and SciPy: `golden/metrics/make.py` made the numbers.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::PathBuf;

use afterimage_audit::metrics::Metric;
use afterimage_nn::io::TensorFile;

#[test]
fn agrees_with_scikit_image() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/metrics/golden.safetensors");
    let golden = TensorFile::read(path).unwrap().tensors;
    let mut compared = 0;
    for name in ["digits", "photos", "odd"] {
        let values = |key: &str| golden[&format!("{name}/{key}")].to_f64_vec().unwrap();
        let shape = &golden[&format!("{name}/a")].shape()[1..];
        let row: usize = shape.iter().product();
        let (a, b) = (values("a"), values("b"));
        for metric in Metric::ALL {
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
    assert_eq!(compared, 15 * Metric::ALL.len());
}
