//! A network: a typed graph of layers with named parameters.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::algebra::{Algebra, Plain, Stage};
use crate::gradient::GradientSink;
use crate::graph::{self, Node};
use crate::layers::{At, Rule};
use crate::params::ParamSpec;
use crate::pass::{Along, Pass, Seed};
use crate::{DType, Device, Error, NetworkSpec, Params, Result, Tensor, nearest};

/// Which gradients a backward pass is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Those of the parameters.
    Weights,
    /// Those of the inputs.
    Inputs,
    /// Both.
    Both,
}

/// What a backward pass gives.
#[derive(Debug, Clone)]
pub struct Gradients {
    /// Σ_ik c_ik ∇_θ f_k(x_i), if weights were wanted.
    pub weights: Option<Params>,
    /// Σ_k c_ik ∇_x f_k(x_i), one row a sample, if inputs were wanted.
    pub inputs: Option<Tensor>,
}

/// The values of a forward pass.
pub struct Trace<V> {
    /// Value 0 is the input, value i + 1 the output of node i.
    values: Vec<V>,
    /// What each node put aside for its backward rules.
    kept: Vec<Vec<V>>,
}

impl<V> Trace<V> {
    /// Every value in the order of the layers, the input first.
    pub fn values(&self) -> &[V] {
        &self.values
    }

    /// The network's output.
    pub fn output(&self) -> &V {
        // A network has at least one layer, so there are at least two values.
        &self.values[self.values.len() - 1]
    }
}

/// A network without its parameters: it computes with whichever are given to it.
///
/// ```
/// use afterimage_nn::{DType, Init, Network, Tensor, Want, zoo::Mlp};
/// let network = Network::new(Mlp::new(3, &[16, 16], 2).spec())?;
/// let theta = network.init(&Init::Pytorch.into(), 7, DType::F64)?;
/// let x = Tensor::from_vec(vec![0.1, -0.4, 0.8, 1.0, 0.0, -1.0], &[2, 3])?;
/// let y = network.forward(&theta, &x)?;
/// assert_eq!(y.shape(), [2, 2]);
///
/// // Weighted sums of per-sample gradients come from one backward pass.
/// let c = Tensor::from_vec(vec![1.0, 0.0, 0.5, -0.5], &[2, 2])?;
/// let gradients = network.backward(&theta, &x, &c, Want::Both)?;
/// assert_eq!(gradients.inputs.map(|g| g.shape().to_vec()), Some(vec![2, 3]));
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Network {
    spec: NetworkSpec,
    nodes: Arc<[Node]>,
    parameters: Arc<[ParamSpec]>,
    /// How many layers use each parameter.
    uses: Arc<[usize]>,
}

impl Network {
    /// Type-checks a description. An error says which layer, which shapes and what would fit.
    pub fn new(spec: NetworkSpec) -> Result<Self> {
        let graph = graph::build(&spec)?;
        let mut uses = vec![0; graph.parameters.len()];
        for &parameter in graph.nodes.iter().flat_map(|node| &node.parameters) {
            uses[parameter] += 1;
        }
        Ok(Self { spec, nodes: graph.nodes.into(), parameters: graph.parameters.into(), uses: uses.into() })
    }

    /// The description it was built from.
    pub fn spec(&self) -> &NetworkSpec {
        &self.spec
    }

    /// Shape of one sample.
    pub fn input_shape(&self) -> &[usize] {
        &self.spec.input
    }

    /// Shape of one sample's output.
    pub fn output_shape(&self) -> &[usize] {
        &self.nodes[self.nodes.len() - 1].shape
    }

    /// Its parameters, in order.
    pub fn parameters(&self) -> &[ParamSpec] {
        &self.parameters
    }

    pub(crate) fn uses(&self) -> &[usize] {
        &self.uses
    }

    pub(crate) fn shared_parameters(&self) -> &Arc<[ParamSpec]> {
        &self.parameters
    }

    /// Parameters from named tensors, all of them present, of the right shape
    /// and finite; converted to one number type and device.
    pub fn params(&self, mut named: BTreeMap<String, Tensor>, dtype: DType, device: Device) -> Result<Params> {
        let known = |name: &str| self.parameters.iter().any(|spec| spec.name == name);
        let mut values = Vec::with_capacity(self.parameters.len());
        for spec in self.parameters.iter() {
            let Some(tensor) = named.remove(&spec.name) else {
                return Err(Error::Parameter {
                    name: spec.name.clone(),
                    problem: format!("missing; expected shape {:?}", spec.shape),
                    hint: match nearest(&spec.name, named.keys().map(String::as_str).filter(|name| !known(name))) {
                        Some(near) => format!("`{near}` was given; is it this one under another name?"),
                        None => format!("given were {}", named.keys().cloned().collect::<Vec<_>>().join(", ")),
                    },
                });
            };
            if tensor.shape() != spec.shape {
                return Err(Error::Parameter {
                    name: spec.name.clone(),
                    problem: format!("expected shape {:?}, found {:?}", spec.shape, tensor.shape()),
                    hint: "the weights belong to a network of another size, or are transposed".into(),
                });
            }
            let tensor = tensor.to_dtype(dtype)?;
            tensor.check_finite(&format!("parameter {} as {dtype}", spec.name))?;
            values.push(tensor.to_device(device)?);
        }
        if let Some(name) = named.keys().next() {
            return Err(Error::Parameter {
                name: name.clone(),
                problem: "the network has no such parameter".into(),
                hint: match nearest(name, self.parameters.iter().map(|spec| spec.name.as_str())) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => "remove it, or add the layer it belongs to".into(),
                },
            });
        }
        Ok(Params { specs: self.parameters.clone(), values })
    }

    /// Checks a batch of inputs: shape, number type, device, finite numbers.
    pub fn check_input(&self, theta: &Params, x: &Tensor) -> Result<()> {
        if x.shape().get(1..) != Some(self.input_shape()) {
            let expected: Vec<String> =
                std::iter::once("batch".into()).chain(self.input_shape().iter().map(usize::to_string)).collect();
            let expected = format!("[{}]", expected.join(", "));
            return Err(Error::Shape { what: "network input".into(), expected, found: x.shape().to_vec() });
        }
        if x.rows() == 0 {
            return Err(Error::EmptyBatch { what: "network input".into() });
        }
        let bound = !theta.values.is_empty();
        if bound && (x.dtype() != theta.dtype() || x.device() != theta.device()) {
            return Err(Error::Mismatch {
                what: "network input".into(),
                expected: format!("{} on {}, as the parameters are", theta.dtype(), theta.device()),
                found: format!("{} on {}", x.dtype(), x.device()),
            });
        }
        self.check_layout(theta)?;
        x.check_finite("network input")
    }

    /// Fails, naming the first difference, unless the parameters are this network's.
    fn check_layout<V>(&self, theta: &Params<V>) -> Result<()> {
        let ours = Params { specs: self.parameters.clone(), values: vec![(); self.parameters.len()] };
        ours.same_layout(theta)
    }

    /// The outputs, if they are numbers; otherwise an error that names the parameter
    /// that is not, or, if all are, the output.
    pub(crate) fn finite_outputs(&self, theta: &Params, outputs: Tensor) -> Result<Tensor> {
        match outputs.check_finite("network output") {
            Ok(()) => Ok(outputs),
            Err(error) => theta.check_finite().and(Err(error)),
        }
    }

    /// The outputs for a batch.
    pub fn forward(&self, theta: &Params, x: &Tensor) -> Result<Tensor> {
        self.check_input(theta, x)?;
        let outputs = self.trace(&mut Plain::new(), theta, x)?.output().clone();
        self.finite_outputs(theta, outputs)
    }

    /// The shape of so many samples.
    pub fn batch_shape(&self, count: usize) -> Vec<usize> {
        std::iter::once(count).chain(self.input_shape().iter().copied()).collect()
    }

    /// What the last layer reads, one row a sample: the network's own features.
    ///
    /// ```
    /// use afterimage_nn::{DType, Init, Network, Tensor, zoo::Mlp};
    /// let network = Network::new(Mlp::new(3, &[5], 2).spec())?;
    /// let theta = network.init(&Init::Pytorch.into(), 1, DType::F64)?;
    /// let x = Tensor::from_vec(vec![0.0; 12], &[4, 3])?;
    /// assert_eq!(network.features(&theta, &x)?.shape(), [4, 5]);
    /// # Ok::<(), afterimage_nn::Error>(())
    /// ```
    pub fn features(&self, theta: &Params, x: &Tensor) -> Result<Tensor> {
        let read = self.nodes.last().and_then(|node| node.inputs.first()).copied().unwrap_or(0);
        self.value_rows(theta, x, read)
    }

    /// What the layer of this name reads, one row a sample.
    ///
    /// ```
    /// use afterimage_nn::{DType, Init, Network, Tensor, zoo::Mlp};
    /// let network = Network::new(Mlp::new(3, &[5, 4], 2).spec())?;
    /// let theta = network.init(&Init::Pytorch.into(), 1, DType::F64)?;
    /// let x = Tensor::from_vec(vec![0.5; 6], &[2, 3])?;
    /// assert_eq!(network.inputs_of("2", &theta, &x)?.shape(), [2, 5]);
    /// assert!(network.inputs_of("7", &theta, &x).is_err());
    /// # Ok::<(), afterimage_nn::Error>(())
    /// ```
    pub fn inputs_of(&self, layer: &str, theta: &Params, x: &Tensor) -> Result<Tensor> {
        let names = || self.nodes.iter().map(|node| node.name.as_str());
        let node = self.nodes.iter().find(|node| node.name == layer).ok_or_else(|| Error::Spec {
            layer: format!("`{layer}`"),
            problem: "the network has no such layer".into(),
            hint: match nearest(layer, names()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("its layers are {}", names().collect::<Vec<_>>().join(", ")),
            },
        })?;
        self.value_rows(theta, x, node.inputs.first().copied().unwrap_or(0))
    }

    /// One of a pass's values, one row a sample.
    fn value_rows(&self, theta: &Params, x: &Tensor, value: usize) -> Result<Tensor> {
        self.check_input(theta, x)?;
        let trace = self.trace(&mut Plain::new(), theta, x)?;
        let rows = &trace.values[value];
        rows.reshape(&[rows.rows(), rows.row_len()])
    }

    /// A recorded forward pass, from which gradients and tangents follow.
    pub fn pass(&self, theta: &Params, x: &Tensor) -> Result<Pass<'_>> {
        Pass::new(self, theta, x)
    }

    /// Gradients of Σ_ik c_ik f_k(x_i), for a c of the outputs' shape.
    pub fn backward(&self, theta: &Params, x: &Tensor, c: &Tensor, want: Want) -> Result<Gradients> {
        self.pass(theta, x)?.backward(Seed::Fixed(c.clone()), want)
    }

    /// Tangents of outputs and input gradient along the direction `v` in
    /// parameter space: all that KKT, NTK and gradient matching need.
    pub fn along(&self, theta: &Params, v: &Params, x: &Tensor, seed: Seed) -> Result<Along> {
        self.pass(theta, x)?.along_with(seed, v)
    }

    /// The forward pass in any algebra.
    pub fn trace<A: Algebra>(
        &self,
        algebra: &mut A,
        theta: &Params<A::Value>,
        x: &A::Value,
    ) -> Result<Trace<A::Value>> {
        self.check_layout(theta)?;
        let mut trace = Trace { values: Vec::with_capacity(self.nodes.len() + 1), kept: Vec::new() };
        trace.values.push(x.clone());
        for (index, node) in self.nodes.iter().enumerate() {
            algebra.enter(index, Stage::Forward);
            let parameters: Vec<&A::Value> = node.parameters.iter().map(|&p| &theta.values[p]).collect();
            let inputs: Vec<&A::Value> = node.inputs.iter().map(|&v| &trace.values[v]).collect();
            let (output, kept) = node.layer.forward(algebra, &parameters, &inputs)?;
            trace.values.push(output);
            trace.kept.push(kept);
        }
        Ok(trace)
    }

    /// The backward pass in any algebra: parameter gradients go to `sink`, if
    /// there is one, and the input gradient is returned, if it is wanted.
    pub fn backpropagate<A: Algebra>(
        &self,
        algebra: &mut A,
        theta: &Params<A::Value>,
        trace: &Trace<A::Value>,
        output_grad: A::Value,
        mut sink: Option<&mut dyn GradientSink<A>>,
        want_inputs: bool,
    ) -> Result<Option<A::Value>> {
        self.check_layout(theta)?;
        if trace.kept.len() != self.nodes.len() {
            let problem = "the forward pass is that of another network".into();
            return Err(Error::Algebra { operation: "backward pass", problem });
        }
        let needed = self.needed(sink.is_some(), want_inputs);
        let mut grads: Vec<Option<A::Value>> = vec![None; trace.values.len()];
        grads[self.nodes.len()] = Some(output_grad);
        for (index, node) in self.nodes.iter().enumerate().rev() {
            let Some(grad) = grads[index + 1].take() else { continue };
            let parameters: Vec<&A::Value> = node.parameters.iter().map(|&p| &theta.values[p]).collect();
            let inputs: Vec<&A::Value> = node.inputs.iter().map(|&v| &trace.values[v]).collect();
            let at = At {
                parameters: &parameters,
                inputs: &inputs,
                output: &trace.values[index + 1],
                kept: &trace.kept[index],
            };
            if let Some(sink) = sink.as_deref_mut() {
                algebra.enter(index, Stage::Parameters);
                node.layer.parameters(algebra, &at, &grad, &node.parameters, sink)?;
            }
            if node.inputs.iter().any(|&value| needed[value]) {
                algebra.enter(index, Stage::Backward);
                let input_grads = node.layer.backward(algebra, &at, &grad)?;
                for (position, (&value, grad)) in node.inputs.iter().zip(input_grads).enumerate() {
                    if !needed[value] {
                        continue;
                    }
                    // A scope of its own: which sums are needed depends on what is wanted,
                    // and a pass that wants more must not mistake one sum for another.
                    algebra.enter(index, Stage::Accumulate(position));
                    grads[value] = Some(match grads[value].take() {
                        Some(previous) => algebra.add(&previous, &grad)?,
                        None => grad,
                    });
                }
            }
        }
        Ok(grads[0].take())
    }

    /// For each value, whether its gradient leads to anything that is wanted.
    fn needed(&self, weights: bool, inputs: bool) -> Vec<bool> {
        let mut needed = vec![inputs];
        for node in self.nodes.iter() {
            needed.push((weights && !node.parameters.is_empty()) || node.inputs.iter().any(|&value| needed[value]));
        }
        needed
    }
}
