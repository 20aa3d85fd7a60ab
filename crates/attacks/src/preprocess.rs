//! From pixels to what a network is fed, and back.

use afterimage_nn::{Error, Result, Tensor};

/// The preprocessing an attacker knows of: x = (pixel − mean) / std, with
/// pixels in a stated range.
///
/// Constants may be one number, one for each channel, or one for each pixel.
/// They are part of an observation or they are not known; an attack never
/// takes them from the data.
///
/// ```
/// use afterimage_attacks::Preprocess;
/// use afterimage_nn::Tensor;
/// let mean = Tensor::from_vec(vec![0.5, 0.25], &[2])?;
/// let preprocess = Preprocess { mean: Some(mean), ..Preprocess::default() };
/// let pixels = Tensor::from_vec(vec![1.0, 1.0, 0.0, 0.5], &[1, 2, 1, 2])?;
/// let x = preprocess.apply(&pixels)?;
/// assert_eq!(x.to_f64_vec()?, [0.5, 0.5, -0.25, 0.25]);
/// assert_eq!(preprocess.undo(&x)?.to_f64_vec()?, pixels.to_f64_vec()?);
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Preprocess {
    /// Smallest and largest pixel.
    pub range: [f64; 2],
    /// Subtracted, if anything is.
    pub mean: Option<Tensor>,
    /// Divided by, if anything is.
    pub std: Option<Tensor>,
}

impl Default for Preprocess {
    fn default() -> Self {
        Self { range: [0.0, 1.0], mean: None, std: None }
    }
}

impl Preprocess {
    /// From pixels to network inputs.
    pub fn apply(&self, pixels: &Tensor) -> Result<Tensor> {
        self.map(pixels, |pixel, mean, std| (pixel - mean) / std)
    }

    /// From network inputs to pixels, not clipped to the range.
    pub fn undo(&self, x: &Tensor) -> Result<Tensor> {
        self.map(x, |x, mean, std| x * std + mean)
    }

    fn map(&self, x: &Tensor, f: impl Fn(f64, f64, f64) -> f64) -> Result<Tensor> {
        let mean = expand("mean", self.mean.as_ref(), x, 0.0)?;
        let std = expand("std", self.std.as_ref(), x, 1.0)?;
        if std.contains(&0.0) {
            return Err(Error::Setting { setting: "std", value: "0".into(), expected: "must not be zero".into() });
        }
        let row = x.row_len().max(1);
        let data = x.to_f64_vec()?;
        let data: Vec<f64> = data.iter().enumerate().map(|(i, &x)| f(x, mean[i % row], std[i % row])).collect();
        Tensor::from_f64(&data, x.shape(), x.dtype())
    }
}

/// A constant for each element of one sample of `x`.
fn expand(what: &str, constant: Option<&Tensor>, x: &Tensor, default: f64) -> Result<Vec<f64>> {
    let row = x.row_len();
    let Some(constant) = constant else { return Ok(vec![default; row]) };
    let values = constant.to_f64_vec()?;
    let channels = x.shape().get(1).copied().unwrap_or(1);
    match values.len() {
        1 => Ok(vec![values[0]; row]),
        count if count == row => Ok(values),
        count if count == channels => {
            Ok(values.iter().flat_map(|&value| std::iter::repeat_n(value, row / channels)).collect())
        }
        count => Err(Error::Shape {
            what: format!("preprocessing {what}"),
            expected: format!("1, {channels} or {row} numbers"),
            found: vec![count],
        }),
    }
}
