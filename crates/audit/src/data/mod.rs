//! Records: what members and controls are drawn from.
//!
//! Loaders keep the order of the file and give values as they stand there;
//! images are scaled to [0, 1]. No loader allocates by a size that a file
//! merely declares: buffers grow with what is really read.

mod builtin;
mod cifar;
mod folder;
mod idx;
mod npy;
mod split;
mod synthetic;
mod table;

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use afterimage_nn::{DType, Tensor};
use flate2::read::GzDecoder;

pub(crate) use split::in_turn;
pub use split::{Order, Relabel, Split, SplitPlan};

use crate::{AuditError, Result};

/// Samples of one shape, with labels and names.
#[derive(Debug, Clone, PartialEq)]
pub struct Records {
    /// Shape of one sample.
    pub shape: Vec<usize>,
    /// Values of all samples, one after another.
    pub values: Vec<f32>,
    /// Class of each sample.
    pub labels: Vec<usize>,
    /// A name for each sample that its owner recognises.
    pub ids: Vec<String>,
}

impl Records {
    /// Number of samples.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The samples at `indices` as a tensor.
    pub fn tensor(&self, indices: &[usize], dtype: DType) -> Result<Tensor> {
        let row: usize = self.shape.iter().product();
        let mut values = Vec::with_capacity(indices.len() * row);
        for &index in indices {
            let sample = self.values.get(index * row..(index + 1) * row);
            values.extend_from_slice(sample.ok_or_else(|| AuditError::data("records", format!("no record {index}")))?);
        }
        let shape: Vec<usize> = std::iter::once(indices.len()).chain(self.shape.iter().copied()).collect();
        Ok(Tensor::from_vec(values, &shape)?.to_dtype(dtype)?)
    }

    /// Divides every sample by its Euclidean norm; zeros stay zeros.
    pub fn normalise(&mut self) {
        let row: usize = self.shape.iter().product();
        for sample in self.values.chunks_exact_mut(row.max(1)) {
            let norm = sample.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            if norm > 0.0 {
                sample.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
            }
        }
    }

    /// Brings values outside a range to its ends.
    pub fn clip(&mut self, [low, high]: [f64; 2]) {
        self.values.iter_mut().for_each(|x| *x = f64::from(*x).max(low).min(high) as f32);
    }

    /// Images of `size` (height, width) instead, by a smooth filter.
    pub fn resized(self, size: [usize; 2]) -> Result<Self> {
        folder::resize(self, size)
    }
}

/// Where records come from, by its name in a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// `builtin:digits`: the first 600 records of MNIST.
    Digits,
    /// `builtin:digits-8x8`: 1797 handwritten digits of 8 x 8 pixels.
    SmallDigits,
    /// `builtin:photos`: the first 600 records of CIFAR-10.
    Photos,
    /// `synthetic:axes:D`: the axes of a space of D dimensions.
    Axes(usize),
    /// `synthetic:sphere:D`: a thousand random points of length 1.
    Sphere(usize),
    /// `synthetic:circle:N`: N points evenly on the unit circle, then a thousand random ones.
    Circle(usize),
    /// A file or folder.
    Path(PathBuf),
}

impl FromStr for Source {
    type Err = AuditError;

    fn from_str(text: &str) -> Result<Self> {
        if let Some(rest) = text.strip_prefix("synthetic:") {
            return synthetic(rest).ok_or_else(|| {
                let known = "use synthetic:axes:D, synthetic:sphere:D or synthetic:circle:N, with a number of 2 to";
                AuditError::data(text, format!("there is no such made-up data; {known} {}", synthetic::LARGEST))
            });
        }
        match text.strip_prefix("builtin:") {
            Some("digits") => Ok(Source::Digits),
            Some("digits-8x8") => Ok(Source::SmallDigits),
            Some("photos") => Ok(Source::Photos),
            Some(_) => {
                let known = "use builtin:digits, builtin:digits-8x8 or builtin:photos";
                Err(AuditError::data(text, format!("there is no such built-in data; {known}")))
            }
            None => Ok(Source::Path(text.into())),
        }
    }
}

fn synthetic(text: &str) -> Option<Source> {
    let (name, dimension) = text.split_once(':')?;
    let dimension = dimension.parse().ok().filter(|dimension| (2..=synthetic::LARGEST).contains(dimension))?;
    match name {
        "axes" => Some(Source::Axes(dimension)),
        "sphere" => Some(Source::Sphere(dimension)),
        "circle" => Some(Source::Circle(dimension)),
        _ => None,
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Digits => f.write_str("builtin:digits"),
            Source::SmallDigits => f.write_str("builtin:digits-8x8"),
            Source::Photos => f.write_str("builtin:photos"),
            Source::Axes(dimension) => write!(f, "synthetic:axes:{dimension}"),
            Source::Sphere(dimension) => write!(f, "synthetic:sphere:{dimension}"),
            Source::Circle(count) => write!(f, "synthetic:circle:{count}"),
            Source::Path(path) => path.display().fmt(f),
        }
    }
}

impl Source {
    /// Reads all records.
    ///
    /// | path | read as |
    /// | --- | --- |
    /// | `*images*idx*`, with or without `.gz` | idx images; labels from the file with `labels` for `images` in its name |
    /// | `*.bin`, `*.bin.gz` | CIFAR-10 binary records |
    /// | `*.npy` | an array of samples, without labels |
    /// | `*.npz` | arrays `x` and, if there, `y` |
    /// | `*.csv`, `*.csv.gz` | one sample a row; the column `label`, `class` or `target`, or else the last, is the class |
    /// | a folder | images: a subfolder for each class, or a `labels.csv` |
    pub fn read(&self) -> Result<Records> {
        match self {
            Source::Digits => builtin::digits(),
            Source::SmallDigits => builtin::small_digits(),
            Source::Photos => builtin::photos(),
            Source::Axes(dimension) => Ok(synthetic::axes(*dimension)),
            Source::Sphere(dimension) => Ok(synthetic::sphere(*dimension)),
            Source::Circle(count) => Ok(synthetic::circle(*count)),
            Source::Path(path) if path.is_dir() => folder::read(path),
            Source::Path(path) => {
                let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
                let ends = |ending: &str| name.ends_with(ending) || name.ends_with(&format!("{ending}.gz"));
                let source = path.display().to_string();
                if ends(".bin") {
                    cifar::parse(open(path)?.take(LARGEST), &source)
                } else if ends(".csv") {
                    table::parse(open(path)?.take(LARGEST), &source)
                } else if ends(".npy") || ends(".npz") {
                    npy::read(path)
                } else if name.contains("idx") {
                    idx::read_pair(path)
                } else {
                    if !path.exists() {
                        return Err(AuditError::data(path.display(), "does not exist"));
                    }
                    let known = "idx, CIFAR .bin, .npy, .npz, .csv files and image folders can be read";
                    Err(AuditError::data(path.display(), format!("is of no known kind; {known}")))
                }
            }
        }
    }
}

/// Most bytes that are read of one file, unpacked.
const LARGEST: u64 = 16 << 30;

/// Why a file of data cannot be opened, and what to do.
pub(crate) fn unopened(error: &std::io::Error) -> String {
    format!(
        "cannot be opened: {error}\n  hint: give the path of a file or folder that is there (of a plan, --set data.source=…)"
    )
}

/// Opens a file, unpacking it if its name ends in `.gz`.
fn open(path: &Path) -> Result<Box<dyn Read>> {
    let file = File::open(path).map_err(|error| AuditError::data(path.display(), unopened(&error)))?;
    let packed = path.extension().is_some_and(|ending| ending == "gz");
    Ok(if packed { Box::new(GzDecoder::new(file)) } else { Box::new(std::io::BufReader::new(file)) })
}

/// Reads at most `limit` bytes; the buffer grows with what arrives.
fn read_up_to(reader: impl Read, limit: u64, source: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader
        .take(limit)
        .read_to_end(&mut bytes)
        .map_err(|error| AuditError::data(source, format!("cannot be read: {error}")))?;
    Ok(bytes)
}

/// A byte as a pixel in [0, 1].
fn pixel(byte: u8) -> f32 {
    f32::from(byte) / 255.0
}
