//! NumPy arrays: `.npy`, and `.npz` with `x` and perhaps `y`.

use std::fs::File;
use std::path::Path;

use npyz::{DType, NpyFile, TypeChar};

use super::{LARGEST, Records, read_up_to};
use crate::{AuditError, Result};

/// An array of samples, with labels from an archive that has them.
pub(super) fn read(path: &Path) -> Result<Records> {
    let source = path.display().to_string();
    let file = File::open(path).map_err(|error| AuditError::data(&source, format!("cannot be opened: {error}")))?;
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
        let x = entry("x")?.ok_or_else(|| AuditError::data(&source, "holds no array `x`"))?;
        let y = entry("y")?;
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
    let sample = if sample.is_empty() { vec![1] } else { sample.to_vec() };
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
    let wrong = |problem: String| AuditError::data(source, problem);
    check_header(bytes).map_err(wrong)?;
    let file = NpyFile::new(bytes).map_err(|error| wrong(format!("is not an .npy array: {error}")))?;
    let shape: Vec<usize> = file.shape().iter().map(|&side| side as usize).collect();
    let DType::Plain(kind) = file.dtype() else {
        return Err(wrong("holds records with fields; plain numbers can be read".into()));
    };
    // Before anything is allocated: the numbers that are declared must be there.
    let width = kind.size_field();
    let declared = shape.iter().try_fold(width, |product, &side| product.checked_mul(side as u64));
    if declared.is_none_or(|declared| declared > bytes.len() as u64) {
        return Err(wrong(format!("declares shape {shape:?}, more than its {} bytes can hold", bytes.len())));
    }
    if shape.contains(&0) {
        return Err(wrong(format!("is empty: its shape is {shape:?}")));
    }
    let row_major = file.order() == npyz::Order::C;
    if !row_major && shape.len() > 1 {
        return Err(wrong("is in column-major order; save it with numpy.ascontiguousarray".into()));
    }
    let failed = |error: std::io::Error| wrong(format!("cannot be read: {error}"));
    macro_rules! numbers {
        ($t:ty) => {
            file.into_vec::<$t>().map_err(failed)?.into_iter().map(|value| value as f64).collect()
        };
    }
    let values = match (kind.type_char(), width) {
        (TypeChar::Float, 4) => numbers!(f32),
        (TypeChar::Float, 8) => numbers!(f64),
        (TypeChar::Int, 1) => numbers!(i8),
        (TypeChar::Int, 2) => numbers!(i16),
        (TypeChar::Int, 4) => numbers!(i32),
        (TypeChar::Int, 8) => numbers!(i64),
        (TypeChar::Uint, 1) if pixels => {
            file.into_vec::<u8>().map_err(failed)?.into_iter().map(|value| f64::from(value) / 255.0).collect()
        }
        (TypeChar::Uint, 1) => numbers!(u8),
        (TypeChar::Uint, 2) => numbers!(u16),
        (TypeChar::Uint, 4) => numbers!(u32),
        (TypeChar::Uint, 8) => numbers!(u64),
        (other, width) => {
            return Err(wrong(format!("holds {width}-byte numbers of kind {other:?}, which cannot be read")));
        }
    };
    Ok((shape, values))
}

/// Fails if the header says that it is longer than the file: the library would
/// allocate that much first (up to 4 GiB; found by fuzzing).
fn check_header(bytes: &[u8]) -> std::result::Result<(), String> {
    let field = |range: std::ops::Range<usize>| bytes.get(range);
    let declared = match bytes.get(6) {
        Some(1) => field(8..10).map(|b| u64::from(u16::from_le_bytes([b[0], b[1]]))),
        Some(_) => field(8..12).map(|b| u64::from(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))),
        None => None,
    };
    match declared {
        Some(length) if length <= bytes.len() as u64 => Ok(()),
        Some(length) => Err(format!("is not an .npy array: its header of {length} bytes is not all there")),
        None => Err("is not an .npy array: it ends within its header".into()),
    }
}
