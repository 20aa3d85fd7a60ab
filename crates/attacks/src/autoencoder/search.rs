//! Passes over samples, by whichever way each is improved: progress, checkpoints, pictures taken on the way.

use std::ops::ControlFlow;

use afterimage_nn::io::TensorFile;
use afterimage_nn::{Device, Tensor};

use crate::{AttackError, Session, Stage, Stop, Tick, TracePoint};

/// A way to improve samples.
pub(super) trait Way {
    /// Improves once more what can still be; gives what there is to tell of it, nothing if all are done.
    fn pass(&mut self) -> Result<Option<f64>, AttackError>;

    /// Everything that a pass changes, by name: the samples are the first.
    fn state(&mut self) -> Vec<(&'static str, Part<'_>)>;

    /// The samples and what of each is taken for kept.
    fn samples(&self) -> (&Tensor, Option<&Tensor>);
}

/// A part of what a search goes on from.
pub(super) enum Part<'a> {
    /// Numbers of all samples.
    Tensor(&'a mut Tensor),
    /// One number for each.
    Each(&'a mut Vec<f64>),
}

/// How a search went.
pub(super) struct Searched {
    pub(super) trace: Vec<TracePoint>,
    pub(super) stages: Vec<Stage>,
    pub(super) passes: usize,
    pub(super) stop: Stop,
}

/// Numbers of samples that pictures on the way may have together.
const MOST_PICTURED: usize = 20_000_000;
const TRACE: &str = "trace";

/// Passes until all samples are done, there were so many, or it is asked to stop.
pub(super) fn search(way: &mut dyn Way, total: usize, session: &mut Session<'_>) -> Result<Searched, AttackError> {
    let mut losses = match session.resumed() {
        Some(file) => restored(way, file)?,
        None => Vec::new(),
    };
    let (mut stages, mut stop) = (Vec::new(), Stop::IterationsUsed);
    while losses.len() < total {
        let Some(loss) = way.pass()? else {
            stop = Stop::Finished;
            break;
        };
        losses.push(loss);
        let pass = losses.len();
        let (x, kept) = way.samples();
        if pass.is_power_of_two() && (stages.len() + 1) * x.count() <= MOST_PICTURED {
            stages.push(Stage {
                iteration: pass,
                samples: x.to_device(Device::Cpu)?,
                kept: kept.map(|kept| kept.to_device(Device::Cpu)).transpose()?,
            });
        }
        let wish = session.tick(Tick { iteration: pass, total, loss: Some(loss) });
        if wish == ControlFlow::Break(()) {
            session.keep(&kept_state(way, &losses)?)?;
            stop = Stop::Interrupted;
            break;
        }
        session.checkpoint(|| kept_state(way, &losses))?;
    }
    let point = |(place, &loss): (usize, &f64)| TracePoint { iteration: place + 1, loss };
    let trace: Vec<TracePoint> = losses.iter().enumerate().map(point).collect();
    Ok(Searched { passes: trace.len(), trace, stages, stop })
}

fn numbers(values: &[f64]) -> Result<Tensor, AttackError> {
    Ok(Tensor::from_vec(values.to_vec(), &[values.len()])?)
}

fn kept_state(way: &mut dyn Way, losses: &[f64]) -> Result<TensorFile, AttackError> {
    let mut file = TensorFile::default();
    file.tensors.insert(TRACE.into(), numbers(losses)?);
    for (name, part) in way.state() {
        let tensor = match part {
            Part::Tensor(tensor) => tensor.to_device(Device::Cpu)?,
            Part::Each(values) => numbers(values)?,
        };
        file.tensors.insert(name.into(), tensor);
    }
    Ok(file)
}

/// Puts a search where a checkpoint was; gives what was told of its passes.
fn restored(way: &mut dyn Way, mut file: TensorFile) -> Result<Vec<f64>, AttackError> {
    let wrong = |problem: String| AttackError::File { file: "checkpoint".into(), problem };
    let mut take = |name: &str| file.tensors.remove(name).ok_or_else(|| wrong(format!("it lacks {name}")));
    let losses = take(TRACE)?.to_f64_vec()?;
    for (name, part) in way.state() {
        let kept = take(name)?;
        let expected = match &part {
            Part::Tensor(tensor) => tensor.count(),
            Part::Each(values) => values.len(),
        };
        if kept.count() != expected {
            return Err(wrong(format!("{name} does not fit this attack")));
        }
        match part {
            Part::Tensor(own) => *own = kept.to_dtype(own.dtype())?.reshape(own.shape())?.to_device(own.device())?,
            Part::Each(own) => *own = kept.to_f64_vec()?,
        }
    }
    Ok(losses)
}

/// Puts new rows in the place of some of a tensor's.
pub(super) fn put_rows(all: &mut Tensor, rows: &[usize], new: &Tensor) -> Result<(), AttackError> {
    let mut order: Vec<usize> = (0..all.rows()).collect();
    for (place, &row) in rows.iter().enumerate() {
        order[row] = all.rows() + place;
    }
    *all = Tensor::concat_rows(&[all, new])?.select_rows(&order)?;
    Ok(())
}

/// The mean square of each row.
pub(super) fn mean_squares(x: &Tensor) -> Result<Vec<f64>, AttackError> {
    let length = x.row_len().max(1) as f64;
    Ok(x.dot_rows(x)?.into_iter().map(|square| square / length).collect())
}

/// The mean; 0 of nothing.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}
