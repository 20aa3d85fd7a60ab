//! Multipliers are not negative.

use afterimage_nn::Tensor;

use crate::{AttackError, Contribution, Term};

/// Σ relu(λ_min − λ_i)², or without the square, over λ (variable 1).
pub(super) struct Duals {
    pub(super) least: f64,
    pub(super) squared: bool,
}

impl Term for Duals {
    fn evaluate(&mut self, _: usize, at: &[Tensor]) -> Result<Contribution, AttackError> {
        let mut slopes = at[1].to_f64_vec()?;
        let mut value = 0.0;
        for lambda in &mut slopes {
            let short = (self.least - *lambda).max(0.0);
            (value, *lambda) = match self.squared {
                true => (value + short * short, -2.0 * short),
                false => (value + short, if short > 0.0 { -1.0 } else { 0.0 }),
            };
        }
        let slopes = Tensor::from_f64(&slopes, at[1].shape(), at[1].dtype())?.to_device(at[1].device())?;
        Ok(Contribution { value, gradients: vec![None, Some(slopes)] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_too_small_is_penalised() {
        let at = [Tensor::from_vec(vec![0.0], &[1]).unwrap(), Tensor::from_vec(vec![-0.5, 0.5, 2.0], &[3]).unwrap()];
        let run = |squared| {
            let found = Duals { least: 1.0, squared }.evaluate(0, &at).unwrap();
            (found.value, found.gradients[1].as_ref().unwrap().to_f64_vec().unwrap())
        };
        assert_eq!(run(true), (2.25 + 0.25, vec![-3.0, -1.0, 0.0]));
        assert_eq!(run(false), (1.5 + 0.5, vec![-1.0, -1.0, 0.0]));
    }
}
