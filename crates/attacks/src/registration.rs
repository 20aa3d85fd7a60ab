//! Bringing one image onto another: a shift first, then a smooth dense flow.
//!
//! Reconstructions of one picture from different starts agree up to small
//! displacements. GradInversion registers them with a pretrained network
//! (RANSAC-flow); here phase correlation (Kuglin & Hines, 1975) gives the
//! shift and a variational flow (Horn & Schunck, 1981) on a pyramid the rest,
//! so that nothing pretrained is needed.
//!
//! The flow u minimises Σ_c |M_c(p + u(p)) − F_c(p)|² + α |∇u|² over the
//! pixels p, linearised about the current u and relaxed by Jacobi sweeps.

use rustfft::FftPlanner;
use rustfft::num_complex::Complex;
use serde::{Deserialize, Serialize};

/// How far and how smoothly images are moved.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Registration {
    /// α: the larger, the stiffer the flow.
    pub stiffness: f64,
    /// Linearisations a level.
    pub warps: usize,
    /// Sweeps a linearisation.
    pub sweeps: usize,
}

impl Default for Registration {
    fn default() -> Self {
        Self { stiffness: 0.05, warps: 4, sweeps: 40 }
    }
}

/// Channels, height and width.
pub type Size = [usize; 3];

/// An image brought onto another.
#[derive(Debug, Clone, PartialEq)]
pub struct Registered {
    /// The image after its move.
    pub image: Vec<f64>,
    /// The shift found first, in rows and columns.
    pub shift: [isize; 2],
}

impl Registration {
    /// Moves `image` onto `fixed`, both channel by channel in row-major order.
    /// A move that does not bring it closer is not made.
    ///
    /// ```
    /// use afterimage_attacks::registration::Registration;
    /// let mut dot = vec![0.0; 64];
    /// dot[8 * 3 + 3] = 1.0;
    /// let mut moved = vec![0.0; 64];
    /// moved[8 * 5 + 2] = 1.0;
    /// let found = Registration::default().register(&moved, &dot, [1, 8, 8]);
    /// assert_eq!(found.shift, [-2, 1]);
    /// assert!(found.image.iter().zip(&dot).all(|(a, b)| (a - b).abs() < 1e-9));
    /// ```
    pub fn register(&self, image: &[f64], fixed: &[f64], size: Size) -> Registered {
        let count: usize = size.iter().product();
        if count == 0 || image.len() != count || fixed.len() != count {
            return Registered { image: image.to_vec(), shift: [0, 0] };
        }
        let (mut shift, mut moved) = (phase_correlation(image, fixed, size), image.to_vec());
        let shifted = translate(image, size, shift);
        if distance(&shifted, fixed) < distance(&moved, fixed) {
            moved = shifted;
        } else {
            shift = [0, 0];
        }
        let flowed = self.flow(&moved, fixed, size).warp(&moved, size);
        if distance(&flowed, fixed) < distance(&moved, fixed) {
            moved = flowed;
        }
        Registered { image: moved, shift }
    }

    /// The flow that brings an image onto `fixed`, coarse to fine.
    fn flow(&self, image: &[f64], fixed: &[f64], size: Size) -> Flow {
        let mut pyramid = vec![(image.to_vec(), fixed.to_vec(), size)];
        while let Some((image, fixed, size)) = pyramid.last() {
            if size[1].min(size[2]) < 16 {
                break;
            }
            let half = [size[0], size[1] / 2, size[2] / 2];
            let coarser = (halve(image, *size), halve(fixed, *size), half);
            pyramid.push(coarser);
        }
        let mut flow = Flow::none([1, 1, 1]);
        for (image, fixed, size) in pyramid.iter().rev() {
            flow = flow.on(*size);
            for _ in 0..self.warps {
                flow = self.relax(&flow, image, fixed, *size);
            }
        }
        flow
    }

    /// One linearisation about `flow`, relaxed.
    fn relax(&self, flow: &Flow, image: &[f64], fixed: &[f64], size: Size) -> Flow {
        let [channels, height, width] = size;
        let warped = flow.warp(image, size);
        // Per pixel: Σ_c ∇M ∇Mᵀ (three entries) and Σ_c ∇M (M − F) (two).
        let mut terms = vec![[0.0; 5]; height * width];
        for channel in 0..channels {
            let plane = &warped[channel * height * width..][..height * width];
            let goal = &fixed[channel * height * width..][..height * width];
            for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
                let (up, down) = (y.saturating_sub(1), (y + 1).min(height - 1));
                let (left, right) = (x.saturating_sub(1), (x + 1).min(width - 1));
                let slope = |high: f64, low: f64, steps: usize| (high - low) / steps.max(1) as f64;
                let dy = slope(plane[down * width + x], plane[up * width + x], down - up);
                let dx = slope(plane[y * width + right], plane[y * width + left], right - left);
                let off = plane[y * width + x] - goal[y * width + x];
                let term = &mut terms[y * width + x];
                for (sum, value) in term.iter_mut().zip([dy * dy, dy * dx, dx * dx, dy * off, dx * off]) {
                    *sum += value;
                }
            }
        }
        let alpha = self.stiffness.max(1e-12);
        let mut now = flow.vectors.clone();
        for _ in 0..self.sweeps {
            let before = now.clone();
            for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
                let around = [
                    before[y.saturating_sub(1) * width + x],
                    before[(y + 1).min(height - 1) * width + x],
                    before[y * width + x.saturating_sub(1)],
                    before[y * width + (x + 1).min(width - 1)],
                ];
                let mean = [0, 1].map(|axis| around.iter().map(|v| v[axis]).sum::<f64>() / 4.0);
                let here = y * width + x;
                let [a, b, c, p, q] = terms[here];
                let start = flow.vectors[here];
                // (A + αI) u = α ū + A u₀ − b.
                let right = [
                    alpha * mean[0] + a * start[0] + b * start[1] - p,
                    alpha * mean[1] + b * start[0] + c * start[1] - q,
                ];
                let determinant = (a + alpha) * (c + alpha) - b * b;
                now[here] = [
                    ((c + alpha) * right[0] - b * right[1]) / determinant,
                    ((a + alpha) * right[1] - b * right[0]) / determinant,
                ];
            }
        }
        Flow { vectors: now, size }
    }
}

/// A displacement for every pixel, in rows and columns.
struct Flow {
    vectors: Vec<[f64; 2]>,
    size: Size,
}

impl Flow {
    fn none(size: Size) -> Self {
        Self { vectors: vec![[0.0; 2]; size[1] * size[2]], size }
    }

    /// The same flow on a finer grid: displacements grow with the grid.
    fn on(&self, size: Size) -> Self {
        let scale = [size[1] as f64 / self.size[1] as f64, size[2] as f64 / self.size[2] as f64];
        let vectors = (0..size[1] * size[2]).map(|place| {
            let y = (place / size[2]) as f64 / scale[0];
            let x = (place % size[2]) as f64 / scale[1];
            let part = |axis: usize| {
                let value = |index: usize| self.vectors[index][axis];
                bilinear(value, self.size[1], self.size[2], y, x) * scale[axis]
            };
            [part(0), part(1)]
        });
        Self { vectors: vectors.collect(), size }
    }

    /// M(p + u(p)).
    fn warp(&self, image: &[f64], size: Size) -> Vec<f64> {
        let [_, height, width] = size;
        let planes = image.chunks_exact(height * width);
        let moved = |plane: &[f64]| -> Vec<f64> {
            let pixel = |place: usize| {
                let [dy, dx] = self.vectors[place];
                let (y, x) = ((place / width) as f64 + dy, (place % width) as f64 + dx);
                bilinear(|index| plane[index], height, width, y, x)
            };
            (0..plane.len()).map(pixel).collect()
        };
        planes.flat_map(moved).collect()
    }
}

/// The value between four grid points; outside, that of the nearest edge.
fn bilinear(value: impl Fn(usize) -> f64, height: usize, width: usize, y: f64, x: f64) -> f64 {
    let (y, x) = (y.clamp(0.0, (height - 1) as f64), x.clamp(0.0, (width - 1) as f64));
    let (top, left) = (y.floor() as usize, x.floor() as usize);
    let (bottom, right) = ((top + 1).min(height - 1), (left + 1).min(width - 1));
    let (v, h) = (y - top as f64, x - left as f64);
    let row = |row: usize| (1.0 - h) * value(row * width + left) + h * value(row * width + right);
    (1.0 - v) * row(top) + v * row(bottom)
}

/// Means of 2x2 blocks; an odd last row or column is left out.
fn halve(image: &[f64], size: Size) -> Vec<f64> {
    let [channels, height, width] = size;
    let (h, w) = (height / 2, width / 2);
    let block = |place: usize| {
        let (channel, y, x) = (place / (h * w), place / w % h, place % w);
        let at = |dy: usize, dx: usize| image[(channel * height + 2 * y + dy) * width + 2 * x + dx];
        (at(0, 0) + at(0, 1) + at(1, 0) + at(1, 1)) / 4.0
    };
    (0..channels * h * w).map(block).collect()
}

/// The image moved by whole rows and columns; edges are repeated.
pub fn translate(image: &[f64], size: Size, [down, right]: [isize; 2]) -> Vec<f64> {
    let [channels, height, width] = size;
    let source = |place: usize, by: isize, length: usize| place.checked_add_signed(-by).unwrap_or(0).min(length - 1);
    let pixel = |place: usize| {
        let (channel, y, x) = (place / (height * width), place / width % height, place % width);
        image[(channel * height + source(y, down, height)) * width + source(x, right, width)]
    };
    (0..channels * height * width).map(pixel).collect()
}

/// The shift in rows and columns that moves `image` onto `fixed`, by the peak
/// of the whitened cross-correlation, channels added up.
pub fn phase_correlation(image: &[f64], fixed: &[f64], size: Size) -> [isize; 2] {
    let [_, height, width] = size;
    let plane = height * width;
    let mut sum = vec![Complex::new(0.0, 0.0); plane];
    for (a, b) in image.chunks_exact(plane.max(1)).zip(fixed.chunks_exact(plane.max(1))) {
        let (a, b) = (spectrum(a, height, width), spectrum(b, height, width));
        for (sum, (a, b)) in sum.iter_mut().zip(a.iter().zip(&b)) {
            let product = b * a.conj();
            let size = product.norm();
            if size > 1e-12 {
                *sum += product / size;
            }
        }
    }
    // The inverse transform, up to a reflection that conjugation undoes.
    sum.iter_mut().for_each(|value| *value = value.conj());
    transform(&mut sum, height, width);
    let peak = (0..plane).max_by(|&a, &b| sum[a].re.total_cmp(&sum[b].re)).unwrap_or(0);
    let signed = |place: usize, length: usize| {
        if 2 * place > length { place as isize - length as isize } else { place as isize }
    };
    [signed(peak / width.max(1), height), signed(peak % width.max(1), width)]
}

/// Magnitudes of the two-dimensional Fourier transform of one channel.
pub fn magnitudes(plane: &[f64], height: usize, width: usize) -> Vec<f64> {
    spectrum(plane, height, width).iter().map(|value| value.norm()).collect()
}

fn spectrum(plane: &[f64], height: usize, width: usize) -> Vec<Complex<f64>> {
    let mut values: Vec<Complex<f64>> = plane.iter().map(|&value| Complex::new(value, 0.0)).collect();
    transform(&mut values, height, width);
    values
}

/// Rows, then columns.
fn transform(values: &mut [Complex<f64>], height: usize, width: usize) {
    if height == 0 || width == 0 {
        return;
    }
    let mut planner = FftPlanner::new();
    planner.plan_fft_forward(width).process(values);
    let columns = planner.plan_fft_forward(height);
    let mut column = vec![Complex::new(0.0, 0.0); height];
    for x in 0..width {
        for (y, value) in column.iter_mut().enumerate() {
            *value = values[y * width + x];
        }
        columns.process(&mut column);
        for (y, value) in column.iter().enumerate() {
            values[y * width + x] = *value;
        }
    }
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A smooth picture with structure at several scales.
    fn picture(size: Size, at: impl Fn(f64, f64) -> (f64, f64)) -> Vec<f64> {
        let [channels, height, width] = size;
        let mut values = Vec::new();
        for (channel, y, x) in
            (0..channels).flat_map(|c| (0..height).flat_map(move |y| (0..width).map(move |x| (c, y, x))))
        {
            let (y, x) = at(y as f64, x as f64);
            let waves = (0.31 * x + 0.5 * channel as f64).sin() * (0.23 * y).cos() + 0.5 * (0.11 * x * y / 16.0).sin();
            values.push(0.5 + 0.25 * waves);
        }
        values
    }

    #[test]
    fn whole_shifts_are_found_exactly() {
        let size = [3, 24, 31];
        let mut texture = afterimage_nn::Stream::new(1, "texture", 0);
        let fixed: Vec<f64> = picture(size, |y, x| (y, x)).iter().map(|x| x + texture.uniform(0.0, 0.2)).collect();
        for shift in [[0, 0], [3, -5], [-4, 2], [0, 7]] {
            let moved = translate(&fixed, size, shift);
            let [down, right] = phase_correlation(&moved, &fixed, size);
            assert_eq!([-down, -right], shift);
        }
    }

    #[test]
    fn a_smooth_displacement_is_undone() {
        let size = [3, 48, 40];
        let fixed = picture(size, |y, x| (y, x));
        let bent = picture(size, |y, x| (y + 1.2 * (x / 9.0).sin() - 1.0, x + 1.1 * (y / 11.0).cos() + 2.0));
        let psnr = |a: &[f64]| -10.0 * (distance(a, &fixed) / fixed.len() as f64).log10();
        let found = Registration::default().register(&bent, &fixed, size);
        assert!(psnr(&found.image) > psnr(&bent) + 10.0, "{} after {}", psnr(&found.image), psnr(&bent));
    }

    /// The root mean square of u(p) + d(p + u(p)), away from the edges, where a picture was moved by d and u is
    /// the displacement that was found: by a shift first, then by a flow.
    fn off_by(d: impl Fn(f64, f64) -> [f64; 2]) -> f64 {
        let size = [3, 48, 40];
        let detail = |y: f64, x: f64| (y + 1.5 * (0.9 * x).sin(), x + 1.5 * (0.8 * y).cos());
        let fixed = picture(size, detail);
        let bent = picture(size, |y, x| detail(y + d(y, x)[0], x + d(y, x)[1]));
        let registration = Registration::default();
        let shift = registration.register(&bent, &fixed, size).shift;
        let flow = registration.flow(&translate(&bent, size, shift), &fixed, size);
        let inside = (6..42).flat_map(|y| (6..34).map(move |x| (y, x)));
        let errors: Vec<f64> = inside
            .map(|(y, x)| {
                let [down, right] = flow.vectors[y * 40 + x];
                let u = [down - shift[0] as f64, right - shift[1] as f64];
                let d = d(y as f64 + u[0], x as f64 + u[1]);
                (u[0] + d[0]).powi(2) + (u[1] + d[1]).powi(2)
            })
            .collect();
        (errors.iter().sum::<f64>() / errors.len() as f64).sqrt()
    }

    #[test]
    fn shifts_and_smooth_warps_are_found_to_a_fifth_of_a_pixel() {
        for [down, right] in [[0.5, -0.3], [2.0, -3.0], [-1.4, 2.6]] {
            let off = off_by(|_, _| [down, right]);
            assert!(off < 0.2, "shift by {down}, {right}: off by {off}");
        }
        let off = off_by(|y, x| [1.2 * (x / 9.0).sin(), 1.1 * (y / 11.0).cos()]);
        assert!(off < 0.2, "warp: off by {off}");
    }

    #[test]
    fn what_lies_right_is_left_alone_and_nothing_gets_worse() {
        let size = [1, 17, 19];
        let fixed = picture(size, |y, x| (y, x));
        let same = Registration::default().register(&fixed, &fixed, size);
        assert_eq!((same.image.as_slice(), same.shift), (fixed.as_slice(), [0, 0]));
        let other: Vec<f64> = (0..fixed.len()).map(|i| f64::from((i * 7919 % 101) as u32) / 101.0).collect();
        let forced = Registration::default().register(&other, &fixed, size);
        assert!(distance(&forced.image, &fixed) <= distance(&other, &fixed));
        for empty in [[0, 4, 4], [1, 0, 4], [1, 4, 0]] {
            assert_eq!(Registration::default().register(&[], &[], empty).shift, [0, 0]);
        }
    }
}
