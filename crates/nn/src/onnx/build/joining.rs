//! Products with their biases, sums, joined values, and what only reshapes.

use super::super::attributes::Attributes;
use super::super::constant::Constant;
use super::super::proto::Node;
use super::{Builder, Result, Value};
use crate::spec::LayerKind;

/// How often one number of a file may be repeated: as often as a layer has channels.
const MOST_REPEATED: usize = 1 << 16;

impl Builder {
    /// y = x Wᵀ + b, with W as PyTorch has it.
    pub(super) fn linear(&mut self, node: &Node, weight: &Constant, bias: Option<&Constant>) -> Result<()> {
        let &[outputs, _] = weight.shape.as_slice() else { return Err("its weight is no matrix".into()) };
        let (name, input) = (self.name(node, Some(1)), self.reads(node, 0)?);
        self.keep(&name, "weight", weight, &weight.shape)?;
        if let Some(bias) = bias {
            self.keep(&name, "bias", bias, &[outputs])?;
        }
        self.push(node, name, &[input], LayerKind::Linear { outputs, bias: bias.is_some() })
    }

    pub(super) fn gemm(&mut self, node: &Node, attributes: &Attributes<'_>) -> Result<()> {
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

    /// One number, as often as a constant says; shapes stay as they are.
    pub(super) fn expand(&mut self, node: &Node) -> Result<()> {
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
    pub(super) fn reshape(&mut self, node: &Node) -> Result<()> {
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
    pub(super) fn sum(&mut self, node: &Node) -> Result<()> {
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

    pub(super) fn concat(&mut self, node: &Node, attributes: &Attributes<'_>) -> Result<()> {
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
