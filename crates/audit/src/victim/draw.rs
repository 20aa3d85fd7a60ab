//! Records read and divided into members and controls.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use afterimage_attacks::Preprocess;
use afterimage_nn::io::TensorFile;
use afterimage_nn::{DType, Tensor};

use crate::data::{Records, Source, Split, SplitPlan};
use crate::plan::{DataPlan, MeanKind};
use crate::truth::{Sample, Truth};
use crate::{AuditError, Result};

/// Records that were read and divided.
#[derive(Clone)]
pub(crate) struct Draw {
    records: Records,
    split: Split,
    plan: SplitPlan,
    mean: MeanKind,
    mean_file: Option<PathBuf>,
    /// Records that nobody may learn anything from any more.
    gone: HashSet<usize>,
}

impl Draw {
    pub(crate) fn new(data: &DataPlan, seed: u64) -> Result<Self> {
        let mut records = data.source.parse::<Source>()?.read()?;
        let groups = data.groups.as_deref().map(read_groups).transpose()?;
        if let Some(groups) = &groups
            && groups.len() != records.len()
        {
            let problem = format!("names {} groups for {} records", groups.len(), records.len());
            return Err(AuditError::plan("data.groups", problem, "give one line for each record, in their order"));
        }
        if let Some(size) = data.resize {
            records = records.resized(size)?;
        }
        if data.unit_norm {
            records.normalise();
        }
        let plan = SplitPlan {
            members: data.members,
            controls: data.controls,
            order: data.split,
            balanced: data.balanced,
            relabel: data.relabel.clone(),
            groups,
        };
        let split = plan.split(&records, seed)?;
        Ok(Self {
            records,
            split,
            plan,
            mean: data.subtract_mean,
            mean_file: data.mean_file.clone(),
            gone: HashSet::new(),
        })
    }

    /// Controls alone, divided by the same rules into members and controls.
    pub(super) fn twin(self) -> Result<Self> {
        let available = self.split.controls.len();
        let plan = SplitPlan { controls: available, ..self.plan };
        if available <= plan.members {
            let problem = format!("{available} controls cannot make a twin of {} members", plan.members);
            return Err(AuditError::plan("data.controls", problem, "ask for more controls"));
        }
        let split = plan.split_among(&self.records, self.split.controls)?;
        Ok(Self { split, plan, ..self })
    }

    /// The same with some members gone, by their names; controls stay.
    pub(crate) fn without(&self, ids: &HashSet<String>) -> Self {
        let Split { members, member_labels, .. } = &self.split;
        let gone = |member: usize| ids.contains(&self.records.ids[member]);
        let left = members.iter().zip(member_labels).filter(|(member, _)| !gone(**member));
        let (left, member_labels) = left.unzip();
        let gone = members.iter().copied().filter(|&member| gone(member)).chain(self.gone.iter().copied()).collect();
        Self { split: Split { members: left, member_labels, ..self.split.clone() }, gone, ..self.clone() }
    }

    /// How many members there are.
    pub(crate) fn members(&self) -> usize {
        self.split.members.len()
    }

    /// Records that are neither members nor controls, with labels.
    pub(super) fn others(&self, dtype: DType) -> Result<Sample> {
        let taken = self.split.members.iter().chain(&self.split.controls).chain(&self.gone);
        let taken: HashSet<usize> = taken.copied().collect();
        let label = |index: usize| self.plan.relabel.apply(self.records.labels[index]);
        let others: Vec<usize> =
            (0..self.records.len()).filter(|&index| !taken.contains(&index) && label(index).is_some()).collect();
        if others.is_empty() {
            let problem = "needs records that are neither members nor controls, and there are none";
            return Err(AuditError::plan("victim.pretrain", problem, "ask for fewer controls, or give more data"));
        }
        let labels = others.iter().filter_map(|&index| label(index)).collect();
        Ok(Sample { pixels: self.records.tensor(&others, dtype)?, labels })
    }

    pub(crate) fn truth(&self, dtype: DType) -> Result<Truth> {
        let Self { records, split, .. } = self;
        Ok(Truth {
            members: Sample { pixels: records.tensor(&split.members, dtype)?, labels: split.member_labels.clone() },
            controls: Sample { pixels: records.tensor(&split.controls, dtype)?, labels: split.control_labels.clone() },
            preprocess: self.preprocess()?,
            ids: split.members.iter().map(|&index| records.ids[index].clone()).collect(),
            driven: None,
        })
    }

    /// The preprocessing, whose mean is that of all records but the members: a
    /// mean over few members would hand their pictures to whoever knows it.
    fn preprocess(&self) -> Result<Preprocess> {
        if let Some(path) = &self.mean_file {
            let mean = TensorFile::read(path)?.tensors.remove("mean");
            let mean = mean.ok_or_else(|| AuditError::file(path, "has no tensor `mean`"))?;
            return Ok(Preprocess { mean: Some(mean), ..Preprocess::default() });
        }
        if self.mean == MeanKind::None {
            return Ok(Preprocess::default());
        }
        let members: HashSet<usize> = self.split.members.iter().chain(&self.gone).copied().collect();
        let others: Vec<usize> = (0..self.records.len()).filter(|index| !members.contains(index)).collect();
        let others = self.records.tensor(&others, DType::F64)?;
        let channels = others.shape().get(1).copied().unwrap_or(1);
        let row = others.row_len();
        let parts = match self.mean {
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
        let shape = if self.mean == MeanKind::Pixel { others.shape()[1..].to_vec() } else { vec![parts] };
        Ok(Preprocess { mean: Some(Tensor::from_f64(&mean, &shape, DType::F64)?), ..Preprocess::default() })
    }
}

/// One group for each record: the column `group`, or the last.
fn read_groups(path: &Path) -> Result<Vec<String>> {
    let wrong = |problem: String| AuditError::file(path, problem);
    let mut table = csv::Reader::from_path(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    let header = table.headers().map_err(|error| wrong(error.to_string()))?.clone();
    let column = header.iter().position(|name| name.eq_ignore_ascii_case("group"));
    let column = column.unwrap_or(header.len().saturating_sub(1));
    let group = |(row, record): (usize, csv::Result<csv::StringRecord>)| {
        let record = record.map_err(|error| wrong(format!("row {}: {error}", row + 1)))?;
        Ok(record.get(column).unwrap_or_default().to_owned())
    };
    table.records().enumerate().map(group).collect()
}
