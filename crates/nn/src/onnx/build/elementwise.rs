//! Operators on each number by itself, some of which PyTorch writes as several.

use super::super::attributes::Attributes;
use super::super::proto::Node;
use super::{Builder, Result, Value};
use crate::Activation;
use crate::spec::{LayerKind, LayerSpec};

impl Builder {
    /// One half of x σ(x), or a layer.
    pub(super) fn sigmoid(&mut self, node: &Node) -> Result<()> {
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

    pub(super) fn product(&mut self, node: &Node) -> Result<()> {
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
    pub(super) fn softplus_where_small(&mut self, node: &Node) -> Result<()> {
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

    pub(super) fn prelu(&mut self, node: &Node) -> Result<()> {
        let slopes = self.constant(node, 1)?.clone();
        let (name, input) = (self.name(node, Some(1)), self.reads(node, 0)?);
        self.keep(&name, "weight", &slopes, &[slopes.numbers.len()])?;
        self.push(node, name, &[input], LayerKind::Prelu { slopes: slopes.numbers.len() })
    }

    pub(super) fn clip(&mut self, node: &Node, attributes: &Attributes<'_>) -> Result<()> {
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

    /// What a layer with one input reads.
    fn source(&self, spec: &LayerSpec) -> String {
        let place = self.layers.iter().position(|layer| layer.name == spec.name).unwrap_or(0);
        let before = place.checked_sub(1).and_then(|before| self.layers[before].name.clone());
        spec.inputs.first().cloned().or(before).unwrap_or_else(|| "input".into())
    }
}
