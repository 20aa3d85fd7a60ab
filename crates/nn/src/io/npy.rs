//! NumPy arrays: the numbers of a `.npy`, and all arrays of a `.npz`.

use std::io::{Cursor, Read};

use npyz::{DType, NpyFile, TypeChar};
use zip::ZipArchive;

use super::{Integers, TensorFile};
use crate::Tensor;

/// Most bytes of an array that is unpacked.
const LARGEST: u64 = 16 << 30;

/// An array of numbers in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its numbers.
    pub numbers: Numbers,
}

/// The numbers of an array.
#[derive(Debug, Clone, PartialEq)]
pub enum Numbers {
    /// Single precision.
    Single(Vec<f32>),
    /// Double precision.
    Double(Vec<f64>),
    /// Bytes without sign, which may be pixels.
    Bytes(Vec<u8>),
    /// Other whole numbers.
    Whole(Vec<i64>),
}

impl Array {
    /// Reads the bytes of a `.npy` file; the error says what is wrong with them.
    ///
    /// ```
    /// use afterimage_nn::io::{Array, Numbers};
    /// let mut bytes = b"\x93NUMPY\x01\x00\x46\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }".to_vec();
    /// bytes.resize(79, b' ');
    /// bytes.push(b'\n');
    /// bytes.extend([1.5_f32, -2.0].iter().flat_map(|x| x.to_le_bytes()));
    /// let array = Array::parse(&bytes)?;
    /// assert_eq!(array.numbers, Numbers::Single(vec![1.5, -2.0]));
    /// # Ok::<(), String>(())
    /// ```
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        check_header(bytes)?;
        let file = NpyFile::new(bytes).map_err(|error| format!("is not an .npy array: {error}"))?;
        let shape: Vec<usize> = file.shape().iter().map(|&side| side as usize).collect();
        let DType::Plain(kind) = file.dtype() else {
            return Err("holds records with fields; plain numbers can be read".into());
        };
        // Before anything is allocated: the numbers that are declared must be there.
        let width = kind.size_field();
        let declared = shape.iter().try_fold(width, |product, &side| product.checked_mul(side as u64));
        if declared.is_none_or(|declared| declared > bytes.len() as u64) {
            return Err(format!("declares shape {shape:?}, more than its {} bytes can hold", bytes.len()));
        }
        if shape.contains(&0) {
            return Err(format!("is empty: its shape is {shape:?}"));
        }
        let row_major = file.order() == npyz::Order::C;
        if !row_major && shape.len() > 1 {
            return Err("is in column-major order; save it with numpy.ascontiguousarray".into());
        }
        let failed = |error: std::io::Error| format!("cannot be read: {error}");
        macro_rules! whole {
            ($t:ty) => {
                Numbers::Whole(file.into_vec::<$t>().map_err(failed)?.into_iter().map(|value| value as i64).collect())
            };
        }
        let numbers = match (kind.type_char(), width) {
            (TypeChar::Float, 4) => Numbers::Single(file.into_vec().map_err(failed)?),
            (TypeChar::Float, 8) => Numbers::Double(file.into_vec().map_err(failed)?),
            (TypeChar::Uint, 1) => Numbers::Bytes(file.into_vec().map_err(failed)?),
            (TypeChar::Int, 1) => whole!(i8),
            (TypeChar::Int, 2) => whole!(i16),
            (TypeChar::Int, 4) => whole!(i32),
            (TypeChar::Int, 8) => whole!(i64),
            (TypeChar::Uint, 2) => whole!(u16),
            (TypeChar::Uint, 4) => whole!(u32),
            (TypeChar::Uint, 8) => whole!(u64),
            (other, width) => {
                return Err(format!("holds {width}-byte numbers of kind {other:?}, which cannot be read"));
            }
        };
        Ok(Self { shape, numbers })
    }
}

/// Fails if the header says that it is longer than the file: the library would
/// allocate that much first (up to 4 GiB; found by fuzzing).
fn check_header(bytes: &[u8]) -> Result<(), String> {
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

/// All arrays of a `.npz`, by their names.
pub(super) fn archive(mut zip: ZipArchive<Cursor<&[u8]>>) -> Result<TensorFile, String> {
    let mut file = TensorFile::default();
    for place in 0..zip.len() {
        let entry = zip.by_index(place).map_err(|error| format!("part {place}: {error}"))?;
        let name = entry.name().map_err(|error| format!("part {place}: {error}"))?;
        let Some(name) = name.strip_suffix(".npy").map(str::to_owned) else { continue };
        let mut bytes = Vec::new();
        entry.take(LARGEST).read_to_end(&mut bytes).map_err(|error| format!("array {name}: {error}"))?;
        let wrong = |problem: String| format!("array {name}: {problem}");
        let Array { shape, numbers } = Array::parse(&bytes).map_err(wrong)?;
        let tensor = match numbers {
            Numbers::Single(values) => Tensor::from_vec(values, &shape),
            Numbers::Double(values) => Tensor::from_vec(values, &shape),
            Numbers::Bytes(values) => {
                let values = values.into_iter().map(i64::from).collect();
                file.integers.insert(name, Integers { shape, values });
                continue;
            }
            Numbers::Whole(values) => {
                file.integers.insert(name, Integers { shape, values });
                continue;
            }
        };
        file.tensors.insert(name.clone(), tensor.map_err(|error| wrong(error.to_string()))?);
    }
    Ok(file)
}
