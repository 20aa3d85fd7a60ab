//! Trained models kept in the directory of a run: a training that serves several victims is done once, and one that
//! took an hour is not lost with the minute after it.
//!
//! ```text
//! models/1f0c…/at-1e-4.safetensors   when the loss first reached it
//! models/1f0c…/end.safetensors       written last
//! models/1f0c…/missed-1e-9.json      a loss that was asked for and not reached, with the last one
//! ```

use afterimage_nn::{DType, Device, Network, Params};

use crate::pipeline::hash;
use crate::run_dir::RunDir;
use crate::{AuditError, Result};

/// The folder of all of them.
pub(crate) const MODELS: &str = "models";
const END: &str = "end.safetensors";

/// The models of one training.
pub(super) struct Models {
    dir: RunDir,
}

impl Models {
    /// Those of the training that this text describes.
    pub(super) fn of(run: &RunDir, training: &str) -> Result<Self> {
        Ok(Self { dir: run.inside(MODELS)?.inside(&key(training))? })
    }

    /// The model at a loss, or at the end; `None` if it is not there, or cannot be read any more. Fails for a loss that
    /// this training is known not to come to.
    pub(super) fn read(&self, loss: Option<f64>, network: &Network, dtype: DType) -> Result<Option<Params>> {
        let file = loss.map_or(END.to_owned(), at);
        if let Some(loss) = loss
            && self.dir.has(&missed(loss))
        {
            return Err(not_reached(loss, self.dir.read_json(&missed(loss))?));
        }
        let there = self.dir.has(END) && self.dir.has(&file);
        Ok(there.then(|| network.load(self.dir.file(&file), dtype, Device::Cpu).ok()).flatten())
    }

    /// Remembers that training ended at a loss above one that was asked for.
    pub(super) fn miss(&self, loss: f64, last: f64) -> Result<()> {
        self.dir.write_json(&missed(loss), &last)
    }

    /// Keeps the models of a training, with the losses they were asked for at, and that of its end.
    pub(super) fn keep(&self, on_the_way: &[(f64, Params)], end: &Params) -> Result<()> {
        for (loss, theta) in on_the_way {
            self.write(&at(*loss), theta)?;
        }
        self.write(END, end)
    }

    fn write(&self, name: &str, theta: &Params) -> Result<()> {
        theta.to_device(Device::Cpu)?.save(self.dir.file(name))?;
        self.dir.seal(name)
    }
}

/// The name of what a text decides.
pub(super) fn key(text: &str) -> String {
    hash(text.as_bytes()).chars().take(16).collect()
}

fn at(loss: f64) -> String {
    format!("at-{loss:e}.safetensors")
}

fn missed(loss: f64) -> String {
    format!("missed-{loss:e}.json")
}

/// Says that training did not come to a loss.
pub(super) fn not_reached(loss: f64, last: f64) -> AuditError {
    let problem = format!("is {loss:e}, and training ended at {last:e}");
    AuditError::plan("victim.at_loss", problem, "train for more epochs, or to a lower victim.train.stop_loss")
}
