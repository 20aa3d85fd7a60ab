//! From ONNX's nodes to layers.

mod elementwise;
mod image;
mod joining;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use super::Imported;
use super::attributes::Attributes;
use super::constant::Constant;
use super::proto::{Graph, Node};
use crate::spec::{LayerKind, LayerSpec, NetworkSpec};
use crate::{Activation, Tensor};

type Result<T> = std::result::Result<T, String>;

/// What a value of the graph is.
#[derive(Debug, Clone)]
enum Value {
    /// The output of a layer, or `input`.
    Layer(String),
    /// Known numbers.
    Constant(Constant),
    /// A shape that depends on the batch: sides, those of the batch unknown.
    Shape(Vec<Option<i64>>),
    /// σ(x) of a layer x that nobody but a product with x may read.
    Gate(String),
    /// Where a layer's output is so large that its softplus is the same number.
    Large(String),
    /// A layer's output with zeros around it, for a convolution: top, left, bottom, right.
    Padded(String, [i64; 4]),
}

/// The network of a graph's first output.
pub(super) fn build(graph: &Graph, folder: Option<&Path>) -> Result<Imported> {
    let mut values = HashMap::new();
    for tensor in &graph.initializers {
        let constant =
            Constant::read(tensor, folder).map_err(|problem| format!("tensor {}: {problem}", tensor.name))?;
        values.insert(tensor.name.clone(), Value::Constant(constant));
    }
    let mut inputs = graph.inputs.iter().filter(|input| !values.contains_key(&input.name));
    let input = inputs.next().ok_or("has no input")?;
    if let Some(second) = inputs.next() {
        return Err(format!("has two inputs, `{}` and `{}`: networks with one can be read", input.name, second.name));
    }
    let shape = input.kind.as_ref().and_then(|kind| kind.tensor.as_ref()?.shape.as_ref());
    let sides: Vec<usize> = shape
        .iter()
        .flat_map(|shape| shape.dims.iter().skip(1))
        .map(|side| usize::try_from(side.value).unwrap_or(0))
        .collect();
    if sides.is_empty() || sides.contains(&0) {
        let hint = "export it with a fixed size of samples; only the first axis, the batch, may be open";
        return Err(format!("its input `{}` has an unknown shape: {hint}", input.name));
    }
    values.insert(input.name.clone(), Value::Layer("input".into()));
    let output = graph.outputs.first().ok_or("has no output")?;
    let needed = needed(graph, &output.name);
    let (layers, tensors, renamed) = (Vec::new(), BTreeMap::new(), HashMap::new());
    let mut builder = Builder { values, layers, tensors, uses: uses(graph, &needed), renamed, input: sides.clone() };
    for (place, node) in graph.nodes.iter().enumerate().filter(|(place, _)| needed.contains(place)) {
        builder.node(node).map_err(|problem| {
            let name = if node.name.is_empty() { format!("{place}") } else { node.name.clone() };
            format!("operator {} ({name}): {problem}", node.operator)
        })?;
    }
    let last = builder.layers.last().map(|layer| layer.name.clone());
    match (builder.values.get(&output.name), last) {
        (Some(Value::Layer(layer)), Some(Some(last))) if *layer == last => {}
        _ => return Err(format!("its output `{}` is not what its last layer gives", output.name)),
    }
    Ok(Imported { spec: NetworkSpec { input: sides, layers: builder.layers }, tensors: builder.tensors })
}

/// Places of the nodes that an output depends on.
fn needed(graph: &Graph, output: &str) -> HashSet<usize> {
    let (mut wanted, mut needed) = (HashSet::from([output]), HashSet::new());
    // A file lists a node after those that it reads.
    for (place, node) in graph.nodes.iter().enumerate().rev() {
        if node.outputs.iter().any(|name| wanted.contains(name.as_str())) {
            needed.insert(place);
            wanted.extend(node.inputs.iter().map(String::as_str));
        }
    }
    needed
}

/// How often each value is read.
fn uses(graph: &Graph, needed: &HashSet<usize>) -> HashMap<String, usize> {
    let mut uses = HashMap::new();
    for (_, node) in graph.nodes.iter().enumerate().filter(|(place, _)| needed.contains(place)) {
        node.inputs.iter().for_each(|name| *uses.entry(name.clone()).or_insert(0) += 1);
    }
    uses
}

struct Builder {
    values: HashMap<String, Value>,
    layers: Vec<LayerSpec>,
    tensors: BTreeMap<String, Tensor>,
    uses: HashMap<String, usize>,
    /// Names that constants had before they were passed on.
    renamed: HashMap<String, String>,
    /// Shape of a sample.
    input: Vec<usize>,
}

impl Builder {
    fn node(&mut self, node: &Node) -> Result<()> {
        let attributes = Attributes(node);
        match node.operator.as_str() {
            "Constant" => {
                let constant = attributes.constant()?;
                self.give(node, Value::Constant(constant))
            }
            "Identity" | "Dropout" | "Cast" | "CastLike" => self.pass(node),
            "Gemm" => self.gemm(node, &attributes),
            "MatMul" => {
                let weight =
                    self.constant(node, 1)?.transposed().ok_or("multiplies with something that is no matrix")?;
                self.linear(node, &weight, None)
            }
            "Conv" | "ConvTranspose" => self.convolution(node, &attributes),
            "BatchNormalization" => self.batch_norm(node, &attributes),
            "Relu" => self.activation(node, Activation::Relu),
            "LeakyRelu" => {
                let slope = attributes.float("alpha").unwrap_or(0.01);
                self.activation(node, Activation::LeakyRelu { slope })
            }
            "Tanh" => self.activation(node, Activation::Tanh),
            "Softplus" => self.activation(node, Activation::Softplus { beta: 1.0 }),
            "Sigmoid" => self.sigmoid(node),
            "Swish" => self.activation(node, Activation::Silu),
            "PRelu" => self.prelu(node),
            "Clip" => self.clip(node, &attributes),
            "MaxPool" | "AveragePool" => self.pool(node, &attributes),
            "GlobalAveragePool" => self.layer(node, 0, LayerKind::AdaptiveAvgPool { output: 1.into() }),
            "ReduceMean" => self.reduce_mean(node, &attributes),
            "Resize" | "Upsample" => self.resize(node, &attributes),
            "Flatten" if attributes.int("axis").unwrap_or(1) == 1 => self.layer(node, 0, LayerKind::Flatten {}),
            "Reshape" => self.reshape(node),
            "Squeeze" => match self.value(node, 0)? {
                Value::Layer(_) => self.layer(node, 0, LayerKind::Flatten {}),
                _ => self.pass(node),
            },
            "Add" => self.sum(node),
            "Mul" => self.product(node),
            "Concat" => self.concat(node, &attributes),
            "Transpose" if attributes.ints("perm").is_some_and(|order| order != [1, 0]) => {
                Err("reorders other axes than those of a matrix, which no layer here does".into())
            }
            "Transpose" => match self.constant(node, 0).ok().and_then(|constant| constant.transposed()) {
                Some(constant) => self.give(node, Value::Constant(constant)),
                None => Err("reorders the axes of a batch, which no layer here does".into()),
            },
            "Pad" => self.pad(node, &attributes),
            "Expand" => self.expand(node),
            "Shape" | "Gather" | "Slice" | "Unsqueeze" => match self.value(node, 0)? {
                Value::Constant(_) if node.operator == "Unsqueeze" => self.pass(node),
                Value::Constant(constant) if node.operator == "Shape" => {
                    let end = attributes.int("end").and_then(|end| usize::try_from(end).ok()).unwrap_or(usize::MAX);
                    let numbers: Vec<f64> = constant.shape.iter().take(end).map(|&side| side as f64).collect();
                    let constant = Constant { shape: vec![numbers.len()], numbers, whole: true };
                    self.give(node, Value::Constant(constant))
                }
                // Of all a shape is used for here, the batch's own size is what changes.
                Value::Layer(_) if node.operator != "Shape" => {
                    Err("takes a part of a batch, which no layer here does".into())
                }
                _ => self.give(node, Value::Shape(vec![None])),
            },
            "Greater" => match (self.value(node, 0)?, self.constant(node, 1)?.numbers[..].first()) {
                (Value::Layer(layer), Some(&line)) if line >= 15.0 => {
                    let layer = layer.clone();
                    self.give(node, Value::Large(layer))
                }
                _ => Err("compares values, which no layer here does".into()),
            },
            "Where" => self.softplus_where_small(node),
            "Softmax" | "LogSoftmax" => {
                Err("export the network without it: losses here take the numbers before a softmax".into())
            }
            _ => Err(
                "is not known. Do this: replace it by a layer of docs/networks.md, or describe the network by hand \
                      in network.toml"
                    .into(),
            ),
        }
    }

    /// What a node's first output is.
    fn give(&mut self, node: &Node, value: Value) -> Result<()> {
        let name = node.outputs.first().ok_or("has no output")?;
        self.values.insert(name.clone(), value);
        Ok(())
    }

    /// What it reads, under another name; of a constant, the name that it had at first is kept.
    fn pass(&mut self, node: &Node) -> Result<()> {
        let value = self.value(node, 0)?.clone();
        if let (Some(from), Some(to)) = (node.inputs.first(), node.outputs.first()) {
            let first = self.renamed.get(from).unwrap_or(from).clone();
            self.renamed.insert(to.clone(), first);
        }
        self.give(node, value)
    }

    fn value(&self, node: &Node, place: usize) -> Result<&Value> {
        let name = node.inputs.get(place).filter(|name| !name.is_empty()).ok_or("has too few inputs")?;
        self.values.get(name).ok_or_else(|| format!("reads `{name}`, which nothing gives"))
    }

    fn constant(&self, node: &Node, place: usize) -> Result<&Constant> {
        match self.value(node, place)? {
            Value::Constant(constant) => Ok(constant),
            _ => Err(format!("its input {place} depends on the sample, and must be a constant here")),
        }
    }

    fn optional(&self, node: &Node, place: usize) -> Result<Option<&Constant>> {
        match node.inputs.get(place) {
            Some(name) if !name.is_empty() => self.constant(node, place).map(Some),
            _ => Ok(None),
        }
    }

    /// The layer that gives a node's input.
    fn reads(&self, node: &Node, place: usize) -> Result<String> {
        match self.value(node, place)? {
            Value::Layer(name) => Ok(name.clone()),
            Value::Gate(_) => Err("reads a sigmoid that is also multiplied; write it as a layer of its own".into()),
            _ => Err("computes with constants alone".into()),
        }
    }

    /// A name that no layer has: that of the node's weight in PyTorch, of the node, or of its output.
    fn name(&self, node: &Node, weight: Option<usize>) -> String {
        let given = weight.and_then(|place| node.inputs.get(place));
        let of_weight = given.and_then(|name| self.renamed.get(name).unwrap_or(name).strip_suffix(".weight"));
        let own = if node.name.is_empty() { node.outputs.first().map_or("layer", String::as_str) } else { &node.name };
        let plain: String = of_weight.unwrap_or(own).chars().map(|c| if c == ':' { '_' } else { c }).collect();
        let plain = plain.trim_matches('_').to_owned();
        let taken = |name: &str| {
            name.is_empty() || name == "input" || self.layers.iter().any(|layer| layer.name.as_deref() == Some(name))
        };
        let mut names = std::iter::once(plain.clone()).chain((1..).map(|number| format!("{plain}_{number}")));
        names.find(|name| !taken(name)).unwrap_or(plain)
    }

    fn push(&mut self, node: &Node, name: String, inputs: &[String], kind: LayerKind) -> Result<()> {
        // A layer that reads the one before it says nothing, as in any list of layers.
        let straight = inputs == [self.last()];
        let inputs: Vec<&str> = inputs.iter().filter(|_| !straight).map(String::as_str).collect();
        self.layers.push(LayerSpec::new(kind).named(&name).reading(&inputs));
        self.give(node, Value::Layer(name))
    }

    /// A layer without parameters.
    fn layer(&mut self, node: &Node, place: usize, kind: LayerKind) -> Result<()> {
        let (name, input) = (self.name(node, None), self.reads(node, place)?);
        self.push(node, name, &[input], kind)
    }

    fn activation(&mut self, node: &Node, function: Activation) -> Result<()> {
        self.layer(node, 0, LayerKind::Activation { function })
    }

    fn keep(&mut self, layer: &str, part: &str, constant: &Constant, shape: &[usize]) -> Result<()> {
        let wrong = |problem: String| format!("its {part}: {problem}");
        let numbers: Vec<f32> = constant.numbers.iter().map(|&x| x as f32).collect();
        let tensor = Tensor::from_vec(numbers, shape).map_err(|error| wrong(error.to_string()))?;
        self.tensors.insert(format!("{layer}.{part}"), tensor);
        Ok(())
    }

    fn last(&self) -> String {
        self.layers.last().and_then(|layer| layer.name.clone()).unwrap_or_else(|| "input".into())
    }
}
