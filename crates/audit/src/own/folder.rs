//! A model in a folder, as `afterimage init pytorch` has it written or as somebody put it together by hand.
//!
//! | file | holds | needed |
//! | --- | --- | --- |
//! | `network.toml`, or `model.onnx` | the layers (of ONNX, the weights too) | yes |
//! | `weights.safetensors`, `.pth`, `.pt` or `.npz` | parameters and running statistics | yes, but with ONNX |
//! | `preprocessing.toml` | `size`, `range`, `mean`, `std` | where pixels are normalised |
//! | `training.toml` | `loss`, `reduction`, `records`, `batch_size`, `mode`, `local` | where it is known |
//! | `probe.safetensors` | `inputs`, `outputs`, and `pixels`, `labels`, `grad.*` if there are | for any verdict |
//! | `probed.*` | the weights that the probe was taken with | if they are others |
//! | `before.*` | an earlier checkpoint | if it is shared |
//! | `gradient.*` | the gradient of a step, with running statistics after it if they were shared | if it is shared |

use std::path::{Path, PathBuf};

use afterimage_attacks::{LocalTraining, Preprocess};
use afterimage_nn::io::TensorFile;
use afterimage_nn::{DType, Device, Loss, Mode, Network, NetworkSpec, Params, Reduction, Tensor, onnx};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::plan::{Normalise, explain};
use crate::{AuditError, Result};

/// How inputs are prepared.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Preprocessing {
    /// Shape of a sample; the network's own if empty.
    pub size: Vec<usize>,
    /// Smallest and largest pixel.
    pub range: [f64; 2],
    /// One number, or one for each channel; none are subtracted if empty.
    pub mean: Vec<f64>,
    /// The same, divided by.
    pub std: Vec<f64>,
}

impl Default for Preprocessing {
    fn default() -> Self {
        Self { size: Vec::new(), range: [0.0, 1.0], mean: Vec::new(), std: Vec::new() }
    }
}

impl Preprocessing {
    /// As a plan has it, for records in their own range or, as loaders give pictures, in 0 to 1: of a pixel p from a to b,
    /// given as (p − a) / (b − a), the mean and the deviation are moved and scaled likewise.
    pub(super) fn normalise(&self, unit: bool) -> Option<Normalise> {
        let [low, high] = if unit { self.range } else { [0.0, 1.0] };
        if self.mean.is_empty() && self.std.is_empty() && [low, high] == [0.0, 1.0] {
            return None;
        }
        let or = |values: &[f64], other: f64| if values.is_empty() { vec![other] } else { values.to_vec() };
        let mean = or(&self.mean, 0.0).into_iter().map(|mean| (mean - low) / (high - low)).collect();
        let std = or(&self.std, 1.0).into_iter().map(|std| std / (high - low)).collect();
        Some(Normalise { mean, std })
    }

    /// The range that goes with it.
    pub(super) fn range_of(&self, unit: bool) -> [f64; 2] {
        if unit { [0.0, 1.0] } else { self.range }
    }

    /// In numbers, for pixels in their own range.
    pub(super) fn constants(&self) -> Result<Preprocess> {
        let constant = |values: &[f64]| match values.is_empty() {
            true => Ok(None),
            false => Tensor::from_f64(values, &[values.len()], DType::F64).map(Some),
        };
        Ok(Preprocess { range: self.range, mean: constant(&self.mean)?, std: constant(&self.std)? })
    }
}

/// What is known of a training.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Training {
    /// The loss.
    pub loss: Option<Loss>,
    /// Mean or sum over a batch.
    pub reduction: Reduction,
    /// Records it was trained on.
    pub records: Option<usize>,
    /// Samples of the batch whose gradient is shared.
    pub batch_size: Option<usize>,
    /// What batch normalisation divided by when that was taken, if it was told.
    pub mode: Option<Mode>,
    /// Steps at the client.
    pub local: Option<LocalTraining>,
}

/// A model in a folder.
#[derive(Debug, Clone)]
pub struct Exported {
    /// The network.
    pub network: Network,
    /// Its parameters, in single precision.
    pub theta: Params,
    /// The file that they come from.
    pub weights: PathBuf,
    /// An earlier checkpoint.
    pub before: Option<PathBuf>,
    /// A gradient.
    pub gradient: Option<PathBuf>,
    /// How inputs are prepared.
    pub preprocessing: Preprocessing,
    /// What is known of the training.
    pub training: Training,
    /// A few inputs with what the model makes of them.
    pub probe: Option<TensorFile>,
    /// The parameters that the probe was taken with, if others than those that are audited.
    pub probed: Option<Params>,
}

/// Endings of files of weights, in the order in which they are looked for.
const ENDINGS: [&str; 4] = ["safetensors", "pth", "pt", "npz"];

impl Exported {
    /// Reads a folder. What is missing or does not fit is named, with what to do.
    pub fn read(dir: &Path) -> Result<Self> {
        if !dir.is_dir() {
            let problem = "is no folder; `afterimage init pytorch` prints the script that writes one";
            return Err(AuditError::file(dir, problem));
        }
        let dir = &dir.canonicalize().map_err(|error| AuditError::file(dir, error.to_string()))?;
        let one_of =
            |name: &str| ENDINGS.iter().map(|ending| dir.join(format!("{name}.{ending}"))).find(|path| path.is_file());
        let (described, exchanged) = (dir.join("network.toml"), dir.join("model.onnx"));
        let (spec, inside) = match (described.is_file(), exchanged.is_file()) {
            (true, _) => (NetworkSpec::from_toml(&text(&described)?)?, None),
            (false, true) => (onnx::read(&exchanged)?.spec, Some(exchanged)),
            (false, false) => {
                let problem = "holds neither network.toml nor model.onnx; `afterimage init pytorch` prints the script that \
                               writes them";
                return Err(AuditError::file(dir, problem));
            }
        };
        let network = Network::new(spec).map_err(|error| AuditError::file(&described, error.to_string()))?;
        let weights = one_of("weights").or(inside).ok_or_else(|| {
            AuditError::file(dir, format!("holds no weights: weights.{} are looked for", ENDINGS.join(", weights.")))
        })?;
        let theta = network.load(&weights, DType::F32, Device::Cpu)?;
        let preprocessing: Preprocessing = table(&dir.join("preprocessing.toml"))?;
        let training: Training = table(&dir.join("training.toml"))?;
        let [low, high] = preprocessing.range;
        if !(low < high && low.is_finite() && high.is_finite()) {
            let problem = format!("says range = [{low}, {high}]; the smaller end comes first");
            return Err(AuditError::file(&dir.join("preprocessing.toml"), problem));
        }
        let size: usize = preprocessing.size.iter().product();
        if !preprocessing.size.is_empty() && size != network.input_shape().iter().product::<usize>() {
            let problem =
                format!("says size = {:?}, and the network takes {:?}", preprocessing.size, network.input_shape());
            return Err(AuditError::file(&dir.join("preprocessing.toml"), problem));
        }
        let probe = dir.join("probe.safetensors");
        let probe = probe.is_file().then(|| TensorFile::read(&probe)).transpose()?;
        let (before, gradient) = (one_of("before"), one_of("gradient"));
        let probed = one_of("probed").map(|path| network.load(path, DType::F32, Device::Cpu)).transpose()?;
        Ok(Self { network, theta, weights, before, gradient, preprocessing, training, probe, probed })
    }

    /// The loss: what is said, or what a network of this shape is usually trained with.
    pub fn loss(&self) -> Loss {
        let usual = match (self.autoencodes(), self.network.output_shape()) {
            (true, _) => Loss::Mse,
            (false, [1]) => Loss::Logistic,
            _ => Loss::CrossEntropy,
        };
        self.training.loss.unwrap_or(usual)
    }

    /// Whether it gives back what it takes.
    pub fn autoencodes(&self) -> bool {
        let squared = !matches!(self.training.loss, Some(Loss::CrossEntropy | Loss::Logistic));
        let count = |shape: &[usize]| shape.iter().product::<usize>();
        squared && count(self.network.input_shape()) == count(self.network.output_shape())
    }
}

fn text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| AuditError::file(path, format!("cannot be read: {error}")))
}

/// A small table; what is not there is not known.
fn table<T: DeserializeOwned + Default>(path: &Path) -> Result<T> {
    if !path.is_file() {
        return Ok(T::default());
    }
    toml::from_str(&text(path)?).map_err(|error| match explain("", error.message()) {
        AuditError::Plan { key, problem, hint } if key != "value" => {
            AuditError::file(path, format!("{key}: {problem}; {hint}"))
        }
        _ => AuditError::file(path, error.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden(case: &str) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/import").join(case)
    }

    #[test]
    fn folders_are_read_and_mistakes_named() {
        let exported = Exported::read(&golden("resnet-18")).unwrap();
        assert_eq!(exported.loss(), Loss::CrossEntropy);
        assert!(exported.probe.is_some() && exported.before.is_none() && !exported.autoencodes());
        assert!(Exported::read(&golden("autoencoder")).unwrap().autoencodes());
        let folder = tempfile::tempdir().unwrap();
        let read = || Exported::read(folder.path()).unwrap_err().to_string();
        assert!(read().contains("neither network.toml nor model.onnx"));
        for (file, to) in [("network.toml", "network.toml"), ("model.pth", "weights.pth")] {
            std::fs::copy(golden("mlp").join(file), folder.path().join(to)).unwrap();
        }
        assert!(Exported::read(folder.path()).is_ok());
        std::fs::write(folder.path().join("training.toml"), "reccords = 3").unwrap();
        assert!(read().contains("did you mean `records`?"), "{}", read());
        std::fs::write(folder.path().join("training.toml"), "records = 3").unwrap();
        std::fs::write(folder.path().join("preprocessing.toml"), "size = [3, 5, 5]").unwrap();
        assert!(read().contains("the network takes [3, 4, 4]"), "{}", read());
    }

    #[test]
    fn an_onnx_file_is_a_network_with_its_weights() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(golden("mlp").join("model.onnx"), folder.path().join("model.onnx")).unwrap();
        let exported = Exported::read(folder.path()).unwrap();
        assert_eq!(exported.theta.count(), 48 * 24 + 24 + 24 * 4 + 4);
    }

    #[test]
    fn pixels_of_bytes_are_brought_to_one() {
        let of = |range, mean: Vec<f64>, std| Preprocessing { range, mean, std, ..Preprocessing::default() };
        assert_eq!(of([0.0, 1.0], vec![], vec![]).normalise(true), None);
        let bytes = of([0.0, 255.0], vec![127.5], vec![51.0]).normalise(true).unwrap();
        assert_eq!((bytes.mean, bytes.std), (vec![0.5], vec![0.2]));
        // Fed in −1 to 1: 2p − 1 is (p − 0.5) / 0.5. What is given in that range stays.
        let signed = of([-1.0, 1.0], vec![], vec![]);
        let constants = signed.normalise(true).unwrap();
        assert_eq!((constants.mean, constants.std), (vec![0.5], vec![0.5]));
        assert_eq!(signed.normalise(false), None);
    }
}
