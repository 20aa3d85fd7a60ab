//! Conjugate gradients for many symmetric systems at once, one a row: each ends when it is done, none waits to begin.

use crate::AttackError;

/// When a system counts as solved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Conjugate {
    /// Most steps.
    pub(crate) steps: usize,
    /// The squared residual, as a part of the squared right-hand side, that is taken for none.
    pub(crate) tolerance: f64,
}

impl Conjugate {
    /// A s = b for every row of so many numbers; `applied` gives A s. A must not have negative eigenvalues:
    /// a row ends where it turns out to.
    pub(crate) fn solve(
        self,
        b: Vec<f64>,
        length: usize,
        mut applied: impl FnMut(&[f64]) -> Result<Vec<f64>, AttackError>,
    ) -> Result<Vec<f64>, AttackError> {
        let length = length.max(1);
        let dots = |a: &[f64], b: &[f64]| -> Vec<f64> {
            let dot = |(a, b): (&[f64], &[f64])| a.iter().zip(b).map(|(a, b)| a * b).sum();
            a.chunks(length).zip(b.chunks(length)).map(dot).collect()
        };
        let mut solution = vec![0.0; b.len()];
        let mut rest = b;
        let mut direction = rest.clone();
        let mut size = dots(&rest, &rest);
        let mut enough: Vec<f64> = size.iter().map(|size| self.tolerance * size).collect();
        for _ in 0..self.steps {
            if size.iter().zip(&enough).all(|(size, enough)| size <= enough) {
                break;
            }
            let curved = applied(&direction)?;
            let bend = dots(&direction, &curved);
            // No way down along what A bends the other way: the row stays where it is.
            for (enough, _) in enough.iter_mut().zip(&bend).filter(|(_, bend)| **bend <= 0.0) {
                *enough = f64::INFINITY;
            }
            let far: Vec<f64> = (size.iter().zip(&bend).zip(&enough))
                .map(|((size, bend), enough)| if *size > *enough && *bend > 0.0 { size / bend } else { 0.0 })
                .collect();
            for place in 0..solution.len() {
                solution[place] += far[place / length] * direction[place];
                rest[place] -= far[place / length] * curved[place];
            }
            let left = dots(&rest, &rest);
            for place in 0..direction.len() {
                let row = place / length;
                let again = if size[row] > 0.0 { left[row] / size[row] } else { 0.0 };
                direction[place] = rest[place] + again * direction[place];
            }
            size = left;
        }
        Ok(solution)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows with matrices of their own: diag(1, 2, 3) and the second difference of three places.
    #[test]
    fn every_row_is_its_own_system() {
        let applied = |s: &[f64]| {
            Ok(vec![s[0], 2.0 * s[1], 3.0 * s[2], 2.0 * s[3] - s[4], 2.0 * s[4] - s[3] - s[5], 2.0 * s[5] - s[4]])
        };
        let conjugate = Conjugate { steps: 3, tolerance: 0.0 };
        let found = conjugate.solve(vec![1.0, 4.0, 9.0, 0.0, 0.0, 4.0], 3, applied).unwrap();
        for (found, expected) in found.iter().zip([1.0, 2.0, 3.0, 1.0, 2.0, 3.0]) {
            assert!((found - expected).abs() < 1e-12, "{found} for {expected}");
        }
    }

    #[test]
    fn nothing_to_solve_gives_nothing() {
        let conjugate = Conjugate { steps: 5, tolerance: 1e-12 };
        assert_eq!(conjugate.solve(vec![0.0; 4], 2, |s| Ok(s.to_vec())).unwrap(), [0.0; 4]);
        assert!(conjugate.solve(Vec::new(), 0, |s| Ok(s.to_vec())).unwrap().is_empty());
        // A is not positive: the row is left where it is.
        assert_eq!(conjugate.solve(vec![1.0], 1, |s| Ok(vec![-s[0]])).unwrap(), [0.0]);
    }
}
