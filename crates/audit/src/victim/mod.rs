//! Victims: the only makers of an observation and its truth.

mod autoencoder;
mod classifier;
mod damage;
mod defence;
mod draw;
mod federated;
mod mixup;
mod models;
mod population;
mod preparation;
mod rounds;
mod targets;
mod training;

use std::ops::ControlFlow;

use afterimage_attacks::{Model, Observation, Tick};
use afterimage_nn::train::{Dataset, Recipe, StopReason, Trained};
use afterimage_nn::{Device, InitSpec, Loss, Network, Params, Tensor};

use crate::exposure::Exposure;
use crate::plan::{AutoencoderPlan, ClassifierPlan, FederatedPlan, Mask, Plan, VictimPlan};
use crate::run_dir::RunDir;
use crate::truth::{Sample, Truth};
use crate::{AuditError, Result};
pub(crate) use draw::Draw;
pub(crate) use federated::read_gradient;
pub(crate) use models::MODELS;
pub(crate) use rounds::federated_accuracy;
pub(crate) use targets::values_of;
pub(crate) use training::TRAINING;

use training::Keeping;

/// Seed of a twin: it shares the victim's architecture and settings, not its numbers.
const TWIN: u64 = 0x7711_7711;

/// The length of each row.
pub(crate) fn row_lengths(rows: &Tensor) -> Result<Vec<f64>> {
    let values = rows.to_f64_vec()?;
    Ok(values.chunks_exact(rows.row_len()).map(|row| row.iter().map(|x| x * x).sum::<f64>().sqrt()).collect())
}

/// Is told how far training is; `Break` stops it.
pub type Observer<'a> = dyn FnMut(Tick) -> ControlFlow<()> + 'a;

/// A victim about to be made: its records, its network, all of it checked.
pub struct Victim<'a> {
    plan: &'a Plan,
    seed: u64,
    /// Whether weights may come from a file.
    loads: bool,
    truth: Truth,
    control_ids: Vec<String>,
    /// Records that are neither members nor controls.
    others: Option<Sample>,
    network: Network,
    init: InitSpec,
    /// Where trained models, and how far a training got, are kept and looked for.
    models: Option<RunDir>,
}

impl<'a> Victim<'a> {
    /// The victim of a plan. Fails, naming the key, where plan, data and
    /// network do not fit each other; nothing is trained yet.
    pub fn new(plan: &'a Plan) -> Result<Self> {
        Self::of(plan, Draw::new(&plan.data, plan.seed)?, plan.seed, true)
    }

    /// The same among records that were divided before.
    pub(crate) fn among(plan: &'a Plan, draw: Draw) -> Result<Self> {
        Self::of(plan, draw, plan.seed, true)
    }

    /// The positive control: the same victim trained on controls alone. Its
    /// truth are those controls, its controls the rest.
    pub fn twin(plan: &'a Plan) -> Result<Self> {
        let draw = Draw::new(&plan.data, plan.seed)?.twin()?;
        Self::of(plan, draw, plan.seed ^ TWIN, false)
    }

    fn of(plan: &'a Plan, draw: Draw, seed: u64, loads: bool) -> Result<Self> {
        let truth = draw.truth(plan.compute.dtype)?;
        let (spec, init) = plan.network.build(truth.shape());
        let network = Network::new(spec)?;
        if network.input_shape().iter().product::<usize>() != truth.members.pixels.row_len() {
            let problem = format!("takes {:?}, and records are {:?}", network.input_shape(), truth.shape());
            return Err(AuditError::plan("network.input", problem, "resize the data or change the network"));
        }
        let others = match &plan.victim {
            VictimPlan::Federated(FederatedPlan { pretrain: Some(_), .. }) => Some(draw.others(plan.compute.dtype)?),
            _ => None,
        };
        let victim =
            Self { plan, seed, loads, truth, control_ids: draw.control_ids(), others, network, init, models: None };
        match &plan.victim {
            VictimPlan::Classifier(classifier) => classifier::check(&victim, classifier)?,
            VictimPlan::Federated(client) => federated::check(&victim, client)?,
            VictimPlan::Autoencoder(autoencoder) => autoencoder::check(&victim, autoencoder)?,
        }
        Ok(victim)
    }

    /// The same, with trained autoencoders, and the state of any training, kept in the directory of a run, and taken from it
    /// if they are there.
    pub fn keeping(self, dir: &RunDir) -> Self {
        Self { models: Some(dir.clone()), ..self }
    }

    /// 1 for every element of a record that is left when it is shared, 0 for the others.
    pub(crate) fn kept(&self) -> Vec<f64> {
        let mask = if let VictimPlan::Autoencoder(plan) = &self.plan.victim { plan.degrade.mask } else { Mask::None };
        damage::kept_by(mask, self.truth.shape(), self.seed)
    }

    /// Members and controls.
    pub fn truth(&self) -> &Truth {
        &self.truth
    }

    /// Makes it: what the attacker sees, and what it must not. `None` if it was stopped.
    pub fn leak(mut self, observe: &mut Observer<'_>) -> Result<Option<(Observation, Truth)>> {
        let plan = self.plan;
        let made = match &plan.victim {
            VictimPlan::Federated(client) => federated::leak(&mut self, client, observe)?,
            VictimPlan::Classifier(classifier) => classifier::leak(&self, classifier, observe)?,
            VictimPlan::Autoencoder(autoencoder) => {
                let made = autoencoder::leak(&mut self, autoencoder, observe)?;
                return Ok(made.map(|(seen, damaged)| (seen, Truth { damaged: Some(damaged), ..self.truth })));
            }
        };
        Ok(made.map(|(observation, driven)| (observation, Truth { driven, ..self.truth })))
    }

    /// How exposed each member will be to whoever has the weights before and after training, told
    /// without training; `None` where there are too many records to say.
    pub fn exposure(&self) -> Result<Option<Exposure>> {
        let start = match &self.plan.victim {
            VictimPlan::Classifier(ClassifierPlan { before_weights: Some(path), .. }) => self.load(path)?,
            _ => self.start()?,
        };
        let x = self.inputs(&self.truth.members.pixels)?;
        Exposure::of(&self.network, &start, None, &x, &self.truth.members.labels)
    }

    /// Records as the network is fed with them.
    fn inputs(&self, pixels: &Tensor) -> Result<Tensor> {
        let x = self.truth.preprocess.apply(pixels)?;
        Ok(x.reshape(&self.network.batch_shape(x.rows()))?)
    }

    /// Parameters before training. Those from a file are public: a twin starts from them, too.
    fn start(&self) -> Result<Params> {
        let drawn = self.network.init(&self.init, self.seed, self.plan.compute.dtype)?;
        match &self.plan.victim {
            VictimPlan::Classifier(ClassifierPlan { start_weights: Some(path), fresh_layers, .. }) => {
                Ok(self.network.load_onto(&drawn, path, fresh_layers)?)
            }
            VictimPlan::Autoencoder(AutoencoderPlan { start_weights: Some(path), .. }) => self.load(path),
            _ => Ok(drawn),
        }
    }

    /// Trains on these records, on the plan's device; `None` if it was stopped.
    fn train(
        &self,
        recipe: &Recipe,
        records: &Tensor,
        targets: afterimage_nn::Targets,
        loss: Loss,
        observe: &mut Observer<'_>,
    ) -> Result<Option<Trained>> {
        let device = self.plan.compute.device()?;
        let x = self.inputs(records)?.to_device(device)?;
        let data = Dataset { x, targets: targets.to_device(device)?, loss };
        let start = self.start()?.to_device(device)?;
        let mut keeping = Keeping::new(self, recipe, observe)?;
        let trained = recipe.train_with(&self.network, &start, &data, self.seed, &mut keeping);
        let trained = trained.map_err(|error| keeping.failed(error))?;
        if trained.stop == StopReason::Interrupted {
            return Ok(None);
        }
        keeping.done()?;
        Ok(Some(trained))
    }

    /// What is known of a model with these parameters.
    fn model(&self, theta: &Params, loss: Loss, share_preprocessing: bool) -> Result<Model> {
        Ok(Model {
            network: self.network.clone(),
            theta: theta.to_device(Device::Cpu)?,
            loss: Some(loss),
            preprocess: share_preprocessing.then(|| self.truth.preprocess.clone()),
        })
    }

    /// Weights from a file, in the plan's precision.
    fn load(&self, path: &std::path::Path) -> Result<Params> {
        Ok(self.network.load(path, self.plan.compute.dtype, Device::Cpu)?)
    }
}
