//! From a description to a typed graph: names resolved, shapes checked.

mod image;

use std::collections::HashMap;

use crate::layers::{Activate, Add, Concat, Dropout, Flatten, Layer, Linear, Prelu, Wanted};
use crate::params::ParamSpec;
use crate::spec::{LayerKind, LayerSpec, NetworkSpec};
use crate::{Error, Result, nearest};

/// A layer in its place. Values are numbered: 0 is the network's input,
/// i + 1 the output of node i.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) layer: Layer,
    /// Values it reads.
    pub(crate) inputs: Vec<usize>,
    /// Parameters it uses, by number.
    pub(crate) parameters: Vec<usize>,
    /// Running statistics it uses, by number.
    pub(crate) buffers: Vec<usize>,
    /// Shape of one sample of its output.
    pub(crate) shape: Vec<usize>,
}

/// A type-checked network description.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(crate) parameters: Vec<ParamSpec>,
    pub(crate) buffers: Vec<BufferSpec>,
}

/// A running statistic as a layer declares it.
#[derive(Debug, Clone)]
pub(crate) struct BufferSpec {
    pub(crate) name: String,
    pub(crate) length: usize,
    /// What its numbers are before any batch.
    pub(crate) start: f64,
}

/// Most scalars a network may have: far beyond what fits in memory, and small
/// enough that products of sizes cannot overflow.
const MOST_SCALARS: usize = 1 << 40;

pub(crate) fn build(spec: &NetworkSpec) -> Result<Graph> {
    let graph = Graph { nodes: Vec::new(), parameters: Vec::new(), buffers: Vec::new() };
    let mut builder = Builder { graph, names: HashMap::new() };
    let problem =
        |problem: &str, hint: &str| Error::Spec { layer: "input".into(), problem: problem.into(), hint: hint.into() };
    if spec.input.is_empty() || spec.input.contains(&0) {
        let found = format!("the input shape is {:?}", spec.input);
        return Err(problem(&found, "give the shape of one sample, such as [784] or [3, 32, 32]"));
    }
    if product(&spec.input).is_none() {
        return Err(problem("a sample has more numbers than can be addressed", "use a smaller shape"));
    }
    if spec.layers.is_empty() {
        return Err(problem("the network has no layers", "list at least one layer"));
    }
    for (index, layer) in spec.layers.iter().enumerate() {
        builder.add(index, layer, &spec.input)?;
    }
    Ok(builder.graph)
}

fn product(shape: &[usize]) -> Option<usize> {
    let product = shape.iter().try_fold(1_usize, |product, &side| product.checked_mul(side))?;
    (product <= MOST_SCALARS).then_some(product)
}

struct Builder {
    graph: Graph,
    names: HashMap<String, usize>,
}

/// What a kind of layer turns into, given the shapes it reads.
struct Typed {
    layer: Layer,
    shape: Vec<usize>,
    /// Parameters of other layers it uses, then those of its own.
    borrowed: Vec<usize>,
    wanted: Vec<Wanted>,
}

impl Typed {
    /// A layer without parameters.
    fn plain(layer: Layer, shape: &[usize]) -> Self {
        Self { layer, shape: shape.to_vec(), borrowed: Vec::new(), wanted: Vec::new() }
    }
}

impl Builder {
    fn add(&mut self, index: usize, spec: &LayerSpec, network_input: &[usize]) -> Result<()> {
        let name = spec.name.clone().unwrap_or_else(|| index.to_string());
        let fail =
            |problem: String, hint: String| Error::Spec { layer: format!("`{name}` (number {index})"), problem, hint };
        if name.is_empty() || name == "input" || self.names.contains_key(&name) {
            let reason = if self.names.contains_key(&name) { "is taken by a layer above" } else { "is reserved" };
            return Err(fail(format!("the name `{name}` {reason}"), "give the layer another name".into()));
        }
        let inputs = if spec.inputs.is_empty() {
            vec![index]
        } else {
            spec.inputs.iter().map(|input| self.value(input, &fail)).collect::<Result<Vec<_>>>()?
        };
        let shapes: Vec<&[usize]> =
            inputs.iter().map(|&v| if v == 0 { network_input } else { &self.graph.nodes[v - 1].shape }).collect();
        let typed = self.type_check(&spec.kind, &shapes, &fail)?;
        if product(&typed.shape).is_none() || typed.wanted.iter().any(|wanted| product(&wanted.shape).is_none()) {
            let problem = format!("its output {:?} or its parameters are too large to address", typed.shape);
            return Err(fail(problem, "use a smaller layer".into()));
        }
        let mut parameters = typed.borrowed;
        for wanted in typed.wanted {
            parameters.push(self.graph.parameters.len());
            let Wanted { suffix, shape, role, fan_in } = wanted;
            self.graph.parameters.push(ParamSpec { name: format!("{name}.{suffix}"), shape, role, fan_in });
        }
        let mut buffers = Vec::new();
        if let Layer::BatchNorm(norm) = &typed.layer {
            for (suffix, start) in [("running_mean", 0.0), ("running_var", 1.0)] {
                buffers.push(self.graph.buffers.len());
                let name = format!("{name}.{suffix}");
                self.graph.buffers.push(BufferSpec { name, length: norm.channels, start });
            }
        }
        self.names.insert(name.clone(), index);
        self.graph.nodes.push(Node { name, layer: typed.layer, inputs, parameters, buffers, shape: typed.shape });
        Ok(())
    }

    /// The number of the value with this name.
    fn value(&self, name: &str, fail: &impl Fn(String, String) -> Error) -> Result<usize> {
        if name == "input" {
            return Ok(0);
        }
        self.names.get(name).map(|node| node + 1).ok_or_else(|| {
            let known = self.graph.nodes.iter().map(|node| node.name.as_str()).chain(["input"]);
            let hint = match nearest(name, known) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "a layer can read `input` and the layers above it".into(),
            };
            fail(format!("it reads `{name}`, which is no layer above it"), hint)
        })
    }

    fn type_check(
        &self,
        kind: &LayerKind,
        shapes: &[&[usize]],
        fail: &impl Fn(String, String) -> Error,
    ) -> Result<Typed> {
        let single = || match shapes {
            [one] => Ok(*one),
            _ => Err(fail(
                format!("it reads {} layers", shapes.len()),
                "it takes one input; join several with `add` or `concat` first".into(),
            )),
        };
        let features = || match single()? {
            &[features] => Ok(features),
            other => Err(fail(
                format!("it takes one row of features a sample, and reads shape {other:?}"),
                format!("put a `flatten` layer before it, which gives [{}]", other.iter().product::<usize>()),
            )),
        };
        let plain = Typed::plain;
        Ok(match kind {
            LayerKind::Linear { outputs: 0, .. } => {
                return Err(fail("it has 0 outputs".into(), "give at least 1".into()));
            }
            &LayerKind::Linear { outputs, bias } => Typed {
                wanted: Linear::wanted(features()?, outputs, bias),
                ..plain(Layer::Linear(Linear { transposed: false, bias }), &[outputs])
            },
            LayerKind::TiedLinear { to, bias } => self.tied(to, *bias, features()?, fail)?,
            &LayerKind::Activation { function } => {
                function.check().map_err(|error| fail(error.to_string(), "choose another parameter".into()))?;
                plain(Layer::Activate(Activate { function }), single()?)
            }
            &LayerKind::Prelu { slopes } => {
                let shape = single()?;
                if slopes != 1 && slopes != shape[0] {
                    let problem = format!("it has {slopes} slopes and reads shape {shape:?}");
                    return Err(fail(problem, format!("use slopes = 1 or slopes = {}", shape[0])));
                }
                Typed { wanted: Prelu::wanted(slopes), ..plain(Layer::Prelu(Prelu { slopes }), shape) }
            }
            LayerKind::Flatten {} => {
                let input = single()?.to_vec();
                let shape = [input.iter().product()];
                plain(Layer::Flatten(Flatten { input }), &shape)
            }
            LayerKind::Add {} => {
                if let Some(other) = shapes.iter().find(|shape| **shape != shapes[0]) {
                    let problem = format!("it adds shapes {:?} and {other:?}", shapes[0]);
                    return Err(fail(problem, "all inputs of `add` need one shape".into()));
                }
                plain(Layer::Add(Add), shapes[0])
            }
            LayerKind::Concat {} => {
                if let Some(other) = shapes.iter().find(|shape| shape[1..] != shapes[0][1..]) {
                    let problem = format!("it joins shapes {:?} and {other:?}", shapes[0]);
                    return Err(fail(problem, "inputs of `concat` may differ in their first axis only".into()));
                }
                let channels: Vec<usize> = shapes.iter().map(|shape| shape[0]).collect();
                let total = channels.iter().sum();
                let shape: Vec<usize> = std::iter::once(total).chain(shapes[0][1..].iter().copied()).collect();
                plain(Layer::Concat(Concat { channels }), &shape)
            }
            LayerKind::Dropout { p } if !(0.0..=1.0).contains(p) => {
                return Err(fail(format!("its share is {p}"), "give a share between 0 and 1".into()));
            }
            LayerKind::Dropout { .. } => plain(Layer::Dropout(Dropout), single()?),
            &LayerKind::BatchNorm { eps, momentum, affine } => {
                image::batch_norm(single()?, eps, momentum, affine).map_err(|(problem, hint)| fail(problem, hint))?
            }
            other => image::layer(other, single()?).map_err(|(problem, hint)| fail(problem, hint))?,
        })
    }

    fn tied(&self, to: &str, bias: bool, features: usize, fail: &impl Fn(String, String) -> Error) -> Result<Typed> {
        let value = self.value(to, fail)?;
        let node = value.checked_sub(1).map(|index| &self.graph.nodes[index]);
        let Some(Node { layer: Layer::Linear(Linear { transposed: false, .. }), parameters, .. }) = node else {
            return Err(fail(format!("`{to}` is no `linear` layer"), "tie to a layer of kind `linear`".into()));
        };
        let &[outputs, inputs] = self.graph.parameters[parameters[0]].shape.as_slice() else {
            return Err(fail(format!("the weight of `{to}` is no matrix"), "tie to a `linear` layer".into()));
        };
        if features != outputs {
            let problem = format!("it reads {features} features, and the weight of `{to}` is [{outputs}, {inputs}]");
            return Err(fail(problem, format!("give it {outputs} features, as many as `{to}` puts out")));
        }
        Ok(Typed {
            layer: Layer::Linear(Linear { transposed: true, bias }),
            shape: vec![inputs],
            borrowed: vec![parameters[0]],
            wanted: Linear::wanted_bias(outputs, inputs, bias).into_iter().collect(),
        })
    }
}
