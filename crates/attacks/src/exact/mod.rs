//! Whole batches, exactly, from the gradient of a ReLU layer.
//!
//! *Threat model.* A client of federated learning shares the gradient of a
//! batch. Compare Dimitrov et al. (2024), "SPEAR: exact gradient inversion of
//! batches in federated learning", whose sampling is exponential in the batch
//! size; here columns are found by reweighted least squares, and wrong ones are
//! exchanged by checks that the attacker can make.
//!
//! | symbol | here | shape |
//! | --- | --- | --- |
//! | X | the samples | k x d |
//! | Δ | ∂L/∂(XWᵀ + b), zero where a unit is off | k x h |
//! | ∇W, ∇b | ΔᵀX, Δᵀ1: the observation | h x d, h |
//! | L, r, V | ∇W = L diag(r) V | h x k, k, k x d |
//! | q_i | Lq_i ∝ column i of Δᵀ | k |
//!
//! 1. Factor ∇W; its rank is the number of samples ([`factors`]).
//! 2. Search sparse directions of L ([`search`]).
//! 3. Put k of them together, check every sample against the layer itself, and
//!    exchange what does not agree ([`assembly`]).
//! 4. Prove samples with the rest of the network; take what they contribute out
//!    of the gradient, and go on with the rest ([`certificate`]).

mod assembly;
mod certificate;
mod factors;
mod progress;
mod search;
mod states;

use afterimage_nn::{Activation, DType, Device, Error, Loss, Params, Tensor};
use faer::Mat;
use serde::{Deserialize, Serialize};

use crate::dense::{DenseLayer, dense_layers};
use crate::{Attack, AttackError, Card, GradientSeen, Parameter, Reconstruction, Session, Stop, TracePoint};
use certificate::{Rows, Witness};
use factors::{Factors, matrix};
use progress::{Hunt, Outcome};

/// Exact recovery of batches through a ReLU layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Exact {
    /// The layer; the first fully connected ReLU layer if empty.
    pub layer: String,
    /// Most searches, for each sample of the batch.
    pub searches: usize,
    /// Misfit up to which a sample counts as proven.
    pub tolerance: f64,
    /// Most rounds of polishing.
    pub polish: usize,
}

impl Default for Exact {
    fn default() -> Self {
        Self { layer: String::new(), searches: 200, tolerance: 1e-3, polish: 5 }
    }
}

const NAME: &str = "exact";

fn no(reason: impl Into<String>, hint: impl Into<String>) -> AttackError {
    AttackError::NotApplicable { attack: NAME, reason: reason.into(), hint: hint.into() }
}

/// A proven sample, and what the loss says of its outputs.
struct Proven {
    sample: Vec<f64>,
    residues: Vec<f64>,
    misfit: f64,
}

impl Attack for Exact {
    const CARD: Card = Card {
        name: NAME,
        summary: "Rebuilds whole batches exactly from the gradient of a ReLU layer.",
        attacker: "Anybody who sees the gradient that a client computed on a batch: the server, or someone on the way \
                   to it. Seconds to minutes on a laptop.",
        method: "The gradient of a fully connected layer is a product of two small matrices, one of which is the batch \
                 itself. The other has zeros where units were off, and only the right factorisation has as many of \
                 them. It is found by a sparse search, checked unit by unit against the layer, and proven by \
                 recomputing the gradient.",
        needs: "A fully connected layer with a bias, followed by ReLU or leaky ReLU, that reads the input; more units \
                than a few times the batch size, and fewer samples than the input has elements.",
        limits: "Samples whose units are on and off together (raw pixels without a mean subtracted, near duplicates) \
                 cannot be told apart. Noise on the gradient makes the result as noisy. Of a layer inside the network \
                 the inputs of that layer come back, not the samples.",
        citation: "D. I. Dimitrov, M. Baader, M. N. Müller, M. Vechev. SPEAR: exact gradient inversion of batches in \
                   federated learning. NeurIPS 2024. The search and its checks are our own.",
        defences: &[
            "Aggregate securely over many clients, so that no single gradient is seen.",
            "Clip and add noise at the client (differential privacy): the zeros the search looks for are gone.",
            "Share updates after several local steps over larger batches than the first layer has units.",
        ],
        parameters: &[
            Parameter {
                name: "layer",
                default: "\"\"",
                purpose: "name of the layer whose gradient is used; empty is the first that fits",
                range: "a fully connected layer with a bias and ReLU",
            },
            Parameter {
                name: "searches",
                default: "200",
                purpose: "most sparse searches for each sample of the batch",
                range: "1 or more",
            },
            Parameter {
                name: "tolerance",
                default: "1e-3",
                purpose: "relative misfit up to which a sample is proven by the rest of the network",
                range: "between 0 and 1",
            },
            Parameter { name: "polish", default: "5", purpose: "most rounds of polishing", range: "0 or more" },
        ],
    };

    type Sees = GradientSeen;

    fn reconstruct(&self, seen: &GradientSeen, session: &mut Session<'_>) -> Result<Reconstruction, AttackError> {
        self.check()?;
        let (layer, slope) = self.target(seen)?;
        let weight_name = format!("{}.weight", layer.name);
        let gradient = seen.gradient.to_dtype(DType::F64)?.to_device(Device::Cpu)?;
        let witness = Witness::new(&seen.model)?;
        let weight = matrix(witness.theta().get(&weight_name)?)?;
        let offset = witness.theta().get(&format!("{}.bias", layer.name))?.to_f64_vec()?;
        let mut rest = gradient.clone();
        let mut hunted = Hunted { proven: Vec::new(), open: Vec::new(), searches: 0, trace: Vec::new() };
        let mut batch = seen.batch_size;
        let (mut gap, mut stop) = (0.0, Stop::Finished);
        loop {
            let of_layer = matrix(rest.get(&weight_name)?)?;
            let bias = rest.get(&format!("{}.bias", layer.name))?.to_f64_vec()?;
            let expected = batch.map(|batch| batch.saturating_sub(hunted.proven.len()));
            let factors = self.factors(&of_layer, expected, hunted.proven.is_empty(), session)?;
            if hunted.proven.is_empty() {
                gap = factors.gap;
                batch = batch.map(|batch| batch.min(factors.rank()));
            }
            let total = batch.unwrap_or(hunted.proven.len() + factors.rank());
            let budget = self.searches.saturating_mul(total);
            let mut hunt = Hunt::new(&factors, &weight, &offset, &bias, slope);
            let before = hunted.proven.len();
            let outcome = loop {
                let known = total - factors.rank();
                let outcome = hunt.run(budget, known, &mut hunted.searches, &mut hunted.trace, session);
                let (samples, columns, agreement) = hunt.samples();
                hunted.open = samples.into_iter().zip(agreement).collect();
                if layer.reads_input {
                    hunted.prove(&columns, &weight, &witness, self.tolerance)?;
                }
                // Stuck, and nothing to take away: only more searches help.
                if outcome != Outcome::Advanced || hunted.proven.len() > before || !layer.reads_input {
                    break outcome;
                }
            };
            if outcome == Outcome::Stopped {
                stop = Stop::Interrupted;
            }
            if hunted.open.is_empty() || outcome != Outcome::Advanced || hunted.proven.len() == before {
                break;
            }
            rest = gradient.sub(&hunted.explained(&witness)?)?;
        }
        if stop != Stop::Interrupted && !hunted.proven.is_empty() && hunted.open.is_empty() {
            hunted.polish(self.polish, &witness, &gradient, &layer)?;
        }
        hunted.report(seen, &layer, &witness, &gradient, gap, stop)
    }
}

/// What a run has so far.
struct Hunted {
    proven: Vec<Proven>,
    /// Samples that could not be proven, with the share of units that agree.
    open: Vec<(Vec<f64>, f64)>,
    searches: usize,
    trace: Vec<TracePoint>,
}

impl Exact {
    fn check(&self) -> Result<(), AttackError> {
        let wrong = |setting, value: String, expected: &str| {
            Err(Error::Setting { setting, value, expected: expected.into() }.into())
        };
        if !(self.tolerance > 0.0 && self.tolerance < 1.0) {
            return wrong("tolerance", self.tolerance.to_string(), "must lie between 0 and 1");
        }
        if self.searches == 0 {
            return wrong("searches", "0".into(), "must be 1 or more");
        }
        Ok(())
    }

    /// The layer to work on, and what its activation lets through where it is off.
    fn target(&self, seen: &GradientSeen) -> Result<(DenseLayer, f64), AttackError> {
        let slope = |layer: &DenseLayer| match layer.activation {
            Some(Activation::Relu) => Some(0.0),
            Some(Activation::LeakyRelu { slope }) => Some(slope),
            _ => None,
        };
        let layers = dense_layers(&seen.model.network);
        let hint = "attacks by optimisation, such as `gradinversion`, need no such layer";
        let found = if self.layer.is_empty() {
            let usable = || layers.iter().filter(|layer| layer.bias && slope(layer).is_some());
            usable().find(|layer| layer.reads_input).or_else(|| usable().next())
        } else {
            layers.iter().find(|layer| layer.name == self.layer)
        };
        let Some(layer) = found else {
            let first = layers.iter().find(|layer| layer.reads_input);
            let reason = match first {
                Some(DenseLayer { activation: Some(other), bias: true, .. }) => {
                    format!("the layer that reads the input is followed by {other}, which is never off")
                }
                Some(DenseLayer { bias: false, .. }) => "the layer that reads the input has no bias".to_owned(),
                _ if !self.layer.is_empty() => format!("there is no fully connected layer `{}`", self.layer),
                _ => "no fully connected layer with a bias is followed by ReLU".to_owned(),
            };
            return Err(no(reason, hint));
        };
        match slope(layer) {
            Some(slope) if layer.bias => Ok((layer.clone(), slope)),
            _ => Err(no(format!("layer `{}` has no bias, or is not followed by ReLU", layer.name), hint)),
        }
    }

    /// The factors of the gradient that is left.
    fn factors(
        &self,
        gradient: &Mat<f64>,
        expected: Option<usize>,
        first: bool,
        session: &Session<'_>,
    ) -> Result<Factors, AttackError> {
        let smaller = gradient.nrows().min(gradient.ncols());
        if gradient.norm_max() == 0.0 {
            let hint = "no unit of the layer was on, or the loss is flat there: nothing was shared";
            return Err(no("the gradient of the layer is zero", hint));
        }
        let mut stream = session.stream("sketch", u64::from(!first));
        let by_gap = Factors::of(gradient, None, &mut stream);
        match (by_gap, expected) {
            // Fewer directions than samples: duplicates, or samples on a line with others.
            (Some(factors), Some(expected)) if factors.rank() <= expected => Ok(factors),
            (Some(factors), None) => Ok(factors),
            (_, Some(expected)) if expected < smaller => Factors::of(gradient, Some(expected), &mut stream)
                .ok_or_else(|| no("it cannot be factored", "report this")),
            _ => {
                let reason = format!(
                    "the gradient of the layer ({} x {}) has full rank: the batch is larger than the layer can tell \
                     apart, or noise covers it",
                    gradient.nrows(),
                    gradient.ncols()
                );
                Err(no(reason, "a batch smaller than the number of units and of inputs can be separated"))
            }
        }
    }
}

impl Hunted {
    /// Moves samples that the rest of the network proves from open to proven;
    /// `columns` are their columns of Δᵀ.
    fn prove(
        &mut self,
        columns: &Mat<f64>,
        weight: &Mat<f64>,
        witness: &Witness<'_>,
        tolerance: f64,
    ) -> Result<(), AttackError> {
        let pulled = rows(&(columns.transpose() * weight));
        let samples: Rows = self.open.iter().map(|(sample, _)| sample.clone()).collect();
        let fits = witness.fits(&samples, &pulled)?;
        for ((sample, agreement), fit) in std::mem::take(&mut self.open).into_iter().zip(fits) {
            if fit.misfit <= tolerance {
                self.proven.push(Proven { sample, residues: fit.residues, misfit: fit.misfit });
            } else {
                self.open.push((sample, agreement));
            }
        }
        Ok(())
    }

    /// The gradient that what is proven explains.
    fn explained(&self, witness: &Witness<'_>) -> Result<Params, AttackError> {
        let samples: Rows = self.proven.iter().map(|proven| proven.sample.clone()).collect();
        let residues: Rows = self.proven.iter().map(|proven| proven.residues.clone()).collect();
        Ok(witness.gradient(&samples, &residues)?)
    }

    /// ‖g − explained‖ / ‖g‖ over all layers.
    fn misfit(&self, witness: &Witness<'_>, gradient: &Params) -> Result<f64, AttackError> {
        let off = gradient.sub(&self.explained(witness)?)?;
        Ok((off.norm_squared()? / gradient.norm_squared()?.max(f64::MIN_POSITIVE)).sqrt())
    }

    /// Solves ∇W = ΔᵀX for X, with the Δ that the network itself gives for the
    /// present X, as long as that explains more of the gradient.
    fn polish(
        &mut self,
        rounds: usize,
        witness: &Witness<'_>,
        gradient: &Params,
        layer: &DenseLayer,
    ) -> Result<(), AttackError> {
        let observed = matrix(gradient.get(&format!("{}.weight", layer.name))?)?;
        let weight = matrix(witness.theta().get(&format!("{}.weight", layer.name))?)?;
        let mut misfit = self.misfit(witness, gradient)?;
        for _ in 0..rounds {
            let mut columns = Mat::zeros(observed.nrows(), self.proven.len());
            for (index, proven) in self.proven.iter().enumerate() {
                let (sample, residues) = (&proven.sample, &proven.residues);
                let alone = witness.gradient(std::slice::from_ref(sample), std::slice::from_ref(residues))?;
                let delta = alone.get(&format!("{}.bias", layer.name))?.to_f64_vec()?;
                delta.iter().enumerate().for_each(|(unit, value)| columns[(unit, index)] = *value);
            }
            let Ok(decomposition) = columns.thin_svd() else { return Ok(()) };
            let samples = rows(&(decomposition.pseudoinverse() * &observed));
            let fits = witness.fits(&samples, &rows(&(columns.transpose() * &weight)))?;
            let better: Vec<Proven> = (samples.into_iter().zip(fits))
                .map(|(sample, fit)| Proven { sample, residues: fit.residues, misfit: fit.misfit })
                .collect();
            let next = Hunted { proven: better, open: Vec::new(), searches: 0, trace: Vec::new() };
            let found = next.misfit(witness, gradient)?;
            // Rounding decides below this.
            if found.is_nan() || found >= 0.9 * misfit {
                return Ok(());
            }
            (self.proven, misfit) = (next.proven, found);
        }
        Ok(())
    }

    fn report(
        self,
        seen: &GradientSeen,
        layer: &DenseLayer,
        witness: &Witness<'_>,
        gradient: &Params,
        gap: f64,
        stop: Stop,
    ) -> Result<Reconstruction, AttackError> {
        let misfit = self.misfit(witness, gradient)?;
        let (proven, open) = (self.proven.len(), self.open.len());
        let samples: Rows = self
            .proven
            .iter()
            .map(|proven| proven.sample.clone())
            .chain(self.open.iter().map(|o| o.0.clone()))
            .collect();
        if samples.is_empty() {
            return Err(no(
                "no direction of the gradient is sparse enough to be a sample",
                "noise, or units that are on and off together: subtract a mean from the inputs",
            ));
        }
        let tensor = if layer.reads_input {
            witness.batch(&samples)?
        } else {
            Tensor::from_f64(&samples.concat(), &[samples.len(), samples[0].len()], DType::F64)?
        };
        let whole = open == 0 && misfit < 1e-2;
        let mut found = Reconstruction::finished(tensor.to_dtype(seen.gradient.dtype())?, 0.0, false);
        found.certified = (0..proven + open).map(|index| index < proven && whole).collect();
        found.confidence = (self.proven.iter().map(|proven| 1.0 / (1.0 + proven.misfit)))
            .chain(self.open.iter().map(|(_, agreement)| 0.5 * agreement))
            .collect();
        found.labels = labels(seen, &self.proven).filter(|_| open == 0);
        found.iterations = self.searches;
        found.trace = self.trace;
        found.stop = if open > 0 && stop == Stop::Finished { Stop::IterationsUsed } else { stop };
        found.notes.push(match layer.reads_input {
            true => format!(
                "{proven} samples are proven by recomputing their gradients, {open} are not; together the proven ones \
                 explain the gradient up to {misfit:.1e} (gap of the singular values {gap:.1e})"
            ),
            false => format!(
                "layer `{}` does not read the input: these are {open} inputs of that layer, not samples",
                layer.name
            ),
        });
        if let Some(batch) = seen.batch_size.filter(|batch| *batch > proven + open) {
            found.notes.push(format!(
                "the batch has {batch} samples, and only {} directions: some are duplicates, or were off in every unit",
                proven + open
            ));
        }
        Ok(found)
    }
}

/// Classes that the residues of a loss over classes point to.
fn labels(seen: &GradientSeen, proven: &[Proven]) -> Option<Vec<usize>> {
    let class = |residues: &[f64]| match seen.model.loss {
        // r = p − e_y: negative at the label alone.
        Some(Loss::CrossEntropy) => (0..residues.len()).min_by(|&a, &b| residues[a].total_cmp(&residues[b])),
        Some(Loss::Logistic) if residues.len() == 1 => Some(usize::from(residues[0] < 0.0)),
        _ => None,
    };
    proven.iter().map(|proven| class(&proven.residues)).collect()
}

/// The rows of a matrix.
fn rows(matrix: &Mat<f64>) -> Rows {
    (0..matrix.nrows()).map(|row| matrix.row(row).iter().copied().collect()).collect()
}
