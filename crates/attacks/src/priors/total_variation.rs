//! Neighbouring pixels are alike, but for edges.

use afterimage_nn::Tensor;
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
    height: usize,
    width: usize,
    kind: Variation,
    variable: usize,
}

/// Below this an isotropic step is taken for none: its direction is not known.
const SMALLEST: f64 = 1e-12;

impl TotalVariation {
    /// For images of this shape, channels first, in the variable at this place. Fails for what is no image.
    pub fn new(shape: &[usize], kind: Variation, variable: usize) -> Result<Self, AttackError> {
        let [height, width] = super::image_size(shape, "tv_weight")?;
        Ok(Self { height, width, kind, variable })
    }
}

impl Term for TotalVariation {
    fn evaluate(&mut self, _: usize, at: &[Tensor]) -> Result<Contribution, AttackError> {
        let mut gradients = vec![None; at.len()];
        let Some(x) = at.get(self.variable) else { return Ok(Contribution { value: 0.0, gradients }) };
        let values = x.to_f64_vec()?;
        let each = 1.0 / values.len().max(1) as f64;
        let (mut value, mut gradient) = (0.0, vec![0.0; values.len()]);
        let size = (self.height * self.width).max(1);
        for start in (0..values.len()).step_by(size) {
            for place in 0..size {
                let here = start + place;
                let right = if (place + 1).is_multiple_of(self.width) { here } else { here + 1 };
                let below = if place + self.width < size { here + self.width } else { here };
                let steps = [values[right] - values[here], values[below] - values[here]];
                let slopes = match self.kind {
                    Variation::Anisotropic => {
                        value += each * (steps[0].abs() + steps[1].abs());
                        steps.map(|step| if step == 0.0 { 0.0 } else { each * step.signum() })
                    }
                    Variation::Isotropic => {
                        let length = steps[0].hypot(steps[1]);
                        value += each * length;
                        steps.map(|step| if length > SMALLEST { each * step / length } else { 0.0 })
                    }
                };
                for (there, slope) in [right, below].into_iter().zip(slopes) {
                    gradient[there] += slope;
                    gradient[here] -= slope;
                }
            }
        }
        gradients[self.variable] = Some(Tensor::from_f64(&gradient, x.shape(), x.dtype())?.to_device(x.device())?);
        Ok(Contribution { value, gradients })
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
