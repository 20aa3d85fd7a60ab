//! Where bytes from outside come in, one function for the fuzzer and for the
//! tests that feed it the corpus.

use std::fs;
use std::path::Path;

use afterimage_attacks::{Observation, Reconstruction};
use afterimage_audit::Truth;
use afterimage_audit::data::Source;
use afterimage_audit::plan::Plan;
use afterimage_nn::io::TensorFile;
use afterimage_nn::{DType, Device, Network, onnx};

/// Reads bytes as what the target says; `Err` says what is wrong with them.
/// `folder` is an empty place for files.
pub(crate) fn feed(target: &str, bytes: &[u8], folder: &Path) -> Result<(), String> {
    let name = match target {
        "plan" => return text(bytes).and_then(|text| Plan::parse(text, &[]).map(drop).map_err(|e| e.to_string())),
        "safetensors" => {
            let path = write(folder, "x.safetensors", bytes);
            // Whatever is read of them, none may panic.
            let _ = (Truth::read(&path), Reconstruction::read(&path));
            return TensorFile::parse(bytes).map(drop);
        }
        "pytorch" => return TensorFile::parse(bytes).map(drop),
        "onnx" => {
            let imported = onnx::parse(bytes, None)?;
            // Whatever was read, building a network of it must not panic.
            let network = Network::new(imported.spec).map_err(|error| error.to_string())?;
            let theta = network.params(imported.tensors, DType::F32, Device::Cpu);
            return theta.map(drop).map_err(|error| error.to_string());
        }
        "observation" => {
            let path = write(folder, "o.safetensors", bytes);
            return Observation::read(path, Device::Cpu).map(drop).map_err(|error| error.to_string());
        }
        "idx" => {
            write(folder, "labels.idx", &[0, 0, 8, 1, 0, 0, 0, 1, 5]);
            "images.idx"
        }
        "cifar" => "data.bin",
        "npy" => "x.npy",
        "npz" => "x.npz",
        "csv" => "x.csv",
        "image" => "images/x.png",
        other => return Err(format!("there is no target {other}")),
    };
    let path = write(folder, name, bytes);
    let source = if target == "image" { folder.join("images") } else { path };
    let source: Source = source.display().to_string().parse().map_err(|error| format!("{error}"))?;
    let records = source.read().map_err(|error| error.to_string())?;
    // What was read can be used.
    let all: Vec<usize> = (0..records.len()).collect();
    records.tensor(&all, DType::F32).map(drop).map_err(|error| error.to_string())
}

fn text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|error| error.to_string())
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> std::path::PathBuf {
    let path = folder.join(name);
    let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, bytes));
    if let Err(error) = written {
        panic!("{}: {error}", path.display());
    }
    path
}
