//! Training samples of an autoencoder from damaged ones.
//!
//! *Threat model.* An autoencoder is public, and so are damaged copies of samples, some of which it was trained on:
//! "Recovery of training data from overparameterized autoencoders: an inverse problem perspective" (anonymous, under
//! review), with a second way of our own.
//!
//! | symbol | here | shape |
//! | --- | --- | --- |
//! | f | the autoencoder | |
//! | y = Hx + ε | damaged samples | n x d |
//! | Θ, an estimate of H | 1 for what is kept, 0 for what was lost | n x d |
//!
//! | part | where |
//! | --- | --- |
//! | x for a given Θ, algorithm 1 | `admm` |
//! | x and Θ in turn, equations 6 and 7 | `alternating` |
//! | x for a given Θ as a fixed point: beyond the paper | `fixed_point` |
//! | steps that know what the damage is, equations 17 and 20 | `damage`, `blur` |
//! | passes, checkpoints, pictures on the way | `search` |
//!
//! Misprints: equation 17 and line 5 of algorithm 1 need ṽ, equation 13 takes ξ̃, equation 28 needs Θᵀy; (6) is
//! solved by ADMM and (7) by equation 20. The paper has no cap on its passes; here `passes` is one.

mod admm;
mod alternating;
mod blur;
mod damage;
mod fixed_point;
mod search;
mod settings;

use afterimage_nn::{Device, LayerKind, Tensor};

pub use blur::blurred;
pub use damage::Damage;
pub use settings::{Autoencoder, MaskStart, Method};

use crate::{Attack, AttackError, Card, DegradedSeen, Model, Reconstruction, Session};
use admm::{Admm, Known, Split};
use alternating::Alternating;
use blur::Blur;
use damage::{Damaged, Operator};
use fixed_point::{FixedPoint, Trust};
use search::{Searched, mean_squares, search};

/// How much what is seen weighs beside an equation of the fixed point, if it is noisy or blurred.
const NOISY: Trust = Trust { at_first: 0.1, in_the_end: 1e-5 };
const BLURRED: Trust = Trust { at_first: 1.0, in_the_end: 1.0 };
/// ‖f(x) − x‖² per pixel at which an attacker is in two minds about a sample.
const DOUBT: f64 = 1e-4;

impl Attack for Autoencoder {
    const CARD: Card = settings::CARD;

    type Sees = DegradedSeen;

    fn applies(&self, seen: &DegradedSeen) -> Result<(), AttackError> {
        self.check(seen)
    }

    fn reconstruct(&self, seen: &DegradedSeen, session: &mut Session<'_>) -> Result<Reconstruction, AttackError> {
        self.check(seen)?;
        let theta = &seen.model.theta;
        let y = seen.degraded.to_dtype(theta.dtype())?.to_device(theta.device())?;
        if let Some(dark) = mean_squares(&y)?.iter().position(|square| *square == 0.0) {
            session.warn(&format!("nothing is left of damaged sample {dark}: what comes back for it is anybody"));
        }
        let known = self.known_damage(seen, &y)?;
        let found = match self.method {
            Method::Admm => self.alternate(seen, &y, known, session)?,
            Method::FixedPoint => self.solve(seen, &y, known, session)?,
        };
        self.judged(seen, &y, found)
    }
}

/// Where a search led.
struct Found {
    x: Tensor,
    theta: Operator,
    searched: Searched,
    /// Steps of each pass.
    steps: usize,
    notes: Vec<String>,
}

impl Autoencoder {
    fn damaged(&self) -> Damaged {
        Damaged { damage: self.damage, block: self.block }
    }

    /// Whether what is seen of a sample is not what it was.
    fn noisy(&self, seen: &DegradedSeen) -> bool {
        seen.noise.unwrap_or(0.0) > 0.0 || self.damage == Damage::Noise
    }

    /// H, if the attacker knows it.
    fn known_damage(&self, seen: &DegradedSeen, y: &Tensor) -> Result<Option<Operator>, AttackError> {
        if let Some(kernel) = &seen.blur {
            return Ok(Some(Operator::Blurred(Blur::new(kernel, &y.shape()[1..])?)));
        }
        let Some(mask) = &seen.mask else { return Ok(None) };
        let mask = mask.to_dtype(y.dtype())?.to_device(y.device())?.reshape(&[1, y.row_len()])?;
        Ok(Some(Operator::Kept(Tensor::concat_rows(&vec![&mask; y.rows()])?.reshape(y.shape())?)))
    }

    /// H(0).
    fn first_mask(&self, seen: &DegradedSeen, y: &Tensor, session: &Session<'_>) -> Result<Tensor, AttackError> {
        let start = match (self.start, self.method) {
            (MaskStart::Best, Method::FixedPoint) => MaskStart::Visible,
            (MaskStart::Best, Method::Admm) if convolves(&seen.model) => MaskStart::Nothing,
            (MaskStart::Best, Method::Admm) => MaskStart::Random,
            (start, _) => start,
        };
        match start {
            MaskStart::Visible | MaskStart::Best => self.damaged().visible(y, seen.noise.unwrap_or(0.0)),
            MaskStart::Nothing => Ok(y.zeros_like()?),
            MaskStart::Random => {
                let mut stream = session.stream("mask", 0);
                let coins: Vec<f64> = (0..y.count()).map(|_| stream.uniform(0.0, 2.0).floor()).collect();
                Ok(Tensor::from_f64(&coins, y.shape(), y.dtype())?.to_device(y.device())?)
            }
        }
    }

    /// γ as the paper chose it for its networks.
    fn gamma(&self, seen: &DegradedSeen) -> f64 {
        let layers = &seen.model.network.spec().layers;
        let parametric = |kind: &LayerKind| matches!(kind, LayerKind::Prelu { .. });
        let linear = layers.iter().filter(|layer| matches!(layer.kind, LayerKind::Linear { .. })).count();
        match self.gamma {
            gamma if gamma > 0.0 => gamma,
            _ if seen.noise.unwrap_or(0.0) > 0.0 => 0.1,
            _ if convolves(&seen.model) => 1.0,
            _ if linear >= 20 || layers.iter().any(|layer| parametric(&layer.kind)) => 0.1,
            _ => 0.5,
        }
    }

    fn admm(&self, seen: &DegradedSeen) -> Admm {
        Admm { gamma: self.gamma(seen), relaxation: self.relaxation }
    }

    /// As published: one run of ADMM for what is known of the damage, or runs and estimates of the mask in turn.
    fn alternate(
        &self,
        seen: &DegradedSeen,
        y: &Tensor,
        known: Option<Operator>,
        session: &mut Session<'_>,
    ) -> Result<Found, AttackError> {
        let model = &seen.model;
        let admm = self.admm(seen);
        if let Some(theta) = known {
            let steps = self.inner.min(self.known);
            let mut run = Known { model, admm, y, theta: &theta, steps, split: Split::start(y)? };
            let searched = search(&mut run, self.known.div_ceil(steps), session)?;
            return Ok(Found { x: run.split.xi, theta, searched, steps, notes: Vec::new() });
        }
        let mut turns = Alternating {
            model,
            admm,
            damaged: self.damaged(),
            y,
            steps: self.inner,
            tolerance: self.tolerance,
            settled: self.settled,
            x: y.clone(),
            kept: self.first_mask(seen, y, session)?,
            calm: vec![-1.0; y.rows()],
        };
        let searched = search(&mut turns, self.passes, session)?;
        let settled = turns.settled();
        let notes = vec![format!("{settled} of {} samples settled within {} passes", y.rows(), searched.passes)];
        Ok(Found { x: turns.x, theta: Operator::Kept(turns.kept), searched, steps: self.inner, notes })
    }

    /// Beyond the paper: the fixed point that has the pixels that are seen.
    fn solve(
        &self,
        seen: &DegradedSeen,
        y: &Tensor,
        known: Option<Operator>,
        session: &mut Session<'_>,
    ) -> Result<Found, AttackError> {
        let theta = match known {
            Some(theta) => theta,
            None => Operator::Kept(self.first_mask(seen, y, session)?),
        };
        let trust = match &theta {
            Operator::Blurred(_) if !self.noisy(seen) => Some(BLURRED),
            _ if self.noisy(seen) => Some(NOISY),
            _ => None,
        };
        // A few steps of ADMM lead near the right one of many fixed points; pixels that are seen stay as they are.
        let mut split = Split::start(y)?;
        self.admm(seen).run(&seen.model, y, &theta, self.inner, &mut split)?;
        let start = match &theta {
            Operator::Kept(_) => theta.explain(y, &split.xi, 0.0)?,
            Operator::Blurred(_) => split.xi,
        };
        let mut steps = FixedPoint::start(&seen.model, y, &theta, start, self.conjugate, trust)?;
        let searched = search(&mut steps, self.passes, session)?;
        Ok(Found { x: steps.x, theta, searched, steps: 1, notes: Vec::new() })
    }

    /// With what can be told of each sample without the truth: a training sample comes back unchanged and
    /// has the pixels that are seen.
    fn judged(&self, seen: &DegradedSeen, y: &Tensor, found: Found) -> Result<Reconstruction, AttackError> {
        let model = &seen.model;
        let Found { x, theta, searched, steps, mut notes } = found;
        let next = model.network.forward(&model.theta, &x)?.reshape(x.shape())?;
        let off = mean_squares(&next.combine(1.0, &x, -1.0)?)?;
        let missed = mean_squares(&theta.off(&x, y)?)?;
        // Of what is seen, as much may be missed as there is noise in it.
        let noise = seen.noise.unwrap_or(0.0);
        let doubt: Vec<f64> =
            off.iter().zip(&missed).map(|(off, missed)| off + (missed - 1.5 * noise * noise).max(0.0)).collect();
        let sure = doubt.iter().filter(|doubt| **doubt < DOUBT).count();
        notes.push(format!(
            "{sure} of {} candidates come back from the autoencoder unchanged and have the pixels that are seen (mean \
             squares below {DOUBT:e} together): training samples, by what an attacker can tell",
            doubt.len()
        ));
        // What is seen is known better than what came of it, unless it is noisy: equation 31.
        let exact = !self.noisy(seen) && self.method == Method::Admm && matches!(theta, Operator::Kept(_));
        let samples = if exact { theta.explain(y, &x, 0.0)? } else { x };
        let Searched { trace, stages, passes, stop } = searched;
        Ok(Reconstruction {
            confidence: doubt.iter().map(|doubt| DOUBT / (DOUBT + doubt.max(0.0))).collect(),
            trace,
            stages,
            iterations: passes * steps,
            stop,
            notes,
            ..Reconstruction::finished(samples.to_device(Device::Cpu)?, 0.0, false)
        })
    }
}

/// Whether a network has convolutions.
fn convolves(model: &Model) -> bool {
    model.network.spec().layers.iter().any(|layer| matches!(layer.kind, LayerKind::Conv { .. }))
}
