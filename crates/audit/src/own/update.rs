//! Updates that a federated-learning server kept, made into folders that can be audited.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use afterimage_nn::io::{TensorFile, names_in_order, write_atomically};
use afterimage_nn::{DType, Network, Params, Reduction, Tensor};

use super::fit::observations;
use super::folder::Exported;
use super::probe::check;
use crate::findings::of_gradient;
use crate::{AuditError, Result};

/// What the numbers of an update are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// The client's weights after its steps.
    Weights,
    /// Those less the weights before: after − before.
    Difference,
    /// The gradient itself.
    Gradient,
}

/// An update to be written as a folder.
#[derive(Debug, Clone)]
pub struct Update {
    /// The folder of the model: network, preprocessing and probe.
    pub model: PathBuf,
    /// Weights of the round, before the client's steps; the model's own if absent.
    pub base: Option<PathBuf>,
    /// What the client sent.
    pub update: PathBuf,
    /// What its numbers are.
    pub meaning: Meaning,
    /// The client's learning rate.
    pub lr: f64,
    /// Its steps.
    pub steps: usize,
    /// Samples of a step, if not all of them.
    pub step_batch: Option<usize>,
    /// Samples of all steps.
    pub batch_size: Option<usize>,
}

impl Update {
    /// Writes the folder. One gradient descent of `steps` at a rate of `lr` moves weights by −lr · steps times the mean of
    /// its gradients; so the change, divided by −lr · steps, stands for a gradient. What looks as if it were something
    /// else than it is said to be, or drowns in rounding, comes back as warnings.
    pub fn write(&self, out: &Path) -> Result<Vec<String>> {
        if !(self.lr > 0.0 && self.lr.is_finite()) || self.steps == 0 {
            return Err(AuditError::plan("--lr, --steps", "must be positive", "give what the client trained with"));
        }
        let exported = Exported::read(&self.model)?;
        let network = &exported.network;
        // The layers are checked with the weights that they were exported with; then others may be put in.
        if let Some(obstacle) = check(&exported)?.obstacle {
            return Err(AuditError::file(&self.model, obstacle));
        }
        // In double precision: what a file keeps is not rounded before it is subtracted.
        let own = exported.theta.to_dtype(DType::F64)?;
        let base = match &self.base {
            Some(path) => self.params(network, path, &own)?,
            None => own,
        };
        let sent = self.params(network, &self.update, &base)?;
        let factor = -1.0 / (self.lr * self.steps as f64);
        let gradient = match self.meaning {
            // Subtracted first: what is the same leaves nothing.
            Meaning::Weights => sent.combine(1.0, &base, -1.0)?.scale(factor)?,
            Meaning::Difference => sent.scale(factor)?,
            Meaning::Gradient => sent.clone(),
        };
        if gradient.norm_squared()? == 0.0 {
            return Err(AuditError::file(&self.update, "is the same as the base: nothing was learnt between them"));
        }
        let mut doubts: Vec<String> = self.doubt(&sent, &base)?.into_iter().collect();
        if self.meaning == Meaning::Weights {
            doubts.extend(rounded(&sent, &base)?.map(|problem| format!("{}: {problem}", self.update.display())));
        }
        std::fs::create_dir_all(out).map_err(|error| AuditError::file(out, format!("cannot be made: {error}")))?;
        write_atomically(out.join("network.toml"), network.spec().to_toml()?.as_bytes())?;
        base.to_dtype(DType::F32)?.save(out.join("weights.safetensors"))?;
        self.write_gradient(&gradient.to_dtype(DType::F32)?, &sent.to_dtype(DType::F32)?, out)?;
        self.write_probe(&exported, out)?;
        write_atomically(out.join("training.toml"), self.training(&exported).as_bytes())?;
        let preprocessing = self.model.join("preprocessing.toml");
        if preprocessing.is_file() {
            let copied = std::fs::copy(&preprocessing, out.join("preprocessing.toml"));
            copied.map_err(|error| AuditError::file(&preprocessing, format!("cannot be copied: {error}")))?;
        }
        doubts.extend(observations(&Exported::read(out)?)?.iter().flat_map(of_gradient));
        Ok(doubts)
    }

    /// Weights after some steps point where they pointed before; changes and gradients do not.
    fn doubt(&self, sent: &Params, base: &Params) -> Result<Option<String>> {
        let sizes = (sent.norm_squared()? * base.norm_squared()?).sqrt();
        let likeness = sent.dot(base)? / sizes.max(f64::MIN_POSITIVE);
        let file = self.update.display();
        Ok(match self.meaning {
            Meaning::Weights if likeness < 0.5 => Some(format!(
                "{file} is taken for weights, and is not like those of the round (cosine {likeness:.2}): if it holds their change or a \
                 gradient, say --sent difference or --sent gradient"
            )),
            Meaning::Difference | Meaning::Gradient if likeness > 0.9 => Some(format!(
                "{file} is like the weights of the round (cosine {likeness:.2}): if it holds weights, say --sent weights"
            )),
            _ => None,
        })
    }

    /// The gradient; with it the running statistics that the client sent back, which tell of its batch.
    fn write_gradient(&self, gradient: &Params, sent: &Params, out: &Path) -> Result<()> {
        let mut file = TensorFile::default();
        file.tensors.extend(gradient.iter().map(|(name, value)| (name.to_owned(), value.clone())));
        // Only what the client sent, and after one step: later ones cannot be told apart.
        let own = TensorFile::read(&self.update)?.tensors;
        if self.meaning == Meaning::Weights && self.steps == 1 {
            let buffers = sent.buffers().iter().filter(|buffer| own.contains_key(&buffer.name));
            file.tensors.extend(buffers.map(|buffer| (buffer.name.clone(), buffer.value.clone())));
        }
        Ok(file.write(out.join("gradient.safetensors"))?)
    }

    /// The probe of the exported model, and the weights that it was taken with: it speaks for the layers, the loss and
    /// the preprocessing, not for the weights of this round.
    fn write_probe(&self, exported: &Exported, out: &Path) -> Result<()> {
        if let Some(probe) = &exported.probe {
            probe.write(out.join("probe.safetensors"))?;
            exported.probed.as_ref().unwrap_or(&exported.theta).save(out.join("probed.safetensors"))?;
        }
        Ok(())
    }

    fn training(&self, exported: &Exported) -> String {
        let mut lines = vec![format!("loss = \"{}\"", exported.loss())];
        let reduction = if exported.training.reduction == Reduction::Sum { "sum" } else { "mean" };
        lines.push(format!("reduction = \"{reduction}\""));
        lines.extend(self.batch_size.map(|size| format!("batch_size = {size}")));
        lines.push(format!(
            "mode = \"{}\"",
            if exported.network.buffer_names().next().is_some() { "train" } else { "eval" }
        ));
        if self.steps > 1 {
            let batch = self.step_batch.map_or(String::new(), |batch| format!(", batch = {batch}"));
            lines.push(format!("local = {{ steps = {}, lr = {:?}{batch} }}", self.steps, self.lr));
        }
        lines.join("\n") + "\n"
    }

    /// Names in the order of PyTorch's state dict, as the exported weights keep them.
    fn state_order(&self, network: &Network) -> Result<Vec<String>> {
        let weights = self.model.join("weights.safetensors");
        match weights.is_file() {
            true => Ok(names_in_order(&weights)?),
            false => Ok(network.parameters().iter().map(|spec| spec.name.clone()).collect()),
        }
    }

    /// Parameters of a file by their names, or, if they have none, in PyTorch's order.
    fn params(&self, network: &Network, path: &Path, like: &Params) -> Result<Params> {
        let wrong = |error: afterimage_nn::Error| AuditError::file(path, error.to_string());
        let mut named = TensorFile::read(path)?.tensors;
        let numbered: Option<BTreeMap<usize, Tensor>> =
            named.iter().map(|(name, value)| Some((name.strip_prefix("arr_")?.parse().ok()?, value.clone()))).collect();
        if named.is_empty() {
            return Err(AuditError::file(path, "holds no tensor of numbers: is it the update that the client sent?"));
        }
        if let Some(numbered) = numbered {
            let names = self.state_order(network)?;
            named = in_order(network, &names, numbered.into_values().collect())
                .map_err(|problem| AuditError::file(path, problem))?;
        }
        // A change of the weights has no running statistics of its own.
        for (name, value) in like.state() {
            if network.buffer_names().any(|buffer| buffer == name) && !named.contains_key(name) {
                named.insert(name.to_owned(), value.clone());
            }
        }
        network.params(named, like.dtype(), like.device()).map_err(wrong)
    }
}

/// Part of a change that rounding may make up before it is worth a word.
const ROUNDED: f64 = 0.01;

/// What rounding the weights made of their change, if that is much. Their digits are counted in each tensor, whatever type the
/// file keeps them in: of n bits after the first, a weight w that changed is off by up to |w| 2⁻ⁿ⁻¹; in the mean square by 0.4 of that.
fn rounded(sent: &Params, base: &Params) -> Result<Option<String>> {
    let (mut off, mut change, mut fewest) = (0.0, 0.0, u32::MAX);
    for (after, before) in sent.iter().zip(base.iter()) {
        let (after, before) = (after.1.to_f64_vec()?, before.1.to_f64_vec()?);
        // Zero and powers of two have no digits after the first.
        let digits = |weight: &f64| 52 - (weight.to_bits() & ((1 << 52) - 1)).trailing_zeros().min(52);
        let most = after.iter().map(digits).max().unwrap_or(0);
        let changed = after.iter().zip(&before).filter(|(after, before)| after != before);
        let (squares, moved) = changed.fold((0.0, 0.0), |(squares, moved), (after, before)| {
            (squares + after * after, moved + (after - before) * (after - before))
        });
        if moved > 0.0 {
            fewest = fewest.min(most);
            off += squares * (0.4 * 0.5f64.powi(most as i32 + 1)).powi(2);
            change += moved;
        }
    }
    let share = (off / f64::max(change, f64::MIN_POSITIVE)).sqrt();
    let advice = if fewest < 23 { "save them in single precision, or their" } else { "save their" };
    Ok((share > ROUNDED).then(|| {
        format!(
            "weights of {} significant bits: rounding them makes up about {:.0} % of their change, and hides that much of the gradient. If \
             the client sends more than that, {advice} difference with --sent difference",
            fewest + 1,
            (100.0 * share).min(100.0)
        )
    }))
}

/// Tensors without names, as `numpy.savez(file, *arrays)` keeps them: in the order of PyTorch's state dict, with its
/// running statistics or without.
fn in_order(
    network: &Network,
    names: &[String],
    values: Vec<Tensor>,
) -> std::result::Result<BTreeMap<String, Tensor>, String> {
    let parameter = |name: &&String| network.parameters().iter().any(|spec| spec.name == **name);
    let parameters: Vec<String> = names.iter().filter(parameter).cloned().collect();
    let buffers: Vec<&str> = network.buffer_names().collect();
    let kept = |name: &&String| parameter(name) || buffers.contains(&name.as_str());
    let all: Vec<String> = names.iter().filter(kept).cloned().collect();
    let fitting = [parameters, all].into_iter().find(|names| names.len() == values.len());
    let fitting = fitting.ok_or_else(|| {
        format!("holds {} arrays without names, and the model has others in number: save them by name", values.len())
    })?;
    Ok(fitting.into_iter().zip(values).collect())
}
