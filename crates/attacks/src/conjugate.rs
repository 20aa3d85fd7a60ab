//! Conjugate gradients for many symmetric systems at once, one a row: each ends when it is done, none waits to begin.

use afterimage_nn::Tensor;

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
    /// A s = b for every row of b; `applied` gives A s. A must not have negative eigenvalues:
    /// a row ends where it turns out to.
    pub(crate) fn solve(
        self,
        b: &Tensor,
        mut applied: impl FnMut(&Tensor) -> Result<Tensor, AttackError>,
    ) -> Result<Tensor, AttackError> {
        let mut solution = b.zeros_like()?;
        let (mut rest, mut direction) = (b.clone(), b.clone());
        let mut size = rest.dot_rows(&rest)?;
        let mut enough: Vec<f64> = size.iter().map(|size| self.tolerance * size).collect();
        for _ in 0..self.steps {
            if size.iter().zip(&enough).all(|(size, enough)| size <= enough) {
                break;
            }
            let curved = applied(&direction)?;
            let bend = direction.dot_rows(&curved)?;
            // No way down along what A bends the other way: the row stays where it is.
            for (enough, _) in enough.iter_mut().zip(&bend).filter(|(_, bend)| **bend <= 0.0) {
                *enough = f64::INFINITY;
            }
            let far: Vec<f64> = (size.iter().zip(&bend).zip(&enough))
                .map(|((size, bend), enough)| if *size > *enough && *bend > 0.0 { size / bend } else { 0.0 })
                .collect();
            solution = solution.add_rows(&far, &direction)?;
            rest = rest.add_rows(&far.iter().map(|far| -far).collect::<Vec<_>>(), &curved)?;
            let left = rest.dot_rows(&rest)?;
            let again: Vec<f64> =
                size.iter().zip(&left).map(|(size, left)| if *size > 0.0 { left / size } else { 0.0 }).collect();
            direction = rest.add_rows(&again, &direction)?;
            size = left;
        }
        Ok(solution)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(values: &[f64], length: usize) -> Tensor {
        Tensor::from_vec(values.to_vec(), &[values.len() / length, length]).unwrap()
    }

    /// Rows with matrices of their own: diag(1, 2, 3) and the second difference of three places.
    #[test]
    fn every_row_is_its_own_system() {
        let applied = |s: &Tensor| {
            let s = s.to_f64_vec()?;
            let bent = [s[0], 2.0 * s[1], 3.0 * s[2], 2.0 * s[3] - s[4], 2.0 * s[4] - s[3] - s[5], 2.0 * s[5] - s[4]];
            Ok(rows(&bent, 3))
        };
        let conjugate = Conjugate { steps: 3, tolerance: 0.0 };
        let found = conjugate.solve(&rows(&[1.0, 4.0, 9.0, 0.0, 0.0, 4.0], 3), applied).unwrap();
        for (found, expected) in found.to_f64_vec().unwrap().iter().zip([1.0, 2.0, 3.0, 1.0, 2.0, 3.0]) {
            assert!((found - expected).abs() < 1e-12, "{found} for {expected}");
        }
    }

    #[test]
    fn nothing_to_solve_gives_nothing() {
        let conjugate = Conjugate { steps: 5, tolerance: 1e-12 };
        let same = |s: &Tensor| Ok(s.clone());
        assert_eq!(conjugate.solve(&rows(&[0.0; 4], 2), same).unwrap().to_f64_vec().unwrap(), [0.0; 4]);
        assert_eq!(conjugate.solve(&Tensor::from_vec(Vec::<f64>::new(), &[0, 3]).unwrap(), same).unwrap().count(), 0);
        // A is not positive: the row is left where it is.
        let bent = conjugate.solve(&rows(&[1.0], 1), |s| Ok(s.scale(-1.0)?)).unwrap();
        assert_eq!(bent.to_f64_vec().unwrap(), [0.0]);
    }
}
