//! Pixels lie in a known range.

use afterimage_nn::{DType, Device, Result, Tensor};

use crate::{AttackError, Contribution, Preprocess, Term};

/// Σ relu(x − high)² + Σ relu(low − x)²: nothing inside the range, the squared
/// excess outside it; or the mean of the excess itself.
///
/// ```
/// use afterimage_attacks::{PixelRange, Preprocess, Term};
/// use afterimage_nn::Tensor;
/// let mut range = PixelRange::new(&Preprocess::default(), &[3], 0)?;
/// let x = Tensor::from_vec(vec![-0.5, 0.5, 3.0], &[1, 3])?;
/// let found = range.evaluate(0, &[x])?;
/// assert_eq!(found.value, 0.25 + 4.0);
/// assert_eq!(found.gradients[0].as_ref().unwrap().to_f64_vec()?, [-1.0, 0.0, 4.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct PixelRange {
    low: Tensor,
    high: Tensor,
    /// The bounds as the last candidates were.
    placed: Option<[Tensor; 2]>,
    variable: usize,
    linear: bool,
}

impl PixelRange {
    /// The range of network inputs of this shape, for the variable at this place.
    pub fn new(preprocess: &Preprocess, shape: &[usize], variable: usize) -> Result<Self> {
        let one: Vec<usize> = std::iter::once(1).chain(shape.iter().copied()).collect();
        let bound = |pixel: f64| {
            let pixels = Tensor::full(pixel, &one, DType::F64, Device::Cpu)?;
            preprocess.apply(&pixels)
        };
        let [low, high] = preprocess.range;
        Ok(Self { low: bound(low)?, high: bound(high)?, placed: None, variable, linear: false })
    }

    /// One range for every element of network inputs of this shape.
    pub fn between([low, high]: [f64; 2], shape: &[usize], variable: usize) -> Result<Self> {
        let bound = |value: f64| Tensor::full(value, shape, DType::F64, Device::Cpu);
        Ok(Self { low: bound(low)?, high: bound(high)?, placed: None, variable, linear: false })
    }

    /// The mean of the excess, not the sum of its squares: as the KKT paper writes it.
    #[must_use]
    pub fn linear(self) -> Self {
        Self { linear: true, ..self }
    }

    /// Candidates with what lies outside moved to the edge of the range.
    ///
    /// ```
    /// use afterimage_attacks::PixelRange;
    /// use afterimage_nn::Tensor;
    /// let range = PixelRange::between([0.0, 1.0], &[3], 0)?;
    /// let x = Tensor::from_vec(vec![-0.5, 0.5, 3.0], &[1, 3])?;
    /// assert_eq!(range.clamped(&x)?.to_f64_vec()?, [0.0, 0.5, 1.0]);
    /// # Ok::<(), afterimage_nn::Error>(())
    /// ```
    pub fn clamped(&self, x: &Tensor) -> Result<Tensor> {
        let [low, high] = self.bounds(x)?;
        x.clamp_rows(&low, &high)
    }

    /// The bounds, as candidates are.
    fn bounds(&self, x: &Tensor) -> Result<[Tensor; 2]> {
        let on = |bound: &Tensor| bound.to_dtype(x.dtype())?.to_device(x.device());
        Ok([on(&self.low)?, on(&self.high)?])
    }
}

impl Term for PixelRange {
    fn evaluate(&mut self, _: usize, at: &[Tensor]) -> std::result::Result<Contribution, AttackError> {
        let mut gradients = vec![None; at.len()];
        let Some(x) = at.get(self.variable) else { return Ok(Contribution { value: 0.0, gradients }) };
        // Kept where the candidates are: they come again and again.
        let alike = |[low, _]: &[Tensor; 2]| low.dtype() == x.dtype() && low.device() == x.device();
        let bounds = match self.placed.take().filter(alike) {
            Some(bounds) => bounds,
            None => self.bounds(x)?,
        };
        let excess = x.excess(&bounds[0], &bounds[1])?;
        self.placed = Some(bounds);
        let (value, gradient) = if self.linear {
            let (each, signs) = (1.0 / x.count().max(1) as f64, excess.signs()?);
            (each * signs.dot(&excess)?, signs.scale(each)?)
        } else {
            (excess.dot(&excess)?, excess.scale(2.0)?)
        };
        gradients[self.variable] = Some(gradient);
        Ok(Contribution { value, gradients })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_excess_itself_may_count() {
        let x = Tensor::from_vec(vec![-2.0, 0.5, 3.0, 0.0], &[2, 2]).unwrap();
        let found = PixelRange::between([-1.0, 1.0], &[2], 0).unwrap().linear().evaluate(0, &[x]).unwrap();
        assert_eq!(found.value, (1.0 + 2.0) / 4.0);
        assert_eq!(found.gradients[0].as_ref().unwrap().to_f64_vec().unwrap(), [-0.25, 0.0, 0.25, 0.0]);
    }
}
