//! The estimate fitted to the gradient: beyond the paper, and on by default.

use std::ops::ControlFlow;

use afterimage_nn::{Activation, Stream};

use super::TensorDecomposition;
use super::estimate::{Guess, Signs, Symmetry, dot, orient, refit_residues};
use super::moments::{Source, Units};
use super::patterns::Pieces;
use super::polish::{Fit, Problem, Weights};
use crate::{Session, Stop, Tick, TracePoint};

/// A misfit that a fit with a whole sample wrong does not reach, and a right one does in single precision too.
const FITS: f64 = 1e-5;
/// A fit leaves a little more than the noise, because the noise inside the span is only estimated.
const NOISY: f64 = 1.3;
/// Residuals are not taken to be smaller than this part of the gradient: then it is rounding.
const ROUNDING: f64 = 1e-13;

/// What a fit needs to know.
pub(super) struct Fitting<'a> {
    pub(super) settings: &'a TensorDecomposition,
    pub(super) units: &'a Units,
    pub(super) sigma: Activation,
    pub(super) signs: Signs,
    /// ‖p‖ where the gradient does not tell it.
    pub(super) norm: f64,
    /// The misfit that noise alone leaves.
    pub(super) noise: f64,
}

/// A fit with how it came about.
pub(super) struct Fitted {
    pub(super) fit: Fit,
    pub(super) trace: Vec<TracePoint>,
    pub(super) stop: Stop,
}

impl Fitting<'_> {
    /// The best of several starts, the tensor's estimate first; that estimate as it is if
    /// no polish is wanted, or if none explains the gradient much better.
    pub(super) fn run(&self, estimate: Vec<Guess>, session: &mut Session<'_>) -> Fitted {
        let whole = self.whole();
        // The hidden layer's gradient alone: a wrong sign, which it may leave open, must not disturb the fit.
        let weights = match self.settings.gradient {
            Source::Hidden => Weights { outer: 0.0, ..whole },
            Source::Output => Weights { inner: 0.0, ..whole },
        };
        let all = Problem { units: self.units, sigma: self.sigma, weights, used: (0..self.units.count()).collect() };
        let tensor = Fit { misfit: all.misfit(&estimate), guesses: estimate };
        if self.settings.polish == 0 {
            return Fitted { fit: tensor, trace: Vec::new(), stop: Stop::Finished };
        }
        let (slope, fits) = (slope(self.sigma), FITS.max(NOISY * self.noise));
        // The states of piecewise linear units are settled from the estimate, or solved; chance has no part in it.
        let starts = 1 + if slope.is_some() { self.settings.restarts.min(1) } else { self.settings.restarts };
        let mut best = tensor.clone();
        let mut trace = vec![TracePoint { iteration: 0, loss: best.misfit }];
        let mut stop = Stop::Finished;
        for start in 0..starts {
            let mut stream = session.stream("restart", start as u64);
            let mut steps = 0;
            let mut watch = |misfit: f64| {
                steps += 1;
                let place = (start * self.settings.polish + steps).min(starts * self.settings.polish);
                let tick = Tick { iteration: place, total: starts * self.settings.polish, loss: Some(misfit) };
                let told = session.tick(tick);
                if told.is_break() {
                    stop = Stop::Interrupted;
                }
                told
            };
            let fit = match slope {
                Some(slope) => self.states(slope, start, &tensor, &mut stream),
                None => {
                    let guesses = if start == 0 { tensor.guesses.clone() } else { self.anywhere(&tensor, &mut stream) };
                    // A few units for each unknown are enough to find the way.
                    let mut used = stream.permutation(self.units.count());
                    used.truncate((60 * guesses.len()).max(600));
                    let rough = Problem { used, ..all }.fitted(&guesses, self.settings.polish, &mut watch);
                    Fit { misfit: all.misfit(&rough.guesses), guesses: rough.guesses }
                }
            };
            let told = watch(fit.misfit);
            if fit.misfit < best.misfit || !best.misfit.is_finite() {
                best = fit;
            }
            trace.push(TracePoint { iteration: start + 1, loss: best.misfit });
            if told.is_break() || best.misfit < fits {
                break;
            }
        }
        if slope.is_none() && stop != Stop::Interrupted {
            (best, stop) = self.finished(&all, whole, best, session);
            trace.push(TracePoint { iteration: trace.len(), loss: best.misfit });
        }
        // A fit that explains little more than the estimate it came from has gone astray.
        if best.misfit > fits && best.misfit > 0.5 * tensor.misfit {
            best = tensor;
        }
        Fitted { fit: best, trace, stop }
    }

    /// Both gradients, each in units of its own size.
    fn whole(&self) -> Weights {
        let size = |squares: f64, count: usize| (squares / count.max(1) as f64).sqrt().max(f64::MIN_POSITIVE);
        let (units, count) = (self.units, self.units.count());
        Weights {
            inner: 1.0 / size(units.inner.squared_norm_l2(), count * units.dimension()),
            outer: 1.0 / size(dot(&units.outer, &units.outer), count),
        }
    }

    /// Piecewise linear units: states settled from the estimate, then solved by algebra.
    fn states(&self, slope: f64, start: usize, tensor: &Fit, stream: &mut Stream) -> Fit {
        let pieces = Pieces { units: self.units, slope, norm: self.norm };
        if start == 0 {
            return pieces.settled(&tensor.guesses);
        }
        let Some(solved) = pieces.solved(stream) else { return tensor.clone() };
        let settled = pieces.settled(&solved.guesses);
        if settled.misfit < solved.misfit { settled } else { solved }
    }

    /// Random samples of the estimate's norms, with residues that fit.
    fn anywhere(&self, tensor: &Fit, stream: &mut Stream) -> Vec<Guess> {
        let mut guesses: Vec<Guess> = (tensor.guesses.iter())
            .map(|guess| {
                let p: Vec<f64> = guess.p.iter().map(|_| stream.normal()).collect();
                let scale = (dot(&guess.p, &guess.p) / dot(&p, &p).max(f64::MIN_POSITIVE)).sqrt();
                Guess { p: p.iter().map(|p| scale * p).collect(), residue: guess.residue }
            })
            .collect();
        refit_residues(&mut guesses, self.units, self.sigma, self.settings.gradient);
        guesses
    }

    /// All units, and both gradients, each by what it is left with: the last step of a smooth fit.
    fn finished(&self, all: &Problem<'_>, whole: Weights, best: Fit, session: &mut Session<'_>) -> (Fit, Stop) {
        let total = self.settings.polish;
        let mut stop = Stop::Finished;
        let mut go_on = |problem: &Problem<'_>, guesses: &[Guess]| {
            // Once told to stop, nothing more is asked.
            let mut watch = |misfit: f64| match stop {
                Stop::Interrupted => ControlFlow::Break(()),
                _ => {
                    let told = session.tick(Tick { iteration: total, total, loss: Some(misfit) });
                    if told.is_break() {
                        stop = Stop::Interrupted;
                    }
                    told
                }
            };
            problem.fitted(guesses, total, &mut watch).guesses
        };
        let judged = |guesses: Vec<Guess>| Fit { misfit: all.misfit(&guesses), guesses };
        let better = |new: Fit, old: Fit| if new.misfit <= old.misfit * NOISY { new } else { old };
        let best = better(judged(go_on(all, &best.guesses)), best);
        let mut oriented = best.guesses.clone();
        // With a sign wrong the output layer's gradient cannot be fitted: then it stays out.
        let turned = orient(&mut oriented, self.units, self.sigma, self.signs);
        if !turned && Symmetry::of(self.sigma, &self.units.offset) == Symmetry::Slope {
            return (best, stop);
        }
        let everything = |weights: Weights| Problem { weights, used: all.used.clone(), ..*all };
        let mut guesses = oriented;
        for _ in 0..2 {
            let left = everything(whole).left(&guesses);
            let weights = Weights {
                inner: 1.0 / left.inner.max(ROUNDING / whole.inner),
                outer: 1.0 / left.outer.max(ROUNDING / whole.outer),
            };
            guesses = go_on(&everything(weights), &guesses);
        }
        (better(judged(guesses), best), stop)
    }
}

/// What a piecewise linear activation lets through where it is off.
pub(super) fn slope(sigma: Activation) -> Option<f64> {
    match sigma {
        Activation::Relu => Some(0.0),
        Activation::LeakyRelu { slope } => Some(slope),
        _ => None,
    }
}

/// The misfit that noise alone leaves: what of ĝ lies outside the span of the
/// samples is noise, and as much of it lies inside in every dimension.
pub(super) fn noise(all: &Units, within: &Units) -> f64 {
    let (outside, inside) = (all.dimension() - within.dimension(), within.dimension());
    let (total, kept) = (all.inner.squared_norm_l2(), within.inner.squared_norm_l2());
    if outside == 0 {
        return 0.0;
    }
    ((total - kept).max(0.0) * inside as f64 / outside as f64 / kept.max(f64::MIN_POSITIVE)).sqrt()
}
