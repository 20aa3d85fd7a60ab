//! State dicts as `torch.save` writes them: a zip archive with one pickle and a file for each storage.

use std::collections::HashMap;
use std::io::{Cursor, Read};

use safetensors::Dtype;
use zip::ZipArchive;

use super::TensorFile;
use super::pickle::{Call, Id, Pickle, Value};

/// Keys under which training scripts keep the weights beside other things.
const USUAL_KEYS: [&str; 6] = ["state_dict", "model_state_dict", "model_state", "model", "net", "weights"];

/// How many times as large as its file what it holds may be.
const MOST_VIEWS: usize = 8;

/// What every part of a file shares.
struct Archive<'a> {
    zip: ZipArchive<Cursor<&'a [u8]>>,
    /// The folder that everything in the archive lies in.
    prefix: String,
    pickle: Pickle,
    storages: HashMap<String, Vec<u8>>,
    /// Bytes that tensors may still take: views of one storage may be many, but not without end.
    left: usize,
}

/// The tensors of an archive that holds a pickle called `NAME/data.pkl`.
pub(super) fn read(mut zip: ZipArchive<Cursor<&[u8]>>, pickle: &str, size: usize) -> Result<TensorFile, String> {
    let prefix = pickle.trim_end_matches("data.pkl").to_owned();
    if entry(&mut zip, &format!("{prefix}byteorder")).is_ok_and(|order| order.starts_with(b"big")) {
        return Err("was written on a big-endian machine; save it again on a little-endian one".into());
    }
    let pickle = Pickle::read(&entry(&mut zip, pickle)?)?;
    let left = MOST_VIEWS.saturating_mul(size);
    let mut archive = Archive { zip, prefix, pickle, storages: HashMap::new(), left };
    let mut file = TensorFile::default();
    for (name, id) in archive.weights()? {
        archive.add(&mut file, &name, id).map_err(|problem| format!("tensor {name}: {problem}"))?;
    }
    Ok(file)
}

/// One file of an archive. `torch.save` packs nothing, so that nothing can unpack to more than is there.
fn entry(zip: &mut ZipArchive<Cursor<&[u8]>>, name: &str) -> Result<Vec<u8>, String> {
    let mut entry = zip.by_name(name).map_err(|error| format!("its part {name}: {error}"))?;
    if entry.compression() != zip::CompressionMethod::Stored {
        return Err(format!("its part {name} is compressed, which torch.save never does"));
    }
    let mut bytes = Vec::new();
    entry.read_to_end(&mut bytes).map_err(|error| format!("its part {name}: {error}"))?;
    Ok(bytes)
}

impl Archive<'_> {
    /// Names and places of the tensors: of the file's dictionary, or of the one in it that holds the weights.
    fn weights(&self) -> Result<Vec<(String, Id)>, String> {
        let named = |id: Id| -> Option<Vec<(String, Id)>> {
            let Value::Dict(items) = self.pickle.get(id) else { return None };
            let name = |&(key, value): &(Id, Id)| match self.pickle.get(key) {
                Value::Text(name) => Some((name.clone(), value)),
                _ => None,
            };
            Some(items.iter().filter_map(name).collect())
        };
        let tensors = |items: Vec<(String, Id)>| -> Vec<(String, Id)> {
            items.into_iter().filter(|(_, id)| matches!(self.pickle.get(*id), Value::Call(..))).collect()
        };
        let Some(items) = named(self.pickle.root) else {
            return Err("holds no dictionary of tensors; save `model.state_dict()`".into());
        };
        let inner = USUAL_KEYS.iter().find_map(|key| items.iter().find(|(name, _)| name == key));
        let inner = inner.and_then(|(_, id)| named(*id)).map(tensors).filter(|inner| !inner.is_empty());
        let found = inner.unwrap_or_else(|| tensors(items));
        if found.is_empty() {
            return Err("holds no tensors by name; save `model.state_dict()`".into());
        }
        Ok(found)
    }

    fn add(&mut self, file: &mut TensorFile, name: &str, id: Id) -> Result<(), String> {
        let mut value = self.pickle.get(id).clone();
        // A parameter is a tensor in a wrapper.
        for _ in 0..2 {
            if let Value::Call(Call::Parameter, arguments) = &value {
                let inner = arguments.first().copied().ok_or("is a parameter without a tensor")?;
                value = self.pickle.get(inner).clone();
            }
        }
        let Value::Call(Call::Tensor, arguments) = &value else { return Err("is no tensor".into()) };
        let &[storage, offset, size, stride, ..] = arguments.as_slice() else {
            return Err("is put together from too few parts".into());
        };
        let (dtype, key) = self.storage(storage)?;
        let (offset, size, stride) = (self.whole(offset)?, self.wholes(size)?, self.wholes(stride)?);
        if !self.storages.contains_key(&key) {
            let bytes = entry(&mut self.zip, &format!("{}data/{key}", self.prefix))?;
            self.storages.insert(key.clone(), bytes);
        }
        let data = gather(&self.storages[&key], dtype.bitsize() / 8, offset, &size, &stride)?;
        self.left = self.left.checked_sub(data.len()).ok_or("is one of more views than a state dict has")?;
        file.add(name, dtype, &size, &data)
    }

    /// Number type and name of a storage: `('storage', torch.FloatStorage, '0', 'cpu', 12)`.
    fn storage(&self, id: Id) -> Result<(Dtype, String), String> {
        let wrong = || "has a storage that cannot be read".to_owned();
        let Value::Elsewhere(id) = self.pickle.get(id) else { return Err(wrong()) };
        let Value::Tuple(parts) = self.pickle.get(*id) else { return Err(wrong()) };
        let &[_, class, key, ..] = parts.as_slice() else { return Err(wrong()) };
        let (Value::Name(class), Value::Text(key)) = (self.pickle.get(class), self.pickle.get(key)) else {
            return Err(wrong());
        };
        let dtype = match class.trim_start_matches("torch.").trim_end_matches("Storage") {
            "Float" => Dtype::F32,
            "Double" => Dtype::F64,
            "Half" => Dtype::F16,
            "BFloat16" => Dtype::BF16,
            "Long" => Dtype::I64,
            "Int" => Dtype::I32,
            "Short" => Dtype::I16,
            "Char" => Dtype::I8,
            "Byte" => Dtype::U8,
            "Bool" => Dtype::BOOL,
            other => return Err(format!("is of type {other}, which cannot be used; f32 and f64 can")),
        };
        Ok((dtype, key.clone()))
    }

    fn whole(&self, id: Id) -> Result<usize, String> {
        match self.pickle.get(id) {
            Value::Int(number) => usize::try_from(*number).map_err(|_| format!("has a size of {number}")),
            _ => Err("has a size that is no number".into()),
        }
    }

    fn wholes(&self, id: Id) -> Result<Vec<usize>, String> {
        match self.pickle.get(id) {
            Value::Tuple(items) | Value::List(items) => items.iter().map(|&id| self.whole(id)).collect(),
            _ => Err("has a shape that is no list".into()),
        }
    }
}

/// The elements of a strided view in row-major order. What it declares must be there, each element once at most.
fn gather(storage: &[u8], width: usize, offset: usize, size: &[usize], stride: &[usize]) -> Result<Vec<u8>, String> {
    let wrong = || format!("has shape {size:?}, more than its storage of {} bytes holds", storage.len());
    if size.len() != stride.len() || size.len() > 16 {
        return Err(format!("has {} sides and {} strides", size.len(), stride.len()));
    }
    let count = size.iter().try_fold(1_usize, |product, &side| product.checked_mul(side)).ok_or_else(wrong)?;
    let held = storage.len() / width.max(1);
    if count == 0 {
        return Ok(Vec::new());
    }
    let reach = size
        .iter()
        .zip(stride)
        .try_fold(offset, |last, (&side, &step)| last.checked_add((side - 1).checked_mul(step)?));
    if count > held || reach.is_none_or(|last| last >= held) {
        return Err(wrong());
    }
    let mut data = Vec::with_capacity(count * width);
    let mut index = vec![0; size.len()];
    for _ in 0..count {
        let place = offset + index.iter().zip(stride).map(|(at, step)| at * step).sum::<usize>();
        data.extend_from_slice(&storage[place * width..(place + 1) * width]);
        for axis in (0..size.len()).rev() {
            index[axis] += 1;
            if index[axis] < size[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::gather;

    #[test]
    fn views_are_gathered_and_what_is_not_there_is_refused() {
        let storage: Vec<u8> = (0..12).collect();
        // A transposed 3 x 4, from its second element on.
        assert_eq!(gather(&storage, 1, 1, &[3, 2], &[1, 4]).unwrap(), [1, 5, 2, 6, 3, 7]);
        assert_eq!(gather(&storage, 2, 0, &[2], &[3]).unwrap(), [0, 1, 6, 7]);
        assert_eq!(gather(&storage, 4, 2, &[], &[]).unwrap(), [8, 9, 10, 11]);
        assert!(gather(&storage, 1, 0, &[0], &[1]).unwrap().is_empty());
        for (offset, size, stride) in [
            (0, vec![13], vec![1]),
            (12, vec![1], vec![1]),
            (0, vec![2], vec![12]),
            (0, vec![usize::MAX, 2], vec![0, 0]),
            (usize::MAX, vec![2], vec![1]),
            (0, vec![1000], vec![0]),
            (0, vec![2], vec![]),
        ] {
            assert!(gather(&storage, 1, offset, &size, &stride).is_err(), "{offset} {size:?} {stride:?}");
        }
    }
}
