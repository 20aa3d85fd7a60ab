//! Operators on images: convolutions, the zeros around them, normalisation, pooling, enlarging.

use super::super::attributes::Attributes;
use super::super::constant::Constant;
use super::super::proto::Node;
use super::{Builder, Result, Value};
use crate::spec::{LayerKind, NetworkSpec};
use crate::{Padding, Sides};

impl Builder {
    pub(super) fn convolution(&mut self, node: &Node, attributes: &Attributes<'_>) -> Result<()> {
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
    pub(super) fn pad(&mut self, node: &Node, attributes: &Attributes<'_>) -> Result<()> {
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

    pub(super) fn batch_norm(&mut self, node: &Node, attributes: &Attributes<'_>) -> Result<()> {
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

    pub(super) fn pool(&mut self, node: &Node, attributes: &Attributes<'_>) -> Result<()> {
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

    pub(super) fn reduce_mean(&mut self, node: &Node, attributes: &Attributes<'_>) -> Result<()> {
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

    pub(super) fn resize(&mut self, node: &Node, attributes: &Attributes<'_>) -> Result<()> {
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
}
