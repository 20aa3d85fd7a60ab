//! Records read and divided into members and controls.

use std::collections::HashSet;
use std::path::Path;

use afterimage_attacks::Preprocess;
use afterimage_nn::DType;

use super::preparation::Preparation;
use crate::data::{Records, Source, Split, SplitPlan};
use crate::plan::DataPlan;
use crate::truth::{Sample, Truth};
use crate::{AuditError, Result};

/// Records that were read and divided.
#[derive(Clone)]
pub(crate) struct Draw {
    records: Records,
    split: Split,
    plan: SplitPlan,
    preparation: Preparation,
    twin_members: Option<usize>,
    twin_classes: Option<usize>,
    range: Option<[f64; 2]>,
    /// Records that nobody may learn anything from any more.
    gone: HashSet<usize>,
}

impl Draw {
    pub(crate) fn new(data: &DataPlan, seed: u64) -> Result<Self> {
        let mut records = data.source.parse::<Source>()?.read()?;
        // Members come from the first of two sources, controls from the second.
        let first = records.len();
        if let Some(source) = &data.controls_from {
            records = joined(records, source.parse::<Source>()?.read()?, &data.source, source)?;
        }
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
        if let Some([low, high]) = data.clip {
            if !(low.is_finite() && high.is_finite() && low < high) {
                let problem = format!("is from {low} to {high}");
                return Err(AuditError::plan("data.clip", problem, "give the lower end first"));
            }
            records.clip([low, high]);
        }
        if data.unit_norm {
            records.normalise();
        }
        let plan = SplitPlan {
            members: data.members,
            controls: data.controls,
            order: data.split,
            balanced: data.balanced,
            distinct: data.distinct,
            relabel: data.relabel.clone(),
            groups,
        };
        let split = match data.controls_from {
            Some(_) => plan.split_at(&records, first, seed)?,
            None => plan.split(&records, seed)?,
        };
        Ok(Self {
            twin_members: data.twin_members,
            twin_classes: data.twin_classes,
            range: data.range,
            records,
            split,
            plan,
            preparation: Preparation::of(data)?,
            gone: HashSet::new(),
        })
    }

    /// Controls alone, divided by the same rules into members and controls.
    pub(super) fn twin(self) -> Result<Self> {
        let available = self.split.controls.len();
        let members = self.twin_members.unwrap_or(self.plan.members);
        let plan = SplitPlan { members, controls: available, ..self.plan };
        if available <= plan.members {
            let problem = format!("{available} controls cannot make a twin of {} members", plan.members);
            return Err(AuditError::plan("data.controls", problem, "ask for more controls"));
        }
        let mut split = plan.split_among(&self.records, self.split.controls)?;
        // A twin of one class has nothing to learn, and shows nothing.
        if let Some(classes) = self.twin_classes.filter(|classes| *classes > 0) {
            split.member_labels = (0..split.members.len()).map(|place| place % classes).collect();
        }
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

    /// Names of the controls.
    pub(super) fn control_ids(&self) -> Vec<String> {
        self.split.controls.iter().map(|&index| self.records.ids[index].clone()).collect()
    }

    /// How many members there are.
    pub(crate) fn members(&self) -> usize {
        self.split.members.len()
    }

    /// How many controls there are: as many as were asked for, or fewer.
    pub(crate) fn controls(&self) -> usize {
        self.split.controls.len()
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
            damaged: None,
        })
    }

    /// The preprocessing, whose mean is that of all records but the members: a
    /// mean over few members would hand their pictures to whoever knows it.
    fn preprocess(&self) -> Result<Preprocess> {
        let members: HashSet<usize> = self.split.members.iter().chain(&self.gone).copied().collect();
        let others: Vec<usize> = (0..self.records.len()).filter(|index| !members.contains(index)).collect();
        let learnt = self.preparation.learn(&self.records, &others)?;
        Ok(Preprocess { range: self.range.unwrap_or(learnt.range), ..learnt })
    }
}

/// Records of two sources, one after the other.
fn joined(mut first: Records, second: Records, name: &str, other: &str) -> Result<Records> {
    if first.shape != second.shape {
        let problem = format!("has records of shape {:?}, and {name} of {:?}", second.shape, first.shape);
        return Err(AuditError::data(other, problem));
    }
    let row: usize = first.shape.iter().product();
    let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let known: HashSet<Vec<u32>> = first.values.chunks_exact(row.max(1)).map(bits).collect();
    let twice: Vec<&str> = (second.values.chunks_exact(row.max(1)).zip(&second.ids))
        .filter_map(|(values, id)| known.contains(&bits(values)).then_some(id.as_str()))
        .collect();
    if let Some(one) = twice.first() {
        let problem = format!(
            "{} of its records are in {name} too (the first: {one}); a control is a record that was never trained on: \
             take them out",
            twice.len()
        );
        return Err(AuditError::data(other, problem));
    }
    first.values.extend(second.values);
    first.labels.extend(second.labels);
    first.ids.extend(second.ids);
    Ok(first)
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
