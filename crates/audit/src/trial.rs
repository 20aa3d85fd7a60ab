//! One victim, one attack, one score, with nothing written: what figures are made of.

use std::time::Instant;

use afterimage_attacks::{Observation, Reconstruction, Session, Stop};
use afterimage_nn::Device;

use crate::align::Alignment;
use crate::exposure::Exposure;
use crate::hooks::Watched;
use crate::pipeline::Watcher;
use crate::plan::Plan;
use crate::score::{Scored, Scoring, Space, last_layer, score};
use crate::victim::Victim;
use crate::{Result, Truth};

/// What an attack brought back, scored.
pub(crate) struct Trial {
    pub(crate) observation: Observation,
    pub(crate) rebuilt: Reconstruction,
    pub(crate) scored: Scored,
    /// Of the attack.
    pub(crate) seconds: f64,
    pub(crate) exposure: Option<Exposure>,
}

impl Trial {
    /// Makes a victim, attacks it and scores what came back; `None` if it was stopped.
    pub(crate) fn of(plan: &Plan, victim: Victim<'_>, watcher: &mut dyn Watcher) -> Result<Option<Self>> {
        let Some((observation, truth)) = victim.leak(&mut |tick| watcher.tick(tick))? else { return Ok(None) };
        Self::on(plan, observation, &truth, watcher)
    }

    /// The same on what a victim leaked before.
    pub(crate) fn on(
        plan: &Plan,
        observation: Observation,
        truth: &Truth,
        watcher: &mut dyn Watcher,
    ) -> Result<Option<Self>> {
        let started = Instant::now();
        let mut hooks = Watched(watcher);
        // Attacked on the plan's device, scored in main memory: as a run does, which reads what it sees from its file.
        let place = |device: Device| match observation.model().theta.device() {
            there if there == device => Ok(observation.clone()),
            _ => observation.to_device(device),
        };
        let rebuilt = plan.attack.run(&place(plan.compute.device()?)?, &mut Session::new(plan.seed, &mut hooks))?;
        let observation = place(Device::Cpu)?;
        let seconds = started.elapsed().as_secs_f64();
        if rebuilt.stop == Stop::Interrupted {
            return Ok(None);
        }
        let alignments = &[Alignment::Optimal, Alignment::Greedy][..];
        let inner = rebuilt.layer.as_ref().map(|layer| truth.as_read_by(layer, observation.model())).transpose()?;
        let judged = inner.as_ref().unwrap_or(truth);
        let lpips = plan.score.lpips(judged.shape())?;
        let features = last_layer(observation.model());
        let by_features = plan.score.identify == Space::Features && inner.is_none();
        let scoring = Scoring {
            alignments,
            lpips: lpips.as_ref(),
            features: by_features.then_some(&features),
            ..Scoring::by(plan.score.criterion)
        };
        let scored = score(&rebuilt, judged, scoring)?;
        drop(features);
        let exposure = Exposure::of_observation(&observation, truth)?;
        Ok(Some(Self { observation, rebuilt, scored, seconds, exposure }))
    }
}
