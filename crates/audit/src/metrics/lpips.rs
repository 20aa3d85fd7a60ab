//! LPIPS (Zhang et al., 2018): how far apart two pictures are in a network's features.
//!
//! Version 0.1 on AlexNet: both pictures go through its convolutions; at five
//! layers every pixel's features are brought to length one, squared differences
//! are weighted by a learned number for each channel and averaged over the
//! pixels; the distance is the sum over the layers.

use std::path::Path;

use afterimage_nn::algebra::Plain;
use afterimage_nn::io::TensorFile;
use afterimage_nn::zoo::{ALEXNET_TAPS, alexnet_features};
use afterimage_nn::{DType, Device, Network, Params, Tensor};

use crate::align::image_size;
use crate::{AuditError, Result};

/// What pictures in [−1, 1] are shifted and scaled by, for each colour.
const SHIFT: [f64; 3] = [-0.030, -0.088, -0.188];
const SCALE: [f64; 3] = [0.458, 0.448, 0.450];
/// Keeps pixels without any feature from being divided by zero.
const TINY: f64 = 1e-10;

/// The metric with its network, for pictures of one size.
#[derive(Debug)]
pub struct Lpips {
    network: Network,
    theta: Params,
    /// The weight of each channel, layer by layer.
    heads: Vec<Vec<f64>>,
    shape: [usize; 3],
}

impl Lpips {
    /// Reads AlexNet's convolutions (`features.*`) and the linear heads
    /// (`lin0.model.1.weight` …) from a safetensors file, for records of this shape.
    /// None if pictures of that shape are too small for the network, or no pictures.
    pub fn load(path: &Path, shape: &[usize]) -> Result<Option<Self>> {
        let mut file = TensorFile::read(path)?;
        let Some([channels, height, width]) = image_size(shape) else { return Ok(None) };
        if ![1, 3].contains(&channels) {
            return Ok(None);
        }
        let mut heads = Vec::with_capacity(ALEXNET_TAPS.len());
        for layer in 0..ALEXNET_TAPS.len() {
            let name = format!("lin{layer}.model.1.weight");
            let missing = || AuditError::file(path, format!("has no tensor {name}: is it LPIPS 0.1 on AlexNet?"));
            heads.push(file.tensors.remove(&name).ok_or_else(missing)?.to_f64_vec()?);
        }
        // An image that some pooling does not fit on has no distance.
        let Ok(network) = Network::new(alexnet_features(&[3, height, width])) else { return Ok(None) };
        let channels_of = network.parameters().iter().filter(|p| p.shape.len() == 4).map(|p| p.shape[0]);
        for (layer, (head, channels)) in heads.iter().zip(channels_of).enumerate() {
            if head.len() != channels || !head.iter().all(|weight| weight.is_finite()) {
                let problem = format!("lin{layer}.model.1.weight should be {channels} finite numbers");
                return Err(AuditError::file(path, problem));
            }
        }
        let in_file = |error: afterimage_nn::Error| AuditError::file(path, error.to_string());
        let theta = network.params(file.tensors, DType::F32, Device::Cpu).map_err(in_file)?;
        Ok(Some(Self { network, theta, heads, shape: [channels, height, width] }))
    }

    /// The distance of two pictures in [0, 1]; `None` where there is none to be had.
    pub fn distance(&self, a: &[f64], b: &[f64]) -> Option<f64> {
        let [_, height, width] = self.shape;
        let count: usize = self.shape.iter().product();
        if a.len() != count || b.len() != count || !a.iter().chain(b).all(|x| x.is_finite()) {
            return None;
        }
        let pair: Vec<f64> = [a, b].into_iter().flat_map(|picture| self.prepared(picture)).collect();
        let x = Tensor::from_f64(&pair, &[2, 3, height, width], DType::F32).ok()?;
        let trace = self.network.trace(&mut Plain::new(), &self.theta, &x).ok()?;
        let layers = self.network.spec().layers.iter().zip(&trace.values()[1..]);
        let tapped = layers.filter(|(layer, _)| layer.name.as_deref().is_some_and(|name| ALEXNET_TAPS.contains(&name)));
        let mut distance = 0.0;
        for ((_, features), head) in tapped.zip(&self.heads) {
            distance += weighted(&features.to_f64_vec().ok()?, head)?;
        }
        Some(distance)
    }

    /// A picture as the network takes it; grey becomes three equal colours.
    fn prepared(&self, picture: &[f64]) -> Vec<f64> {
        let [channels, height, width] = self.shape;
        let plane = |colour: usize| &picture[colour.min(channels - 1) * height * width..][..height * width];
        let scaled = |colour: usize| plane(colour).iter().map(move |x| (2.0 * x - 1.0 - SHIFT[colour]) / SCALE[colour]);
        (0..3).flat_map(scaled).collect()
    }
}

/// Σ_c w_c (â_c − b̂_c)², averaged over the pixels, for the features of two pictures.
fn weighted(features: &[f64], head: &[f64]) -> Option<f64> {
    let (channels, half) = (head.len(), features.len() / 2);
    let pixels = half.checked_div(channels).filter(|&pixels| pixels > 0 && pixels * channels == half)?;
    let (a, b) = features.split_at(half);
    let length =
        |x: &[f64], pixel: usize| x.iter().skip(pixel).step_by(pixels).map(|x| x * x).sum::<f64>().sqrt() + TINY;
    let at = |pixel: usize| {
        let (length_a, length_b) = (length(a, pixel), length(b, pixel));
        let difference =
            |channel: usize| a[channel * pixels + pixel] / length_a - b[channel * pixels + pixel] / length_b;
        head.iter().enumerate().map(|(channel, weight)| weight * difference(channel).powi(2)).sum::<f64>()
    };
    Some((0..pixels).map(at).sum::<f64>() / pixels as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_compared_by_direction() {
        // Two channels, two pixels: the same direction, and a right angle.
        let features = [1.0, 0.0, 0.0, 3.0, 2.0, 5.0, 0.0, 0.0];
        let found = weighted(&features, &[0.5, 0.25]).unwrap();
        assert!((found - (0.0 + 0.75) / 2.0).abs() < 1e-9, "{found}");
        assert_eq!(weighted(&features, &[1.0; 3]), None);
    }
}
