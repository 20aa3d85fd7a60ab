//! One search from several starts, one after the other: progress over all of them, and
//! checkpoints that keep what the finished ones found.

use std::ops::ControlFlow;

use afterimage_nn::io::TensorFile;
use afterimage_nn::{DType, Tensor};

use crate::descent::{BEFORE, integer, whole};
use crate::{AttackError, Descended, Hooks, Session, Stop, Tick, TracePoint};

/// Runs a search up to so many times; it is given what those before it found, and has nothing
/// to give where there is no more to look for. Gives what each found: of a run that was asked
/// to stop, those up to the one that stopped.
pub(crate) fn restarted(
    starts: usize,
    session: &mut Session<'_>,
    mut search: impl FnMut(&[Descended], &mut Session<'_>) -> Result<Option<Descended>, AttackError>,
) -> Result<Vec<Descended>, AttackError> {
    let mut resumed = session.resumed();
    let mut found = resumed.as_mut().map(take_finished).transpose()?.unwrap_or_default();
    while found.len() < starts {
        let (seed, hooks) = session.hooks();
        let mut part = Part { hooks, finished: &found, starts, before: 0, resumed: resumed.take() };
        let Some(one) = search(&found, &mut Session::new(seed, &mut part))? else { break };
        let stopped = one.stop == Stop::Interrupted;
        found.push(one);
        if stopped {
            break;
        }
    }
    Ok(found)
}

/// The hooks of one of several searches.
struct Part<'a> {
    hooks: &'a mut dyn Hooks,
    finished: &'a [Descended],
    starts: usize,
    /// Steps of the finished ones.
    before: usize,
    resumed: Option<TensorFile>,
}

impl Hooks for Part<'_> {
    fn tick(&mut self, Tick { iteration, total, loss }: Tick) -> ControlFlow<()> {
        self.before = self.finished.len() * total;
        self.hooks.tick(Tick { iteration: self.before + iteration, total: self.starts * total, loss })
    }

    fn wants_checkpoint(&mut self) -> bool {
        self.hooks.wants_checkpoint()
    }

    fn keep(&mut self, state: &TensorFile) -> Result<(), AttackError> {
        let mut state = state.clone();
        put_finished(self.finished, &mut state)?;
        state.integers.insert(BEFORE.into(), integer(self.before as i64));
        self.hooks.keep(&state)
    }

    fn resumed(&mut self) -> Option<TensorFile> {
        self.resumed.take()
    }

    fn warn(&mut self, message: &str) {
        self.hooks.warn(message);
    }
}

const FINISHED: &str = "finished";

fn put_finished(finished: &[Descended], file: &mut TensorFile) -> Result<(), AttackError> {
    file.integers.insert(FINISHED.into(), integer(finished.len() as i64));
    for (place, found) in finished.iter().enumerate() {
        for (variable, value) in found.values.iter().enumerate() {
            file.tensors.insert(format!("{FINISHED}.{place}.{variable}"), value.clone());
        }
        let record = found.trace.iter().flat_map(|point| [point.iteration as f64, point.loss]);
        let record: Vec<f64> = [found.iterations as f64, found.loss].into_iter().chain(record).collect();
        let rows = record.len() / 2;
        file.tensors.insert(format!("{FINISHED}.{place}.trace"), Tensor::from_f64(&record, &[rows, 2], DType::F64)?);
    }
    Ok(())
}

fn take_finished(file: &mut TensorFile) -> Result<Vec<Descended>, AttackError> {
    let mut found = Vec::new();
    for place in 0..whole(&file.integers, FINISHED).unwrap_or(0) {
        let Some(record) = file.tensors.remove(&format!("{FINISHED}.{place}.trace")) else { break };
        let mut values = Vec::new();
        while let Some(value) = file.tensors.remove(&format!("{FINISHED}.{place}.{}", values.len())) {
            values.push(value);
        }
        let record = record.to_f64_vec()?;
        let mut points = record.chunks_exact(2).map(|pair| TracePoint { iteration: pair[0] as usize, loss: pair[1] });
        let Some(TracePoint { iteration: iterations, loss }) = points.next() else { break };
        found.push(Descended { values, loss, trace: points.collect(), iterations, stop: Stop::IterationsUsed });
    }
    Ok(found)
}
