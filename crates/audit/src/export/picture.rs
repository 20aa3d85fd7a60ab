//! Records as small pictures inside a page.

use std::io::Cursor;

use base64::Engine;
use image::{DynamicImage, GrayImage, ImageFormat, RgbImage};

/// What makes a dim record fill the range of a picture: records of length 1 are dim.
pub(super) fn brightness(record: &[f64]) -> f64 {
    let largest = record.iter().fold(0.0_f64, |largest, x| largest.max(x.abs()));
    if largest > 0.0 && largest < DIM { 1.0 / largest } else { 1.0 }
}

/// A record whose brightest element is below this is shown brighter.
const DIM: f64 = 0.5;

/// A record as a PNG data address, brightened by a factor; `None` where its shape is no picture.
pub(super) fn brightened(pixels: &[f64], shape: &[usize], by: f64) -> Option<String> {
    data_uri(&pixels.iter().map(|x| x * by).collect::<Vec<_>>(), shape)
}

/// A record as a PNG data address; `None` where its shape is no picture.
fn data_uri(pixels: &[f64], shape: &[usize]) -> Option<String> {
    let &[channels, height, width] = shape else { return None };
    let (h, w) = (u32::try_from(height).ok()?, u32::try_from(width).ok()?);
    if pixels.len() != channels * height * width || pixels.is_empty() {
        return None;
    }
    let byte = |channel: usize, x: u32, y: u32| {
        let value = pixels[(channel * height + y as usize) * width + x as usize];
        (value.clamp(0.0, 1.0) * 255.0).round() as u8
    };
    let image = match channels {
        1 => DynamicImage::ImageLuma8(GrayImage::from_fn(w, h, |x, y| image::Luma([byte(0, x, y)]))),
        3 => DynamicImage::ImageRgb8(RgbImage::from_fn(w, h, |x, y| image::Rgb([0, 1, 2].map(|c| byte(c, x, y))))),
        _ => return None,
    };
    let mut png = Vec::new();
    image.write_to(&mut Cursor::new(&mut png), ImageFormat::Png).ok()?;
    Some(format!("data:image/png;base64,{}", base64::engine::general_purpose::STANDARD.encode(png)))
}
