//! Tensors that an ONNX file holds, or keeps in a file beside it.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path};

use super::proto::TensorProto;
use crate::io::half_to_f32;

/// Numbers with a shape.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Constant {
    pub(super) shape: Vec<usize>,
    pub(super) numbers: Vec<f64>,
    /// Whether they are whole numbers: shapes, axes, scales.
    pub(super) whole: bool,
}

impl Constant {
    /// Reads one; `folder` is where the model's own file lies.
    pub(super) fn read(tensor: &TensorProto, folder: Option<&Path>) -> Result<Self, String> {
        let shape = tensor.dims.iter().map(|&side| usize::try_from(side)).collect::<Result<Vec<_>, _>>();
        let shape = shape.map_err(|_| format!("has shape {:?}", tensor.dims))?;
        if shape.contains(&0) {
            return Err(format!("is empty: its shape is {shape:?}"));
        }
        let outside;
        let raw = match tensor.location {
            0 => &tensor.raw,
            _ => {
                outside = beside(tensor, folder)?;
                &outside
            }
        };
        macro_rules! numbers {
            ($t:ty, $listed:expr) => {
                if raw.is_empty() {
                    $listed
                } else {
                    raw.as_chunks::<{ size_of::<$t>() }>().0.iter().map(|b| <$t>::from_le_bytes(*b) as f64).collect()
                }
            };
        }
        let longs = || tensor.longs.iter().map(|&x| x as f64).collect();
        let ints = || tensor.ints.iter().map(|&x| f64::from(x)).collect();
        let halves = |widen: fn(u16) -> f32| -> Vec<f64> {
            let listed = tensor.ints.iter().map(|&bits| bits as u16);
            let packed = raw.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b));
            packed.chain(listed).map(|bits| f64::from(widen(bits))).collect()
        };
        let (numbers, whole): (Vec<f64>, bool) = match tensor.data_type {
            1 => (numbers!(f32, tensor.floats.iter().map(|&x| f64::from(x)).collect()), false),
            11 => (numbers!(f64, tensor.doubles.clone()), false),
            10 => (halves(half_to_f32), false),
            16 => (halves(|bits| f32::from_bits(u32::from(bits) << 16)), false),
            2 | 9 => (numbers!(u8, ints()), true),
            3 => (numbers!(i8, ints()), true),
            6 => (numbers!(i32, ints()), true),
            7 => (numbers!(i64, longs()), true),
            other => return Err(format!("has numbers of type {other}, which cannot be used")),
        };
        let count = shape.iter().try_fold(1_usize, |product, &side| product.checked_mul(side));
        if count != Some(numbers.len()) {
            return Err(format!("has shape {shape:?} and {} numbers", numbers.len()));
        }
        Ok(Self { shape, numbers, whole })
    }

    /// Its numbers, if they are whole.
    pub(super) fn wholes(&self) -> Option<Vec<i64>> {
        let whole = self.numbers.iter().all(|number| number.fract() == 0.0);
        whole.then(|| self.numbers.iter().map(|&number| number as i64).collect())
    }

    /// A matrix with rows for columns.
    pub(super) fn transposed(&self) -> Option<Self> {
        let &[rows, columns] = self.shape.as_slice() else { return None };
        let numbers = (0..columns).flat_map(|j| (0..rows).map(move |i| self.numbers[i * columns + j])).collect();
        Some(Self { shape: vec![columns, rows], numbers, whole: self.whole })
    }
}

/// The bytes of a tensor that lies in another file of the same folder, and nowhere else.
fn beside(tensor: &TensorProto, folder: Option<&Path>) -> Result<Vec<u8>, String> {
    let field = |key: &str| tensor.external.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str());
    let name = field("location").ok_or("lies in another file that is not named")?;
    let plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    let (Some(folder), true) = (folder, plain && !name.is_empty()) else {
        return Err(format!("lies in `{name}`, outside the model's folder: refused"));
    };
    let number = |key: &str| field(key).map(|text| text.parse::<u64>().map_err(|_| format!("has {key} `{text}`")));
    let (offset, length) = (number("offset").transpose()?.unwrap_or(0), number("length").transpose()?);
    let wrong = |error: std::io::Error| format!("lies in `{name}`, which cannot be read: {error}");
    let mut file = File::open(folder.join(name)).map_err(wrong)?;
    file.seek(SeekFrom::Start(offset)).map_err(wrong)?;
    let mut bytes = Vec::new();
    file.take(length.unwrap_or(u64::MAX)).read_to_end(&mut bytes).map_err(wrong)?;
    Ok(bytes)
}
