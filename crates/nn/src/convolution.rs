//! The geometry of a convolution: which element of the input meets which weight where.

/// One axis of a convolution: a kernel that moves over a padded line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Axis {
    /// Length of the input.
    pub size: usize,
    /// Length of the kernel.
    pub kernel: usize,
    /// Steps between two places of the kernel.
    pub stride: usize,
    /// Zeros before the input.
    pub before: usize,
    /// Zeros after it.
    pub after: usize,
    /// Distance between neighbouring weights.
    pub dilation: usize,
}

impl Axis {
    /// Places of the kernel, which are outputs: none if it does not fit.
    pub fn outputs(&self) -> usize {
        if self.kernel == 0 || self.stride == 0 {
            return 0;
        }
        let padded = self.size + self.before + self.after;
        let reach = self.dilation * (self.kernel - 1) + 1;
        if padded < reach { 0 } else { (padded - reach) / self.stride + 1 }
    }

    /// Inputs `phase`, `phase + stride`, …: those that meet the same weights, each as
    /// (weight, place of the kernel it meets there, counted from the input's own number).
    ///
    /// Input i = phase + stride · q meets weight k in place q + (phase + before − k · dilation) / stride,
    /// where that divides.
    pub(crate) fn met_by(&self, phase: usize) -> Vec<(usize, isize)> {
        let reach = |k: usize| (phase + self.before) as isize - (k * self.dilation) as isize;
        let stride = self.stride as isize;
        (0..self.kernel).filter(|&k| reach(k) % stride == 0).map(|k| (k, reach(k) / stride)).collect()
    }

    /// The phases that have inputs.
    pub(crate) fn phases(&self) -> std::ops::Range<usize> {
        0..self.stride.min(self.size)
    }

    /// How many inputs there are of a phase.
    pub(crate) fn of_phase(&self, phase: usize) -> usize {
        self.size.saturating_sub(phase).div_ceil(self.stride)
    }
}

/// A two-dimensional convolution y_o = Σ_c w_oc ⋆ x_c, as `nn.Conv2d` defines it.
///
/// ```
/// use afterimage_nn::{Axis, Convolution};
/// let axis = Axis { size: 32, kernel: 3, stride: 2, before: 1, after: 1, dilation: 1 };
/// let convolution = Convolution { inputs: 16, outputs: 8, groups: 1, axes: [axis; 2] };
/// assert_eq!(convolution.output_shape(), [8, 16, 16]);
/// assert_eq!(convolution.weight_shape(), [8, 16, 3, 3]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Convolution {
    /// Channels that go in.
    pub inputs: usize,
    /// Channels that come out.
    pub outputs: usize,
    /// Parts that inputs and outputs are cut into, each part convolved with its own.
    pub groups: usize,
    /// Height and width.
    pub axes: [Axis; 2],
}

impl Convolution {
    /// Shape of a sample that goes in.
    pub fn input_shape(&self) -> [usize; 3] {
        [self.inputs, self.axes[0].size, self.axes[1].size]
    }

    /// Shape of a sample that comes out.
    pub fn output_shape(&self) -> [usize; 3] {
        [self.outputs, self.axes[0].outputs(), self.axes[1].outputs()]
    }

    /// Shape of the weight.
    pub fn weight_shape(&self) -> [usize; 4] {
        [self.outputs, self.inputs / self.groups.max(1), self.axes[0].kernel, self.axes[1].kernel]
    }

    /// Weights of one kernel.
    pub(crate) fn taps(&self) -> usize {
        self.axes[0].kernel * self.axes[1].kernel
    }

    /// Pixels of an output.
    pub(crate) fn pixels(&self) -> usize {
        self.axes[0].outputs() * self.axes[1].outputs()
    }

    /// Whether each input channel has a group of its own.
    pub(crate) fn is_depthwise(&self) -> bool {
        self.groups == self.inputs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_input_and_weight_is_met_once() {
        for (size, kernel, stride, before, after, dilation) in
            [(7, 3, 1, 1, 1, 1), (8, 3, 2, 0, 1, 1), (9, 2, 3, 0, 0, 1), (11, 3, 2, 2, 3, 2), (5, 5, 1, 4, 4, 1)]
        {
            let axis = Axis { size, kernel, stride, before, after, dilation };
            let mut direct: Vec<[isize; 3]> = Vec::new();
            for place in 0..axis.outputs() {
                for k in 0..kernel {
                    let input = (place * stride + k * dilation) as isize - before as isize;
                    if (0..size as isize).contains(&input) {
                        direct.push([input, k as isize, place as isize]);
                    }
                }
            }
            let mut phases: Vec<[isize; 3]> = Vec::new();
            for phase in 0..stride {
                for q in 0..axis.of_phase(phase) {
                    for (k, shift) in axis.met_by(phase) {
                        let place = q as isize + shift;
                        if (0..axis.outputs() as isize).contains(&place) {
                            phases.push([(phase + stride * q) as isize, k as isize, place]);
                        }
                    }
                }
            }
            direct.sort_unstable();
            phases.sort_unstable();
            assert_eq!(direct, phases, "{axis:?}");
        }
    }
}
