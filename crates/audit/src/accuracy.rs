//! How many records a network tells right.

use afterimage_nn::Tensor;

use crate::Result;

/// Records that accuracy is measured on.
pub(crate) struct Test {
    pub(crate) x: Tensor,
    pub(crate) labels: Vec<usize>,
}

/// How many records are looked at at once.
const AT_ONCE: usize = 500;

impl Test {
    /// The share of records whose outputs speak for their label.
    pub(crate) fn accuracy(&self, outputs: impl Fn(&Tensor) -> Result<Tensor>) -> Result<f64> {
        let mut right = 0;
        for from in (0..self.x.rows()).step_by(AT_ONCE) {
            let to = (from + AT_ONCE).min(self.x.rows());
            let f = outputs(&self.x.slice_rows(from..to)?)?;
            let (values, width) = (f.to_f64_vec()?, f.row_len().max(1));
            let told = values.chunks_exact(width).map(told);
            right += told.zip(&self.labels[from..to]).filter(|(told, label)| told == *label).count();
        }
        Ok(right as f64 / self.x.rows().max(1) as f64)
    }
}

/// The label that outputs speak for.
fn told(f: &[f64]) -> usize {
    match f {
        [one] => usize::from(*one > 0.0),
        several => (0..several.len()).max_by(|&a, &b| several[a].total_cmp(&several[b])).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_speak_for_labels() {
        let test = Test { x: Tensor::from_vec(vec![1.0, -2.0, 3.0], &[3, 1]).unwrap(), labels: vec![1, 0, 0] };
        let accuracy = test.accuracy(|x| Ok(x.clone())).unwrap();
        assert!((accuracy - 2.0 / 3.0).abs() < 1e-15);
        assert_eq!(told(&[0.1, 0.7, 0.2]), 1);
    }
}
