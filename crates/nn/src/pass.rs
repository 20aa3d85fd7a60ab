//! One batch through a network, and everything that follows from it.

use crate::algebra::Plain;
use crate::cut::Cut;
use crate::dual::{Dual, Duals};
use crate::gradient::{Collect, GradientSink, Left, Moving, Residual, Residuals};
use crate::loss::Objective;
use crate::matching::Form;
use crate::network::{Gradients, Trace, Want};
use crate::{Error, Network, Params, Result, Tensor};

/// What the outputs are weighted with: the c of Σ_ik c_ik f_k(x_i).
#[derive(Debug, Clone)]
pub enum Seed {
    /// Numbers that do not depend on the outputs (KKT, NTK).
    Fixed(Tensor),
    /// The derivative of a loss at the outputs (gradient matching): it moves with them.
    Loss(Objective),
}

impl Seed {
    /// c at these outputs.
    fn coefficients(&self, outputs: &Tensor) -> Result<Tensor> {
        match self {
            Seed::Fixed(c) => {
                if c.shape() != outputs.shape() || c.dtype() != outputs.dtype() || c.device() != outputs.device() {
                    return Err(Error::Mismatch {
                        what: "output coefficients".into(),
                        expected: format!("{outputs:?}"),
                        found: format!("{c:?}"),
                    });
                }
                // On a device every reading is a wait: there, what c spoils is found in what is made of it.
                if c.on_cpu() {
                    c.check_finite("output coefficients")?;
                }
                Ok(c.clone())
            }
            Seed::Loss(objective) => objective.gradient(outputs),
        }
    }

    /// The tangent of c, where the outputs move by `tangent`.
    fn tangent(&self, outputs: &Tensor, tangent: &Tensor) -> Result<Option<Tensor>> {
        match self {
            Seed::Fixed(_) => Ok(None),
            Seed::Loss(objective) => objective.gradient_along(outputs, tangent).map(Some),
        }
    }
}

/// Derivatives along a direction v in parameter space.
#[derive(Debug, Clone)]
pub struct Along {
    /// d/dε f(θ + εv; x) = ⟨v, ∇_θ f_k(x_i)⟩ for each sample and output.
    pub outputs: Tensor,
    /// d/dε ∇_x Σ c f(θ + εv; x): the gradient in x of ⟨v, Σ c ∇_θ f⟩.
    pub inputs: Tensor,
}

/// Numbers of a pass, over all samples and layers, above which tangents are computed for some samples at a time.
const MANY: usize = 1 << 23;
/// Samples at a time then, at most: weights are read once for each part.
const PART: usize = 256;

/// A forward pass whose intermediate values are kept, so that gradients and
/// their derivatives need not compute them again.
///
/// This is one iteration of a matching attack: minimise D = ‖G − T‖² over x
/// and c, where G = Σ c ∇_θ f. With v = ∂D/∂G held fixed, ∂D/∂x is
/// [`Along::inputs`] and ∂D/∂c is [`Along::outputs`].
///
/// ```
/// use afterimage_nn::{DType, Init, Network, Seed, Tensor, zoo::Mlp};
/// let network = Network::new(Mlp::new(3, &[8], 1).spec())?;
/// let theta = network.init(&Init::Pytorch.into(), 1, DType::F64)?;
/// let x = Tensor::from_vec(vec![0.5, -0.2, 0.1], &[1, 3])?;
/// let c = Tensor::from_vec(vec![2.0], &[1, 1])?;
/// let target = theta.zeros_like()?;
///
/// let mut pass = network.pass(&theta, &x)?;
/// let residuals = pass.residual(Seed::Fixed(c), &target, &[2.0; 4])?;
/// let outer = pass.along(&residuals.direction)?;
/// assert_eq!(outer.inputs.shape(), [1, 3]);
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
pub struct Pass<'n> {
    network: &'n Network,
    theta: Params,
    algebra: Plain,
    trace: Trace<Tensor>,
    x: Tensor,
    /// The seed of the last backward pass and its coefficients.
    seeded: Option<(Seed, Tensor)>,
}

impl<'n> Pass<'n> {
    pub(crate) fn new(network: &'n Network, theta: &Params, x: &Tensor) -> Result<Self> {
        network.check_fits(theta, x)?;
        if x.on_cpu() {
            x.check_finite("network input")?;
        }
        let mut algebra = Plain::recording();
        let trace = network.trace(&mut algebra, theta, x)?;
        if x.on_cpu() {
            network.finite_outputs(theta, trace.output().clone())?;
        }
        Ok(Self { network, theta: theta.clone(), algebra, trace, x: x.clone(), seeded: None })
    }

    /// The network's outputs.
    pub fn outputs(&self) -> &Tensor {
        self.trace.output()
    }

    pub(crate) fn network(&self) -> &'n Network {
        self.network
    }

    pub(crate) fn values(&self) -> &[Tensor] {
        self.trace.values()
    }

    /// The input gradient from gradients of any of the values. What the last backward pass
    /// recorded stays as it is.
    pub(crate) fn pull_back(&self, from: Vec<(usize, Tensor)>) -> Result<Tensor> {
        let Self { network, theta, trace, .. } = self;
        let inputs = network.backpropagate_from(&mut Plain::new(), theta, trace, from, None, true)?;
        inputs.map_or_else(|| self.x.zeros_like(), Ok)
    }

    /// Starts a backward pass: forgets the last one, remembers the seed.
    fn seed(&mut self, seed: Seed) -> Result<Tensor> {
        let c = seed.coefficients(self.outputs())?;
        if let Some(tape) = self.algebra.tape_mut() {
            tape.rewind();
        }
        self.seeded = Some((seed, c.clone()));
        Ok(c)
    }

    /// Gradients of Σ c f.
    pub fn backward(&mut self, seed: Seed, want: Want) -> Result<Gradients> {
        let c = self.seed(seed)?;
        let Self { network, theta, algebra, trace, .. } = self;
        let want_inputs = want != Want::Weights;
        if want == Want::Inputs {
            let inputs = network.backpropagate(algebra, theta, trace, c, None, true)?;
            return Ok(Gradients { weights: None, inputs });
        }
        let mut collect = Collect::new(theta.values.len());
        let inputs = network.backpropagate(algebra, theta, trace, c, Some(&mut collect), want_inputs)?;
        Ok(Gradients { weights: Some(collect.finish(theta)?), inputs })
    }

    /// scale_p (G_p − T_p) and ‖G_p − T_p‖² for every parameter p, where
    /// G = Σ c ∇_θ f. The large gradients, those of weights, are never stored.
    pub fn residual(&mut self, seed: Seed, target: &Params, scales: &[f64]) -> Result<Residuals> {
        self.theta.same_layout(target)?;
        if scales.len() != target.values.len() {
            return Err(Error::shape("scales of a residual", [target.values.len()], &[scales.len()]));
        }
        let c = self.seed(seed)?;
        let Self { network, theta, algebra, trace, .. } = self;
        let mut sink = Residual::new(theta, target, scales, network.uses(), Form::Explicit);
        network.backpropagate(algebra, theta, trace, c, Some(&mut sink), false)?;
        let residuals = sink.finish(theta)?;
        // A sum of squares that is no number: the target's fault if it has one, else the gradient's.
        let spoilt = residuals.squares.iter().zip(target.names()).find(|(square, _)| !square.is_finite());
        match spoilt {
            None => Ok(residuals),
            Some((&value, name)) => target.check_finite().and(Err(Error::NonFinite {
                what: format!("squared residual of parameter {name}"),
                index: 0,
                value,
            })),
        }
    }

    /// Residual and tangents along it in one step, in the form that is cheaper: nothing is read
    /// from a device, nothing checked. `target` and `scales` fit the parameters.
    pub(crate) fn matched(mut self, c: &Tensor, target: &Params, scales: &[f64], form: Form) -> Result<(Left, Along)> {
        let c = self.seed(Seed::Fixed(c.clone()))?;
        let in_parts = self.takes_much_memory();
        let Self { network, theta, algebra, trace, .. } = &mut self;
        if in_parts {
            algebra.record_at_most(network.worth_recording());
        }
        let mut sink = Residual::new(theta, target, scales, network.uses(), form);
        network.backpropagate(algebra, theta, trace, c.clone(), Some(&mut sink), false)?;
        let left = sink.left()?;
        let mut direction = left.direction.iter();
        let moving = self.theta.map(|value| match direction.next() {
            Some(Moving::Dense(tangent)) => Ok(Dual::new(value.clone(), Some(tangent.clone()))),
            Some(Moving::Factored(difference)) => Ok(Dual::factored(value.clone(), difference.clone())),
            None => Ok(Dual::constant(value.clone())),
        })?;
        let along = match in_parts {
            true => self.tangents_in_parts(&c, &moving)?,
            false => self.tangents(&Seed::Fixed(c.clone()), &c, &moving, None)?,
        };
        Ok((left, along))
    }

    /// Whether tangents are computed for some samples at a time: where those of all would take much memory, and samples
    /// do not know of each other.
    fn takes_much_memory(&self) -> bool {
        let numbers = self.network.sizes().iter().sum::<usize>();
        self.x.on_cpu() && self.network.is_perceptron() && self.x.rows().saturating_mul(numbers) > MANY
    }

    /// Tangents with fixed coefficients, some samples at a time. Lets go of everything that is not on the tape.
    fn tangents_in_parts(self, c: &Tensor, theta: &Params<Dual>) -> Result<Along> {
        drop(self.trace);
        let (samples, tape) = (self.x.rows(), self.algebra.into_tape().unwrap_or_default());
        let part = samples.div_ceil(samples.div_ceil(PART));
        let (mut outputs, mut inputs) = (Vec::new(), Vec::new());
        for start in (0..samples).step_by(part) {
            let mut cut = Cut::new(start..samples.min(start + part));
            let (tape, x, c) = (tape.rows(&mut cut)?, cut.rows(&self.x)?, cut.rows(c)?);
            let theta = theta.map(|parameter| parameter.rows(&mut cut))?;
            let duals = Duals::replaying(Some(&tape));
            let along = tangents(self.network, duals, &theta, &x, |_| Ok(Dual::constant(c)), None)?;
            outputs.push(along.outputs);
            inputs.push(along.inputs);
        }
        let joined = |parts: &[Tensor]| Tensor::concat_rows(&parts.iter().collect::<Vec<_>>());
        Ok(Along { outputs: joined(&outputs)?, inputs: joined(&inputs)? })
    }

    /// Tangents along v, with the seed of the last backward pass, whose values are used again.
    pub fn along(&self, v: &Params) -> Result<Along> {
        let (seed, c) = self.seed_of_last()?;
        self.finite(self.tangents(seed, c, &self.moving(v)?, None)?, v)
    }

    /// Fails unless the tangents are finite, naming the direction's fault if it is one.
    fn finite(&self, along: Along, v: &Params) -> Result<Along> {
        let Along { outputs, inputs } = &along;
        Tensor::check_all_finite(&[(outputs, "tangent of the outputs"), (inputs, "tangent of the input gradient")])
            .or_else(|error| v.check_finite().and(Err(error)))?;
        Ok(along)
    }

    fn seed_of_last(&self) -> Result<(&Seed, &Tensor)> {
        self.seeded.as_ref().map(|(seed, c)| (seed, c)).ok_or_else(|| Error::Algebra {
            operation: "tangents along a direction",
            problem: "no backward pass has set the output coefficients; use `along_with`".into(),
        })
    }

    /// Tangents along v, with a seed of their own.
    pub fn along_with(&mut self, seed: Seed, v: &Params) -> Result<Along> {
        self.seed(seed)?;
        self.along(v)
    }

    /// Tangents along v, and d/dε of the parameter gradient Σ c ∇_θ f(θ + εv; x): what the
    /// gradient's own curvature does to v. Of a loss, its Hessian times v.
    ///
    /// ```
    /// use afterimage_nn::{DType, Init, Network, Seed, Tensor, zoo::Mlp};
    /// let network = Network::new(Mlp::new(3, &[8], 1).spec())?;
    /// let theta = network.init(&Init::Pytorch.into(), 1, DType::F64)?;
    /// let x = Tensor::from_vec(vec![0.5, -0.2, 0.1], &[1, 3])?;
    /// let mut pass = network.pass(&theta, &x)?;
    /// pass.backward(Seed::Fixed(Tensor::from_vec(vec![2.0], &[1, 1])?), afterimage_nn::Want::Weights)?;
    /// let (_, curved) = pass.curvature_along(&theta)?;
    /// // Without a loss, the output is linear in the last bias: nothing curves there.
    /// assert_eq!(curved.values()[3].to_scalar()?, 0.0);
    /// # Ok::<(), afterimage_nn::Error>(())
    /// ```
    pub fn curvature_along(&self, v: &Params) -> Result<(Along, Params)> {
        let (seed, c) = self.seed_of_last()?;
        let mut collect = Collect::new(self.theta.values.len());
        let along = self.tangents(seed, c, &self.moving(v)?, Some(&mut collect))?;
        Ok((self.finite(along, v)?, collect.tangents(&self.theta)?))
    }

    /// Tangents of the outputs alone: ⟨v, ∇_θ f_k(x_i)⟩.
    pub fn outputs_along(&self, v: &Params) -> Result<Tensor> {
        let (mut duals, theta) = (Duals::replaying(self.algebra.tape()), self.moving(v)?);
        let trace = self.network.trace(&mut duals, &theta, &Dual::constant(self.x.clone()))?;
        tangent_of(trace.output())
    }

    /// How the outputs move with the inputs: ∂f/∂x · v, one direction a row.
    ///
    /// ```
    /// use afterimage_nn::{DType, Init, Network, Tensor, zoo::Mlp};
    /// let network = Network::new(Mlp::new(3, &[], 2).spec())?;
    /// let theta = network.init(&Init::Pytorch.into(), 1, DType::F64)?;
    /// let x = Tensor::from_vec(vec![0.5, -0.2, 0.1], &[1, 3])?;
    /// // A linear map moves with its inputs as it maps them.
    /// let moved = network.pass(&theta, &x)?.outputs_moved(&x)?;
    /// let zero = network.forward(&theta, &x.zeros_like()?)?;
    /// let mapped = network.forward(&theta, &x)?.combine(1.0, &zero, -1.0)?;
    /// assert!(moved.combine(1.0, &mapped, -1.0)?.dot(&mapped)?.abs() < 1e-15);
    /// # Ok::<(), afterimage_nn::Error>(())
    /// ```
    pub fn outputs_moved(&self, v: &Tensor) -> Result<Tensor> {
        if v.shape() != self.x.shape() {
            return Err(Error::shape("direction in input space", self.x.shape().to_vec(), v.shape()));
        }
        let theta = self.theta.map(|value| Ok(Dual::constant(value.clone())))?;
        let mut duals = Duals::replaying(self.algebra.tape());
        let trace = self.network.trace(&mut duals, &theta, &Dual::new(self.x.clone(), Some(v.clone())))?;
        tangent_of(trace.output())
    }

    fn moving(&self, v: &Params) -> Result<Params<Dual>> {
        self.theta.zip(v, |value, tangent| {
            if value.shape() != tangent.shape()
                || value.dtype() != tangent.dtype()
                || value.device() != tangent.device()
            {
                return Err(Error::Mismatch {
                    what: "direction in parameter space".into(),
                    expected: format!("{value:?}"),
                    found: format!("{tangent:?}"),
                });
            }
            Ok(Dual::new(value.clone(), Some(tangent.clone())))
        })
    }

    fn tangents<'a>(
        &'a self,
        seed: &Seed,
        c: &Tensor,
        theta: &Params<Dual>,
        sink: Option<&mut dyn GradientSink<Duals<'a>>>,
    ) -> Result<Along> {
        let duals = Duals::replaying(self.algebra.tape());
        let moved = |outputs: &Tensor| Ok(Dual::new(c.clone(), seed.tangent(self.outputs(), outputs)?));
        tangents(self.network, duals, theta, &self.x, moved, sink)
    }
}

/// A forward and a backward pass over duals; the coefficients may move with the outputs.
fn tangents<'a>(
    network: &Network,
    mut duals: Duals<'a>,
    theta: &Params<Dual>,
    x: &Tensor,
    coefficients: impl FnOnce(&Tensor) -> Result<Dual>,
    sink: Option<&mut dyn GradientSink<Duals<'a>>>,
) -> Result<Along> {
    let trace = network.trace(&mut duals, theta, &Dual::constant(x.clone()))?;
    let outputs = tangent_of(trace.output())?;
    let c = coefficients(&outputs)?;
    let grad = network.backpropagate(&mut duals, theta, &trace, c, sink, true)?;
    let inputs = match grad.as_ref().and_then(Dual::tangent) {
        Some(tangent) => tangent.clone(),
        None => x.zeros_like()?,
    };
    Ok(Along { outputs, inputs })
}

/// The tangent as a tensor, zero where it is zero by structure.
fn tangent_of(dual: &Dual) -> Result<Tensor> {
    match dual.tangent() {
        Some(tangent) => Ok(tangent.clone()),
        None => dual.value()?.zeros_like(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zoo::Mlp;
    use crate::{Activation, DType, Init, Stream};

    /// Beyond [`MANY`] numbers, tangents come in parts: the same as those of all samples at once.
    #[test]
    fn tangents_in_parts_are_the_whole() {
        let (samples, width) = (PART + 44, 30_000);
        let network = Network::new(Mlp::new(3, &[width], 1).with_activation(Activation::Tanh).spec()).unwrap();
        assert!(samples * network.sizes().iter().sum::<usize>() > MANY);
        let theta = network.init(&Init::Pytorch.into(), 1, DType::F64).unwrap();
        let x = Stream::new(1, "x", 0).normal_tensor(1.0, &[samples, 3], DType::F64).unwrap();
        let c = Stream::new(1, "c", 0).normal_tensor(1.0, &[samples, 1], DType::F64).unwrap();
        for form in [Form::Explicit, Form::Gram] {
            let (_, parts) = network.pass(&theta, &x).unwrap().matched(&c, &theta, &[2.0; 4], form).unwrap();
            let mut pass = network.pass(&theta, &x).unwrap();
            let direction = pass.residual(Seed::Fixed(c.clone()), &theta, &[2.0; 4]).unwrap().direction;
            let whole = pass.along(&direction).unwrap();
            for (part, whole) in [(parts.outputs, whole.outputs), (parts.inputs, whole.inputs)] {
                let off = part.combine(1.0, &whole, -1.0).unwrap();
                let (off, size) = (off.dot(&off).unwrap(), whole.dot(&whole).unwrap());
                assert!(part.shape() == whole.shape() && size > 0.0 && off < 1e-24 * size, "{form:?}: {off} of {size}");
            }
        }
    }

    #[test]
    fn no_subnormal_number_is_kept() {
        // Sharp activations on inputs of ordinary size: σ(αz) underflows in most places.
        for activation in [Activation::SurrogateRelu { alpha: 100.0 }, Activation::Softplus { beta: 200.0 }] {
            let network = Network::new(Mlp::new(64, &[256, 256], 1).with_activation(activation).spec()).unwrap();
            let theta = network.init(&Init::Kaiming.into(), 1, DType::F32).unwrap();
            let x = Stream::new(1, "x", 0).normal_tensor(1.0, &[50, 64], DType::F32).unwrap();
            let c = Stream::new(1, "c", 0).normal_tensor(1e-3, &[50, 1], DType::F32).unwrap();
            let mut pass = network.pass(&theta, &x).unwrap();
            pass.backward(Seed::Fixed(c), Want::Both).unwrap();
            let kept: Vec<&Tensor> = pass.algebra.tape().unwrap().values().collect();
            assert!(kept.len() > 8, "{}", kept.len());
            for tensor in kept {
                let subnormal = tensor.host::<f32>().unwrap().iter().filter(|value| value.is_subnormal()).count();
                assert_eq!(subnormal, 0, "{activation}: {tensor:?}");
            }
        }
    }
}
