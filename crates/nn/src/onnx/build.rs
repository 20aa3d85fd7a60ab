//! From ONNX's nodes to layers.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use super::Imported;
use super::attributes::Attributes;
use super::constant::Constant;
use super::proto::{Graph, Node};
use crate::spec::{LayerKind, LayerSpec, NetworkSpec};
use crate::{Activation, Padding, Sides, Tensor};

type Result<T> = std::result::Result<T, String>;

/// How often one number of a file may be repeated: as often as a layer has channels.
const MOST_REPEATED: usize = 1 << 16;

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

    /// y = x Wᵀ + b, with W as PyTorch has it.
    fn linear(&mut self, node: &Node, weight: &Constant, bias: Option<&Constant>) -> Result<()> {
        let &[outputs, _] = weight.shape.as_slice() else { return Err("its weight is no matrix".into()) };
        let (name, input) = (self.name(node, Some(1)), self.reads(node, 0)?);
        self.keep(&name, "weight", weight, &weight.shape)?;
        if let Some(bias) = bias {
            self.keep(&name, "bias", bias, &[outputs])?;
        }
        self.push(node, name, &[input], LayerKind::Linear { outputs, bias: bias.is_some() })
    }

    fn gemm(&mut self, node: &Node, attributes: &Attributes<'_>) -> Result<()> {
        let one = |key: &str| attributes.float(key).unwrap_or(1.0) == 1.0;
        if attributes.int("transA").unwrap_or(0) != 0 || !one("alpha") || !one("beta") {
            return Err("scales or transposes what it reads, which no linear layer does".into());
        }
        let weight = self.constant(node, 1)?;
        let weight = match attributes.int("transB").unwrap_or(0) {
            0 => weight.transposed().ok_or("its weight is no matrix")?,
            _ => weight.clone(),
        };
        let bias = self.optional(node, 2)?.cloned();
        self.linear(node, &weight, bias.as_ref())
    }

    fn convolution(&mut self, node: &Node, attributes: &Attributes<'_>) -> Result<()> {
        let weight = self.constant(node, 1)?.clone();
        let &[first, second, height, width] = weight.shape.as_slice() else {
            return Err(format!("its weight has shape {:?}; images are convolved with four axes", weight.shape));
        };
        // Exporters write a bias of zeros for a layer that has none.
        let named = node.inputs.get(2).is_some_and(|name| name.ends_with(".bias"));
        let bias = self.optional(node, 2)?.filter(|bias| named || bias.numbers.iter().any(|x| *x != 0.0)).cloned();
        let groups = attributes.int("group").unwrap_or(1).max(1) as usize;
        let (stride, dilation) = (attributes.sides("strides", 1)?, attributes.sides("dilations", 1)?);
        let kernel = Sides([height, width]);
        let kind = if node.operator == "Conv" {
            let padding = match attributes.text("auto_pad").as_deref() {
                Some("SAME_UPPER") => Padding::SAME,
                None | Some("NOTSET" | "VALID") => self.padding(node, attributes, [height, width], stride, dilation)?,
                Some(other) => return Err(format!("pads by {other}, which is not known")),
            };
            LayerKind::Conv { outputs: first, kernel, stride, padding, dilation, groups, bias: bias.is_some() }
        } else {
            if attributes.find("output_shape").is_some()
                || attributes.text("auto_pad").is_some_and(|pad| pad != "NOTSET")
            {
                return Err("is given its output's shape; padding is known".into());
            }
            let outputs = second.saturating_mul(groups);
            let (padding, output_padding) = (attributes.padding()?, attributes.sides("output_padding", 0)?);
            LayerKind::ConvTranspose {
                outputs,
                kernel,
                stride,
                padding,
                output_padding,
                dilation,
                groups,
                bias: bias.is_some(),
            }
        };
        let input = match self.value(node, 0)? {
            Value::Padded(layer, _) if node.operator == "Conv" => layer.clone(),
            _ => self.reads(node, 0)?,
        };
        let name = self.name(node, Some(1));
        self.keep(&name, "weight", &weight, &weight.shape)?;
        if let Some(bias) = bias {
            self.keep(&name, "bias", &bias, &bias.shape)?;
        }
        self.push(node, name, &[input], kind)
    }

    /// Zeros around an image, which the next convolution takes for its own.
    fn pad(&mut self, node: &Node, attributes: &Attributes<'_>) -> Result<()> {
        let zeros = self.optional(node, 2)?.is_none_or(|value| value.numbers.iter().all(|x| *x == 0.0));
        let constant = attributes.text("mode").is_none_or(|mode| mode == "constant");
        let pads = self.optional(node, 1)?.and_then(Constant::wholes).or_else(|| attributes.ints("pads"));
        match pads.unwrap_or_default()[..] {
            [0, 0, top, left, 0, 0, bottom, right] if zeros && constant => {
                let layer = self.reads(node, 0)?;
                self.give(node, Value::Padded(layer, [top, left, bottom, right]))
            }
            _ => Err("pads in a way that no convolution does: zeros around height and width are known".into()),
        }
    }

    /// The padding of a convolution, with the zeros that were put around what it reads: as many before as after, or as many
    /// as it takes for ⌈size / stride⌉ outputs.
    fn padding(
        &self,
        node: &Node,
        attributes: &Attributes<'_>,
        kernel: [usize; 2],
        Sides(stride): Sides,
        Sides(dilation): Sides,
    ) -> Result<Padding> {
        let own = attributes.ints("pads").unwrap_or_else(|| vec![0; 4]);
        let (layer, around) = match self.value(node, 0)? {
            Value::Padded(layer, around) => (layer.clone(), *around),
            _ => (self.reads(node, 0)?, [0; 4]),
        };
        let [top, left, bottom, right] = match own[..] {
            [t, l, b, r] => [t + around[0], l + around[1], b + around[2], r + around[3]],
            _ => return Err(format!("pads by {own:?}; four numbers are known")),
        };
        let side = |pad: i64| usize::try_from(pad).map_err(|_| format!("pads by {own:?}"));
        if (top, left) == (bottom, right) {
            return Ok(Padding::Each(Sides([side(top)?, side(left)?])));
        }
        let size = self.image_of(&layer)?;
        let same = |axis: usize, before: i64, after: i64| -> Result<bool> {
            let reach = dilation[axis] * (kernel[axis].max(1) - 1) + 1;
            Ok(Padding::SAME.around(axis, size[axis], reach, stride[axis]) == [side(before)?, side(after)?])
        };
        match same(0, top, bottom)? && same(1, left, right)? {
            true => Ok(Padding::SAME),
            false => Err(format!(
                "pads by {:?}; as much before as after, and \"same\", are known",
                [top, left, bottom, right]
            )),
        }
    }

    /// Height and width of what a layer gives.
    fn image_of(&self, layer: &str) -> Result<[usize; 2]> {
        let shape = match self.layers.iter().position(|spec| spec.name.as_deref() == Some(layer)) {
            None => self.input.clone(),
            Some(place) => {
                let spec = NetworkSpec { input: self.input.clone(), layers: self.layers[..=place].to_vec() };
                crate::Network::new(spec).map_err(|error| error.to_string())?.output_shape().to_vec()
            }
        };
        match shape[..] {
            [_, height, width] => Ok([height, width]),
            _ => Err("pads what is no image".into()),
        }
    }

    fn batch_norm(&mut self, node: &Node, attributes: &Attributes<'_>) -> Result<()> {
        let parts = ["weight", "bias", "running_mean", "running_var"];
        let (name, input) = (self.name(node, Some(1)), self.reads(node, 0)?);
        for (place, part) in parts.iter().enumerate() {
            let constant = self.constant(node, place + 1)?.clone();
            self.keep(&name, part, &constant, &constant.shape)?;
        }
        let eps = attributes.float("epsilon").unwrap_or(1e-5);
        // ONNX says how much of the old statistics stays, PyTorch how much of the new comes in.
        let momentum = (1.0 - attributes.float("momentum").unwrap_or(0.9)).clamp(0.0, 1.0);
        self.push(node, name, &[input], LayerKind::BatchNorm { eps, momentum, affine: true })
    }

    /// One half of x σ(x), or a layer.
    fn sigmoid(&mut self, node: &Node) -> Result<()> {
        let gate = |builder: &Self| -> Option<String> {
            let (input, output) = (node.inputs.first()?, node.outputs.first()?);
            let alone = builder.uses.get(output) == Some(&1) && builder.uses.get(input).is_some_and(|uses| *uses > 1);
            alone.then(|| builder.reads(node, 0).ok()).flatten()
        };
        match gate(self) {
            Some(layer) => self.give(node, Value::Gate(layer)),
            None => self.activation(node, Activation::Sigmoid),
        }
    }

    fn product(&mut self, node: &Node) -> Result<()> {
        for (gate, other) in [(0, 1), (1, 0)] {
            if let (Value::Gate(of), Value::Layer(by)) = (self.value(node, gate)?, self.value(node, other)?)
                && of == by
            {
                return self.layer(node, other, LayerKind::Activation { function: Activation::Silu });
            }
        }
        Err("multiplies two values, which no layer here does; x σ(x) is known".into())
    }

    /// softplus(x) where x is not large, x where it is: what PyTorch computes for a softplus.
    fn softplus_where_small(&mut self, node: &Node) -> Result<()> {
        if let (Value::Large(of), Value::Layer(large), Value::Layer(small)) =
            (self.value(node, 0)?, self.value(node, 1)?, self.value(node, 2)?)
        {
            let spec = self.layers.iter().find(|spec| spec.name.as_ref() == Some(small));
            let softplus = |spec: &LayerSpec| {
                let function = matches!(spec.kind, LayerKind::Activation { function: Activation::Softplus { .. } });
                function && self.source(spec) == *of
            };
            if of == large && spec.is_some_and(softplus) {
                let small = small.clone();
                return self.give(node, Value::Layer(small));
            }
        }
        Err("chooses between values, which no layer here does".into())
    }

    fn prelu(&mut self, node: &Node) -> Result<()> {
        let slopes = self.constant(node, 1)?.clone();
        let (name, input) = (self.name(node, Some(1)), self.reads(node, 0)?);
        self.keep(&name, "weight", &slopes, &[slopes.numbers.len()])?;
        self.push(node, name, &[input], LayerKind::Prelu { slopes: slopes.numbers.len() })
    }

    fn clip(&mut self, node: &Node, attributes: &Attributes<'_>) -> Result<()> {
        let end = |place: usize, key: &str| -> Result<Option<f64>> {
            let given = self.optional(node, place)?.and_then(|constant| constant.numbers.first().copied());
            Ok(given.or(attributes.float(key)))
        };
        match (end(1, "min")?, end(2, "max")?) {
            (Some(0.0), Some(6.0)) => self.activation(node, Activation::Relu6),
            (Some(0.0), None) => self.activation(node, Activation::Relu),
            (low, high) => Err(format!("cuts values at {low:?} and {high:?}; at 0 and 6 is known (relu6)")),
        }
    }

    fn pool(&mut self, node: &Node, attributes: &Attributes<'_>) -> Result<()> {
        let kernel = attributes.sides("kernel_shape", 0)?;
        let (stride, padding) = (Some(attributes.sides("strides", 1)?), attributes.padding()?);
        if attributes.text("auto_pad").is_some_and(|pad| pad != "NOTSET" && pad != "VALID") {
            return Err("pads by itself (auto_pad); as many pixels as it says are known".into());
        }
        if attributes.int("ceil_mode").unwrap_or(0) != 0 || attributes.sides("dilations", 1)? != Sides([1, 1]) {
            return Err("has windows beyond the image or with gaps (ceil_mode, dilations), which are not known".into());
        }
        if node.operator == "MaxPool" {
            return self.layer(node, 0, LayerKind::MaxPool { kernel, stride, padding });
        }
        if padding != Sides([0, 0]) && attributes.int("count_include_pad").unwrap_or(0) == 0 {
            return Err("leaves padding out of its means; with count_include_pad it is known".into());
        }
        self.layer(node, 0, LayerKind::AvgPool { kernel, stride, padding })
    }

    fn reduce_mean(&mut self, node: &Node, attributes: &Attributes<'_>) -> Result<()> {
        let listed = self.optional(node, 1)?.and_then(Constant::wholes).or_else(|| attributes.ints("axes"));
        let mut axes = listed.unwrap_or_default();
        axes.iter_mut().for_each(|axis| *axis += if *axis < 0 { 4 } else { 0 });
        axes.sort_unstable();
        if axes != [2, 3] {
            return Err(format!("averages over axes {axes:?}; over height and width is known"));
        }
        self.layer(node, 0, LayerKind::AdaptiveAvgPool { output: 1.into() })?;
        if attributes.int("keepdims").unwrap_or(1) == 0 {
            let (name, input) = (format!("{}_rows", self.name(node, None)), self.last());
            self.push(node, name, &[input], LayerKind::Flatten {})?;
        }
        Ok(())
    }

    /// What a layer with one input reads.
    fn source(&self, spec: &LayerSpec) -> String {
        let place = self.layers.iter().position(|layer| layer.name == spec.name).unwrap_or(0);
        let before = place.checked_sub(1).and_then(|before| self.layers[before].name.clone());
        spec.inputs.first().cloned().or(before).unwrap_or_else(|| "input".into())
    }

    fn last(&self) -> String {
        self.layers.last().and_then(|layer| layer.name.clone()).unwrap_or_else(|| "input".into())
    }

    fn resize(&mut self, node: &Node, attributes: &Attributes<'_>) -> Result<()> {
        if attributes.text("mode").is_some_and(|mode| mode != "nearest") {
            return Err("interpolates; by nearest pixels is known".into());
        }
        let (placed, nearest) = (attributes.text("coordinate_transformation_mode"), attributes.text("nearest_mode"));
        let plain = match (placed.as_deref(), nearest.as_deref()) {
            (Some("asymmetric"), Some("floor")) => true,
            (None | Some("half_pixel"), None | Some("round_prefer_floor")) => true,
            _ => node.operator == "Upsample",
        };
        if !plain {
            return Err(format!("takes pixels by {placed:?} and {nearest:?}; whole blocks of each are known"));
        }
        let place = if node.operator == "Resize" { 2 } else { 1 };
        let scales = self.optional(node, place)?.filter(|scales| scales.numbers.len() == 4);
        let scales = scales.ok_or("is not given by factors; export it with scale_factor")?;
        match scales.numbers[..] {
            [1.0, 1.0, height, width] if height >= 1.0 && width >= 1.0 && height.fract() + width.fract() == 0.0 => {
                let factor = Sides([height as usize, width as usize]);
                self.layer(node, 0, LayerKind::Upsample { factor })
            }
            ref other => Err(format!("scales by {other:?}; whole factors of height and width are known")),
        }
    }

    /// One number, as often as a constant says; shapes stay as they are.
    fn expand(&mut self, node: &Node) -> Result<()> {
        let (value, sides) = (self.constant(node, 0)?, self.constant(node, 1)?);
        let [number] = value.numbers[..] else {
            let same = value.clone();
            return self.give(node, Value::Constant(same));
        };
        let shape: Option<Vec<usize>> =
            sides.numbers.iter().map(|&side| (side >= 0.0).then_some(side as usize)).collect();
        let count = shape.iter().flatten().try_fold(1_usize, |count, &side| count.checked_mul(side));
        let (Some(shape), Some(count)) = (shape, count.filter(|count| *count <= MOST_REPEATED)) else {
            return Err(format!("repeats a number {:?} times", sides.numbers));
        };
        let whole = value.whole;
        self.give(node, Value::Constant(Constant { shape, numbers: vec![number; count], whole }))
    }

    /// Rows of what comes out of a convolution: the batch, and everything else.
    fn reshape(&mut self, node: &Node) -> Result<()> {
        let sides: Vec<Option<i64>> = match self.value(node, 1)? {
            Value::Shape(sides) => sides.clone(),
            Value::Constant(constant) => constant.numbers.iter().map(|&side| Some(side as i64)).collect(),
            _ => return Err("is given a shape that depends on the sample".into()),
        };
        if let Value::Constant(_) | Value::Shape(_) = self.value(node, 0)? {
            return self.pass(node);
        }
        match sides[..] {
            [_, _] => self.layer(node, 0, LayerKind::Flatten {}),
            ref other => Err(format!("makes shape {other:?}; rows of all that a sample has are known (flatten)")),
        }
    }

    /// The sum of two layers, or the bias of a product.
    fn sum(&mut self, node: &Node) -> Result<()> {
        let (left, right) = (self.value(node, 0)?.clone(), self.value(node, 1)?.clone());
        match (left, right) {
            (Value::Layer(a), Value::Layer(b)) => {
                let name = self.name(node, None);
                self.push(node, name, &[a, b], LayerKind::Add {})
            }
            (Value::Layer(layer), Value::Constant(bias)) => self.bias(node, 0, &layer, &bias),
            (Value::Constant(bias), Value::Layer(layer)) => self.bias(node, 1, &layer, &bias),
            _ => Err("adds what is no layer's output".into()),
        }
    }

    fn bias(&mut self, node: &Node, place: usize, layer: &str, bias: &Constant) -> Result<()> {
        let alone = node.inputs.get(place).and_then(|name| self.uses.get(name)) == Some(&1);
        let found = self.layers.iter_mut().find(|spec| spec.name.as_deref() == Some(layer));
        match found.map(|spec| &mut spec.kind) {
            Some(LayerKind::Linear { outputs, bias: has }) if alone && !*has && *outputs == bias.numbers.len() => {
                *has = true;
                let outputs = *outputs;
                self.keep(layer, "bias", bias, &[outputs])?;
                self.give(node, Value::Layer(layer.to_owned()))
            }
            _ => Err("adds constants to something that is no linear layer without a bias".into()),
        }
    }

    fn concat(&mut self, node: &Node, attributes: &Attributes<'_>) -> Result<()> {
        let parts: Vec<Value> =
            (0..node.inputs.len()).map(|place| self.value(node, place).cloned()).collect::<Result<_>>()?;
        if parts.iter().any(|part| matches!(part, Value::Shape(_))) {
            let sides = parts.iter().flat_map(|part| match part {
                Value::Shape(sides) => sides.clone(),
                Value::Constant(constant) => constant.numbers.iter().map(|&side| Some(side as i64)).collect(),
                _ => vec![None],
            });
            let sides = sides.collect();
            return self.give(node, Value::Shape(sides));
        }
        if attributes.int("axis") != Some(1) {
            return Err("joins along another axis than the channels".into());
        }
        let inputs = (0..node.inputs.len()).map(|place| self.reads(node, place)).collect::<Result<Vec<_>>>()?;
        let name = self.name(node, None);
        self.push(node, name, &inputs, LayerKind::Concat {})
    }
}
