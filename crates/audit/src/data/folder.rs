//! Folders of images: a subfolder for each class, or a `labels.csv`.

use std::fs;
use std::path::{Path, PathBuf};

use image::imageops::FilterType;
use image::{DynamicImage, ImageReader, Limits, Rgb32FImage};

use super::table::number_classes;
use super::{Records, open};
use crate::{AuditError, Result};

/// Largest side of an image that is read.
const LARGEST_SIDE: u32 = 16_384;

/// All images of a folder, in the order of their names.
///
/// With `labels.csv` (columns: file name, class) the images named there; else
/// every subfolder is a class; else the images of the folder itself, class 0.
pub(super) fn read(folder: &Path) -> Result<Records> {
    let labels = folder.join("labels.csv");
    let files = if labels.is_file() { listed(folder, &labels)? } else { by_subfolder(folder)? };
    if files.is_empty() {
        return Err(AuditError::data(folder.display(), "holds no .png, .jpg or .jpeg images"));
    }
    let mut records = Records { shape: Vec::new(), values: Vec::new(), labels: Vec::new(), ids: Vec::new() };
    let words: Vec<String> = files.iter().map(|(_, class)| class.clone()).collect();
    records.labels = number_classes(&words);
    for (path, _) in &files {
        let (mut shape, mut values) = pixels(path)?;
        if records.shape.is_empty() {
            records.shape.clone_from(&shape);
        }
        // A grey picture among coloured ones has three equal colours.
        if records.shape[1..] == shape[1..] && records.shape[0] != shape[0] {
            let pixels: usize = shape[1..].iter().product();
            let (own, grey) = match shape[0] {
                1 => (&mut shape, &mut values),
                _ => (&mut records.shape, &mut records.values),
            };
            own[0] = 3;
            *grey = grey.chunks_exact(pixels.max(1)).flat_map(|picture| picture.repeat(3)).collect();
        }
        if records.shape != shape {
            let (first, path) = (&records.shape, path.display());
            return Err(AuditError::data(
                path,
                format!("has shape {shape:?}, the images before it {first:?}; bring them to one size"),
            ));
        }
        records.values.extend(values);
        let name = path.strip_prefix(folder).unwrap_or(path);
        records.ids.push(name.display().to_string());
    }
    Ok(records)
}

/// Channel-major pixels in [0, 1]; grey images have one channel.
fn pixels(path: &Path) -> Result<(Vec<usize>, Vec<f32>)> {
    let wrong = |problem: String| AuditError::data(path.display(), problem);
    let mut reader = ImageReader::open(path)
        .and_then(ImageReader::with_guessed_format)
        .map_err(|error| wrong(super::unopened(&error)))?;
    let mut limits = Limits::default();
    (limits.max_image_width, limits.max_image_height) = (Some(LARGEST_SIDE), Some(LARGEST_SIDE));
    reader.limits(limits);
    let image = reader.decode().map_err(|error| wrong(format!("is not a readable image: {error}")))?;
    let (height, width) = (image.height() as usize, image.width() as usize);
    if image.color().has_color() {
        let image = image.to_rgb32f();
        let values = (0..3).flat_map(|channel| image.pixels().map(move |pixel| pixel.0[channel])).collect();
        Ok((vec![3, height, width], values))
    } else {
        let values = image.to_luma32f();
        Ok((vec![1, height, width], values.pixels().map(|pixel| pixel.0[0]).collect()))
    }
}

/// (file, class) for each line of a label file.
fn listed(folder: &Path, labels: &Path) -> Result<Vec<(PathBuf, String)>> {
    let source = labels.display().to_string();
    let mut table = csv::Reader::from_reader(open(labels)?);
    let mut files = Vec::new();
    for (row, record) in table.records().enumerate() {
        let wrong = |problem: String| AuditError::data(&source, format!("row {}: {problem}", row + 1));
        let record = record.map_err(|error| wrong(error.to_string()))?;
        let (Some(file), Some(class)) = (record.get(0), record.get(1)) else {
            return Err(wrong("needs a file name and a class".into()));
        };
        // A label file may name images of its folder, not of the machine.
        if Path::new(file).components().any(|part| !matches!(part, std::path::Component::Normal(_))) {
            return Err(wrong(format!("`{file}` is not a name inside the folder")));
        }
        let path = folder.join(file);
        if !path.is_file() {
            return Err(wrong(format!("there is no file {file}")));
        }
        files.push((path, class.trim().to_owned()));
    }
    Ok(files)
}

/// (file, class) with subfolders as classes, or class 0 for images beside each other.
fn by_subfolder(folder: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut files = Vec::new();
    for entry in sorted(folder)? {
        if entry.is_dir() {
            let class = entry.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            files.extend(sorted(&entry)?.into_iter().filter(|path| is_image(path)).map(|path| (path, class.clone())));
        }
    }
    // Images beside each other count only where no folder holds any.
    if files.is_empty() {
        files.extend(sorted(folder)?.into_iter().filter(|path| is_image(path)).map(|path| (path, "0".to_owned())));
    }
    Ok(files)
}

fn sorted(folder: &Path) -> Result<Vec<PathBuf>> {
    let wrong = |error: std::io::Error| AuditError::data(folder.display(), format!("cannot be listed: {error}"));
    let entries = fs::read_dir(folder).map_err(wrong)?;
    let mut paths = entries.map(|entry| entry.map(|entry| entry.path()).map_err(wrong)).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn is_image(path: &Path) -> bool {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
    matches!(ending.as_deref(), Some("png" | "jpg" | "jpeg"))
}

/// Images of another size, by a Catmull–Rom filter.
pub(super) fn resize(records: Records, [height, width]: [usize; 2]) -> Result<Records> {
    let &[channels, old_height, old_width] = records.shape.as_slice() else {
        let problem = format!("have shape {:?}; only images [channels, height, width] can be resized", records.shape);
        return Err(AuditError::data("records", problem));
    };
    let side = |side: usize| u32::try_from(side).ok().filter(|side| (1..=LARGEST_SIDE).contains(side));
    let (Some(h), Some(w), Some(old_h), Some(old_w)) = (side(height), side(width), side(old_height), side(old_width))
    else {
        return Err(AuditError::data("records", format!("cannot be resized to {height} x {width}")));
    };
    let mut values = Vec::new();
    // The filter can overshoot: values stay within those of their plane.
    for plane in records.values.chunks_exact(old_height * old_width) {
        let image = Rgb32FImage::from_fn(old_w, old_h, |x, y| image::Rgb([plane[(y * old_w + x) as usize], 0.0, 0.0]));
        let resized = DynamicImage::ImageRgb32F(image).resize_exact(w, h, FilterType::CatmullRom).into_rgb32f();
        let (low, high) = plane.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), &x| (l.min(x), h.max(x)));
        values.extend(resized.pixels().map(|pixel| pixel.0[0].max(low).min(high)));
    }
    Ok(Records { shape: vec![channels, height, width], values, ..records })
}
