//! Who is trained on and who is not: members and controls, apart by group.

use std::collections::{BTreeMap, HashSet};

use afterimage_nn::Stream;
use serde::{Deserialize, Serialize};

use super::Records;
use crate::{AuditError, Result};

/// In which order records are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// At random, by the seed.
    #[default]
    Random,
    /// The first ones of the file, as the papers do.
    FirstInFileOrder,
}

/// How classes of the data become labels of the network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Relabel {
    /// As they are.
    #[default]
    None,
    /// Even 0, odd 1.
    OddEven,
    /// CIFAR-10's vehicles (0, 1, 8, 9) 0, animals 1.
    VehiclesAnimals,
    /// Each class to the given one; classes not named are left out.
    Map(BTreeMap<String, usize>),
}

impl Relabel {
    /// The label of a class; `None` leaves the record out.
    pub fn apply(&self, class: usize) -> Option<usize> {
        match self {
            Relabel::None => Some(class),
            Relabel::OddEven => Some(class % 2),
            Relabel::VehiclesAnimals => Some(usize::from(![0, 1, 8, 9].contains(&class))),
            Relabel::Map(map) => map.get(&class.to_string()).copied(),
        }
    }
}

/// How members and controls are chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct SplitPlan {
    /// Records trained on.
    pub members: usize,
    /// Records never trained on.
    pub controls: usize,
    /// In which order they are taken.
    pub order: Order,
    /// As many members of each label, as far as that goes.
    pub balanced: bool,
    /// No two members with the same label.
    pub distinct: bool,
    /// New labels.
    pub relabel: Relabel,
    /// The group of each record (person, patient, scene): a control never
    /// shares one with a member.
    pub groups: Option<Vec<String>>,
}

/// Which records are members and which controls, with their labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// Places of the members among the records.
    pub members: Vec<usize>,
    /// Their labels.
    pub member_labels: Vec<usize>,
    /// Places of the controls.
    pub controls: Vec<usize>,
    /// Their labels.
    pub control_labels: Vec<usize>,
}

impl SplitPlan {
    /// Chooses. The same seed chooses the same.
    pub fn split(&self, records: &Records, seed: u64) -> Result<Split> {
        let order = match self.order {
            Order::FirstInFileOrder => (0..records.len()).collect(),
            Order::Random => Stream::new(seed, "split", 0).permutation(records.len()),
        };
        self.split_among(records, order)
    }

    /// Chooses members among the first so many records and controls among the others.
    pub fn split_at(&self, records: &Records, first: usize, seed: u64) -> Result<Split> {
        let ordered = |places: std::ops::Range<usize>, name: &str| -> Vec<usize> {
            match self.order {
                Order::FirstInFileOrder => places.collect(),
                Order::Random => {
                    let drawn = Stream::new(seed, name, 0).permutation(places.len());
                    drawn.into_iter().map(|place| places.start + place).collect()
                }
            }
        };
        let alone = SplitPlan { controls: 0, ..self.clone() };
        let of_members = alone.split_among(records, ordered(0..first, "split"))?;
        let closed: HashSet<&String> = self
            .groups
            .iter()
            .flat_map(|groups| of_members.members.iter().filter_map(|&member| groups.get(member)))
            .collect();
        let group = |index: usize| self.groups.as_ref().and_then(|groups| groups.get(index));
        let mut others = ordered(first..records.len(), "split/controls");
        others.retain(|&index| group(index).is_none_or(|group| !closed.contains(group)));
        let label = |index: usize| self.relabel.apply(records.labels[index]);
        others.retain(|&index| label(index).is_some());
        let controls: Vec<usize> = match self.balanced {
            true => balanced(&others, self.controls, &label),
            false => others.into_iter().take(self.controls).collect(),
        };
        let control_labels = controls.iter().filter_map(|&index| label(index)).collect();
        Ok(Split { controls, control_labels, ..of_members })
    }

    /// Chooses among the records at these places, in this order.
    pub fn split_among(&self, records: &Records, mut order: Vec<usize>) -> Result<Split> {
        let label = |index: usize| self.relabel.apply(records.labels[index]);
        order.retain(|&index| label(index).is_some());
        if self.members == 0 {
            return Err(AuditError::plan("data.members", "is 0", "an audit needs at least one member"));
        }
        let members = if self.distinct {
            let mut seen = HashSet::new();
            let first = order.iter().copied().filter(|&index| seen.insert(label(index)));
            first.take(self.members).collect()
        } else if self.balanced {
            balanced(&order, self.members, &label)
        } else {
            order.iter().copied().take(self.members).collect()
        };
        if members.len() < self.members {
            let problem = format!("{} members were asked for, and the data have {}", self.members, members.len());
            return Err(AuditError::plan("data.members", problem, "ask for fewer, or give more data"));
        }
        let taken: HashSet<usize> = members.iter().copied().collect();
        let group = |index: usize| self.groups.as_ref().and_then(|groups| groups.get(index));
        let closed: HashSet<&String> = members.iter().filter_map(|&index| group(index)).collect();
        let free = |index: &usize| !taken.contains(index) && group(*index).is_none_or(|group| !closed.contains(group));
        let free: Vec<usize> = order.iter().copied().filter(free).collect();
        // Controls are drawn as members are, or a class that members have more of would tell them apart.
        let controls = if self.balanced {
            balanced(&free, self.controls, &label)
        } else {
            free.into_iter().take(self.controls).collect()
        };
        let labels = |indices: &[usize]| indices.iter().filter_map(|&index| label(index)).collect();
        Ok(Split { member_labels: labels(&members), control_labels: labels(&controls), members, controls })
    }
}

/// The first of each label: n/k of each of k labels, as the papers draw them.
fn balanced(order: &[usize], count: usize, label: &impl Fn(usize) -> Option<usize>) -> Vec<usize> {
    let mut by_label: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for &index in order {
        by_label.entry(label(index).unwrap_or(0)).or_default().push(index);
    }
    let (each, extra) = (count / by_label.len().max(1), count % by_label.len().max(1));
    let chosen: HashSet<usize> = (by_label.values().enumerate())
        .flat_map(|(rank, indices)| indices.iter().copied().take(each + usize::from(rank < extra)))
        .collect();
    order.iter().copied().filter(|index| chosen.contains(index)).collect()
}

/// An order with labels in turn: the first of each, then the second of each, as long as there are some.
pub(crate) fn in_turn(order: &[usize], labels: &[usize]) -> Vec<usize> {
    let mut by_label: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for &place in order {
        by_label.entry(labels[place]).or_default().push(place);
    }
    let turns = by_label.values().map(Vec::len).max().unwrap_or(0);
    (0..turns).flat_map(|turn| by_label.values().filter_map(move |own| own.get(turn).copied())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(labels: &[usize]) -> Records {
        Records {
            shape: vec![1],
            values: vec![0.0; labels.len()],
            labels: labels.to_vec(),
            ids: (0..labels.len()).map(|index| index.to_string()).collect(),
        }
    }

    fn plan(members: usize, controls: usize) -> SplitPlan {
        SplitPlan {
            members,
            controls,
            order: Order::FirstInFileOrder,
            balanced: false,
            distinct: false,
            relabel: Relabel::None,
            groups: None,
        }
    }

    #[test]
    fn file_order_and_balance_are_the_papers() {
        // Even, odd: the first two of each, in file order.
        let records = records(&[5, 0, 4, 1, 9, 2, 1, 3]);
        let plan = SplitPlan { balanced: true, relabel: Relabel::OddEven, ..plan(4, 10) };
        let split = plan.split(&records, 1).unwrap();
        assert_eq!((split.members, split.member_labels), (vec![0, 1, 2, 3], vec![1, 0, 0, 1]));
        assert_eq!(split.controls, [4, 5, 6, 7]);
    }

    #[test]
    fn a_random_split_is_seeded_and_disjoint() {
        let records = records(&[0; 50]);
        let plan = SplitPlan { order: Order::Random, ..plan(10, 20) };
        let split = plan.split(&records, 1).unwrap();
        assert_eq!(split, plan.split(&records, 1).unwrap());
        assert_ne!(split, plan.split(&records, 2).unwrap());
        assert!(split.members.iter().all(|member| !split.controls.contains(member)));
        assert_eq!((split.members.len(), split.controls.len()), (10, 20));
    }

    #[test]
    fn a_control_never_shares_a_group_with_a_member() {
        let groups = ["ann", "ben", "ann", "cem", "ben", "cem"].map(String::from).to_vec();
        let plan = SplitPlan { groups: Some(groups), ..plan(1, 10) };
        assert_eq!(plan.split(&records(&[0; 6]), 1).unwrap().controls, [1, 3, 4, 5]);
    }

    #[test]
    fn controls_of_a_balanced_split_are_balanced_too() {
        let labels: Vec<usize> = (0..60).map(|index| usize::from(index % 6 == 0)).collect();
        let plan = SplitPlan { balanced: true, ..plan(4, 8) };
        let split = plan.split(&records(&labels), 1).unwrap();
        assert_eq!((split.member_labels.iter().sum::<usize>(), split.control_labels.iter().sum::<usize>()), (2, 4));
    }

    #[test]
    fn classes_can_be_mapped_and_left_out() {
        #[derive(serde::Deserialize)]
        struct Section {
            relabel: Relabel,
        }
        let section: Section = toml::from_str("relabel = { map = { 3 = 0, 5 = 1 } }").unwrap();
        let plan = SplitPlan { relabel: section.relabel, ..plan(2, 5) };
        let split = plan.split(&records(&[1, 5, 3, 9, 3]), 1).unwrap();
        assert_eq!((split.members, split.member_labels, split.controls), (vec![1, 2], vec![1, 0], vec![4]));
    }

    #[test]
    fn labels_take_turns() {
        assert_eq!(in_turn(&[5, 2, 1, 0, 4, 3], &[1, 1, 1, 0, 0, 1]), [4, 5, 3, 2, 1, 0]);
        assert!(in_turn(&[], &[]).is_empty());
    }

    #[test]
    fn too_few_records_are_named() {
        let message = plan(7, 1).split(&records(&[0; 5]), 1).unwrap_err().to_string();
        assert!(message.contains("data.members") && message.contains("have 5"), "{message}");
        assert!(plan(0, 1).split(&records(&[0; 5]), 1).is_err());
    }
}
