//! Pixels lie in a known range.

use afterimage_nn::{Result, Tensor};

use crate::{AttackError, Contribution, Preprocess, Term};

/// Σ relu(x − high)² + Σ relu(low − x)²: nothing inside the range, the squared
/// excess outside it.
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
    low: Vec<f64>,
    high: Vec<f64>,
    variable: usize,
}

impl PixelRange {
    /// The range of network inputs of this shape, for the variable at this place.
    pub fn new(preprocess: &Preprocess, shape: &[usize], variable: usize) -> Result<Self> {
        let one: Vec<usize> = std::iter::once(1).chain(shape.iter().copied()).collect();
        let bound = |pixel: f64| {
            let pixels = Tensor::full(pixel, &one, afterimage_nn::DType::F64, afterimage_nn::Device::Cpu)?;
            preprocess.apply(&pixels)?.to_f64_vec()
        };
        let [low, high] = preprocess.range;
        Ok(Self { low: bound(low)?, high: bound(high)?, variable })
    }
}

impl Term for PixelRange {
    fn evaluate(&mut self, _: usize, at: &[Tensor]) -> std::result::Result<Contribution, AttackError> {
        let mut gradients = vec![None; at.len()];
        let Some(x) = at.get(self.variable) else { return Ok(Contribution { value: 0.0, gradients }) };
        let (mut value, row) = (0.0, self.low.len().max(1));
        let mut excess = x.to_f64_vec()?;
        for (index, x) in excess.iter_mut().enumerate() {
            let (low, high) = (self.low[index % row], self.high[index % row]);
            let over = (*x - high).max(0.0) - (low - *x).max(0.0);
            value += over * over;
            *x = 2.0 * over;
        }
        gradients[self.variable] = Some(Tensor::from_f64(&excess, x.shape(), x.dtype())?.to_device(x.device())?);
        Ok(Contribution { value, gradients })
    }
}
