//! NumPy arrays: `.npy`, and `.npz` with `x` and perhaps `y`.

use std::fs::File;
use std::path::Path;

use afterimage_nn::io::{Array, Numbers};

use super::{LARGEST, Records, read_up_to};
use crate::{AuditError, Result};

/// An array of samples, with labels from an archive that has them.
pub(super) fn read(path: &Path) -> Result<Records> {
    let source = path.display().to_string();
    let file = File::open(path).map_err(|error| AuditError::data(&source, super::unopened(&error)))?;
    if path.extension().is_some_and(|ending| ending == "npz") {
        let mut archive = zip::ZipArchive::new(file)
            .map_err(|error| AuditError::data(&source, format!("is not an .npz: {error}")))?;
        let mut entry = |name: &str| -> Result<Option<Vec<u8>>> {
            match archive.by_name(&format!("{name}.npy")) {
                Ok(entry) => read_up_to(entry, LARGEST, &source).map(Some),
                Err(zip::result::ZipError::FileNotFound) => Ok(None),
                Err(error) => Err(AuditError::data(&source, format!("entry {name}: {error}"))),
            }
        };
        let (x, y) = (entry("x")?, entry("y")?);
        let x = x.ok_or_else(|| {
            let names = archive.file_names().flatten().take(8).map(|name| name.trim_end_matches(".npy").to_owned());
            let names: Vec<String> = names.collect();
            let problem = format!(
                "holds no array `x`, but {}; name the samples `x` and their classes, if there are any, `y`",
                names.join(", ")
            );
            AuditError::data(&source, problem)
        })?;
        records(&x, y.as_deref(), &source)
    } else {
        records(&read_up_to(file, LARGEST, &source)?, None, &source)
    }
}

fn records(x: &[u8], y: Option<&[u8]>, source: &str) -> Result<Records> {
    let (shape, values) = array(x, true, source)?;
    let [count, sample @ ..] = shape.as_slice() else {
        return Err(AuditError::data(source, "holds a single number; samples need a first axis"));
    };
    let sample = match sample {
        [] => vec![1],
        // Grey pictures.
        &[height, width] => vec![1, height, width],
        other => other.to_vec(),
    };
    let labels = match y {
        None => vec![0; *count],
        Some(y) => {
            let (shape, labels) = array(y, false, source)?;
            if shape != [*count] {
                return Err(AuditError::data(source, format!("has {count} samples and labels of shape {shape:?}")));
            }
            let class = |&label: &f64| if label >= 0.0 && label.fract() == 0.0 { Some(label as usize) } else { None };
            let labels: Option<Vec<usize>> = labels.iter().map(class).collect();
            labels.ok_or_else(|| AuditError::data(source, "labels must be whole numbers from 0"))?
        }
    };
    let values: Vec<f32> = values.iter().map(|&value| value as f32).collect();
    if let Some(index) = values.iter().position(|value| !value.is_finite()) {
        return Err(AuditError::data(source, format!("element {index} is not a finite number")));
    }
    Ok(Records { shape: sample, values, labels, ids: (0..*count).map(|index| index.to_string()).collect() })
}

/// Shape and values of an array of numbers, in row-major order; bytes may be pixels.
fn array(bytes: &[u8], pixels: bool, source: &str) -> Result<(Vec<usize>, Vec<f64>)> {
    let Array { shape, numbers } = Array::parse(bytes).map_err(|problem| AuditError::data(source, problem))?;
    let values = match numbers {
        Numbers::Single(values) => values.into_iter().map(f64::from).collect(),
        Numbers::Double(values) => values,
        Numbers::Bytes(values) if pixels => values.into_iter().map(|value| f64::from(value) / 255.0).collect(),
        Numbers::Bytes(values) => values.into_iter().map(f64::from).collect(),
        Numbers::Whole(values) => values.into_iter().map(|value| value as f64).collect(),
    };
    Ok((shape, values))
}
