//! What the attacker must never see: the records, and those never trained on.

use std::path::Path;

use afterimage_attacks::{Model, Observation, Preprocess};
use afterimage_nn::io::{Integers, TensorFile};
use afterimage_nn::{Device, Tensor};

use crate::{AuditError, Result};

const DRIVEN: &str = "driven";
const PLACES: &str = "places";
const KEPT: &str = "kept";

/// Records as pixels with their labels.
#[derive(Debug, Clone)]
pub struct Sample {
    /// One record a row, in [0, 1] for images.
    pub pixels: Tensor,
    /// Labels as the network knows them.
    pub labels: Vec<usize>,
}

/// Members and controls. Lives in this crate, which attacks cannot import.
#[derive(Debug, Clone)]
pub struct Truth {
    /// Records that were trained on.
    pub members: Sample,
    /// Records that were not.
    pub controls: Sample,
    /// How the victim prepared its inputs, whether or not the attacker knows.
    pub preprocess: Preprocess,
    /// Names of the members, as their owner knows them.
    pub ids: Vec<String>,
    /// How much each member drove training, where its owner kept that: |∫ ∂loss/∂f dt|, or, of a batch whose
    /// gradient is shared, the length of its own.
    pub driven: Option<Vec<f64>>,
    /// What happened to them, if they were shared damaged.
    pub damaged: Option<Damaged>,
}

/// What an owner knows of records that were shared damaged.
#[derive(Debug, Clone, PartialEq)]
pub struct Damaged {
    /// Which of the damaged samples each member is.
    pub places: Vec<usize>,
    /// 1 for every element of a record that was kept, 0 for the others.
    pub kept: Vec<f64>,
}

impl Sample {
    /// The first records.
    fn first(&self, count: usize) -> Result<Self> {
        let rows: Vec<usize> = (0..count.min(self.pixels.rows())).collect();
        let labels = self.labels.iter().take(count).copied().collect();
        Ok(Self { pixels: self.pixels.select_rows(&rows)?, labels })
    }
}

impl Truth {
    /// Leaves the first members, and the first controls.
    pub(crate) fn keep_first(&mut self, count: usize) -> Result<()> {
        (self.members, self.controls) = (self.members.first(count)?, self.controls.first(count)?);
        self.ids.truncate(count);
        self.driven.iter_mut().for_each(|driven| driven.truncate(count));
        Ok(())
    }

    /// Nobody: of an observation whose records are not known.
    pub(crate) fn nobody(observation: &Observation) -> Result<Self> {
        let model = observation.model();
        let pixels = Tensor::zeros(&model.network.batch_shape(0), model.theta.dtype(), Device::Cpu)?;
        let none = Sample { pixels, labels: Vec::new() };
        Ok(Self {
            members: none.clone(),
            controls: none,
            preprocess: model.preprocess.clone().unwrap_or_default(),
            ids: Vec::new(),
            driven: None,
            damaged: None,
        })
    }

    /// Shape of one record.
    pub fn shape(&self) -> &[usize] {
        &self.members.pixels.shape()[1..]
    }

    /// Records as a layer of the model reads them: what candidates for the inputs of that
    /// layer are compared with.
    pub fn as_read_by(&self, layer: &str, model: &Model) -> Result<Self> {
        let read = |sample: &Sample| -> Result<Sample> {
            let x = self.preprocess.apply(&sample.pixels)?.to_dtype(model.theta.dtype())?;
            let x = x.reshape(&model.network.batch_shape(x.rows()))?;
            // Nobody is read as nothing.
            let pixels =
                if x.rows() == 0 { sample.pixels.clone() } else { model.network.inputs_of(layer, &model.theta, &x)? };
            Ok(Sample { pixels, labels: sample.labels.clone() })
        };
        Ok(Self {
            members: read(&self.members)?,
            controls: read(&self.controls)?,
            preprocess: Preprocess::default(),
            ids: self.ids.clone(),
            driven: self.driven.clone(),
            damaged: self.damaged.clone(),
        })
    }

    /// Writes `x`, `y`, `control_x`, `control_y`, the preprocessing and what else is known.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut file = TensorFile::default();
        for (prefix, sample) in [("", &self.members), ("control_", &self.controls)] {
            file.tensors.insert(format!("{prefix}x"), sample.pixels.clone());
            let values = sample.labels.iter().map(|&label| label as i64).collect();
            file.integers.insert(format!("{prefix}y"), Integers { shape: vec![sample.labels.len()], values });
        }
        let constants = [("preprocess.mean", &self.preprocess.mean), ("preprocess.std", &self.preprocess.std)];
        for (name, constant) in constants {
            file.tensors.extend(constant.clone().map(|constant| (name.to_owned(), constant)));
        }
        if let Some(driven) = &self.driven {
            file.tensors.insert(DRIVEN.into(), Tensor::from_vec(driven.clone(), &[driven.len()])?);
        }
        if let Some(Damaged { places, kept }) = &self.damaged {
            let values = places.iter().map(|&place| place as i64).collect();
            file.integers.insert(PLACES.into(), Integers { shape: vec![places.len()], values });
            file.tensors.insert(KEPT.into(), Tensor::from_vec(kept.clone(), &[kept.len()])?);
        }
        let ids =
            serde_json::to_string(&self.ids).map_err(|error| AuditError::file(path.as_ref(), error.to_string()))?;
        file.metadata.insert("ids".into(), ids);
        Ok(file.write(path)?)
    }

    /// Reads what [`write`](Self::write) wrote; names may be missing.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut file = TensorFile::read(path)?;
        let mut sample = |prefix: &str| {
            let wrong = |problem: String| AuditError::file(path, problem);
            let pixels = file.tensors.remove(&format!("{prefix}x"));
            let pixels = pixels.ok_or_else(|| wrong(format!("has no tensor `{prefix}x`")))?;
            let labels = file.integers.remove(&format!("{prefix}y")).map(|labels| labels.values).unwrap_or_default();
            let labels: Vec<usize> = labels.iter().map(|&label| usize::try_from(label).unwrap_or(0)).collect();
            if pixels.shape().len() < 2 || (!labels.is_empty() && labels.len() != pixels.rows()) {
                let shape = pixels.shape().to_vec();
                return Err(wrong(format!("`{prefix}x` has shape {shape:?} and {} labels", labels.len())));
            }
            Ok(Sample { pixels, labels })
        };
        let (members, controls) = (sample("")?, sample("control_")?);
        if members.pixels.shape()[1..] != controls.pixels.shape()[1..] {
            return Err(AuditError::file(path, "members and controls differ in shape"));
        }
        let ids = file.metadata.get("ids").and_then(|text| serde_json::from_str(text).ok());
        let ids = ids.filter(|ids: &Vec<String>| ids.len() == members.pixels.rows());
        let ids = ids.unwrap_or_else(|| (0..members.pixels.rows()).map(|index| index.to_string()).collect());
        let driven = file.tensors.remove(DRIVEN).map(|driven| driven.to_f64_vec()).transpose()?;
        let driven = driven.filter(|driven| driven.len() == members.pixels.rows());
        let places = file.integers.remove(PLACES).map(|places| places.values).unwrap_or_default();
        let places: Option<Vec<usize>> = places.into_iter().map(|place| usize::try_from(place).ok()).collect();
        let places = places.filter(|places| !places.is_empty() && places.len() == members.pixels.rows());
        let kept = file.tensors.remove(KEPT).map(|kept| kept.to_f64_vec()).transpose()?;
        let kept = kept.filter(|kept| kept.len() == members.pixels.row_len());
        let damaged = places.zip(kept).map(|(places, kept)| Damaged { places, kept });
        let (mean, std) = (file.tensors.remove("preprocess.mean"), file.tensors.remove("preprocess.std"));
        let preprocess = Preprocess { mean, std, ..Preprocess::default() };
        Ok(Self { members, controls, preprocess, ids, driven, damaged })
    }
}
