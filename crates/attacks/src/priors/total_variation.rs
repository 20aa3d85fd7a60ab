//! Neighbouring pixels are alike, but for edges.

use afterimage_nn::{Steps, Tensor};
use serde::{Deserialize, Serialize};

use crate::{AttackError, Contribution, Term};

/// How differences along both axes are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variation {
    /// |∂_y x| + |∂_x x|.
    #[default]
    Anisotropic,
    /// √(|∂_y x|² + |∂_x x|²).
    Isotropic,
}

/// Total variation: the mean, over all pixels, of the size of the step to the next pixel.
/// Unlike [`Smoothness`](crate::Smoothness) it does not punish one large step more than many
/// small ones: edges stay.
///
/// ```
/// use afterimage_attacks::{Term, TotalVariation, Variation};
/// use afterimage_nn::Tensor;
/// let mut variation = TotalVariation::new(&[1, 2, 2], Variation::Anisotropic, 0)?;
/// let x = Tensor::from_vec(vec![1.0, 0.0, 0.0, 0.0], &[1, 1, 2, 2])?;
/// assert_eq!(variation.evaluate(0, &[x])?.value, 2.0 / 4.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct TotalVariation {
    size: [usize; 2],
    kind: Variation,
    variable: usize,
}

impl TotalVariation {
    /// For images of this shape, channels first, in the variable at this place. Fails for what is no image.
    pub fn new(shape: &[usize], kind: Variation, variable: usize) -> Result<Self, AttackError> {
        Ok(Self { size: super::image_size(shape, "tv_weight")?, kind, variable })
    }
}

impl Term for TotalVariation {
    fn evaluate(&mut self, _: usize, at: &[Tensor]) -> Result<Contribution, AttackError> {
        let mut gradients = vec![None; at.len()];
        let Some(x) = at.get(self.variable) else { return Ok(Contribution { value: 0.0, gradients }) };
        let steps = match self.kind {
            Variation::Anisotropic => Steps::Absolute,
            Variation::Isotropic => Steps::Length,
        };
        let (sum, gradient) = steps.sum(x, self.size)?;
        let each = 1.0 / x.count().max(1) as f64;
        gradients[self.variable] = Some(gradient.scale(each)?);
        Ok(Contribution { value: each * sum, gradients })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterimage_nn::{DType, Stream};

    #[test]
    fn gradients_are_those_of_the_value() {
        let x = Stream::new(1, "x", 0).normal_tensor(1.0, &[2, 2, 3, 4], DType::F64).unwrap();
        for kind in [Variation::Anisotropic, Variation::Isotropic] {
            let mut variation = TotalVariation::new(&[2, 3, 4], kind, 0).unwrap();
            crate::objective::check_gradients(&mut variation, 0, std::slice::from_ref(&x), 1e-7);
        }
        assert!(TotalVariation::new(&[12], Variation::Isotropic, 0).unwrap_err().to_string().contains("images"));
    }

    #[test]
    fn one_step_counts_as_much_as_many_small_ones() {
        for kind in [Variation::Anisotropic, Variation::Isotropic] {
            let value = |x: [f64; 4]| {
                let x = Tensor::from_vec(x.to_vec(), &[1, 1, 1, 4]).unwrap();
                TotalVariation::new(&[1, 1, 4], kind, 0).unwrap().evaluate(0, &[x]).unwrap().value
            };
            assert!((value([0.0, 0.0, 0.75, 0.75]) - value([0.0, 0.25, 0.5, 0.75])).abs() < 1e-15);
        }
    }
}
