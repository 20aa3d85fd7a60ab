//! A blur with a known kernel, as a linear map of images to images: what lies outside an image is black.

use afterimage_nn::Tensor;

use crate::AttackError;

/// Samples of this shape blurred by a kernel of odd height and width: `y` of a blur without noise.
///
/// ```
/// use afterimage_attacks::autoencoder::blurred;
/// use afterimage_nn::Tensor;
/// let kernel = Tensor::from_vec(vec![0.25, 0.5, 0.25], &[1, 3])?;
/// let sample = Tensor::from_vec(vec![0.0, 1.0, 0.0, 0.0], &[1, 4])?;
/// assert_eq!(blurred(&sample, &kernel, &[4])?.to_f64_vec()?, [0.25, 0.5, 0.25, 0.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn blurred(samples: &Tensor, kernel: &Tensor, shape: &[usize]) -> Result<Tensor, AttackError> {
    Blur::new(kernel, shape)?.apply(samples)
}

/// Each pixel becomes a weighted sum of its neighbours, in each channel on its own.
#[derive(Debug, Clone)]
pub(super) struct Blur {
    /// Neighbours by rows down and columns to the right, with their weights.
    taps: Vec<(isize, isize, f64)>,
    height: usize,
    width: usize,
}

impl Blur {
    /// The blur of samples of this shape by a kernel of odd height and width.
    pub(super) fn new(kernel: &Tensor, sample: &[usize]) -> Result<Self, AttackError> {
        let (height, width) = match *sample {
            [_, height, width] => (height, width),
            _ => (1, sample.iter().product()),
        };
        let (rows, columns) = match *kernel.shape() {
            [rows, _] if rows > 1 && sample.len() != 3 => {
                let problem =
                    format!("the kernel of the blur has {rows} rows, and samples of {sample:?} are no pictures");
                return Err(AttackError::File { file: "observation".into(), problem });
            }
            [rows, columns] if rows % 2 == 1 && columns % 2 == 1 => (rows, columns),
            ref other => {
                let problem = format!("the kernel of the blur is {other:?}, and needs an odd height and width");
                return Err(AttackError::File { file: "observation".into(), problem });
            }
        };
        kernel.check_finite("the kernel of the blur")?;
        let place = |index: usize, length: usize| index as isize - (length / 2) as isize;
        let weights = kernel.to_f64_vec()?;
        let taps = weights.into_iter().enumerate().filter(|(_, weight)| *weight != 0.0);
        let taps = taps.map(|(i, weight)| (place(i / columns, rows), place(i % columns, columns), weight)).collect();
        Ok(Self { taps, height, width })
    }

    /// The samples blurred.
    pub(super) fn apply(&self, x: &Tensor) -> Result<Tensor, AttackError> {
        self.summed(x, 1)
    }

    /// Its transpose: the same with the kernel turned about.
    pub(super) fn transposed(&self, x: &Tensor) -> Result<Tensor, AttackError> {
        self.summed(x, -1)
    }

    fn summed(&self, x: &Tensor, side: isize) -> Result<Tensor, AttackError> {
        let (height, width) = (self.height, self.width);
        let values = x.to_f64_vec()?;
        let mut sums = vec![0.0; values.len()];
        let images = values.chunks_exact((height * width).max(1)).zip(sums.chunks_exact_mut((height * width).max(1)));
        for (image, sums) in images {
            for &(down, right, weight) in &self.taps {
                let (down, right) = (side * down, side * right);
                for y in (0..height).filter(|&y| (0..height as isize).contains(&(y as isize + down))) {
                    let from = (y as isize + down) as usize * width;
                    let columns =
                        ((-right).max(0) as usize).min(width)..((width as isize - right).max(0) as usize).min(width);
                    for column in columns {
                        sums[y * width + column] += weight * image[from + (column as isize + right) as usize];
                    }
                }
            }
        }
        Ok(Tensor::from_f64(&sums, x.shape(), x.dtype())?.to_device(x.device())?)
    }
}

#[cfg(test)]
mod tests {
    use afterimage_nn::Stream;

    use super::*;

    fn random(seed: u64, shape: &[usize]) -> Tensor {
        let mut stream = Stream::new(seed, "test", 0);
        Tensor::from_vec((0..shape.iter().product()).map(|_| stream.normal()).collect(), shape).unwrap()
    }

    #[test]
    fn the_transpose_is_one() {
        let blur = Blur::new(&random(1, &[3, 5]), &[2, 6, 4]).unwrap();
        let (a, b) = (random(2, &[3, 2, 6, 4]), random(3, &[3, 2, 6, 4]));
        let one = blur.apply(&a).unwrap().dot(&b).unwrap();
        let other = a.dot(&blur.transposed(&b).unwrap()).unwrap();
        assert!((one - other).abs() < 1e-12 * one.abs().max(1.0), "{one} {other}");
    }

    #[test]
    fn pixels_run_into_their_neighbours_and_out_of_the_picture() {
        let kernel = Tensor::from_vec(vec![0.0, 0.1, 0.0, 0.2, 0.4, 0.2, 0.0, 0.1, 0.0], &[3, 3]).unwrap();
        let blur = Blur::new(&kernel, &[1, 2, 3]).unwrap();
        let x = Tensor::from_vec(vec![1.0, 0.0, 0.0, 0.0, 0.0, 0.0], &[1, 1, 2, 3]).unwrap();
        assert_eq!(blur.apply(&x).unwrap().to_f64_vec().unwrap(), [0.4, 0.2, 0.0, 0.1, 0.0, 0.0]);
        let even = Tensor::from_vec(vec![0.5, 0.5], &[1, 2]).unwrap();
        assert!(Blur::new(&even, &[1, 2, 3]).unwrap_err().to_string().contains("odd"));
        let square = Tensor::from_vec(vec![0.1; 9], &[3, 3]).unwrap();
        assert!(Blur::new(&square, &[6]).unwrap_err().to_string().contains("no pictures"));
        // A kernel larger than the picture.
        let wide = Blur::new(&random(1, &[7, 9]), &[1, 2, 3]).unwrap();
        assert_eq!(wide.apply(&x).unwrap().shape(), [1, 1, 2, 3]);
    }
}
