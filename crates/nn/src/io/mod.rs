//! Tensors in files: safetensors in and out, with PyTorch's names; PyTorch's own files and NumPy's archives in.

mod npy;
mod pickle;
mod pytorch;

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{Cursor, Write};
use std::path::Path;

use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use zip::ZipArchive;

pub use npy::{Array, Numbers};

use crate::{DType, Device, Error, Network, Params, Result, Tensor, nearest};

/// Whole numbers in a file: labels, indices, counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Integers {
    /// Their shape.
    pub shape: Vec<usize>,
    /// Their values in row-major order.
    pub values: Vec<i64>,
}

/// What a file of tensors holds.
#[derive(Debug, Clone, Default)]
pub struct TensorFile {
    /// Real tensors by name; half precision is widened to f32.
    pub tensors: BTreeMap<String, Tensor>,
    /// Integer tensors by name.
    pub integers: BTreeMap<String, Integers>,
    /// Free text by key.
    pub metadata: BTreeMap<String, String>,
}

/// What is wrong with what a file holds.
fn in_file(path: &Path) -> impl Fn(Error) -> Error + '_ {
    |error| Error::InFile { path: path.to_owned(), inner: Box::new(error) }
}

fn failed(path: &Path) -> impl Fn(String) -> Error + '_ {
    move |problem| Error::File { path: path.to_owned(), problem }
}

impl TensorFile {
    /// Reads a file: safetensors, a state dict as `torch.save` writes it (`.pt`, `.pth`; nothing in it is executed), or
    /// an archive of NumPy arrays (`.npz`), told apart by what they hold; of an `.onnx`, its weights. Sizes are checked against the file before
    /// anything is allocated.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        // Of a network with its weights, the weights.
        if path.extension().is_some_and(|ending| ending == "onnx") {
            return Ok(Self { tensors: crate::onnx::read(path)?.tensors, ..Self::default() });
        }
        let bytes = fs::read(path).map_err(|error| failed(path)(format!("cannot be read: {error}")))?;
        Self::parse(&bytes).map_err(failed(path))
    }

    /// Reads the bytes of a file; the error says what is wrong with them.
    pub fn parse(bytes: &[u8]) -> std::result::Result<Self, String> {
        match bytes {
            // The length of a header, and the header; the lower bytes of a length may look like anything.
            [_, _, _, _, 0, 0, 0, 0, b'{', ..] => Self::parse_safetensors(bytes),
            [b'P', b'K', ..] => Self::parse_archive(bytes),
            // A pickle begins with the number of its protocol.
            [0x80, 2..=5, ..] => {
                Err("is a bare pickle, or was written by torch.save before PyTorch 1.6. Do this: load it \
                 where it was made and save `model.state_dict()` again"
                    .into())
            }
            _ => Self::parse_safetensors(bytes),
        }
    }

    fn parse_archive(bytes: &[u8]) -> std::result::Result<Self, String> {
        let zip = ZipArchive::new(Cursor::new(bytes)).map_err(|error| format!("is not a readable archive: {error}"))?;
        let names: Vec<String> = zip.file_names().filter_map(|name| name.ok()).map(|name| name.into_owned()).collect();
        match names.iter().find(|name| *name == "data.pkl" || name.ends_with("/data.pkl")) {
            Some(pickle) => pytorch::read(zip, pickle, bytes.len()),
            None if names.iter().any(|name| name.ends_with(".npy")) => npy::archive(zip),
            None => Err("is an archive without tensors: neither torch.save nor numpy.savez wrote it".into()),
        }
    }

    fn parse_safetensors(bytes: &[u8]) -> std::result::Result<Self, String> {
        let wrong = |error: safetensors::SafeTensorError| {
            let cut = matches!(error, safetensors::SafeTensorError::MetadataIncompleteBuffer);
            let hint = if cut { "; was it cut short while it was copied?" } else { "" };
            format!("is not a readable safetensors file: {error}{hint}")
        };
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(wrong)?;
        let views = SafeTensors::deserialize(bytes).map_err(wrong)?;
        let mut file = Self::default();
        if let Some(metadata) = header.metadata() {
            file.metadata.extend(metadata.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        for (name, view) in views.iter() {
            file.add(name, view.dtype(), view.shape(), view.data())
                .map_err(|problem| format!("tensor {name}: {problem}"))?;
        }
        Ok(file)
    }

    /// Adds numbers of any kind, as many as the shape says, from their bytes.
    fn add(&mut self, name: &str, dtype: Dtype, shape: &[usize], data: &[u8]) -> std::result::Result<(), String> {
        macro_rules! numbers {
            ($t:ty) => {
                data.as_chunks::<{ size_of::<$t>() }>().0.iter().map(|bytes| <$t>::from_le_bytes(*bytes))
            };
        }
        let tensor = match dtype {
            Dtype::F32 => Tensor::from_vec(numbers!(f32).collect::<Vec<_>>(), shape),
            Dtype::F64 => Tensor::from_vec(numbers!(f64).collect::<Vec<_>>(), shape),
            Dtype::F16 => Tensor::from_vec(numbers!(u16).map(half_to_f32).collect::<Vec<f32>>(), shape),
            Dtype::BF16 => {
                let widened = numbers!(u16).map(|bits| f32::from_bits(u32::from(bits) << 16));
                Tensor::from_vec(widened.collect::<Vec<f32>>(), shape)
            }
            other => {
                let values: Vec<i64> = match other {
                    Dtype::I64 => numbers!(i64).collect(),
                    Dtype::I32 => numbers!(i32).map(i64::from).collect(),
                    Dtype::I16 => numbers!(i16).map(i64::from).collect(),
                    Dtype::I8 => numbers!(i8).map(i64::from).collect(),
                    Dtype::U8 | Dtype::BOOL => data.iter().map(|&byte| i64::from(byte)).collect(),
                    _ => return Err(format!("numbers of type {other:?} cannot be used; f32 and f64 can")),
                };
                self.integers.insert(name.into(), Integers { shape: shape.to_vec(), values });
                return Ok(());
            }
        };
        self.tensors.insert(name.into(), tensor.map_err(|error| error.to_string())?);
        Ok(())
    }

    /// Writes the file: beside its place first, then renamed onto it, so that
    /// a reader never sees half of one.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let mut bytes: Vec<(&str, Dtype, &[usize], Vec<u8>)> = Vec::new();
        for (name, tensor) in &self.tensors {
            let host = tensor.to_device(Device::Cpu)?;
            let (dtype, data) = match tensor.dtype() {
                DType::F32 => (Dtype::F32, host.host::<f32>()?.iter().flat_map(|x| x.to_le_bytes()).collect()),
                DType::F64 => (Dtype::F64, host.host::<f64>()?.iter().flat_map(|x| x.to_le_bytes()).collect()),
            };
            bytes.push((name, dtype, tensor.shape(), data));
        }
        for (name, integers) in &self.integers {
            let data = integers.values.iter().flat_map(|x| x.to_le_bytes()).collect();
            bytes.push((name, Dtype::I64, &integers.shape, data));
        }
        let wrong = |error: safetensors::SafeTensorError| failed(path)(format!("cannot be written: {error}"));
        let views = bytes
            .iter()
            .map(|(name, dtype, shape, data)| {
                Ok((*name, TensorView::new(*dtype, shape.to_vec(), data).map_err(wrong)?))
            })
            .collect::<Result<Vec<_>>>()?;
        let metadata: HashMap<String, String> = self.metadata.clone().into_iter().collect();
        let metadata = (!metadata.is_empty()).then_some(metadata);
        write_atomically(path, &safetensors::serialize(views, metadata).map_err(wrong)?)
    }
}

/// IEEE half to single precision: exact, subnormals included.
pub(crate) fn half_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff);
    match magnitude {
        // Infinity and NaN.
        0x7c00.. => f32::from_bits(sign | 0x7f80_0000 | (magnitude & 0x3ff) << 13),
        // Moved into the wider exponent field, then rebased by 2^(127 − 15).
        _ => f32::from_bits(sign | magnitude << 13) * f32::from_bits((254 - 15) << 23),
    }
}

/// Names in a safetensors file, in the order of their numbers: that in which they were written.
pub fn names_in_order(path: impl AsRef<Path>) -> Result<Vec<String>> {
    let path = path.as_ref();
    let bytes = fs::read(path).map_err(|error| failed(path)(format!("cannot be read: {error}")))?;
    let (_, header) = SafeTensors::read_metadata(&bytes)
        .map_err(|error| failed(path)(format!("is not a readable safetensors file: {error}")))?;
    let mut places: Vec<(usize, String)> =
        header.tensors().into_iter().map(|(name, info)| (info.data_offsets.0, name)).collect();
    places.sort();
    Ok(places.into_iter().map(|(_, name)| name).collect())
}

/// Writes a whole file or none of it: a temporary file in the same folder,
/// flushed to disk, then renamed.
pub fn write_atomically(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    let path = path.as_ref();
    let wrong = |error: std::io::Error| failed(path)(format!("cannot be written: {error}"));
    let name = path.file_name().ok_or_else(|| failed(path)("is not the name of a file".into()))?;
    let mut temporary = name.to_owned();
    temporary.push(format!(".{}.part", std::process::id()));
    let temporary = path.with_file_name(temporary);
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.and_then(|()| fs::rename(&temporary, path)).map_err(|error| {
        // The write has failed already; a leftover that cannot be removed changes nothing.
        let _ = fs::remove_file(&temporary);
        wrong(error)
    })
}

impl Network {
    /// Parameters from a file: every one present, of the right
    /// shape, finite, and no other (integer tensors are passed over).
    pub fn load(&self, path: impl AsRef<Path>, dtype: DType, device: Device) -> Result<Params> {
        let path = path.as_ref();
        self.state_of(path).and_then(|tensors| self.params(tensors, dtype, device).map_err(in_file(path)))
    }

    /// The same for all layers but those named in `fresh`, which keep their parameters in `start`:
    /// what the file has of them may be of any shape, as the last layer for other classes is.
    ///
    /// ```
    /// use afterimage_nn::{DType, Init, Network, zoo::Mlp};
    /// let of = |outputs| Network::new(Mlp::new(4, &[3], outputs).spec());
    /// let (published, own) = (of(10)?, of(2)?);
    /// let file = std::env::temp_dir().join(format!("published-{}.safetensors", std::process::id()));
    /// published.init(&Init::LecunNormal.into(), 1, DType::F32)?.save(&file)?;
    /// let start = own.init(&Init::LecunNormal.into(), 2, DType::F32)?;
    /// let last = own.parameters().last().map_or("", |spec| spec.name.trim_end_matches(".bias"));
    /// assert!(own.load_onto(&start, &file, &[]).is_err());
    /// assert!(own.load_onto(&start, &file, &[last.to_owned()]).is_ok());
    /// # std::fs::remove_file(&file).unwrap();
    /// # Ok::<(), afterimage_nn::Error>(())
    /// ```
    pub fn load_onto(&self, start: &Params, path: impl AsRef<Path>, fresh: &[String]) -> Result<Params> {
        let path = path.as_ref();
        let mut tensors = self.state_of(path)?;
        for layer in fresh {
            let own = |name: &str| name.strip_prefix(layer.as_str()).is_some_and(|rest| rest.starts_with('.'));
            let kept: Vec<(&str, &Tensor)> = start.state().filter(|(name, _)| own(name)).collect();
            if kept.is_empty() {
                let layers = self.parameters().iter().filter_map(|spec| spec.name.rsplit_once('.'));
                return Err(Error::Parameter {
                    name: layer.clone(),
                    problem: "no layer of this name has parameters".into(),
                    hint: match nearest(layer, layers.map(|(layer, _)| layer)) {
                        Some(near) => format!("did you mean `{near}`?"),
                        None => "name a layer of the network".into(),
                    },
                });
            }
            tensors.retain(|name, _| !own(name));
            tensors.extend(kept.into_iter().map(|(name, value)| (name.to_owned(), value.clone())));
        }
        self.params(tensors, start.dtype(), start.device()).map_err(in_file(path))
    }

    /// The tensors of a file that may be parameters, and running statistics.
    fn state_of(&self, path: &Path) -> Result<BTreeMap<String, Tensor>> {
        let file = TensorFile::read(path)?;
        let whole = self.parameters().iter().find(|spec| file.integers.contains_key(&spec.name));
        if let Some(spec) = whole {
            return Err(in_file(path)(Error::Parameter {
                name: spec.name.clone(),
                problem: "holds whole numbers; expected f32 or f64".into(),
                hint: "save the weights as floating point".into(),
            }));
        }
        if let Some(name) = self.buffer_names().find(|name| !file.tensors.contains_key(*name)) {
            return Err(in_file(path)(Error::Parameter {
                name: name.into(),
                problem: "missing: a normalisation's running statistics belong to the weights".into(),
                hint: "save the whole state dict, buffers included".into(),
            }));
        }
        Ok(file.tensors)
    }
}

impl Params {
    /// Writes the parameters and running statistics under their names.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let tensors = self.state().map(|(name, value)| (name.to_owned(), value.clone())).collect();
        TensorFile { tensors, ..TensorFile::default() }.write(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_is_widened_exactly() {
        for (bits, value) in [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x7bff, 65504.0),
            (0x0001, 5.960_464_5e-8),
            (0x0400, 6.103_515_6e-5),
            (0, 0.0),
        ] {
            assert_eq!(half_to_f32(bits), value);
        }
        assert!(half_to_f32(0x7c01).is_nan() && half_to_f32(0xfc00) == f32::NEG_INFINITY);
    }

    #[test]
    fn hostile_bytes_are_errors() {
        let mut huge = (10_u64 << 30).to_le_bytes().to_vec();
        huge.extend(b"{}");
        let header = br#"{"x":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}"#;
        let mut lying = (header.len() as u64).to_le_bytes().to_vec();
        lying.extend(header);
        for bytes in [&b""[..], b"abc", &huge, &lying, &[0xff; 64]] {
            assert!(TensorFile::parse(bytes).unwrap_err().contains("not a readable safetensors file"));
        }
        assert!(TensorFile::parse(b"PK\x03\x04").unwrap_err().contains("not a readable archive"));
        assert!(TensorFile::parse(b"\x80\x02}q\x00.").unwrap_err().contains("bare pickle"));
    }
}
