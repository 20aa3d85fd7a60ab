//! Sizes of things with two sides, as a network description writes them.

use serde::{Deserialize, Serialize};

/// Height and width; one number in text stands for both.
///
/// ```
/// use afterimage_nn::Sides;
/// assert_eq!(Sides::from(3), Sides([3, 3]));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "OneOrTwo", into = "OneOrTwo")]
pub struct Sides(pub [usize; 2]);

#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number, or [height, width]")]
enum OneOrTwo {
    One(usize),
    Two([usize; 2]),
}

impl From<OneOrTwo> for Sides {
    fn from(sides: OneOrTwo) -> Self {
        match sides {
            OneOrTwo::One(side) => Sides([side; 2]),
            OneOrTwo::Two(sides) => Sides(sides),
        }
    }
}

impl From<Sides> for OneOrTwo {
    fn from(Sides([height, width]): Sides) -> Self {
        if height == width { OneOrTwo::One(height) } else { OneOrTwo::Two([height, width]) }
    }
}

impl From<usize> for Sides {
    fn from(side: usize) -> Self {
        Sides([side; 2])
    }
}

impl From<[usize; 2]> for Sides {
    fn from(sides: [usize; 2]) -> Self {
        Sides(sides)
    }
}

/// Zeros around an image: a number, `[height, width]`, or `"same"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number, [height, width], or \"same\"")]
pub enum Padding {
    /// As many before as after.
    Each(Sides),
    /// As many as it takes for ⌈size / stride⌉ outputs; the odd one after. So TensorFlow
    /// pads, and PyTorch where the stride is 1.
    Same(Same),
}

/// The word `"same"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Same {
    /// See [`Padding::Same`].
    Same,
}

impl Padding {
    /// As many outputs as inputs, divided by the stride.
    pub const SAME: Padding = Padding::Same(Same::Same);

    /// Zeros before and after one axis of this size.
    pub(crate) fn around(self, axis: usize, size: usize, reach: usize, stride: usize) -> [usize; 2] {
        match self {
            Padding::Each(Sides(sides)) => [sides[axis]; 2],
            Padding::Same(_) => {
                let all = ((size.div_ceil(stride.max(1)).max(1) - 1) * stride + reach).saturating_sub(size);
                [all / 2, all - all / 2]
            }
        }
    }
}

impl From<usize> for Padding {
    fn from(side: usize) -> Self {
        Padding::Each(side.into())
    }
}

impl Default for Padding {
    fn default() -> Self {
        Padding::Each(Sides([0, 0]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_padding_is_that_of_tensorflow() {
        // EfficientNet's stem: 224 to 112 with a 3x3 kernel takes one row, at the bottom.
        assert_eq!(Padding::SAME.around(0, 224, 3, 2), [0, 1]);
        assert_eq!(Padding::SAME.around(0, 14, 5, 1), [2, 2]);
        assert_eq!(Padding::SAME.around(0, 7, 3, 2), [1, 1]);
        assert_eq!(Padding::from(2).around(1, 7, 3, 2), [2, 2]);
    }
}
