//! Structural similarity (Wang et al. 2004) with Gaussian windows.

const C1: f64 = 0.01 * 0.01;
const C2: f64 = 0.03 * 0.03;
const SIGMA: f64 = 1.5;

/// 11x11 window, mean over the positions where it lies wholly inside.
pub(super) fn interior(a: &[f64], b: &[f64], shape: &[usize]) -> Option<f64> {
    mean_over_channels(a, b, shape, |a, b, height, width| {
        const RADIUS: usize = 5;
        if height <= 2 * RADIUS || width <= 2 * RADIUS {
            return None;
        }
        let map = similarity(a, b, height, width, RADIUS);
        let inside = (RADIUS..height - RADIUS).flat_map(|y| (RADIUS..width - RADIUS).map(move |x| y * width + x));
        let (sum, count) = inside.fold((0.0, 0), |(sum, count), index| (sum + map[index], count + 1));
        Some(sum / f64::from(count))
    })
}

/// 3x3 window, mean over the whole map, borders mirrored.
pub(super) fn mirrored(a: &[f64], b: &[f64], shape: &[usize]) -> Option<f64> {
    mean_over_channels(a, b, shape, |a, b, height, width| {
        if height < 2 || width < 2 {
            return None;
        }
        let map = similarity(a, b, height, width, 1);
        Some(map.iter().sum::<f64>() / map.len() as f64)
    })
}

fn mean_over_channels(
    a: &[f64],
    b: &[f64],
    shape: &[usize],
    f: impl Fn(&[f64], &[f64], usize, usize) -> Option<f64>,
) -> Option<f64> {
    let &[channels, height, width] = shape else { return None };
    let plane = height * width;
    if plane == 0 || a.len() != channels * plane || b.len() != a.len() {
        return None;
    }
    let each = a.chunks_exact(plane).zip(b.chunks_exact(plane)).map(|(a, b)| f(a, b, height, width));
    let sum: Option<f64> = each.sum();
    sum.map(|sum| sum / channels as f64)
}

/// The similarity map of two planes.
fn similarity(a: &[f64], b: &[f64], height: usize, width: usize, radius: usize) -> Vec<f64> {
    let blur = |f: &dyn Fn(f64, f64) -> f64| {
        let plane: Vec<f64> = a.iter().zip(b).map(|(a, b)| f(*a, *b)).collect();
        gaussian(&plane, height, width, radius)
    };
    let (ma, mb) = (blur(&|a, _| a), blur(&|_, b| b));
    let (aa, bb, ab) = (blur(&|a, _| a * a), blur(&|_, b| b * b), blur(&|a, b| a * b));
    (0..a.len())
        .map(|i| {
            let (va, vb, vab) = (aa[i] - ma[i] * ma[i], bb[i] - mb[i] * mb[i], ab[i] - ma[i] * mb[i]);
            let luminance = (2.0 * ma[i] * mb[i] + C1) / (ma[i] * ma[i] + mb[i] * mb[i] + C1);
            luminance * (2.0 * vab + C2) / (va + vb + C2)
        })
        .collect()
}

/// A separable Gaussian filter; indices beyond the border are mirrored at it.
fn gaussian(plane: &[f64], height: usize, width: usize, radius: usize) -> Vec<f64> {
    let radius = radius as isize;
    let raw: Vec<f64> = (-radius..=radius).map(|i| (-0.5 * (i as f64 / SIGMA).powi(2)).exp()).collect();
    let total: f64 = raw.iter().sum();
    let window: Vec<f64> = raw.iter().map(|value| value / total).collect();
    let mirror = |index: isize, side: usize| {
        let last = side as isize - 1;
        let index = index.abs();
        (if index > last { 2 * last - index } else { index }).clamp(0, last) as usize
    };
    let filter = |plane: &[f64], at: &dyn Fn(usize, usize, isize) -> usize| -> Vec<f64> {
        (0..height * width)
            .map(|i| (-radius..=radius).zip(&window).map(|(k, w)| w * plane[at(i / width, i % width, k)]).sum())
            .collect()
    };
    let rows = filter(plane, &|y, x, k| y * width + mirror(x as isize + k, width));
    filter(&rows, &|y, x, k| mirror(y as isize + k, height) * width + x)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(salt: f64) -> Vec<f64> {
        (0..2 * 14 * 13).map(|i| 0.5 + 0.4 * (f64::from(i) * 0.37 + salt).sin()).collect()
    }

    #[test]
    fn likeness_is_one_for_equals_and_symmetric() {
        let (a, b, shape) = (wave(0.0), wave(0.9), [2, 14, 13]);
        for f in [interior, mirrored] {
            assert!((f(&a, &a, &shape).unwrap() - 1.0).abs() < 1e-12);
            assert_eq!(f(&a, &b, &shape), f(&b, &a, &shape));
            assert!(f(&a, &b, &shape).unwrap() < 0.9);
        }
        assert_eq!(interior(&a[..100], &b[..100], &[1, 10, 10]), None);
        assert_eq!(mirrored(&a[..4], &b[..4], &[4]), None);
    }
}
