//! The idx format of MNIST: a magic number, the sizes of the axes, bytes.

use std::io::Read;
use std::path::Path;

use super::{Records, open, pixel, read_up_to};
use crate::{AuditError, Result};

/// Axes and bytes of an idx file of unsigned bytes.
fn parse(mut reader: impl Read, source: &str) -> Result<(Vec<usize>, Vec<u8>)> {
    let wrong = |problem: String| AuditError::data(source, problem);
    let mut word = || {
        let mut bytes = [0; 4];
        let read = reader.read_exact(&mut bytes);
        read.map(|()| u32::from_be_bytes(bytes))
            .map_err(|error| wrong(format!("the idx header is cut short ({error})")))
    };
    let magic = word()?;
    let axes = match magic {
        0x0801..=0x0804 => (magic & 0xff) as usize,
        _ => return Err(wrong(format!("is not an idx file of bytes: it starts with {magic:#010x}, not 0x0000080…"))),
    };
    let shape = (0..axes).map(|_| word().map(|side| side as usize)).collect::<Result<Vec<_>>>()?;
    if shape.contains(&0) {
        return Err(wrong(format!("is empty: its sizes are {shape:?}")));
    }
    let count = shape.iter().try_fold(1_u64, |product, &side| product.checked_mul(side as u64));
    let count = count.ok_or_else(|| wrong(format!("declares impossible sizes {shape:?}")))?;
    let bytes = read_up_to(reader, count.saturating_add(1), source)?;
    if bytes.len() as u64 != count {
        let more = if bytes.len() as u64 > count { "more" } else { "only" };
        return Err(wrong(format!("declares {shape:?}, {count} bytes, and holds {more} {}", bytes.len())));
    }
    Ok((shape, bytes))
}

/// Images and their labels from two idx streams.
pub(super) fn parse_pair(images: impl Read, labels: impl Read, source: &str) -> Result<Records> {
    let (shape, pixels) = parse(images, source)?;
    let (label_shape, labels) = parse(labels, &format!("{source} (labels)"))?;
    let &[count, height, width] = shape.as_slice() else {
        return Err(AuditError::data(source, format!("holds axes {shape:?}; images need [count, height, width]")));
    };
    if label_shape != [count] {
        return Err(AuditError::data(source, format!("has {count} images and labels {label_shape:?}")));
    }
    Ok(Records {
        shape: vec![1, height, width],
        values: pixels.into_iter().map(pixel).collect(),
        labels: labels.into_iter().map(usize::from).collect(),
        ids: (0..count).map(|index| index.to_string()).collect(),
    })
}

/// An image file with the label file beside it.
pub(super) fn read_pair(path: &Path) -> Result<Records> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if !name.contains("images") {
        return Err(AuditError::data(
            path.display(),
            "name the idx file with `images` in its name; labels are found from it",
        ));
    }
    let labels = path.with_file_name(name.replace("images", "labels").replace("idx3", "idx1"));
    parse_pair(open(path)?, open(&labels)?, &path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idx(magic: u32, sides: &[u32], bytes: &[u8]) -> Vec<u8> {
        let header = [magic].into_iter().chain(sides.iter().copied()).flat_map(u32::to_be_bytes);
        header.chain(bytes.iter().copied()).collect()
    }

    #[test]
    fn images_and_labels_are_read_in_order() {
        let images = idx(0x803, &[2, 1, 2], &[0, 255, 51, 102]);
        let records = parse_pair(&images[..], &idx(0x801, &[2], &[7, 3])[..], "test").unwrap();
        assert_eq!((records.shape.as_slice(), records.labels.as_slice()), (&[1, 1, 2][..], &[7, 3][..]));
        assert_eq!(records.values, [0.0, 1.0, 0.2, 0.4]);
    }

    #[test]
    fn damaged_files_are_named() {
        let labels = idx(0x801, &[2], &[7, 3]);
        for (images, part) in [
            (idx(0x803, &[2, 1, 2], &[0, 255, 51]), "12"),
            (idx(0x803, &[2, 1, 2], &[0; 5]), "more"),
            (idx(0x803, &[2, 1], &[]), "cut short"),
            (idx(0x803, &[2, 0, 28], &[]), "is empty"),
            (idx(0xd03, &[2, 1, 2], &[0; 4]), "not an idx file"),
            (idx(0x803, &[u32::MAX, u32::MAX, u32::MAX], &[0; 4]), "impossible sizes"),
            (idx(0x803, &[4_000_000, 60, 60], &[0; 4]), "only 4"),
            (idx(0x803, &[1, 1, 2], &[0; 2]), "1 images and labels [2]"),
            (idx(0x802, &[2, 2], &[0; 4]), "[count, height, width]"),
            (vec![], "cut short"),
        ] {
            let message = parse_pair(&images[..], &labels[..], "test").unwrap_err().to_string();
            let part = if part == "12" { "declares [2, 1, 2], 4 bytes, and holds only 3" } else { part };
            assert!(message.contains(part), "{part}: {message}");
        }
    }
}
