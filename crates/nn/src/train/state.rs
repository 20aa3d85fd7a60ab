//! Where a training is, as a file: everything its next epoch depends on.

use std::collections::BTreeMap;
use std::fmt::Display;

use serde::{Deserialize, Serialize};

use super::epoch::{At, Run};
use super::{Checkpoint, Keeper};
use crate::io::TensorFile;
use crate::optim::Optimizer;
use crate::{Error, Result, Tensor};

/// The part that is text, under this key.
const TEXT: &str = "training";

#[derive(Serialize, Deserialize)]
struct Text {
    epoch: usize,
    loss: f64,
    rate: f64,
    steps: u64,
    /// The loss that the velocity is held against.
    level: Option<f64>,
    damping: Option<f64>,
    /// Parameters that were kept on the way.
    kept: Vec<Kept>,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    epoch: usize,
    loss: f64,
}

/// The state after so many epochs.
pub(super) fn file(epoch: usize, loss: f64, run: &Run<'_>, keeper: &Keeper) -> Result<TensorFile> {
    let At { theta, optimizer, rate, velocity, driven, damping } = &run.at;
    let mut file = TensorFile::default();
    put(&mut file, "theta", theta.state());
    if let Some((velocity, _)) = velocity {
        put(&mut file, "velocity", velocity.iter());
    }
    put(&mut file, "memory", optimizer.state().1.iter().enumerate());
    if let Some((optimizer, driven)) = driven {
        put(&mut file, "driven", driven.iter().enumerate());
        put(&mut file, "driven.memory", optimizer.state().1.iter().enumerate());
    }
    for (index, kept) in keeper.kept.iter().enumerate() {
        put(&mut file, &format!("kept.{index}"), kept.theta.state());
    }
    let text = Text {
        epoch,
        loss,
        rate: *rate,
        steps: optimizer.state().0,
        level: velocity.as_ref().map(|(_, level)| *level),
        damping: *damping,
        kept: keeper.kept.iter().map(|kept| Kept { epoch: kept.epoch, loss: kept.loss }).collect(),
    };
    let text = toml::to_string(&text).map_err(|error| unusable(error.to_string()))?;
    file.metadata.insert(TEXT.into(), text);
    Ok(file)
}

/// Puts a training where another one was; how many epochs that had done, and the loss after them.
pub(super) fn resume(mut file: TensorFile, run: &mut Run<'_>, keeper: &mut Keeper) -> Result<(usize, f64)> {
    let text = file.metadata.get(TEXT).ok_or_else(|| unusable("it has no record of a training".into()))?;
    let text: Text = toml::from_str(text).map_err(|error| unusable(error.to_string()))?;
    let (network, dtype, device) = (run.network(), run.at.theta.dtype(), run.at.theta.device());
    let mut params = |of: &str| network.params(take(&mut file, of), dtype, device);
    let theta = params("theta")?;
    let velocity = text.level.map(|level| Ok::<_, Error>((params("velocity")?, level))).transpose()?;
    for (index, &Kept { epoch, loss }) in text.kept.iter().enumerate() {
        keeper.keep(Checkpoint { epoch, loss, theta: params(&format!("kept.{index}"))? });
    }
    let mut numbered = |of: &str| -> Result<Vec<Tensor>> {
        (0..).map_while(|index| file.tensors.remove(&name(of, index))).map(|x| x.to_device(device)).collect()
    };
    let rule = run.rule();
    let optimizer = Optimizer::resume(rule, text.steps, numbered("memory")?)?;
    let driven = match run.at.driven.is_some() {
        true => Some((Optimizer::resume(rule, text.steps, numbered("driven.memory")?)?, numbered("driven")?)),
        false => None,
    };
    run.go_on(At { theta, optimizer, rate: text.rate, velocity, driven, damping: text.damping });
    Ok((text.epoch, text.loss))
}

/// What a part of the state is called in the file.
fn name(of: &str, part: impl Display) -> String {
    format!("{of}/{part}")
}

fn put<'a, N: Display>(file: &mut TensorFile, of: &str, parts: impl IntoIterator<Item = (N, &'a Tensor)>) {
    file.tensors.extend(parts.into_iter().map(|(part, value)| (name(of, part), value.clone())));
}

/// The named parts of something, taken out of the file.
fn take(file: &mut TensorFile, of: &str) -> BTreeMap<String, Tensor> {
    let prefix = name(of, "");
    let own = |(name, _): &(String, Tensor)| name.starts_with(&prefix);
    let (own, rest): (BTreeMap<_, _>, _) = std::mem::take(&mut file.tensors).into_iter().partition(own);
    file.tensors = rest;
    own.into_iter().map(|(name, value)| (name[prefix.len()..].to_owned(), value)).collect()
}

fn unusable(problem: String) -> Error {
    Error::Parse { what: "the state of a training".into(), problem }
}
