//! The descent: one start of the search, and what the attacker knows of its candidates.

use afterimage_nn::optim::UpdateRule;
use afterimage_nn::train::Schedule;
use afterimage_nn::{Device, Network, Tensor};

use super::batched::{self, Batched};
use super::held::{Held, Known, Within};
use super::matching::Matching;
use super::projected::{Projected, weigh};
use super::softening::Softening;
use super::space::ChangeSpace;
use super::steps::{Step, places};
use super::{Form, Ntk};
use crate::dense::perceptron;
use crate::descent::{Descended, Descent, Variable};
use crate::kkt::DualRule;
use crate::margin::{self, Span, Through, pixel_range};
use crate::{AttackError, PairSeen, Reconstruction, Session, Smoothness, Stop, Term, WeightedSum};

/// Features that are written out are up to so many numbers: 2 GiB of doubles.
const MOST_WRITTEN: usize = 1 << 28;
/// Features whose best multipliers are worth solving for at every step.
const MOST_SOLVED: usize = 1 << 13;

/// How sure a candidate is of which nothing is known.
const UNWEIGHED: f64 = 0.5;

/// β starts so many times sharper where records are known.
const SHARPER: f64 = 3.0;

/// A term with its weight.
pub(super) type Weighted<'a> = (f64, Box<dyn Term + 'a>);

/// What all starts share.
pub(super) struct Search<'a> {
    pub(super) attack: &'a Ntk,
    pub(super) seen: &'a PairSeen,
    pub(super) steps: &'a [Step],
    pub(super) space: Option<&'a ChangeSpace>,
    /// The space in the number type of the search.
    pub(super) span: Option<Span>,
    pub(super) candidates: usize,
}

impl Search<'_> {
    /// The network that is searched: in pixels, or in coordinates.
    fn network(&self) -> &Network {
        self.space.map_or(&self.seen.model.network, |space| &space.network)
    }

    fn outputs(&self) -> usize {
        self.network().output_shape().iter().product()
    }

    /// Gradients of the outputs at all candidates, in the step that has most.
    fn features(&self) -> usize {
        let places = self.steps.iter().map(|step| step.at.len()).max().unwrap_or(0);
        places * self.candidates * self.outputs()
    }

    /// Whether there is memory and time for their best multipliers. Gradients of perceptrons are products
    /// of factors; others are written out, as long as all parameters.
    fn solvable(&self) -> bool {
        let features = self.features();
        let factored = self.space.is_some() || perceptron(self.network()).is_some();
        let length = if factored { 1 } else { self.seen.model.theta.count() };
        features <= MOST_SOLVED && features.saturating_mul(length) <= MOST_WRITTEN
    }

    /// Fails where the best multipliers would take more than there is.
    pub(super) fn check(&self) -> Result<(), AttackError> {
        if self.attack.duals == DualRule::Descent || self.solvable() {
            return Ok(());
        }
        let (features, parameters) = (self.features(), self.seen.model.theta.count());
        let expected = format!(
            "is too much for {features} gradients of {parameters} parameters: set `duals` to \"descent\", or ask for \
             fewer `candidates`"
        );
        Err(AttackError::setting("duals", "projected", &expected))
    }

    /// Candidates of a start: for each known column one, for the others as many as there would be without.
    fn count(&self, known: usize) -> usize {
        let rank = self.space.map_or(1, |space| space.rank);
        known + (self.candidates * (rank - known.min(rank))).div_ceil(rank.max(1))
    }

    /// One start, with what is known from those before it.
    pub(super) fn run(
        &self,
        start: usize,
        known: &[Known],
        session: &mut Session<'_>,
    ) -> Result<Descended, AttackError> {
        let (attack, m) = (self.attack, self.count(known.len()));
        let (dtype, device) = (self.steps[0].change.dtype(), self.steps[0].change.device());
        let held = self.space.map(|space| Held::of(space, known, m, dtype, device)).transpose()?;
        if let Some(held) = held.as_ref().filter(|held| held.dimensions() == 0) {
            // One record: the change leaves it no choice.
            let (values, trace) = (vec![held.base()], Vec::new());
            return Ok(Descended { values, loss: 0.0, trace, iterations: 0, stop: Stop::Finished });
        }
        let mut draws = session.stream("start", start as u64);
        let x = match &held {
            Some(held) => {
                // Coordinates whose records have elements of the wanted size.
                let inputs: usize = self.seen.model.network.input_shape().iter().product();
                let sigma = attack.sigma * (inputs as f64 / held.dimensions().max(1) as f64).sqrt();
                let noise = draws.normal_tensor(sigma, &[m, held.dimensions()], dtype)?.to_device(device)?;
                held.start(known, &noise)?
            }
            None => {
                vec![draws.normal_tensor(attack.sigma, &self.network().batch_shape(m), dtype)?.to_device(device)?]
            }
        };
        let mut found = self.descend(start, x, held.as_ref(), session)?;
        if let Some(held) = &held {
            let place = |value: &Tensor| value.to_device(device);
            let values = found.values.iter().map(place).collect::<Result<Vec<_>, _>>()?;
            found.values = held.coordinates(&values)?;
        }
        Ok(found)
    }

    /// The descent from there.
    fn descend(
        &self,
        start: usize,
        x: Vec<Tensor>,
        held: Option<&Held>,
        session: &mut Session<'_>,
    ) -> Result<Descended, AttackError> {
        let attack = self.attack;
        let descent = Descent {
            iterations: attack.iterations,
            schedule: match attack.settle < 1.0 {
                true => Schedule::Settle { from: attack.settle },
                false => Schedule::Constant,
            },
            ..Descent::default()
        };
        let moves =
            |name: String, start: Tensor, lr: f64| Variable { name: name.into(), start, update: UpdateRule::adam(lr) };
        let [first, last] = attack.softplus;
        // A second variable is that of known records, which a softer network would draw away.
        let first = if x.len() > 1 { SHARPER * first } else { first };
        let softening = Softening { first, last, iterations: attack.iterations };
        let (network, steps, relative) = (self.network(), self.steps, attack.form == Form::Relative);
        if attack.duals == DualRule::Projected {
            let mut objective = WeightedSum::new().with(1.0, Projected { network, steps, softening });
            for (weight, prior) in self.priors()? {
                objective = objective.with(weight, prior);
            }
            let names = ["x", "own"].into_iter().zip(x);
            let variables: Vec<Variable> = names.map(|(name, x)| moves(name.into(), x, attack.lr)).collect();
            return descent.run(&variables, &mut Within { problem: objective, held }, session);
        }
        let x = &x[0];
        let (m, dtype, device) = (x.rows(), x.dtype(), x.device());
        let share = 1.0 / (m * self.outputs()) as f64;
        let mut draws = session.stream("alpha", start as u64);
        let mut variables = Vec::new();
        let parts = batched::parts(m, attack.batch.unwrap_or(m));
        for (batch, part) in parts.iter().enumerate() {
            let rows = places(steps) * part.len();
            let alpha = draws.tensor(&[rows, self.outputs()], dtype, |stream| stream.uniform(-0.5, 0.5))?;
            variables.push(moves(format!("x{batch}"), x.slice_rows(part.clone())?, attack.lr));
            variables.push(moves(format!("alpha{batch}"), alpha.to_device(device)?, attack.lr_alpha));
        }
        let loss = Matching { network, steps, softening, share, relative };
        if attack.batch.is_none() {
            let mut objective = WeightedSum::new().with(1.0, loss);
            for (weight, prior) in self.priors()? {
                objective = objective.with(weight, prior);
            }
            return descent.run(&variables, &mut Within { problem: objective, held }, session);
        }
        let seed = session.stream("order", start as u64).below(usize::MAX) as u64;
        let problem = Batched { loss, priors: self.priors()?, seed, totals: None, old: Vec::new() };
        descent.run(&variables, &mut Within { problem, held }, session)
    }

    /// What candidates should look like, with weights.
    fn priors(&self) -> Result<Vec<Weighted<'_>>, AttackError> {
        let (attack, model) = (self.attack, &self.seen.model);
        let shape = model.network.input_shape();
        // m · mean over all elements is the sum over them beside the size of a record.
        let elements = shape.iter().product::<usize>().max(1) as f64;
        let mut priors: Vec<Weighted<'_>> = Vec::new();
        let mut put = |weight: f64, term: Box<dyn Term>| {
            if weight > 0.0 {
                priors.push((
                    weight,
                    match &self.span {
                        Some(span) => Box::new(Through { span, term }),
                        None => term,
                    },
                ));
            }
        };
        if let Some(range) = pixel_range(attack.range, model)? {
            put(attack.range_weight / elements, Box::new(range));
        }
        if attack.smooth_weight > 0.0 {
            put(attack.smooth_weight / elements, Box::new(Smoothness::new(shape, 0)?));
        }
        Ok(priors)
    }

    /// What a start found, with what the attacker knows of it.
    pub(super) fn weighed(&self, mut found: Descended) -> Result<Reconstruction, AttackError> {
        let model = &self.seen.model;
        let (dtype, device) = (model.theta.dtype(), model.theta.device());
        let parts = found.values.iter().step_by(if self.attack.duals == DualRule::Projected { 1 } else { 2 });
        let parts = parts.map(|part| part.to_device(device)).collect::<Result<Vec<_>, _>>()?;
        let x = Tensor::concat_rows(&parts.iter().collect::<Vec<_>>())?;
        let records = match self.space {
            Some(space) => space.span.records(&x.to_dtype(dtype)?)?,
            None => x.to_dtype(dtype)?,
        };
        found.values = vec![records.clone()];
        let mut all = Reconstruction::descended(found, 0)?;
        let outputs = model.network.forward(&model.theta, &records)?.to_f64_vec()?;
        all.labels = Some(outputs.chunks_exact(self.outputs()).map(|f| margin::Labels::margin_of(f).1).collect());
        // Gradients that nobody can hold leave it open which candidates are needed.
        all.confidence = vec![UNWEIGHED; x.rows()];
        if self.solvable() {
            let weighed = weigh(self.network(), self.steps, &x)?;
            let full = weighed.needed.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
            all.confidence = weighed.needed.iter().map(|needed| (needed / full).clamp(0.0, 1.0)).collect();
            let flat: Vec<f64> = weighed.multipliers.concat();
            let shape: &[usize] = if self.outputs() == 1 { &[x.rows()] } else { &[x.rows(), self.outputs()] };
            all.coefficients = Some(Tensor::from_vec(flat, shape)?);
            all.notes.push(format!("{:.3} % of the change is left unexplained", 100.0 * weighed.left.max(0.0)));
        }
        all.samples = all.samples.to_device(Device::Cpu)?;
        Ok(all)
    }
}
