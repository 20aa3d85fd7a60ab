//! Arrays for NumPy.

use std::io::{Cursor, Write};

use afterimage_nn::Tensor;
use zip::write::SimpleFileOptions;

use crate::{AuditError, Result};

/// An `.npz` archive of named arrays, in double precision.
///
/// ```
/// use afterimage_nn::Tensor;
/// let x = Tensor::from_vec(vec![1.0, 2.0, 3.0, 4.0], &[2, 2])?;
/// let folder = std::env::temp_dir().join(format!("afterimage-npz-{}", std::process::id()));
/// std::fs::create_dir_all(&folder)?;
/// let path = folder.join("x.npz");
/// std::fs::write(&path, afterimage_audit::export::npz(&[("x", &x)])?)?;
/// let records = path.display().to_string().parse::<afterimage_audit::data::Source>()?.read()?;
/// assert_eq!((records.len(), records.values), (2, vec![1.0, 2.0, 3.0, 4.0]));
/// std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn npz(arrays: &[(&str, &Tensor)]) -> Result<Vec<u8>> {
    let wrong = |error: String| AuditError::data("npz", error);
    let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, array) in arrays {
        let written = archive.start_file(format!("{name}.npy"), SimpleFileOptions::default());
        written.map_err(|error| wrong(error.to_string()))?;
        archive.write_all(&npy(array)?).map_err(|error| wrong(error.to_string()))?;
    }
    Ok(archive.finish().map_err(|error| wrong(error.to_string()))?.into_inner())
}

/// One array: NumPy's format, version 1.0.
fn npy(array: &Tensor) -> Result<Vec<u8>> {
    let shape: Vec<String> = array.shape().iter().map(|side| format!("{side},")).collect();
    let mut header = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({}), }}", shape.join(" "));
    // Magic, version and length are ten bytes; all of it ends at a multiple of 64 with a line break.
    let padding = 63 - (10 + header.len()) % 64;
    header.extend(std::iter::repeat_n(' ', padding));
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    array.to_f64_vec()?.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
    Ok(bytes)
}
