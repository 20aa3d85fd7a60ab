//! Neighbouring pixels are alike.

use afterimage_nn::{Steps, Tensor};

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
    size: [usize; 2],
    variable: usize,
}

impl Smoothness {
    /// For images of this shape, channels first, in the variable at this place. Fails for what is no image.
    pub fn new(shape: &[usize], variable: usize) -> Result<Self, AttackError> {
        Ok(Self { size: super::image_size(shape, "smooth_weight")?, variable })
    }
}

impl Term for Smoothness {
    fn evaluate(&mut self, _: usize, at: &[Tensor]) -> Result<Contribution, AttackError> {
        let mut gradients = vec![None; at.len()];
        let Some(x) = at.get(self.variable) else { return Ok(Contribution { value: 0.0, gradients }) };
        let (value, gradient) = Steps::Squares.sum(x, self.size)?;
        gradients[self.variable] = Some(gradient);
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
