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
//! | x for a given Θ as a fixed point: beyond the paper | `fixed_point` |
//! | steps that know what the damage is, equations 17 and 20 | `damage` |
//!
//! Misprints: equation 17 and line 5 of algorithm 1 need ṽ, equation 13 takes ξ̃, equation 28 needs Θᵀy; (6) is
//! solved by ADMM and (7) by equation 20. The paper has no cap on its passes; here `passes` is one.

mod admm;
mod damage;
mod fixed_point;
mod settings;

use std::ops::ControlFlow;

use afterimage_nn::io::TensorFile;
use afterimage_nn::{LayerKind, Tensor};

pub use damage::Damage;
pub use settings::{Autoencoder, MaskStart, Method};

use crate::{Attack, AttackError, Card, DegradedSeen, Model, Reconstruction, Session, Stop, Tick, TracePoint};
use admm::Admm;
use damage::Damaged;
use fixed_point::{FixedPoint, Solving};

/// How much an observed pixel weighs beside an equation of the fixed point where it is noisy.
const TRUST: f64 = 0.1;
/// ‖f(x) − x‖² per pixel at which an attacker is in two minds about a sample.
const DOUBT: f64 = 1e-4;

impl Attack for Autoencoder {
    const CARD: Card = settings::CARD;

    type Sees = DegradedSeen;

    fn reconstruct(&self, seen: &DegradedSeen, session: &mut Session<'_>) -> Result<Reconstruction, AttackError> {
        self.check(seen)?;
        let theta = &seen.model.theta;
        let place = |x: &Tensor| x.to_dtype(theta.dtype())?.to_device(theta.device());
        let y = place(&seen.degraded)?;
        if let Some(dark) = rows_of(&y)?.iter().position(|row| row.iter().all(|value| *value == 0.0)) {
            session.warn(&format!("nothing is left of damaged sample {dark}: what comes back for it is anybody"));
        }
        let known = seen.mask.as_ref().map(|mask| -> Result<Tensor, AttackError> {
            let mask = place(mask)?.reshape(&[1, y.row_len()])?;
            Ok(Tensor::concat_rows(&vec![&mask; y.rows()])?.reshape(y.shape())?)
        });
        let known = known.transpose()?;
        let found = match self.method {
            Method::Admm => self.alternate(seen, &y, known.as_ref(), session)?,
            Method::FixedPoint => self.solve(seen, &y, known.as_ref(), session)?,
        };
        self.judged(seen, &y, found)
    }
}

/// Where a search led.
struct Found {
    x: Tensor,
    kept: Tensor,
    trace: Vec<TracePoint>,
    iterations: usize,
    stop: Stop,
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
                let coins: Vec<f64> =
                    (0..y.count()).map(|_| f64::from(u8::from(stream.uniform(0.0, 1.0) < 0.5))).collect();
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
}

impl Autoencoder {
    /// As published: x by ADMM for the mask there is, the mask for that x, until neither changes. A known mask needs
    /// one pass.
    fn alternate(
        &self,
        seen: &DegradedSeen,
        y: &Tensor,
        known: Option<&Tensor>,
        session: &mut Session<'_>,
    ) -> Result<Found, AttackError> {
        let (model, gamma) = (&seen.model, self.gamma(seen));
        let admm = |steps: usize| Admm { gamma, steps, relaxation: self.relaxation };
        if let Some(kept) = known {
            let x = admm(self.known).run(model, y, kept)?;
            let (trace, iterations, kept) = (Vec::new(), self.known, kept.clone());
            return Ok(Found { x, kept, trace, iterations, stop: Stop::IterationsUsed, notes: Vec::new() });
        }
        let mut state = match session.resumed() {
            Some(file) => Passes::resume(file, y)?,
            None => Passes::start(y, self.first_mask(seen, y, session)?)?,
        };
        let mut stop = Stop::IterationsUsed;
        while state.pass < self.passes {
            let open: Vec<usize> = (0..y.rows()).filter(|&row| state.calm[row] < self.settled).collect();
            if open.is_empty() {
                stop = Stop::Finished;
                break;
            }
            let (own, kept) = (y.select_rows(&open)?, state.kept.select_rows(&open)?);
            let x = admm(self.inner).run(model, &own, &kept)?;
            let kept = self.damaged().kept(&x, &own)?;
            let change = state.renew(&open, &x, &kept, self.tolerance)?;
            if state.told(self.passes, change, session)?.is_break() {
                stop = Stop::Interrupted;
                break;
            }
        }
        let settled = state.calm.iter().filter(|calm| **calm >= self.settled).count();
        let notes = vec![format!("{settled} of {} samples settled within {} passes", y.rows(), state.pass)];
        Ok(Found { x: state.x, kept: state.kept, trace: state.trace, iterations: state.pass * self.inner, stop, notes })
    }

    /// Beyond the paper: the fixed point that has the pixels that are seen.
    fn solve(
        &self,
        seen: &DegradedSeen,
        y: &Tensor,
        known: Option<&Tensor>,
        session: &mut Session<'_>,
    ) -> Result<Found, AttackError> {
        let kept = known.map_or_else(|| self.first_mask(seen, y, session), |kept| Ok(kept.clone()))?;
        let fixed_point = FixedPoint { inner: self.conjugate, trust: self.noisy(seen).then_some(TRUST) };
        let mut state = Passes::start(y, kept.clone())?;
        let mut solving = Solving::start(y.multiply(&kept)?);
        if let Some(file) = session.resumed() {
            state = Passes::resume(file, y)?;
            solving = Solving { x: state.x.clone(), damping: state.damping.clone(), costs: state.costs.clone() };
        }
        let mut stop = Stop::IterationsUsed;
        while state.pass < self.passes {
            if solving.open().is_empty() {
                stop = Stop::Finished;
                break;
            }
            fixed_point.step(&seen.model, y, &kept, &mut solving)?;
            state.pass += 1;
            let mean = solving.costs.iter().sum::<f64>() / solving.costs.len().max(1) as f64;
            state.trace.push(TracePoint { iteration: state.pass, loss: mean });
            (state.x, state.damping, state.costs) = (solving.x.clone(), solving.damping.clone(), solving.costs.clone());
            if state.told(self.passes, mean, session)?.is_break() {
                stop = Stop::Interrupted;
                break;
            }
        }
        Ok(Found { x: solving.x, kept, trace: state.trace, iterations: state.pass, stop, notes: Vec::new() })
    }

    /// With what can be told of each sample without the truth: a training sample comes back unchanged and
    /// has the pixels that are seen.
    fn judged(&self, seen: &DegradedSeen, y: &Tensor, found: Found) -> Result<Reconstruction, AttackError> {
        let model = &seen.model;
        let Found { x, kept, trace, iterations, stop, mut notes } = found;
        let next = model.network.forward(&model.theta, &x)?.reshape(x.shape())?;
        let off = rows_of(&next.combine(1.0, &x, -1.0)?)?;
        let missed = rows_of(&x.combine(1.0, y, -1.0)?.multiply(&kept)?)?;
        let mean = |row: &[f64]| row.iter().map(|value| value * value).sum::<f64>() / row.len().max(1) as f64;
        let doubt: Vec<f64> = off.iter().zip(&missed).map(|(off, missed)| mean(off) + mean(missed)).collect();
        let sure = doubt.iter().filter(|doubt| **doubt < DOUBT).count();
        notes.push(format!(
            "{sure} of {} candidates come back from the autoencoder unchanged and have the pixels that are seen (mean \
             squares below {DOUBT:e} together): training samples, by what an attacker can tell",
            doubt.len()
        ));
        // What is seen is known better than what came of it, unless it is noisy.
        let exact = !self.noisy(seen) && self.method == Method::Admm;
        let samples = if exact { Damaged::explain(y, &kept, &x, 0.0)? } else { x };
        let mut rebuilt = Reconstruction::finished(samples.to_device(afterimage_nn::Device::Cpu)?, 0.0, false);
        rebuilt.confidence = doubt.iter().map(|doubt| DOUBT / (DOUBT + doubt.max(0.0))).collect();
        (rebuilt.trace, rebuilt.iterations, rebuilt.stop, rebuilt.notes) = (trace, iterations, stop, notes);
        Ok(rebuilt)
    }
}

/// A search under way.
struct Passes {
    pass: usize,
    x: Tensor,
    kept: Tensor,
    /// Passes in a row without a change, each sample's.
    calm: Vec<usize>,
    damping: Vec<f64>,
    costs: Vec<f64>,
    trace: Vec<TracePoint>,
}

impl Passes {
    fn start(y: &Tensor, kept: Tensor) -> Result<Self, AttackError> {
        let rows = y.rows();
        let (damping, costs) = (vec![0.0; rows], vec![0.0; rows]);
        Ok(Self { pass: 0, x: y.clone(), kept, calm: vec![0; rows], damping, costs, trace: Vec::new() })
    }

    /// Puts new estimates of some samples in the place of theirs; gives the mean squared change.
    fn renew(&mut self, open: &[usize], x: &Tensor, kept: &Tensor, tolerance: f64) -> Result<f64, AttackError> {
        let length = x.row_len();
        let (new, masks) = (x.to_f64_vec()?, kept.to_f64_vec()?);
        let (mut all, mut all_masks) = (self.x.to_f64_vec()?, self.kept.to_f64_vec()?);
        let mut mean = 0.0;
        for (place, &row) in open.iter().enumerate() {
            let (from, to) = (place * length..(place + 1) * length, row * length..(row + 1) * length);
            let squares = new[from.clone()].iter().zip(&all[to.clone()]).map(|(a, b)| (a - b) * (a - b));
            let change = squares.sum::<f64>() / length.max(1) as f64;
            self.calm[row] = if self.pass > 0 && change < tolerance { self.calm[row] + 1 } else { 0 };
            all[to.clone()].copy_from_slice(&new[from.clone()]);
            all_masks[to].copy_from_slice(&masks[from]);
            mean += change / open.len() as f64;
        }
        let like = |values: &[f64]| Tensor::from_f64(values, self.x.shape(), x.dtype())?.to_device(x.device());
        (self.x, self.kept) = (like(&all)?, like(&all_masks)?);
        self.pass += 1;
        self.trace.push(TracePoint { iteration: self.pass, loss: mean });
        Ok(mean)
    }

    /// Says where the search is, and keeps a checkpoint if it is time for one or it is to stop.
    fn told(&self, total: usize, loss: f64, session: &mut Session<'_>) -> Result<ControlFlow<()>, AttackError> {
        let wish = session.tick(Tick { iteration: self.pass, total, loss: Some(loss) });
        match wish {
            ControlFlow::Break(()) => session.keep(&self.file()?)?,
            ControlFlow::Continue(()) => session.checkpoint(|| self.file())?,
        }
        Ok(wish)
    }

    fn file(&self) -> Result<TensorFile, AttackError> {
        let mut file = TensorFile::default();
        let numbers = |values: Vec<f64>| Tensor::from_vec(values.clone(), &[values.len()]);
        file.tensors.insert("x".into(), self.x.to_device(afterimage_nn::Device::Cpu)?);
        file.tensors.insert("kept".into(), self.kept.to_device(afterimage_nn::Device::Cpu)?);
        file.tensors.insert("damping".into(), numbers(self.damping.clone())?);
        file.tensors.insert("costs".into(), numbers(self.costs.clone())?);
        file.tensors.insert("calm".into(), numbers(self.calm.iter().map(|&calm| calm as f64).collect())?);
        file.tensors.insert("trace".into(), numbers(self.trace.iter().map(|point| point.loss).collect())?);
        Ok(file)
    }

    fn resume(mut file: TensorFile, y: &Tensor) -> Result<Self, AttackError> {
        let wrong = |problem: String| AttackError::File { file: "checkpoint".into(), problem };
        let mut take = |name: &str, count: Option<usize>| -> Result<Tensor, AttackError> {
            let tensor = file.tensors.remove(name).ok_or_else(|| wrong(format!("it lacks {name}")))?;
            match count.is_none_or(|count| tensor.count() == count) {
                true => Ok(tensor),
                false => Err(wrong(format!("{name} does not fit this attack"))),
            }
        };
        let trace = take("trace", None)?.to_f64_vec()?;
        let trace: Vec<TracePoint> =
            trace.into_iter().enumerate().map(|(place, loss)| TracePoint { iteration: place + 1, loss }).collect();
        let like = |x: Tensor| x.to_dtype(y.dtype())?.reshape(y.shape())?.to_device(y.device());
        Ok(Self {
            pass: trace.len(),
            x: like(take("x", Some(y.count()))?)?,
            kept: like(take("kept", Some(y.count()))?)?,
            calm: take("calm", Some(y.rows()))?.to_f64_vec()?.into_iter().map(|calm| calm as usize).collect(),
            damping: take("damping", Some(y.rows()))?.to_f64_vec()?,
            costs: take("costs", Some(y.rows()))?.to_f64_vec()?,
            trace,
        })
    }
}

/// Whether a network has convolutions.
fn convolves(model: &Model) -> bool {
    model.network.spec().layers.iter().any(|layer| matches!(layer.kind, LayerKind::Conv { .. }))
}

fn rows_of(x: &Tensor) -> Result<Vec<Vec<f64>>, AttackError> {
    Ok(x.to_f64_vec()?.chunks(x.row_len().max(1)).map(<[f64]>::to_vec).collect())
}
