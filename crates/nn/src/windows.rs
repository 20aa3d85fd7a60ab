//! The windows that pooling and upsampling work on.

use std::ops::Range;
use std::sync::Arc;

/// Windows over a plane: one for each pair of a range of rows and a range of columns.
///
/// Pooling turns every window into one pixel; spreading, its adjoint, gives every
/// pixel of a window the window's value. With windows that tile the plane and no
/// division, spreading is nearest-neighbour upsampling.
#[derive(Debug, Clone, PartialEq)]
pub struct Windows {
    /// Height and width of the plane.
    pub(crate) size: [usize; 2],
    pub(crate) rows: Arc<[Range<usize>]>,
    pub(crate) columns: Arc<[Range<usize>]>,
    /// What a sum over a window is multiplied with; `None`: one over its area.
    pub(crate) scale: Option<f64>,
}

impl Windows {
    /// Windows of one size at regular steps over a plane with so many pixels added around
    /// it, cut off at the plane's edges. A sum is divided by the size before the cut.
    pub(crate) fn regular(
        size: [usize; 2],
        kernel: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
    ) -> Option<Self> {
        let along = |axis: usize| -> Option<Arc<[Range<usize>]>> {
            let (size, kernel, stride, padding) = (size[axis], kernel[axis], stride[axis], padding[axis]);
            let places = (size + 2 * padding).checked_sub(kernel)? / stride + 1;
            let clipped = |place: usize| {
                let start = place * stride;
                start.saturating_sub(padding)..(start + kernel).saturating_sub(padding).min(size)
            };
            let ranges: Vec<Range<usize>> = (0..places).map(clipped).collect();
            // Padding of less than a window leaves none of them empty.
            ranges.iter().all(|range| !range.is_empty()).then(|| ranges.into())
        };
        let scale = Some(1.0 / (kernel[0] * kernel[1]) as f64);
        Some(Self { size, rows: along(0)?, columns: along(1)?, scale })
    }

    /// So many windows of about one size that cover the plane, as PyTorch's adaptive pooling
    /// cuts it; a sum is divided by the window's own area.
    pub(crate) fn adaptive(size: [usize; 2], outputs: [usize; 2]) -> Self {
        let along = |axis: usize| -> Arc<[Range<usize>]> {
            let (size, outputs) = (size[axis], outputs[axis]);
            (0..outputs).map(|i| i * size / outputs..((i + 1) * size).div_ceil(outputs)).collect()
        };
        Self { size, rows: along(0), columns: along(1), scale: None }
    }

    /// Blocks of `factor` pixels that tile a plane which is that much larger.
    pub(crate) fn blocks(outputs: [usize; 2], factor: [usize; 2]) -> Self {
        let along = |axis: usize| -> Arc<[Range<usize>]> {
            (0..outputs[axis]).map(|i| i * factor[axis]..(i + 1) * factor[axis]).collect()
        };
        let size = [outputs[0] * factor[0], outputs[1] * factor[1]];
        Self { size, rows: along(0), columns: along(1), scale: Some(1.0) }
    }

    /// How many windows there are down and across.
    pub(crate) fn count(&self) -> [usize; 2] {
        [self.rows.len(), self.columns.len()]
    }

    /// What the sum over a window is multiplied with.
    pub(crate) fn scale_of(&self, rows: &Range<usize>, columns: &Range<usize>) -> f64 {
        self.scale.unwrap_or_else(|| 1.0 / (rows.len() * columns.len()) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_those_of_pytorch() {
        let pool = Windows::regular([7, 6], [3, 2], [2, 2], [1, 0]).unwrap();
        assert_eq!(&pool.rows[..], [0..2, 1..4, 3..6, 5..7]);
        assert_eq!(&pool.columns[..], [0..2, 2..4, 4..6]);
        assert_eq!(pool.scale, Some(1.0 / 6.0));
        assert_eq!(Windows::regular([2, 2], [3, 3], [1, 1], [0, 0]), None);
        let adaptive = Windows::adaptive([7, 3], [3, 5]);
        assert_eq!(&adaptive.rows[..], [0..3, 2..5, 4..7]);
        assert_eq!(&adaptive.columns[..], [0..1, 0..2, 1..2, 1..3, 2..3]);
        let blocks = Windows::blocks([2, 1], [2, 3]);
        assert_eq!((&blocks.rows[..], blocks.size), (&[0..2, 2..4][..], [4, 3]));
    }
}
