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
//! 1. The span (`span`): of ĝ, exactly; or as published, of the second moment.
//! 2. Moments of the gradient over the units (`moments`) are sums of u_i ⊗ u_i ⊗ u_i
//!    by Stein's lemma (`stein`); simultaneous diagonalisation takes them apart
//!    (`diagonalise`).
//! 3. Norms, residues, signs (`estimate`).
//! 4. Beyond the paper: all of it fitted to the gradient itself (`fitting`, by
//!    `polish`; of piecewise linear units by `patterns`), which makes it exact.
//! 5. Back through the layers below, if there are any (`layers`), and the labels
//!    (`outcome`).

mod diagonalise;
mod estimate;
mod fitting;
mod layers;
mod moments;
mod outcome;
mod patterns;
mod polish;
mod query;
#[cfg(test)]
mod simulated;
mod span;
mod stein;

use afterimage_nn::{Activation, Stream};
use faer::Mat;
use serde::{Deserialize, Serialize};

pub use diagonalise::Diagonalise;
pub use moments::Source;
pub use span::Span;

use crate::{Attack, AttackError, Card, GradientSeen, Parameter, Reconstruction, Session};
use diagonalise::components;
use estimate::{Found, Signs, dot, orient};
use fitting::{Fitted, Fitting};
use moments::Units;
use outcome::Outcome;
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

    fn applies(&self, seen: &GradientSeen) -> Result<(), AttackError> {
        self.check()?;
        // Which network it is does not depend on the draws.
        let query = Query::of(seen, &mut Stream::new(0, "query", 0))?;
        orders(&Curve::new(query.sigma, &query.units.offset), query.sigma).map(drop)
    }

    fn reconstruct(&self, seen: &GradientSeen, session: &mut Session<'_>) -> Result<Reconstruction, AttackError> {
        self.check()?;
        let query = Query::of(seen, &mut session.stream("query", 0))?;
        let curve = Curve::new(query.sigma, &query.units.offset);
        let orders = orders(&curve, query.sigma)?;
        let basis = self.basis(&query, &curve, orders, seen.batch_size, session)?;
        let units = query.units.within(&basis);
        // Of piecewise linear units without offsets only r p is in the gradient.
        let lengthless = fitting::slope(query.sigma).is_some() && units.offset.iter().all(|b| *b == 0.0);
        let given = (self.norm > 0.0 && query.below.is_empty()).then_some(query.spread * self.norm);
        let norm = given.or(lengthless.then_some(query.spread));
        let signs = Signs::of(query.bias, seen.model.loss);

        let a = self.direction(&units, &mut session.stream("contraction", 1));
        let (second, third) = (units.second(self.gradient, orders[0], &a), units.third(self.gradient, orders[1], &a));
        let mut projections = session.stream("projections", 0);
        let directions = components(&third, &second, self.diagonalise, self.projections, &mut projections)
            .ok_or_else(|| no("the second moment cannot whiten the samples", "use diagonalise=\"auto\""))?;
        let (source, curve) = (self.gradient, &curve);
        let found = Found { curve, source, orders, a: &a, second: &second, third: &third, norm, signs };
        let estimate = found.guesses(&directions, &units);

        let noise = fitting::noise(&query.units, &units);
        let (sigma, norm) = (query.sigma, norm.unwrap_or(query.spread));
        let fitting = Fitting { settings: self, units: &units, sigma, signs, norm, noise };
        let Fitted { mut fit, trace, stop } = fitting.run(estimate, session);
        let oriented = orient(&mut fit.guesses, &units, sigma, signs);
        let outcome = Outcome {
            settings: self,
            seen,
            query: &query,
            basis: &basis,
            units: &units,
            fit: &fit,
            oriented,
            length_known: !lengthless || given.is_some(),
        };
        let iterations = trace.len();
        Ok(Reconstruction { trace, stop, iterations, ..outcome.reconstruction()? })
    }
}

/// The lowest orders that span samples and tell them apart (k_2 and k_3 of assumption 5.1).
///
/// Which orders there are is a matter of σ's shape, looked at where it is curved.
fn orders(curve: &Curve, sigma: Activation) -> Result<[usize; 2], AttackError> {
    let third = curve.lowest(1.0, 3..=4).ok_or_else(|| {
        let reason = format!(
            "{sigma} has no moment of third or fourth order: of a linear activation only Σ r_i x_i is in the gradient, \
             of a quadratic one only Σ r_i x_i x_iᵀ"
        );
        no(reason, "several batches are told apart by none of their gradients: nothing can separate the samples")
    })?;
    Ok([curve.lowest(1.0, 2..=3).unwrap_or(3), third])
}

impl TensorDecomposition {
    fn check(&self) -> Result<(), AttackError> {
        if !(self.tolerance > 0.0 && self.tolerance < 1.0) {
            return Err(AttackError::setting("tolerance", self.tolerance, "must lie between 0 and 1"));
        }
        if self.projections == 0 {
            return Err(AttackError::setting("projections", 0, "must be 1 or more"));
        }
        if !(self.norm >= 0.0 && self.norm.is_finite()) {
            return Err(AttackError::setting("norm", self.norm, "must be 0 (unknown) or the norm of every sample"));
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
        session: &Session<'_>,
    ) -> Result<Mat<f64>, AttackError> {
        let dimension = query.units.dimension();
        if let Some(batch) = batch.filter(|batch| *batch > dimension) {
            let reason = format!("{batch} samples of {dimension} elements are more than can be told apart");
            return Err(no(reason, "a batch smaller than the input has elements can be separated"));
        }
        if batch == Some(0) {
            return Err(no("the batch is said to have no samples", "leave the batch size out if it is not known"));
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
        found.ok_or_else(|| {
            let reason = "the gradient has full rank: the batch is larger than the input, or noise covers it";
            no(reason, "give the batch size if it is known")
        })
    }

    /// What moments of a higher order are contracted with, of length 1.
    fn direction(&self, units: &Units, stream: &mut Stream) -> Vec<f64> {
        let direction = match self.contraction {
            Contraction::Mean => units.first(self.gradient),
            Contraction::Random => (0..units.dimension()).map(|_| stream.normal()).collect(),
        };
        let size = dot(&direction, &direction).sqrt().max(f64::MIN_POSITIVE);
        direction.iter().map(|x| x / size).collect()
    }
}
