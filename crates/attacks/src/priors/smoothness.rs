//! Neighbouring pixels are alike.

use afterimage_nn::Tensor;

use crate::{AttackError, Contribution, Term};

/// Σ (x_p − x_q)² over all neighbours p, q of images: a penalty on high frequencies,
/// which grows with their square.
///
/// ```
/// use afterimage_attacks::{Smoothness, Term};
/// use afterimage_nn::Tensor;
/// let mut smooth = Smoothness::new(&[1, 2, 2], 0)?;
/// let x = Tensor::from_vec(vec![1.0, 0.0, 0.0, 0.0], &[1, 1, 2, 2])?;
/// assert_eq!(smooth.evaluate(0, &[x])?.value, 2.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Smoothness {
    height: usize,
    width: usize,
    variable: usize,
}

impl Smoothness {
    /// For images of this shape, channels first, in the variable at this place. Fails for what is no image.
    pub fn new(shape: &[usize], variable: usize) -> Result<Self, AttackError> {
        let [height, width] = super::image_size(shape, "smooth_weight")?;
        Ok(Self { height, width, variable })
    }
}

impl Term for Smoothness {
    fn evaluate(&mut self, _: usize, at: &[Tensor]) -> Result<Contribution, AttackError> {
        let mut gradients = vec![None; at.len()];
        let Some(x) = at.get(self.variable) else { return Ok(Contribution { value: 0.0, gradients }) };
        let values = x.to_f64_vec()?;
        let (mut value, mut gradient) = (0.0, vec![0.0; values.len()]);
        let size = (self.height * self.width).max(1);
        for start in (0..values.len()).step_by(size) {
            for row in 0..self.height {
                for column in 0..self.width {
                    let here = start + row * self.width + column;
                    let right = (column + 1 < self.width).then_some(here + 1);
                    let below = (row + 1 < self.height).then_some(here + self.width);
                    for there in [right, below].into_iter().flatten() {
                        let off = values[here] - values[there];
                        value += off * off;
                        gradient[here] += 2.0 * off;
                        gradient[there] -= 2.0 * off;
                    }
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
        crate::objective::check_gradients(&mut Smoothness::new(&[2, 3, 4], 0).unwrap(), 0, &[x], 1e-7);
        assert!(Smoothness::new(&[12], 0).unwrap_err().to_string().contains("images"));
    }
}
