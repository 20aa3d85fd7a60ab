//! How pixels become network inputs: what a plan says, made into numbers.

use std::path::PathBuf;

use afterimage_attacks::Preprocess;
use afterimage_nn::io::TensorFile;
use afterimage_nn::{DType, Tensor};

use crate::data::Records;
use crate::plan::{DataPlan, MeanKind, Normalise};
use crate::{AuditError, Result};

/// What is subtracted from pixels, and what they are divided by.
#[derive(Clone)]
pub(super) enum Preparation {
    /// A mean over records, or none.
    Mean(MeanKind),
    /// A mean from a file.
    File(PathBuf),
    /// Constants.
    Constants(Normalise),
}

impl Preparation {
    /// As the plan says; fails, naming the key, where it says two things at once.
    pub(super) fn of(data: &DataPlan) -> Result<Self> {
        if data.normalise.is_some() && (data.subtract_mean != MeanKind::None || data.mean_file.is_some()) {
            let problem = "is given beside another mean";
            return Err(AuditError::plan("data.normalise", problem, "leave out subtract_mean and mean_file"));
        }
        Ok(match (&data.normalise, &data.mean_file) {
            (Some(constants), _) => Self::Constants(constants.clone()),
            (None, Some(path)) => Self::File(path.clone()),
            (None, None) => Self::Mean(data.subtract_mean),
        })
    }

    /// The preprocessing, with a mean over these of the records where one is wanted.
    pub(super) fn learn(&self, records: &Records, over: &[usize]) -> Result<Preprocess> {
        match self {
            Self::Mean(MeanKind::None) => Ok(Preprocess::default()),
            Self::Mean(kind) => Ok(Preprocess { mean: Some(mean(*kind, records, over)?), ..Preprocess::default() }),
            Self::File(path) => {
                let mean = TensorFile::read(path)?.tensors.remove("mean");
                let mean = mean.ok_or_else(|| AuditError::file(path, "has no tensor `mean`"))?;
                Ok(Preprocess { mean: Some(mean), ..Preprocess::default() })
            }
            Self::Constants(Normalise { mean, std }) => {
                let channels = records.shape.first().copied().unwrap_or(1);
                let constants = |key: &str, values: &[f64]| {
                    if values.len() != 1 && values.len() != channels {
                        let problem = format!("has {} numbers, and records have {channels} channels", values.len());
                        return Err(AuditError::plan(key, problem, "give one number, or one for each channel"));
                    }
                    Ok(Some(Tensor::from_f64(values, &[values.len()], DType::F64)?))
                };
                if let Some(wrong) = std.iter().find(|std| !(**std > 0.0 && std.is_finite())) {
                    let problem = format!("has {wrong}");
                    return Err(AuditError::plan("data.normalise.std", problem, "give positive numbers"));
                }
                let (mean, std) = (constants("data.normalise.mean", mean)?, constants("data.normalise.std", std)?);
                Ok(Preprocess { mean, std, ..Preprocess::default() })
            }
        }
    }
}

fn mean(kind: MeanKind, records: &Records, over: &[usize]) -> Result<Tensor> {
    let others = records.tensor(over, DType::F64)?;
    let channels = others.shape().get(1).copied().unwrap_or(1);
    let row = others.row_len();
    let parts = match kind {
        MeanKind::None | MeanKind::Scalar => 1,
        MeanKind::Channel => channels,
        MeanKind::Pixel => row,
    };
    if others.rows() == 0 {
        let hint = "give more records, or do not subtract a mean";
        return Err(AuditError::plan("data.subtract_mean", "no record but the members is left to average", hint));
    }
    let values = others.to_f64_vec()?;
    let mut sums = vec![0.0; parts];
    for (index, value) in values.iter().enumerate() {
        sums[index % row * parts / row] += value;
    }
    let each = (values.len() / parts) as f64;
    let mean: Vec<f64> = sums.iter().map(|sum| sum / each).collect();
    let shape = if kind == MeanKind::Pixel { others.shape()[1..].to_vec() } else { vec![parts] };
    Ok(Tensor::from_f64(&mean, &shape, DType::F64)?)
}
