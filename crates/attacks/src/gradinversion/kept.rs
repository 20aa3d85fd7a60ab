//! The best point of every start so far, by the attacker's own objective.

use std::collections::BTreeMap;

use afterimage_nn::{Device, Tensor};

use crate::AttackError;

/// One start's best point: its loss, x, and y where labels are searched for.
struct Best {
    loss: f64,
    x: Tensor,
    y: Option<Tensor>,
}

/// The best points of all starts: one start that goes astray must not cost the others theirs.
pub(super) struct Kept {
    best: Vec<Option<Best>>,
}

impl Kept {
    /// Nothing yet, of so many starts.
    pub(super) fn new(starts: usize) -> Self {
        Self { best: (0..starts).map(|_| None).collect() }
    }

    /// Keeps a point if it is that start's best.
    pub(super) fn offer(&mut self, start: usize, loss: f64, x: &Tensor, y: Option<&Tensor>) {
        if self.best[start].as_ref().is_none_or(|best| loss < best.loss) {
            self.best[start] = Some(Best { loss, x: x.clone(), y: y.cloned() });
        }
    }

    /// The best points in the place of the last: x_1 … x_G, then y_1 … y_G where those are searched for.
    pub(super) fn replace(self, values: &mut [Tensor]) {
        let starts = self.best.len();
        for (start, best) in self.best.into_iter().enumerate() {
            let Some(Best { x, y, .. }) = best else { continue };
            values[start] = x;
            if let (Some(y), Some(place)) = (y, values.get_mut(starts + start)) {
                *place = y;
            }
        }
    }

    /// For a checkpoint.
    pub(super) fn memory(&self) -> Result<Vec<(String, Tensor)>, AttackError> {
        let mut memory = Vec::new();
        for (start, best) in self.best.iter().enumerate() {
            let Some(Best { loss, x, y }) = best else { continue };
            memory.push((format!("loss{start}"), Tensor::from_vec(vec![*loss], &[1])?));
            memory.push((format!("x{start}"), x.to_device(Device::Cpu)?));
            memory.extend(y.as_ref().map(|y| (format!("y{start}"), y.clone())));
        }
        Ok(memory)
    }

    /// From a checkpoint.
    pub(super) fn remember(
        &mut self,
        memory: &mut BTreeMap<String, Tensor>,
        device: Device,
    ) -> Result<(), AttackError> {
        for (start, best) in self.best.iter_mut().enumerate() {
            let mut take = |name: &str| memory.remove(&format!("{name}{start}"));
            let (Some(loss), Some(x)) = (take("loss"), take("x")) else { continue };
            let Some(&loss) = loss.to_f64_vec()?.first() else { continue };
            let y = take("y").map(|y| y.to_device(device)).transpose()?;
            *best = Some(Best { loss, x: x.to_device(device)?, y });
        }
        Ok(())
    }
}
