//! Networks from ONNX files: graph and weights, for the layers that are known here.
//!
//! | operators | become |
//! | --- | --- |
//! | `Gemm`; `MatMul` with its `Add` | `linear` |
//! | `Pad` before a convolution, as "same" or as much before as after | its padding |
//! | `Conv`, `ConvTranspose`, `BatchNormalization` | `conv`, `conv-transpose`, `batch-norm` |
//! | `Relu`, `LeakyRelu`, `PRelu`, `Sigmoid`, `Tanh`, `Softplus`, `Clip` to 0 and 6, `Mul` of x and σ(x) | activations |
//! | `MaxPool`, `AveragePool`, `GlobalAveragePool`, `ReduceMean` over an image, `Resize` by whole factors | pooling, `upsample` |
//! | `Flatten`, and `Reshape` or `Squeeze` to rows | `flatten` |
//! | `Add`, `Concat` along the channels | `add`, `concat` |
//! | `Identity`, `Dropout`, `Constant` | nothing |
//!
//! An exporter that folds batch normalisation into convolutions gives another network with the same outputs: gradients
//! of the two differ, so that it should be told not to (`optimize=False`, or `training=TrainingMode.PRESERVE` of the
//! older exporter).

mod attributes;
mod build;
mod constant;
mod proto;

use std::collections::BTreeMap;
use std::path::Path;

use prost::Message;

use crate::{Error, NetworkSpec, Result, Tensor};

/// A network and its weights, by the names of its layers.
#[derive(Debug, Clone)]
pub struct Imported {
    /// The layers.
    pub spec: NetworkSpec,
    /// Parameters and running statistics.
    pub tensors: BTreeMap<String, Tensor>,
}

/// Reads a model. The first operator that is not known is named, with its place and what to do.
pub fn read(path: impl AsRef<Path>) -> Result<Imported> {
    let path = path.as_ref();
    let failed = |problem: String| Error::File { path: path.to_owned(), problem };
    let bytes = std::fs::read(path).map_err(|error| failed(format!("cannot be read: {error}")))?;
    parse(&bytes, path.parent()).map_err(failed)
}

/// Reads the bytes of a model; tensors that it keeps in other files are looked for in this folder, if there is one.
pub fn parse(bytes: &[u8], folder: Option<&Path>) -> std::result::Result<Imported, String> {
    let model = proto::Model::decode(bytes).map_err(|error| format!("is not a readable ONNX file: {error}"))?;
    let graph = model.graph.ok_or("is not a readable ONNX file: it holds no graph")?;
    build::build(&graph, folder)
}
