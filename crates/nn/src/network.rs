//! A network: a typed graph of layers with named parameters.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::algebra::{Algebra, Plain, Stage};
use crate::gradient::GradientSink;
use crate::graph::{self, BufferSpec, Node};
use crate::layers::{At, Layer, Rule};
use crate::params::{Buffer, ParamSpec};
use crate::pass::{Along, Pass, Seed};
use crate::{DType, Device, Error, LayerKind, NetworkSpec, Params, Result, Tensor, nearest};

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
    buffers: Arc<[BufferSpec]>,
    /// How many layers use each parameter.
    uses: Arc<[usize]>,
}

/// What batch normalisation divides by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The statistics of the batch at hand, through which gradients flow: `model.train()`.
    Train,
    /// The running statistics kept with the parameters: `model.eval()`.
    #[default]
    Eval,
}

impl Network {
    /// Type-checks a description. An error says which layer, which shapes and what would fit.
    pub fn new(spec: NetworkSpec) -> Result<Self> {
        let graph = graph::build(&spec)?;
        let mut uses = vec![0; graph.parameters.len()];
        for &parameter in graph.nodes.iter().flat_map(|node| &node.parameters) {
            uses[parameter] += 1;
        }
        Ok(Self {
            spec,
            nodes: graph.nodes.into(),
            parameters: graph.parameters.into(),
            buffers: graph.buffers.into(),
            uses: uses.into(),
        })
    }

    /// The same network with batch normalisation in another mode. A new network is in
    /// [`Mode::Eval`]; one without batch normalisation is the same in both.
    pub fn in_mode(&self, mode: Mode) -> Self {
        if self.buffers.is_empty() {
            return self.clone();
        }
        let nodes = self.nodes.iter().cloned().map(|mut node| {
            if let Layer::BatchNorm(norm) = &mut node.layer {
                norm.mode = mode;
            }
            node
        });
        Self { nodes: nodes.collect(), ..self.clone() }
    }

    /// Names of the running statistics, in order.
    pub fn buffer_names(&self) -> impl Iterator<Item = &str> {
        self.buffers.iter().map(|spec| spec.name.as_str())
    }

    /// Layers that are off although training may have had them on: dropout.
    ///
    /// ```
    /// use afterimage_nn::{Network, NetworkSpec};
    /// let text = r#"
    ///     input = [4]
    ///     layers = [{ name = "drop", kind = "dropout", p = 0.5 }, { kind = "linear", outputs = 2 }]
    /// "#;
    /// let network = Network::new(NetworkSpec::from_toml(text)?)?;
    /// assert_eq!(network.dropouts().collect::<Vec<_>>(), ["drop"]);
    /// # Ok::<(), afterimage_nn::Error>(())
    /// ```
    pub fn dropouts(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().filter(|node| matches!(node.layer, Layer::Dropout(_))).map(|node| node.name.as_str())
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Running statistics before any batch: mean 0, variance 1.
    pub(crate) fn fresh_buffers(&self, dtype: DType) -> Result<Arc<[Buffer]>> {
        let fresh = |spec: &BufferSpec| {
            let value = Tensor::full(spec.start, &[spec.length], dtype, Device::Cpu)?;
            Ok(Buffer { name: spec.name.clone(), value })
        };
        self.buffers.iter().map(fresh).collect()
    }

    /// Running statistics from named tensors: all of them, or, if there are none, fresh ones.
    fn named_buffers(
        &self,
        named: &mut BTreeMap<String, Tensor>,
        dtype: DType,
        device: Device,
    ) -> Result<Arc<[Buffer]>> {
        let given = self.buffer_names().any(|name| named.contains_key(name));
        let take = |spec: &BufferSpec| {
            let value = match named.remove(&spec.name) {
                None if !given => Tensor::full(spec.start, &[spec.length], dtype, device)?,
                None => {
                    let problem = format!("missing; expected shape [{}]", spec.length);
                    let hint = "other running statistics are there: was the file cut?".into();
                    return Err(Error::Parameter { name: spec.name.clone(), problem, hint });
                }
                Some(value) if value.shape() != [spec.length] => {
                    let problem = format!("expected shape [{}], found {:?}", spec.length, value.shape());
                    let hint = "the weights belong to a network of another size".into();
                    return Err(Error::Parameter { name: spec.name.clone(), problem, hint });
                }
                Some(value) => value.to_dtype(dtype)?,
            };
            value.check_finite(&format!("running statistic {}", spec.name))?;
            // A variance starts at one, a mean at zero.
            if spec.start > 0.0 && value.to_f64_vec()?.iter().any(|variance| *variance < 0.0) {
                let (problem, hint) =
                    ("is negative somewhere".into(), "a variance is not: was the file damaged?".into());
                return Err(Error::Parameter { name: spec.name.clone(), problem, hint });
            }
            Ok(Buffer { name: spec.name.clone(), value: value.to_device(device)? })
        };
        let buffers = self.buffers.iter().map(take).collect();
        // PyTorch counts batches beside the statistics, for averages that we do not keep.
        named.retain(|name, _| !name.ends_with(".num_batches_tracked"));
        buffers
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

    /// How many numbers each layer gives for one sample, in order.
    pub fn sizes(&self) -> Vec<usize> {
        self.nodes.iter().map(|node| node.shape.iter().product()).collect()
    }

    /// Whether it is made of fully connected layers and activations alone: then a pass has, of every value, a row for each
    /// sample, and samples do not know of each other.
    pub(crate) fn is_perceptron(&self) -> bool {
        let dense = |kind: &LayerKind| {
            matches!(kind, LayerKind::Linear { .. } | LayerKind::Activation { .. } | LayerKind::Flatten {})
        };
        self.spec.layers.iter().all(|layer| dense(&layer.kind))
    }

    /// How many results of layers and stages are worth recording where memory is short. The others take little to
    /// compute again: slopes of activations, and gradients of values of which the next layer makes few numbers.
    pub(crate) fn worth_recording(&self) -> HashMap<(usize, Stage), usize> {
        let few = |node: &Node| node.shape.iter().product::<usize>() <= 16;
        let places = self.nodes.iter().enumerate().filter_map(|(index, node)| match &node.layer {
            Layer::Activate(_) => Some(((index, Stage::Forward), 1)),
            Layer::Linear(_) if few(node) => Some(((index, Stage::Backward), 0)),
            _ => None,
        });
        places.collect()
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
        let given = named.keys().cloned().collect::<Vec<_>>().join(", ");
        let buffers = self.named_buffers(&mut named, dtype, device)?;
        let known = |name: &str| self.parameters.iter().any(|spec| spec.name == name);
        let mut values = Vec::with_capacity(self.parameters.len());
        for spec in self.parameters.iter() {
            let Some(tensor) = named.remove(&spec.name) else {
                return Err(Error::Parameter {
                    name: spec.name.clone(),
                    problem: format!("missing; expected shape {:?}", spec.shape),
                    hint: match nearest(&spec.name, named.keys().map(String::as_str).filter(|name| !known(name))) {
                        Some(near) => format!("`{near}` was given; is it this one under another name?"),
                        None => format!("given were {given}"),
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
        Ok(Params { specs: self.parameters.clone(), values, buffers })
    }

    /// Checks a batch of inputs: shape, number type, device, finite numbers.
    pub fn check_input(&self, theta: &Params, x: &Tensor) -> Result<()> {
        self.check_fits(theta, x)?;
        x.check_finite("network input")
    }

    /// The same without a look at the numbers, which for a device is a wait.
    pub(crate) fn check_fits(&self, theta: &Params, x: &Tensor) -> Result<()> {
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
        self.check_layout(theta)
    }

    /// Fails, naming the first difference, unless the parameters are this network's.
    fn check_layout<V>(&self, theta: &Params<V>) -> Result<()> {
        let buffers = Arc::from([]);
        let ours = Params { specs: self.parameters.clone(), values: vec![(); self.parameters.len()], buffers };
        ours.same_layout(theta)?;
        if theta.buffers.len() == self.buffers.len() {
            return Ok(());
        }
        Err(Error::Parameter {
            name: self.buffer_names().next().unwrap_or("running statistics").into(),
            problem: format!("{} running statistics where the network has {}", theta.buffers.len(), self.buffers.len()),
            hint: "both must come from the same network".into(),
        })
    }

    /// A node's parameters, and then its running statistics, as values of an algebra.
    fn borrowed<A: Algebra>(&self, algebra: &mut A, node: &Node, theta: &Params<A::Value>) -> Vec<A::Value> {
        let parameters = node.parameters.iter().map(|&p| theta.values[p].clone());
        let buffers = node.buffers.iter().map(|&b| algebra.constant(&theta.buffers[b].value));
        parameters.chain(buffers).collect()
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
        self.check_input(theta, x)?;
        c.check_finite("output coefficients")?;
        self.pass(theta, x)?.backward(Seed::Fixed(c.clone()), want)
    }

    /// Tangents of outputs and input gradient along the direction `v` in
    /// parameter space: all that KKT, NTK and gradient matching need.
    pub fn along(&self, theta: &Params, v: &Params, x: &Tensor, seed: Seed) -> Result<Along> {
        self.check_input(theta, x)?;
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
            let parameters = self.borrowed(algebra, node, theta);
            let parameters: Vec<&A::Value> = parameters.iter().collect();
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
        sink: Option<&mut dyn GradientSink<A>>,
        want_inputs: bool,
    ) -> Result<Option<A::Value>> {
        self.backpropagate_from(algebra, theta, trace, vec![(self.nodes.len(), output_grad)], sink, want_inputs)
    }

    /// The same from the gradients of any of the trace's values, each named once by its place.
    pub(crate) fn backpropagate_from<A: Algebra>(
        &self,
        algebra: &mut A,
        theta: &Params<A::Value>,
        trace: &Trace<A::Value>,
        from: Vec<(usize, A::Value)>,
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
        for (value, grad) in from {
            grads[value] = Some(grad);
        }
        for (index, node) in self.nodes.iter().enumerate().rev() {
            let Some(grad) = grads[index + 1].take() else { continue };
            let parameters = self.borrowed(algebra, node, theta);
            let parameters: Vec<&A::Value> = parameters.iter().collect();
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
