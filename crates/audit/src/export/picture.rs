//! Records as small pictures inside a page.

use std::io::Cursor;

use afterimage_nn::Tensor;
use base64::Engine;
use image::{DynamicImage, GrayImage, ImageFormat, RgbImage};

use super::Pictures;
use crate::Result;

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
    let png = png(&image_of(pixels, shape)?)?;
    Some(format!("data:image/png;base64,{}", base64::engine::general_purpose::STANDARD.encode(png)))
}

/// A record as an image; `None` where its shape is no picture.
fn image_of(pixels: &[f64], shape: &[usize]) -> Option<DynamicImage> {
    let &[channels, height, width] = shape else { return None };
    let (h, w) = (u32::try_from(height).ok()?, u32::try_from(width).ok()?);
    if pixels.len() != channels * height * width || pixels.is_empty() {
        return None;
    }
    let byte = |channel: usize, x: u32, y: u32| {
        let value = pixels[(channel * height + y as usize) * width + x as usize];
        (value.clamp(0.0, 1.0) * 255.0).round() as u8
    };
    match channels {
        1 => Some(DynamicImage::ImageLuma8(GrayImage::from_fn(w, h, |x, y| image::Luma([byte(0, x, y)])))),
        3 => {
            Some(DynamicImage::ImageRgb8(RgbImage::from_fn(w, h, |x, y| image::Rgb([0, 1, 2].map(|c| byte(c, x, y))))))
        }
        _ => None,
    }
}

fn png(image: &DynamicImage) -> Option<Vec<u8>> {
    let mut png = Vec::new();
    image.write_to(&mut Cursor::new(&mut png), ImageFormat::Png).ok()?;
    Some(png)
}

/// Records beside each other, ten a row, as one PNG; `None` where they are no pictures.
pub fn contact_sheet(records: &Tensor) -> Result<Option<Vec<u8>>> {
    let (count, shape) = (records.rows(), records.shape().get(1..).unwrap_or(&[]).to_vec());
    let values = records.to_f64_vec()?;
    let images = values.chunks_exact(records.row_len().max(1)).map(|pixels| image_of(pixels, &shape));
    let Some(images) = images.collect::<Option<Vec<_>>>().filter(|images| !images.is_empty()) else { return Ok(None) };
    let (width, height) = (images[0].width() + 2, images[0].height() + 2);
    let columns = count.clamp(1, 10) as u32;
    let rows = (count as u32).div_ceil(columns);
    let mut sheet = RgbImage::from_pixel(columns * width + 2, rows * height + 2, image::Rgb([128, 128, 128]));
    for (index, image) in images.iter().enumerate() {
        let (column, row) = (index as u32 % columns, index as u32 / columns);
        let (x, y) = (i64::from(2 + column * width), i64::from(2 + row * height));
        image::imageops::overlay(&mut sheet, &image.to_rgb8(), x, y);
    }
    Ok(png(&DynamicImage::ImageRgb8(sheet)))
}

/// Records of a band.
const COLUMNS: usize = 12;
/// Side of a record's place in a strip.
const PLACE: u32 = 96;
/// Between records, and between a record and what was rebuilt of it.
const GAP: u32 = 4;
/// Between bands.
const BAND: u32 = 20;

/// Bands of records, in the order of the data, above what was rebuilt of them, as one PNG on a clear ground; `None` where
/// there are none.
pub fn strip(bands: &[&Pictures]) -> Option<Vec<u8>> {
    let columns = bands.iter().map(|band| band.members.len().min(COLUMNS)).max().filter(|columns| *columns > 0)?;
    let high = 2 * PLACE + GAP;
    let width = columns as u32 * (PLACE + GAP) - GAP;
    let mut sheet = image::RgbaImage::new(width, bands.len() as u32 * (high + BAND) - BAND);
    for (row, band) in bands.iter().enumerate() {
        let mut members: Vec<_> = band.members.iter().collect();
        members.sort_by_key(|(place, _, _)| *place);
        for (column, (_, record, candidate)) in members.into_iter().take(COLUMNS).enumerate() {
            for (below, pixels) in [record, candidate].into_iter().enumerate() {
                let small = image_of(pixels, &band.shape)?;
                // A whole multiple, in the middle of its place: every pixel stays a square.
                let times = (PLACE / small.width().max(small.height()).max(1)).max(1);
                let (w, h) = (small.width() * times, small.height() * times);
                let large = image::imageops::resize(&small.to_rgba8(), w, h, image::imageops::FilterType::Nearest);
                let x = column as u32 * (PLACE + GAP) + PLACE.saturating_sub(w) / 2;
                let y = row as u32 * (high + BAND) + below as u32 * (PLACE + GAP) + PLACE.saturating_sub(h) / 2;
                image::imageops::overlay(&mut sheet, &large, i64::from(x), i64::from(y));
            }
        }
    }
    png(&DynamicImage::ImageRgba8(sheet))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strip_has_a_column_for_each_record_and_two_rows_for_each_band() {
        let members = (0..3).map(|place| (place, vec![0.5; 4], vec![1.0; 4])).collect();
        let band = Pictures { shape: vec![1, 2, 2], members, ..Pictures::default() };
        let png = strip(&[&band, &band]).unwrap();
        let image = image::load_from_memory(&png).unwrap().to_rgba8();
        assert_eq!(image.dimensions(), (3 * 100 - 4, 2 * (2 * 96 + 4) + 20));
        assert_eq!((image.get_pixel(0, 0).0[0], image.get_pixel(0, 100).0[0]), (128, 255));
        assert_eq!(image.get_pixel(97, 0).0[3], 0, "clear between records");
        assert!(strip(&[]).is_none() && strip(&[&Pictures::default()]).is_none());
    }
}
