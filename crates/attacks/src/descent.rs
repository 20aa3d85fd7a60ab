//! The one loop every iterative attack runs in: steps, progress, checkpoints,
//! the best point so far, and the wish to stop.

use std::borrow::Cow;
use std::collections::BTreeMap;

use afterimage_nn::io::{Integers, TensorFile};
use afterimage_nn::optim::{Lbfgs, LbfgsOptions, LbfgsStep, Optimizer, UpdateRule};
use afterimage_nn::train::Schedule;
use afterimage_nn::{Error, Tensor};
use serde::{Deserialize, Serialize};

use crate::{AttackError, Session, Stop, Tick, TracePoint};

/// Something to be minimised. What it draws at random it draws by the
/// iteration's number, so that a resumed run draws the same.
pub trait Problem {
    /// The loss and its gradients at a point.
    fn evaluate(&mut self, iteration: usize, at: &[Tensor]) -> Result<Evaluation, AttackError>;

    /// Changes the variables after a step: projections, noise.
    fn after_step(&mut self, _iteration: usize, _values: &mut [Tensor]) -> Result<(), AttackError> {
        Ok(())
    }

    /// What it carries from one step to the next, by name: it belongs to a checkpoint.
    fn memory(&self) -> Result<Vec<(String, Tensor)>, AttackError> {
        Ok(Vec::new())
    }

    /// Takes back what [`memory`](Self::memory) gave.
    fn remember(&mut self, _memory: BTreeMap<String, Tensor>) -> Result<(), AttackError> {
        Ok(())
    }
}

/// A loss with its gradients, one for each variable.
#[derive(Debug, Clone)]
pub struct Evaluation {
    /// The loss.
    pub loss: f64,
    /// Its gradients; a variable without one is not moved.
    pub gradients: Vec<Option<Tensor>>,
}

/// A quantity that is searched for, and the rule that moves it.
#[derive(Debug, Clone)]
pub struct Variable {
    /// Its name in checkpoints.
    pub name: Cow<'static, str>,
    /// Where it starts.
    pub start: Tensor,
    /// How it moves.
    pub update: UpdateRule,
}

/// Which point a descent gives back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Keep {
    /// The one it ends at.
    #[default]
    Last,
    /// The one with the smallest loss on the way: the attacker's own choice.
    Best,
}

/// A descent by first-order steps.
///
/// ```
/// use afterimage_attacks::{AttackError, Descent, Evaluation, Problem, Quiet, Session, Variable};
/// use afterimage_nn::{Tensor, optim::UpdateRule};
/// struct Bowl;
/// impl Problem for Bowl {
///     fn evaluate(&mut self, _: usize, at: &[Tensor]) -> Result<Evaluation, AttackError> {
///         Ok(Evaluation { loss: at[0].dot(&at[0])?, gradients: vec![Some(at[0].scale(2.0)?)] })
///     }
/// }
/// let start = Tensor::from_vec(vec![1.0, -2.0], &[2])?;
/// let x = Variable { name: "x".into(), start, update: UpdateRule::sgd(0.1) };
/// let descent = Descent { iterations: 100, ..Descent::default() };
/// let found = descent.run(&[x], &mut Bowl, &mut Session::new(1, &mut Quiet))?;
/// assert!(found.loss < 1e-15 && found.values[0].dot(&found.values[0])? < 1e-15);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Descent {
    /// Steps to take.
    pub iterations: usize,
    /// The learning rates over the steps.
    pub schedule: Schedule,
    /// Which point is given back.
    pub keep: Keep,
    /// Loss at or below which nothing is left to gain.
    pub stop_loss: Option<f64>,
}

impl Default for Descent {
    fn default() -> Self {
        Self { iterations: 1000, schedule: Schedule::Constant, keep: Keep::Last, stop_loss: None }
    }
}

/// Where a descent led.
#[derive(Debug, Clone)]
pub struct Descended {
    /// The variables, in their order.
    pub values: Vec<Tensor>,
    /// The loss there; of an interrupted run, before its last step.
    pub loss: f64,
    /// The loss on the way: at most [`TRACE_POINTS`] points and the last.
    pub trace: Vec<TracePoint>,
    /// Steps taken.
    pub iterations: usize,
    /// Why it ended.
    pub stop: Stop,
}

/// Most points of a trace.
pub const TRACE_POINTS: usize = 1000;

impl Descent {
    /// Runs from the start, or from the session's checkpoint if it has one.
    ///
    /// A loss that is no number ends the run with an error that names the
    /// iteration.
    pub fn run(
        &self,
        variables: &[Variable],
        problem: &mut dyn Problem,
        session: &mut Session<'_>,
    ) -> Result<Descended, AttackError> {
        let mut state = match session.resumed() {
            Some(mut file) => {
                problem.remember(memory_of(&mut file))?;
                State::resume(variables, file)?
            }
            None => State::start(variables)?,
        };
        let every = self.iterations.div_ceil(TRACE_POINTS).max(1);
        while state.iteration < self.iterations {
            let Evaluation { loss, gradients } = problem.evaluate(state.iteration, &state.values)?;
            let loss = finite(loss, state.iteration)?;
            if self.stop_loss.is_some_and(|stop| loss <= stop) {
                state.trace.push(TracePoint { iteration: state.iteration, loss });
                return Ok(state.end(loss, Stop::Finished));
            }
            if self.keep == Keep::Best && state.best.as_ref().is_none_or(|(best, _)| loss < *best) {
                state.best = Some((loss, state.values.clone()));
            }
            if state.iteration.is_multiple_of(every) {
                state.trace.push(TracePoint { iteration: state.iteration, loss });
            }
            let factor = self.schedule.factor(state.iteration, self.iterations);
            state.step(&gradients, factor)?;
            problem.after_step(state.iteration, &mut state.values)?;
            state.iteration += 1;
            let tick = Tick { iteration: state.iteration, total: self.iterations, loss: Some(loss) };
            if session.tick(tick).is_break() {
                session.keep(&state.file(variables, problem)?)?;
                return Ok(state.end(loss, Stop::Interrupted));
            }
            session.checkpoint(|| state.file(variables, problem))?;
        }
        let loss = finite(problem.evaluate(self.iterations, &state.values)?.loss, self.iterations)?;
        state.trace.push(TracePoint { iteration: self.iterations, loss });
        match state.best.take().filter(|(best, _)| *best < loss) {
            Some((best, values)) => Ok(State { values, ..state }.end(best, Stop::IterationsUsed)),
            None => Ok(state.end(loss, Stop::IterationsUsed)),
        }
    }
}

impl Descent {
    /// The same problem by L-BFGS with a line search, which remembers so many steps; the
    /// variables' own rules and the schedule are not used. It keeps no checkpoints: an interrupted run starts again.
    pub fn quasi_newton(
        &self,
        variables: &[Variable],
        problem: &mut dyn Problem,
        history: usize,
        session: &mut Session<'_>,
    ) -> Result<Descended, AttackError> {
        let options = LbfgsOptions { history, ..LbfgsOptions::default() };
        let mut failure = None;
        let mut iteration = 0;
        // The objective does not change on the way: a line search compares its values.
        let mut function = |at: &[Tensor]| match problem.evaluate(0, at) {
            Ok(Evaluation { loss, gradients }) => {
                let gradients = gradients.into_iter().zip(at);
                let gradients = gradients.map(|(gradient, at)| gradient.map_or_else(|| at.zeros_like(), Ok));
                Ok((loss, gradients.collect::<Result<_, _>>()?))
            }
            // Too long a step of the line search left the numbers: it is to come back.
            Err(AttackError::Nn(Error::NonFinite { .. })) => {
                Ok((f64::INFINITY, at.iter().map(Tensor::zeros_like).collect::<Result<_, _>>()?))
            }
            Err(AttackError::Nn(error)) => Err(error),
            Err(error) => {
                let problem = error.to_string();
                failure = Some(error);
                Err(Error::Algebra { operation: "L-BFGS", problem })
            }
        };
        let start = variables.iter().map(|variable| variable.start.clone()).collect();
        let (mut trace, mut stop) = (Vec::new(), Stop::IterationsUsed);
        let every = self.iterations.div_ceil(TRACE_POINTS).max(1);
        let search = || -> Result<Lbfgs, Error> {
            let mut lbfgs = Lbfgs::new(options, start, &mut function)?;
            while iteration < self.iterations {
                let loss = lbfgs.value();
                if iteration.is_multiple_of(every) {
                    trace.push(TracePoint { iteration, loss });
                }
                let step = lbfgs.step(&mut function)?;
                iteration += 1;
                if session.tick(Tick { iteration, total: self.iterations, loss: Some(loss) }).is_break() {
                    stop = Stop::Interrupted;
                    break;
                }
                if !matches!(step, LbfgsStep::Moved { .. }) || self.stop_loss.is_some_and(|stop| lbfgs.value() <= stop)
                {
                    stop = Stop::Finished;
                    break;
                }
            }
            Ok(lbfgs)
        };
        let lbfgs = match (search(), failure) {
            (_, Some(error)) => return Err(error),
            (found, None) => found?,
        };
        let loss = finite(lbfgs.value(), iteration)?;
        trace.push(TracePoint { iteration, loss });
        Ok(Descended { values: lbfgs.point().to_vec(), loss, trace, iterations: iteration, stop })
    }
}

fn finite(loss: f64, iteration: usize) -> Result<f64, AttackError> {
    if loss.is_finite() {
        return Ok(loss);
    }
    let hint = "lower the learning rate, or compute in f64".into();
    Err(Error::Diverged { epochs: iteration, loss, hint }.into())
}

/// A descent under way.
struct State {
    values: Vec<Tensor>,
    optimizers: Vec<Optimizer>,
    best: Option<(f64, Vec<Tensor>)>,
    trace: Vec<TracePoint>,
    iteration: usize,
}

/// The part of a checkpoint that is text.
#[derive(Serialize, Deserialize)]
struct Text {
    trace: Vec<TracePoint>,
    best: Option<f64>,
}

impl State {
    fn start(variables: &[Variable]) -> Result<Self, AttackError> {
        let optimizers = variables.iter().map(|variable| Optimizer::new(variable.update)).collect::<Result<_, _>>()?;
        let values = variables.iter().map(|variable| variable.start.clone()).collect();
        Ok(Self { values, optimizers, best: None, trace: Vec::new(), iteration: 0 })
    }

    fn step(&mut self, gradients: &[Option<Tensor>], factor: f64) -> Result<(), AttackError> {
        let moves = self.values.iter_mut().zip(gradients).zip(&mut self.optimizers);
        for ((value, gradient), optimizer) in moves {
            let Some(gradient) = gradient else { continue };
            optimizer.step(std::slice::from_mut(value), std::slice::from_ref(gradient), factor)?;
        }
        Ok(())
    }

    fn end(self, loss: f64, stop: Stop) -> Descended {
        Descended { values: self.values, loss, trace: self.trace, iterations: self.iteration, stop }
    }

    /// Everything the next step depends on.
    fn file(&self, variables: &[Variable], problem: &dyn Problem) -> Result<TensorFile, AttackError> {
        let mut file = TensorFile::default();
        file.tensors.extend(problem.memory()?.into_iter().map(|(name, value)| (format!("{MEMORY}{name}"), value)));
        for (index, variable) in variables.iter().enumerate() {
            let name = &variable.name;
            file.tensors.insert(format!("value.{name}"), self.values[index].clone());
            if let Some((_, best)) = &self.best {
                file.tensors.insert(format!("best.{name}"), best[index].clone());
            }
            let (steps, memory) = self.optimizers[index].state();
            file.integers.insert(format!("steps.{name}"), integer(steps as i64));
            for (place, memory) in memory.iter().enumerate() {
                file.tensors.insert(format!("memory.{name}.{place}"), memory.clone());
            }
        }
        file.integers.insert(ITERATION.into(), integer(self.iteration as i64));
        let text = Text { trace: self.trace.clone(), best: self.best.as_ref().map(|(loss, _)| *loss) };
        let text = serde_json::to_string(&text).map_err(|error| unusable(error.to_string()))?;
        file.metadata.insert("descent".into(), text);
        Ok(file)
    }

    fn resume(variables: &[Variable], mut file: TensorFile) -> Result<Self, AttackError> {
        let text = file.metadata.get("descent").ok_or_else(|| unusable("it has no record of a descent".into()))?;
        let text: Text = serde_json::from_str(text).map_err(|error| unusable(error.to_string()))?;
        let iteration = whole(&file.integers, ITERATION).ok_or_else(|| unusable("it has no iteration".into()))?;
        let tensors = &mut file.tensors;
        let mut take = |name: &str, like: &Tensor| -> Result<Option<Tensor>, AttackError> {
            let Some(value) = tensors.remove(name) else { return Ok(None) };
            if value.shape() != like.shape() || value.dtype() != like.dtype() {
                return Err(unusable(format!("{name} does not fit this attack")));
            }
            Ok(Some(value.to_device(like.device())?))
        };
        let mut state = Self { values: Vec::new(), optimizers: Vec::new(), best: None, trace: text.trace, iteration };
        let mut best = Vec::new();
        for Variable { name, start, update } in variables {
            let value = take(&format!("value.{name}"), start)?;
            state.values.push(value.ok_or_else(|| unusable(format!("it lacks {name}")))?);
            best.extend(take(&format!("best.{name}"), start)?);
            let mut memory = Vec::new();
            while let Some(tensor) = take(&format!("memory.{name}.{}", memory.len()), start)? {
                memory.push(tensor);
            }
            let steps = whole(&file.integers, &format!("steps.{name}")).unwrap_or(iteration);
            state.optimizers.push(Optimizer::resume(*update, steps as u64, memory)?);
        }
        state.best = text.best.filter(|_| best.len() == variables.len()).map(|loss| (loss, best));
        Ok(state)
    }
}

const ITERATION: &str = "iteration";
/// Steps of the searches before this one.
pub(crate) const BEFORE: &str = "before";
/// What names of a problem's own tensors begin with.
const MEMORY: &str = "problem.";

/// What the problem kept in a checkpoint, taken out of it.
fn memory_of(file: &mut TensorFile) -> BTreeMap<String, Tensor> {
    let (own, rest) = std::mem::take(&mut file.tensors).into_iter().partition(|(name, _)| name.starts_with(MEMORY));
    file.tensors = rest;
    let own: BTreeMap<String, Tensor> = own;
    own.into_iter().map(|(name, value)| (name[MEMORY.len()..].to_owned(), value)).collect()
}

/// How far a checkpoint got, if it says so: with the steps of searches that were finished before it.
pub fn checkpoint_iteration(state: &TensorFile) -> Option<usize> {
    Some(whole(&state.integers, BEFORE).unwrap_or(0) + whole(&state.integers, ITERATION)?)
}

/// A number in a file.
pub(crate) fn integer(value: i64) -> Integers {
    Integers { shape: vec![1], values: vec![value] }
}

/// A number that is not negative, if a file has it.
pub(crate) fn whole(integers: &BTreeMap<String, Integers>, name: &str) -> Option<usize> {
    integers.get(name)?.values.first().and_then(|&value| usize::try_from(value).ok())
}

fn unusable(problem: String) -> AttackError {
    AttackError::File { file: "checkpoint".into(), problem: format!("cannot be used: {problem}") }
}
