//! The layers that work on images: sizes checked, windows and geometries laid out.

use super::{MOST_SCALARS, Typed};
use crate::convolution::{Axis, Convolution};
use crate::layers::{AveragePool, BatchNorm, Conv, Layer, MaxPool, Upsample};
use crate::network::Mode;
use crate::spec::LayerKind;
use crate::{Padding, Sides, Windows};

/// What is wrong, and what would help.
type Fault = (String, String);

fn fault<T>(problem: String, hint: &str) -> Result<T, Fault> {
    Err((problem, hint.into()))
}

/// Channels, height and width of an image.
fn image(shape: &[usize]) -> Result<(usize, [usize; 2]), Fault> {
    match *shape {
        [channels, height, width] => {
            reasonable(&[("image's height or width", &[height, width])])?;
            Ok((channels, [height, width]))
        }
        ref other => fault(
            format!("it takes images of shape [channels, height, width], and reads shape {other:?}"),
            "put it before the `flatten` layer, or give the network an image as input",
        ),
    }
}

/// Fails unless every size that must be is at least one, and none is absurd.
fn sizes(named: &[(&str, &[usize])]) -> Result<(), Fault> {
    for (name, sizes) in named {
        if sizes.contains(&0) {
            return fault(format!("its {name} is 0"), "give at least 1");
        }
    }
    reasonable(named)
}

/// The longest side an image may have; windows and tables are made for each row and column.
const LONGEST: usize = 1 << 14;
/// Numbers a sample may have with the zeros around it, if it does not have a quarter of them anyway.
const MOST_PADDED: usize = 1 << 28;

fn reasonable(named: &[(&str, &[usize])]) -> Result<(), Fault> {
    for (name, sizes) in named {
        if let Some(size) = sizes.iter().find(|&&size| size > LONGEST) {
            return fault(format!("its {name} is {size}"), "give a size that an image could have: at most 16384");
        }
    }
    Ok(())
}

/// Fails if a sample of so many channels, with a kernel's reach around its sides, is out of proportion.
fn padded(channels: usize, sides: [usize; 2], around: [usize; 2]) -> Result<(), Fault> {
    let size = |around: [usize; 2]| {
        let side = |axis: usize| sides[axis].checked_add(around[axis]);
        channels.checked_mul(side(0)?)?.checked_mul(side(1)?)
    };
    let most = size([0, 0]).map_or(0, |bare| bare.saturating_mul(4)).max(MOST_PADDED);
    match size(around) {
        Some(padded) if padded <= most => Ok(()),
        _ => fault(
            format!(
                "{} and {} zeros around an image of {}x{} are out of proportion",
                around[0], around[1], sides[0], sides[1]
            ),
            "use a smaller kernel, dilation or padding",
        ),
    }
}

/// A convolution's numbers, as both kinds write them.
struct Written {
    outputs: usize,
    kernel: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    groups: usize,
}

impl Written {
    fn check(&self, inputs: usize) -> Result<(), Fault> {
        let Self { outputs, kernel, stride, dilation, groups } = self;
        sizes(&[("kernel", kernel), ("stride", stride), ("dilation", dilation)])?;
        if *outputs == 0 {
            return fault("its number of outputs is 0".into(), "give at least 1");
        }
        if *groups == 0 || !inputs.is_multiple_of(*groups) || !outputs.is_multiple_of(*groups) {
            return fault(
                format!("its {groups} groups do not divide {inputs} channels in and {outputs} out"),
                "use a number of groups that divides both",
            );
        }
        Ok(())
    }

    /// One axis, with the zeros around it.
    fn axis(&self, axis: usize, size: usize, [before, after]: [usize; 2]) -> Axis {
        let (kernel, stride, dilation) = (self.kernel[axis], self.stride[axis], self.dilation[axis]);
        Axis { size, kernel, stride, before, after, dilation }
    }

    /// Pixels that a kernel reaches over.
    fn reach(&self, axis: usize) -> usize {
        self.dilation[axis] * (self.kernel[axis] - 1) + 1
    }

    fn forward(&self, shape: &[usize], padding: Padding, bias: bool) -> Result<Typed, Fault> {
        let (inputs, size) = image(shape)?;
        self.check(inputs)?;
        if let Padding::Each(Sides(sides)) = padding {
            reasonable(&[("padding", &sides)])?;
        }
        let axis = |axis: usize| {
            self.axis(axis, size[axis], padding.around(axis, size[axis], self.reach(axis), self.stride[axis]))
        };
        let geometry = Convolution { inputs, outputs: self.outputs, groups: self.groups, axes: [axis(0), axis(1)] };
        let output = geometry.output_shape();
        let around = geometry.axes.map(|axis| axis.before + axis.after);
        padded(inputs, size, around)?;
        padded(self.outputs, [output[1], output[2]], [2 * self.reach(0), 2 * self.reach(1)])?;
        if output.contains(&0) {
            let [height, width] = self.kernel;
            return fault(
                format!("its kernel of {height}x{width} does not fit an image of {}x{}", size[0], size[1]),
                "use a smaller kernel, or padding",
            );
        }
        Ok(convolution(Conv { geometry, transposed: false, bias }, &output))
    }

    fn transposed(&self, shape: &[usize], padding: [usize; 2], extra: [usize; 2], bias: bool) -> Result<Typed, Fault> {
        let (inputs, size) = image(shape)?;
        self.check(inputs)?;
        reasonable(&[("padding", &padding), ("output padding", &extra)])?;
        if (0..2).any(|axis| extra[axis] >= self.stride[axis]) {
            return fault(
                format!("its output padding is {extra:?}"),
                "it must be less than the stride; of a dilated kernel too",
            );
        }
        let axis = |axis: usize| -> Option<Axis> {
            let whole = (size[axis] - 1) * self.stride[axis] + self.reach(axis) + extra[axis];
            let size = whole.checked_sub(2 * padding[axis]).filter(|&size| size > 0)?;
            Some(self.axis(axis, size, [padding[axis]; 2]))
        };
        let (Some(rows), Some(columns)) = (axis(0), axis(1)) else {
            return fault(format!("its padding of {padding:?} cuts the whole output off"), "use less");
        };
        let geometry =
            Convolution { inputs: self.outputs, outputs: inputs, groups: self.groups, axes: [rows, columns] };
        let output = geometry.input_shape();
        padded(inputs, size, [2 * self.reach(0), 2 * self.reach(1)])?;
        padded(self.outputs, [output[1], output[2]], [2 * padding[0], 2 * padding[1]])?;
        Ok(convolution(Conv { geometry, transposed: true, bias }, &output))
    }
}

fn convolution(layer: Conv, shape: &[usize]) -> Typed {
    Typed { wanted: layer.wanted(), ..Typed::plain(Layer::Conv(layer), shape) }
}

pub(super) fn batch_norm(shape: &[usize], eps: f64, momentum: f64, affine: bool) -> Result<Typed, Fault> {
    if !(eps >= 0.0 && eps.is_finite() && (0.0..=1.0).contains(&momentum)) {
        let problem = format!("its eps is {eps} and its momentum {momentum}");
        return fault(problem, "eps must not be negative, and momentum lies between 0 and 1");
    }
    let channels = shape[0];
    let layer = BatchNorm { channels, eps, momentum, affine, mode: Mode::default() };
    Ok(Typed { wanted: layer.wanted(), ..Typed::plain(Layer::BatchNorm(layer), shape) })
}

/// Windows of a pooling layer.
fn windows(shape: &[usize], kernel: Sides, stride: Option<Sides>, padding: Sides) -> Result<(usize, Windows), Fault> {
    let (channels, size) = image(shape)?;
    let (Sides(kernel), Sides(stride), Sides(padding)) = (kernel, stride.unwrap_or(kernel), padding);
    sizes(&[("kernel", &kernel), ("stride", &stride)])?;
    reasonable(&[("padding", &padding)])?;
    if (0..2).any(|axis| 2 * padding[axis] > kernel[axis]) {
        return fault(format!("its padding is {padding:?}"), "it must be at most half the kernel");
    }
    match Windows::regular(size, kernel, stride, padding) {
        Some(windows) => Ok((channels, windows)),
        None => fault(
            format!("its window of {}x{} does not fit an image of {}x{}", kernel[0], kernel[1], size[0], size[1]),
            "use a smaller kernel",
        ),
    }
}

/// Every other layer on images.
pub(super) fn layer(kind: &LayerKind, shape: &[usize]) -> Result<Typed, Fault> {
    match *kind {
        LayerKind::Conv { outputs, kernel, stride, padding, dilation, groups, bias } => {
            let (Sides(kernel), Sides(stride), Sides(dilation)) = (kernel, stride, dilation);
            Written { outputs, kernel, stride, dilation, groups }.forward(shape, padding, bias)
        }
        LayerKind::ConvTranspose { outputs, kernel, stride, padding, output_padding, dilation, groups, bias } => {
            let (Sides(kernel), Sides(stride), Sides(dilation)) = (kernel, stride, dilation);
            let written = Written { outputs, kernel, stride, dilation, groups };
            written.transposed(shape, padding.0, output_padding.0, bias)
        }
        LayerKind::MaxPool { kernel, stride, padding } => {
            let (channels, windows) = windows(shape, kernel, stride, padding)?;
            let [rows, columns] = windows.count();
            Ok(Typed::plain(Layer::MaxPool(MaxPool { windows }), &[channels, rows, columns]))
        }
        LayerKind::AvgPool { kernel, stride, padding } => {
            let (channels, windows) = windows(shape, kernel, stride, padding)?;
            let [rows, columns] = windows.count();
            Ok(Typed::plain(Layer::AveragePool(AveragePool { windows }), &[channels, rows, columns]))
        }
        LayerKind::AdaptiveAvgPool { output: Sides(output) } => {
            let (channels, size) = image(shape)?;
            sizes(&[("output", &output)])?;
            let windows = Windows::adaptive(size, output);
            Ok(Typed::plain(Layer::AveragePool(AveragePool { windows }), &[channels, output[0], output[1]]))
        }
        LayerKind::Upsample { factor: Sides(factor) } => {
            let (channels, size) = image(shape)?;
            sizes(&[("factor", &factor)])?;
            let larger = [size[0].saturating_mul(factor[0]), size[1].saturating_mul(factor[1])];
            if channels.saturating_mul(larger[0].saturating_mul(larger[1])) > MOST_SCALARS {
                return fault(format!("its output would be {}x{}", larger[0], larger[1]), "use a smaller factor");
            }
            let windows = Windows::blocks(size, factor);
            Ok(Typed::plain(Layer::Upsample(Upsample { windows }), &[channels, larger[0], larger[1]]))
        }
        _ => fault("it is of a kind that works on no image".into(), "this is a defect; please report it"),
    }
}
