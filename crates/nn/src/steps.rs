//! Steps from each pixel of an image to its neighbours: what penalties on roughness are made of.

use serde::{Deserialize, Serialize};

use crate::kernel::element::Element;
use crate::ops::{Total, on_device};
use crate::tensor::on_host;
use crate::{Error, Result, Tensor};

/// What steps to the right and down from a pixel, a and b, count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Steps {
    /// |a| + |b|.
    Absolute,
    /// √(a² + b²).
    Length,
    /// a² + b².
    Squares,
}

/// Below this a step has no direction.
const SMALLEST: f64 = 1e-12;

impl Steps {
    /// The sum over all pixels of images `[…, height, width]`, and its gradient.
    ///
    /// ```
    /// use afterimage_nn::{Steps, Tensor};
    /// let x = Tensor::from_vec(vec![1.0, 0.0, 0.0, 0.0], &[1, 1, 2, 2])?;
    /// let (sum, gradient) = Steps::Squares.sum(&x, [2, 2])?;
    /// assert_eq!(sum, 2.0);
    /// assert_eq!(gradient.to_f64_vec()?, [4.0, -2.0, -2.0, 0.0]);
    /// # Ok::<(), afterimage_nn::Error>(())
    /// ```
    pub fn sum(self, x: &Tensor, size: [usize; 2]) -> Result<(f64, Tensor)> {
        let (sum, gradient) = self.total(x, size)?;
        Ok((sum.read()?, gradient))
    }

    fn total(self, x: &Tensor, size: [usize; 2]) -> Result<(Total, Tensor)> {
        let plane = size[0] * size[1];
        if plane == 0 || !x.count().is_multiple_of(plane) {
            return Err(Error::shape(
                "images of a sum over steps",
                format!("[…, {}, {}]", size[0], size[1]),
                x.shape(),
            ));
        }
        on_device!(x, crate::cuda::steps(self, x, size));
        on_host!(x.dtype(), T => {
            let (sum, gradient) = self.over(&x.host::<T>()?, size);
            Ok((Total::Known(sum), Tensor::from_vec(gradient, x.shape())?))
        })
    }

    /// The kernels' number for it.
    #[cfg(feature = "cuda")]
    pub(crate) fn code(self) -> usize {
        match self {
            Steps::Absolute => 0,
            Steps::Length => 1,
            Steps::Squares => 2,
        }
    }

    /// What two steps count, and the slopes of that in each.
    fn of(self, steps: [f64; 2]) -> (f64, [f64; 2]) {
        match self {
            Steps::Absolute => {
                (steps[0].abs() + steps[1].abs(), steps.map(|step| if step == 0.0 { 0.0 } else { step.signum() }))
            }
            Steps::Length => {
                let length = steps[0].hypot(steps[1]);
                (length, steps.map(|step| if length > SMALLEST { step / length } else { 0.0 }))
            }
            Steps::Squares => (steps[0] * steps[0] + steps[1] * steps[1], steps.map(|step| 2.0 * step)),
        }
    }

    fn over<T: Element>(self, x: &[T], [height, width]: [usize; 2]) -> (f64, Vec<T>) {
        let (mut sum, mut gradient) = (0.0, vec![0.0; x.len()]);
        let size = height * width;
        for (x, gradient) in x.chunks_exact(size).zip(gradient.chunks_exact_mut(size)) {
            for here in 0..size {
                let right = if (here + 1).is_multiple_of(width) { here } else { here + 1 };
                let below = if here + width < size { here + width } else { here };
                let (value, slopes) = self.of([right, below].map(|there| x[there].wide() - x[here].wide()));
                sum += value;
                for (there, slope) in [right, below].into_iter().zip(slopes) {
                    gradient[there] += slope;
                    gradient[here] -= slope;
                }
            }
        }
        (sum, gradient.into_iter().map(T::of).collect())
    }
}
