//! Batches from the gradient of a wide layer of random units, provably.
//!
//! *Threat model.* A client of federated learning shares the gradient of a
//! batch at parameters that are random, or that the server chose. Wang, Lee &
//! Lei (2023), "Reconstructing training data from model gradient, provably".
//!
//! | symbol | here | shape |
//! | --- | --- | --- |
//! | f = M + Σ_j a_j σ(w_j · x) | the network; w_j of N(0, s²) | |
//! | z_j, p_i | w_j / s and s x_i: what is worked with | d |
//! | r_i | ∂L/∂f of sample i | |
//! | g, ĝ | ∇a, and ∇W divided by a: the observation | m, m x d |
//! | V | a basis of the samples' span | d x B |
//!
//! 1. The span ([`span`]): of ĝ, exactly; or as published, of the second moment.
//! 2. Moments of the gradient over the units ([`moments`]) are sums of u_i ⊗ u_i ⊗ u_i
//!    by Stein's lemma ([`stein`]); simultaneous diagonalisation takes them apart
//!    ([`diagonalise`]).
//! 3. Norms, residues, signs ([`estimate`]).
//! 4. Beyond the paper: all of it fitted to the gradient itself ([`polish`]; of
//!    piecewise linear units [`patterns`]), which makes it exact.
//! 5. Back through the layers below, if there are any ([`layers`]), and the labels.

mod diagonalise;
mod estimate;
mod layers;
mod moments;
mod patterns;
mod polish;
mod query;
#[cfg(test)]
mod simulated;
mod span;
mod stein;

use afterimage_nn::{Activation, DType, Error, Tensor};
use faer::Mat;
use serde::{Deserialize, Serialize};

pub use diagonalise::Diagonalise;
pub use moments::Source;
pub use span::Span;

use crate::{Attack, AttackError, Card, GradientSeen, Parameter, Reconstruction, Session, Stop, Tick, TracePoint};
use diagonalise::components;
use estimate::{Found, Guess, dot, orient, refit_residues, target};
use layers::{invert, invert_direction};
use moments::{Units, product};
use patterns::Pieces;
use polish::{Fit, Problem, Weights};
use query::Query;
use stein::Curve;

/// Gradient inversion by tensor decomposition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TensorDecomposition {
    /// Which gradient the moments are taken of.
    pub gradient: Source,
    /// Where the span of the samples comes from.
    pub span: Span,
    /// What moments of a higher order are contracted with.
    pub contraction: Contraction,
    /// How components that are not orthogonal are dealt with.
    pub diagonalise: Diagonalise,
    /// Random projections, L.
    pub projections: usize,
    /// Norm of every sample, if it is known; 0 if it is not.
    pub norm: f64,
    /// Most steps of polishing; 0 for the published method alone.
    pub polish: usize,
    /// Starts of the polish beside the tensor's.
    pub restarts: usize,
    /// Misfit up to which samples count as certain.
    pub tolerance: f64,
}

/// What moments of a higher order are contracted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contraction {
    /// The first moment, in which every sample has a part.
    #[default]
    Mean,
    /// A random direction, in which every sample has little: as published.
    Random,
}

impl Default for TensorDecomposition {
    fn default() -> Self {
        Self {
            gradient: Source::Hidden,
            span: Span::Gradient,
            contraction: Contraction::Mean,
            diagonalise: Diagonalise::Auto,
            projections: 100,
            norm: 0.0,
            polish: 100,
            restarts: 12,
            tolerance: 1e-4,
        }
    }
}

const NAME: &str = "tensor";

/// A misfit that a wrong fit never reaches, and a right one does in single precision too.
const FITS: f64 = 1e-5;
/// A fit leaves a little more than the noise, because the noise inside the span is only estimated.
const NOISY: f64 = 1.3;

fn no(reason: impl Into<String>, hint: impl Into<String>) -> AttackError {
    AttackError::NotApplicable { attack: NAME, reason: reason.into(), hint: hint.into() }
}

impl Attack for TensorDecomposition {
    const CARD: Card = Card {
        name: NAME,
        summary: "Rebuilds batches from the gradient of a wide layer of random units.",
        attacker: "A server that chose the parameters, or anybody who sees a gradient taken at random ones. Seconds on \
                   a laptop.",
        method: "Averaged over many random units, the gradient times Hermite polynomials of their weights is a sum of \
                 one term for each sample, and such a sum can be taken apart in one way only. What comes out is then \
                 fitted to the gradient itself, inside the space that the gradient's rows span, which makes it exact.",
        needs: "Fully connected layers, one output, more units than samples by far, fewer samples than inputs; \
                an activation that is neither linear nor quadratic. Weights of a normal distribution.",
        limits: "Without the polish the error falls with the square root of the number of units only. With an odd \
                 activation and no bias at the output, samples and labels are known up to a common sign; with \
                 piecewise linear ones and no biases, the length of a sample is not in the gradient. Noise on the \
                 gradient makes samples as noisy.",
        citation: "Z. Wang, J. D. Lee, Q. Lei. Reconstructing training data from model gradient, provably. AISTATS \
                   2023. The span from the gradient's rows and the polish are our own.",
        defences: &[
            "Clients: accept no parameters that look random after training has begun, or output biases of unusual size.",
            "Aggregate securely over many clients, so that no single gradient is seen.",
            "Clip and add noise at the client (differential privacy).",
        ],
        parameters: &[
            Parameter {
                name: "gradient",
                default: "\"hidden\"",
                purpose: "gradient that moments are taken of: the hidden layer's (appendix B) or the output layer's (algorithm 1)",
                range: "\"hidden\" or \"output\"",
            },
            Parameter {
                name: "span",
                default: "\"gradient\"",
                purpose: "where the span of the samples comes from; \"moments\" is the published way",
                range: "\"gradient\" or \"moments\"",
            },
            Parameter {
                name: "contraction",
                default: "\"mean\"",
                purpose: "what higher moments are contracted with: the first moment, or a random direction",
                range: "\"mean\" or \"random\"",
            },
            Parameter {
                name: "diagonalise",
                default: "\"auto\"",
                purpose: "whether samples are taken as orthogonal, or whitened first",
                range: "\"auto\", \"orthogonal\" or \"whitened\"",
            },
            Parameter { name: "projections", default: "100", purpose: "random projections", range: "1 or more" },
            Parameter { name: "norm", default: "0", purpose: "norm of every sample; 0 if unknown", range: "0 or more" },
            Parameter {
                name: "polish",
                default: "100",
                purpose: "most steps of polishing; 0 for none",
                range: "0 or more",
            },
            Parameter { name: "restarts", default: "12", purpose: "starts beside the tensor's", range: "0 or more" },
            Parameter {
                name: "tolerance",
                default: "1e-4",
                purpose: "part of the gradient left unexplained up to which samples are certain",
                range: "between 0 and 1",
            },
        ],
    };

    type Sees = GradientSeen;

    fn reconstruct(&self, seen: &GradientSeen, session: &mut Session<'_>) -> Result<Reconstruction, AttackError> {
        self.check()?;
        let query = Query::of(seen, &mut session.stream("query", 0))?;
        let curve = Curve::new(query.sigma, &query.units.offset);
        let norm = (self.norm > 0.0 && query.below.is_empty()).then_some(query.spread * self.norm);
        let orders = orders(&curve, norm.unwrap_or(1.0), query.sigma)?;
        let mut notes = Vec::new();
        let v = self.basis(&query, &curve, orders, seen.batch_size, &mut notes, session)?;
        let units = query.units.within(&v);
        let samples = v.ncols();

        let a = self.direction(&units, &mut session.stream("contraction", 1));
        let (second, third) = (units.second(self.gradient, orders[0], &a), units.third(self.gradient, orders[1], &a));
        let mut projections = session.stream("projections", 0);
        let directions = components(&third, &second, self.diagonalise, self.projections, &mut projections)
            .ok_or_else(|| no("the second moment cannot whiten the samples", "use diagonalise=\"auto\""))?;
        let (gradient, bias, curve) = (self.gradient, query.bias, &curve);
        let found = Found { curve, source: gradient, orders, a: &a, second: &second, third: &third, norm, bias };
        let estimate = found.guesses(&directions, &units);

        let noise = noise(&query.units, &units);
        let (mut fit, trace, stop) = self.polished(&query, &units, estimate, [norm.unwrap_or(1.0), noise], session);
        let oriented = orient(&mut fit.guesses, &units, query.sigma, bias);
        self.explain(&query, &fit, oriented, norm, &mut notes);
        if let Some(batch) = seen.batch_size.filter(|batch| *batch > samples) {
            notes.push(format!(
                "{batch} samples span {samples} dimensions only: some are duplicates or mixtures of others"
            ));
        }
        let mut found = self.reconstruction(seen, &query, &v, &fit, oriented)?;
        (found.iterations, found.trace, found.stop) = (trace.len(), trace, stop);
        found.notes.splice(0..0, notes);
        Ok(found)
    }
}

/// The lowest orders that span samples and tell them apart (k_2 and k_3 of assumption 5.1).
fn orders(curve: &Curve, norm: f64, sigma: Activation) -> Result<[usize; 2], AttackError> {
    let third = curve.lowest(norm, 3..=4).ok_or_else(|| {
        let reason = format!(
            "{sigma} has no moment of third or fourth order: of a linear activation only Σ r_i x_i is in the gradient, \
             of a quadratic one only Σ r_i x_i x_iᵀ"
        );
        no(reason, "several batches are told apart by none of their gradients: nothing can separate the samples")
    })?;
    Ok([curve.lowest(norm, 2..=3).unwrap_or(3), third])
}

impl TensorDecomposition {
    fn check(&self) -> Result<(), AttackError> {
        let wrong = |setting, value: String, expected: &str| {
            Err(Error::Setting { setting, value, expected: expected.into() }.into())
        };
        if !(self.tolerance > 0.0 && self.tolerance < 1.0) {
            return wrong("tolerance", self.tolerance.to_string(), "must lie between 0 and 1");
        }
        if self.projections == 0 {
            return wrong("projections", "0".into(), "must be 1 or more");
        }
        if !(self.norm >= 0.0 && self.norm.is_finite()) {
            return wrong("norm", self.norm.to_string(), "must be 0 (unknown) or the norm of every sample");
        }
        Ok(())
    }

    /// A basis of the samples' span, one vector a column.
    fn basis(
        &self,
        query: &Query,
        curve: &Curve,
        orders: [usize; 2],
        batch: Option<usize>,
        notes: &mut Vec<String>,
        session: &Session<'_>,
    ) -> Result<Mat<f64>, AttackError> {
        let dimension = query.units.dimension();
        if let Some(batch) = batch.filter(|batch| *batch > dimension) {
            let reason = format!("{batch} samples of {dimension} elements are more than can be told apart");
            return Err(no(reason, "a batch smaller than the input has elements can be separated"));
        }
        let mut stream = session.stream("span", 0);
        let found = match self.span {
            Span::Gradient => span::of_gradient(&query.units, batch, &mut stream),
            Span::Moments => {
                let a = self.direction(&query.units, &mut session.stream("contraction", 0));
                // The hidden layer's moments have a rank of their own; its gradient has that of the batch.
                let count = || Some(span::of_gradient(&query.units, None, &mut stream)?.ncols());
                let batch = batch.or_else(|| (self.gradient == Source::Hidden).then(count)?);
                // Contracted along the first moment, sample i has the weight r_i² times both orders' moments.
                let contracted = orders[0] == 3 && self.contraction == Contraction::Mean;
                let sign = contracted.then(|| (curve.moment(1.0, 1) * curve.moment(1.0, 3)).signum());
                span::of_moment(&query.units.second(self.gradient, orders[0], &a), batch, sign, &mut stream)
            }
        };
        let v = found.ok_or_else(|| {
            let reason = "the gradient has full rank: the batch is larger than the input, or noise covers it";
            no(reason, "give the batch size if it is known")
        })?;
        if batch.is_none() {
            notes.push(format!("the gradient was made of {} samples", v.ncols()));
        }
        Ok(v)
    }

    /// What moments of a higher order are contracted with, of length 1.
    fn direction(&self, units: &Units, stream: &mut afterimage_nn::Stream) -> Vec<f64> {
        let direction = match self.contraction {
            Contraction::Mean => units.first(self.gradient),
            Contraction::Random => (0..units.dimension()).map(|_| stream.normal()).collect(),
        };
        let size = dot(&direction, &direction).sqrt().max(f64::MIN_POSITIVE);
        direction.iter().map(|x| x / size).collect()
    }

    /// The estimate fitted to the gradient, if that is wanted and helps.
    fn polished(
        &self,
        query: &Query,
        units: &Units,
        estimate: Vec<Guess>,
        [norm, noise]: [f64; 2],
        session: &mut Session<'_>,
    ) -> (Fit, Vec<TracePoint>, Stop) {
        let (sigma, count) = (query.sigma, units.count());
        let size = |values: f64, count: usize| (values / count.max(1) as f64).sqrt().max(f64::MIN_POSITIVE);
        let whole = Weights {
            inner: 1.0 / size(units.inner.squared_norm_l2(), count * units.dimension()),
            outer: 1.0 / size(dot(&units.outer, &units.outer), count),
        };
        // The hidden layer's gradient alone: a wrong sign, which it may leave open, must not disturb the fit.
        let weights = match self.gradient {
            Source::Hidden => Weights { outer: 0.0, ..whole },
            Source::Output => Weights { inner: 0.0, ..whole },
        };
        let all = Problem { units, sigma, weights, used: (0..count).collect() };
        let mut best = Fit { misfit: all.misfit(&estimate), guesses: estimate };
        if self.polish == 0 {
            return (best, Vec::new(), Stop::Finished);
        }
        let slope = match sigma {
            Activation::Relu => Some(0.0),
            Activation::LeakyRelu { slope } => Some(slope),
            _ => None,
        };
        let fits = FITS.max(NOISY * noise);
        let mut trace = vec![TracePoint { iteration: 0, loss: best.misfit }];
        let tensor = best.clone();
        let samples = tensor.guesses.len();
        for start in 0..=self.restarts {
            let mut stream = session.stream("restart", start as u64);
            let fit = match slope {
                Some(slope) => {
                    let pieces = Pieces { units, slope, norm };
                    match start {
                        0 => pieces.settled(&tensor.guesses),
                        _ => match pieces.solved(&mut stream) {
                            Some(solved) => pieces.settled(&solved.guesses),
                            None => tensor.clone(),
                        },
                    }
                }
                None => {
                    // A few units for each unknown are enough to find the way.
                    let mut used = stream.permutation(count);
                    used.truncate((60 * samples).max(600));
                    let few = Problem { used, ..Problem { units, sigma, weights, used: Vec::new() } };
                    let guesses = match start {
                        0 => tensor.guesses.clone(),
                        _ => random_start(&tensor, units, sigma, self.gradient, &mut stream),
                    };
                    let rough = few.fitted(&guesses, self.polish);
                    all.fitted(&rough.guesses, 1)
                }
            };
            if fit.misfit < best.misfit {
                best = fit;
            }
            trace.push(TracePoint { iteration: start + 1, loss: best.misfit });
            let tick = Tick { iteration: start + 1, total: self.restarts + 1, loss: Some(best.misfit) };
            if session.tick(tick).is_break() {
                return (best, trace, Stop::Interrupted);
            }
            if best.misfit < fits {
                break;
            }
        }
        if slope.is_none() {
            let mut oriented = best.guesses.clone();
            orient(&mut oriented, units, sigma, query.bias);
            best = self.finished(&all, whole, &oriented, best);
        }
        // A fit that explains little more than the estimate it came from has gone astray.
        if best.misfit > fits && best.misfit > 0.5 * tensor.misfit {
            best = tensor;
        }
        trace.push(TracePoint { iteration: trace.len(), loss: best.misfit });
        (best, trace, Stop::Finished)
    }

    /// All units and both gradients, each by what it is left with: the last step of a smooth fit.
    fn finished(&self, all: &Problem<'_>, whole: Weights, oriented: &[Guess], best: Fit) -> Fit {
        let everything = |weights: Weights| Problem { weights, used: all.used.clone(), ..*all };
        let mut fit = everything(whole).fitted(oriented, self.polish);
        for _ in 0..2 {
            let left = everything(whole).left(&fit.guesses);
            let floor = 1e-13;
            let weights = Weights {
                inner: 1.0 / left.inner.max(floor / whole.inner),
                outer: 1.0 / left.outer.max(floor / whole.outer),
            };
            let weighted = everything(weights).fitted(&fit.guesses, self.polish);
            fit = Fit { misfit: all.misfit(&weighted.guesses), guesses: weighted.guesses };
        }
        if fit.misfit.is_finite() { fit } else { best }
    }

    fn explain(&self, query: &Query, fit: &Fit, oriented: bool, norm: Option<f64>, notes: &mut Vec<String>) {
        let linear = query.sigma.is_piecewise_linear();
        if linear && norm.is_none() {
            notes.push(format!(
                "of {} units without offsets the gradient does not tell how long a sample is: length 1 was taken \
                 (set `norm` if it is known)",
                query.sigma
            ));
        }
        if !oriented {
            let each = "each sample is given with both signs: the gradient does not tell which";
            notes.push(format!("{each} ({} units, and no large bias at the output)", query.sigma));
        }
        if (query.kurtosis - 3.0).abs() > 0.5 {
            notes.push(format!(
                "the hidden layer's weights are not normal (fourth moment {:.2}, normal ones have 3): the tensor's \
                 estimate is rough, and the polish has to do the work",
                query.kurtosis
            ));
        }
        if self.polish > 0 && fit.misfit > self.tolerance {
            notes.push(format!(
                "the samples leave {:.2} % of the gradient unexplained: noise, or some of them are wrong",
                100.0 * fit.misfit
            ));
        }
    }

    /// Samples in the shape of network inputs, with labels.
    fn reconstruction(
        &self,
        seen: &GradientSeen,
        query: &Query,
        v: &Mat<f64>,
        fit: &Fit,
        oriented: bool,
    ) -> Result<Reconstruction, AttackError> {
        let units = query.units.within(v);
        let batch = seen.batch_size.unwrap_or(fit.guesses.len());
        let signs: &[f64] = if oriented { &[1.0] } else { &[1.0, -1.0] };
        let (mut rows, mut residues, mut targets) = (Vec::new(), Vec::new(), Vec::new());
        let mut lost = 0;
        for guess in &fit.guesses {
            for sign in signs {
                let p: Vec<f64> = guess.p.iter().map(|p| sign * p).collect();
                let h: Vec<f64> = product(v, &p).iter().map(|h| h / query.spread).collect();
                // A polished h has the right length; else the known norm of the input gives it.
                let direction = self.norm > 0.0 && fit.misfit > self.tolerance;
                let x = match query.below.is_empty() {
                    true => Some(h),
                    false if direction => invert_direction(&query.below, &h, self.norm),
                    false => invert(&query.below, &h),
                };
                let Some(x) = x.filter(|x| x.iter().all(|x| x.is_finite())) else {
                    lost += 1;
                    continue;
                };
                let residue = sign * guess.residue;
                let at = product(&units.z, &p);
                let f: f64 = (at.iter().zip(&query.output).zip(&units.offset))
                    .map(|((z, a), b)| a * query.sigma.triple(z + b)[0])
                    .sum();
                rows.extend(x);
                residues.push(residue);
                targets.push(target(seen.model.loss, seen.reduction, batch, f + query.bias, residue));
            }
        }
        let (count, dtype) = (residues.len(), seen.gradient.dtype());
        let samples = Tensor::from_f64(&rows, &seen.model.network.batch_shape(count), dtype)?;
        let certain = fit.misfit <= self.tolerance;
        let confidence = 1.0 / (1.0 + fit.misfit) / signs.len() as f64;
        let mut found = Reconstruction::finished(samples, confidence, certain && oriented);
        found.coefficients = Some(Tensor::from_f64(&residues, &[count], DType::F64)?);
        if let Some(targets) = targets.into_iter().collect::<Option<Vec<f64>>>() {
            found.labels = Some(targets.iter().map(|y| usize::from(*y > 0.0)).collect());
            found.targets = Some(Tensor::from_f64(&targets, &[count], DType::F64)?);
        }
        if lost > 0 {
            found.notes.push(format!(
                "{lost} inputs of the last hidden layer could not be taken back through the layers below"
            ));
        }
        Ok(found)
    }
}

/// The misfit that noise alone leaves: what of ĝ lies outside the span of the
/// samples is noise, and as much of it lies inside in every dimension.
fn noise(all: &Units, within: &Units) -> f64 {
    let (outside, inside) = (all.dimension() - within.dimension(), within.dimension());
    let (total, kept) = (all.inner.squared_norm_l2(), within.inner.squared_norm_l2());
    if outside == 0 {
        return 0.0;
    }
    ((total - kept).max(0.0) * inside as f64 / outside as f64 / kept.max(f64::MIN_POSITIVE)).sqrt()
}

/// Random samples of the estimate's norms, with residues that fit.
fn random_start(
    tensor: &Fit,
    units: &Units,
    sigma: Activation,
    source: Source,
    stream: &mut afterimage_nn::Stream,
) -> Vec<Guess> {
    let mut guesses: Vec<Guess> = (tensor.guesses.iter())
        .map(|guess| {
            let p: Vec<f64> = guess.p.iter().map(|_| stream.normal()).collect();
            let scale = (dot(&guess.p, &guess.p) / dot(&p, &p).max(f64::MIN_POSITIVE)).sqrt();
            Guess { p: p.iter().map(|p| scale * p).collect(), residue: guess.residue }
        })
        .collect();
    refit_residues(&mut guesses, units, sigma, source);
    guesses
}
