//! Moments of the gradient over the units: sums over samples, by Stein's lemma.
//!
//! ```text
//! Σ_i ν_i u_i u_iᵀ          from  g_j H2(z_j),  or H3 contracted with a (remark 3)
//! Σ_i λ_i u_i ⊗ u_i ⊗ u_i   from  g_j H3(z_j),  or H4 contracted with a (remark 4)
//! ```
//!
//! with g_j of the output layer's gradient (algorithm 1); or one order lower
//! with the hidden layer's ĝ_j (appendix B), averaged over which index it takes.
//! Nothing of size d³ is ever made: matrices are d x d at most, and third-order
//! moments are taken inside the span of the samples.

use faer::Mat;
use serde::{Deserialize, Serialize};

/// Which gradient is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The output layer's, ∇a (algorithm 1).
    Output,
    /// The hidden layer's, ∇W (appendix B).
    #[default]
    Hidden,
}

/// The units of the hidden layer, one a row, in coordinates of some space.
pub(super) struct Units {
    /// z_j, of N(0, I).
    pub(super) z: Mat<f64>,
    /// ĝ_j = Σ_i r_i σ'(z_j · p_i + b_j) p_i.
    pub(super) inner: Mat<f64>,
    /// g_j = Σ_i r_i σ(z_j · p_i + b_j).
    pub(super) outer: Vec<f64>,
    /// b_j.
    pub(super) offset: Vec<f64>,
}

impl Units {
    pub(super) fn count(&self) -> usize {
        self.z.nrows()
    }

    pub(super) fn dimension(&self) -> usize {
        self.z.ncols()
    }

    /// In the space spanned by the columns of V.
    pub(super) fn within(&self, v: &Mat<f64>) -> Self {
        Self { z: &self.z * v, inner: &self.inner * v, outer: self.outer.clone(), offset: self.offset.clone() }
    }

    /// Σ_i r_i E[σ'] p_i.
    pub(super) fn first(&self, source: Source) -> Vec<f64> {
        match source {
            Source::Output => mean_rows(&self.z, &self.outer),
            Source::Hidden => mean_rows(&self.inner, &vec![1.0; self.count()]),
        }
    }

    /// Σ_i ν_i u_i u_iᵀ: of the second order, or of the third contracted with `a`.
    pub(super) fn second(&self, source: Source, order: usize, a: &[f64]) -> Mat<f64> {
        let n = self.dimension();
        let along = |rows: &Mat<f64>| product(rows, a);
        match (source, order) {
            (Source::Output, 2) => {
                let mean = mean(&self.outer);
                let p = weighted(&self.z, &self.outer, &self.z);
                Mat::from_fn(n, n, |i, j| p[(i, j)] - if i == j { mean } else { 0.0 })
            }
            (Source::Output, _) => {
                let weights: Vec<f64> = self.outer.iter().zip(along(&self.z)).map(|(g, za)| g * za).collect();
                let (p, v, trace) = (weighted(&self.z, &weights, &self.z), self.first(source), mean(&weights));
                let identity = |i, j| if i == j { trace } else { 0.0 };
                Mat::from_fn(n, n, |i, j| p[(i, j)] - v[i] * a[j] - a[i] * v[j] - identity(i, j))
            }
            (Source::Hidden, 2) => {
                let p = weighted(&self.inner, &vec![1.0; self.count()], &self.z);
                Mat::from_fn(n, n, |i, j| 0.5 * (p[(i, j)] + p[(j, i)]))
            }
            (Source::Hidden, _) => {
                let (za, ga, v) = (along(&self.z), along(&self.inner), self.first(source));
                let (one, two) = (weighted(&self.inner, &za, &self.z), weighted(&self.z, &ga, &self.z));
                let trace = mean(&ga);
                Mat::from_fn(n, n, |i, j| {
                    let first = one[(i, j)] - v[i] * a[j] + one[(j, i)] - v[j] * a[i];
                    (first + two[(i, j)] - if i == j { trace } else { 0.0 }) / 3.0
                })
            }
        }
    }

    /// Σ_i λ_i u_i ⊗ u_i ⊗ u_i: of the third order, or of the fourth contracted with `a`.
    pub(super) fn third(&self, source: Source, order: usize, a: &[f64]) -> Cube {
        let za = product(&self.z, a);
        let ga = product(&self.inner, a);
        let scaled = |weights: &[f64]| -> Vec<f64> { self.outer.iter().zip(weights).map(|(g, w)| g * w).collect() };
        match (source, order) {
            (Source::Output, 3) => self.hermite3(&self.outer),
            (Source::Output, _) => {
                // H4 contracted: yyy(y·a), less the six pairings of S with I or a, plus three.
                let cubic = triple(&self.z, &scaled(&za), &self.z, &self.z);
                let s = weighted(&self.z, &self.outer, &self.z);
                let (sa, g) = (product(&s, a), mean(&self.outer));
                Cube::from_fn(self.dimension(), |i, j, k| {
                    let one = |i: usize, j: usize, k: usize| delta(j, k) * (sa[i] - g * a[i]) + s[(j, k)] * a[i];
                    cubic.at(i, j, k) - one(i, j, k) - one(j, k, i) - one(k, i, j)
                })
            }
            (Source::Hidden, 3) => {
                let t = triple(&self.inner, &vec![1.0; self.count()], &self.z, &self.z);
                let v = self.first(source);
                Cube::from_fn(self.dimension(), |i, j, k| {
                    let one = |i, j, k| t.at(i, j, k) - v[i] * delta(j, k);
                    (one(i, j, k) + one(j, k, i) + one(k, i, j)) / 3.0
                })
            }
            (Source::Hidden, _) => {
                // ĝ ⊗ H3 contracted with a: in one of H3's places, or in ĝ's.
                let cubic = triple(&self.inner, &za, &self.z, &self.z);
                let c = weighted(&self.inner, &vec![1.0; self.count()], &self.z);
                let v = mean_rows(&self.inner, &za);
                let other = self.hermite3(&ga);
                Cube::from_fn(self.dimension(), |i, j, k| {
                    let one = |i, j, k| cubic.at(i, j, k) - c[(i, j)] * a[k] - c[(i, k)] * a[j] - v[i] * delta(j, k);
                    (one(i, j, k) + one(j, k, i) + one(k, i, j) + other.at(i, j, k)) / 4.0
                })
            }
        }
    }

    /// The mean of w_j H3(z_j).
    fn hermite3(&self, weights: &[f64]) -> Cube {
        let t = triple(&self.z, weights, &self.z, &self.z);
        let v = mean_rows(&self.z, weights);
        Cube::from_fn(self.dimension(), |i, j, k| {
            t.at(i, j, k) - v[i] * delta(j, k) - v[j] * delta(i, k) - v[k] * delta(i, j)
        })
    }
}

fn delta(i: usize, j: usize) -> f64 {
    if i == j { 1.0 } else { 0.0 }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Ma.
pub(super) fn product(m: &Mat<f64>, a: &[f64]) -> Vec<f64> {
    let column = m * Mat::from_fn(a.len(), 1, |i, _| a[i]);
    column.col(0).iter().copied().collect()
}

/// The mean of w_j times row j.
fn mean_rows(rows: &Mat<f64>, weights: &[f64]) -> Vec<f64> {
    let count = weights.len().max(1) as f64;
    let sum = rows.transpose() * Mat::from_fn(weights.len(), 1, |j, _| weights[j] / count);
    sum.col(0).iter().copied().collect()
}

/// The mean of w_j a_j b_jᵀ.
fn weighted(a: &Mat<f64>, weights: &[f64], b: &Mat<f64>) -> Mat<f64> {
    let count = weights.len().max(1) as f64;
    let mut scaled = b.clone();
    for column in scaled.col_iter_mut() {
        column.iter_mut().zip(weights).for_each(|(x, w)| *x *= w / count);
    }
    a.transpose() * scaled
}

/// The mean of w_j a_j ⊗ b_j ⊗ c_j.
fn triple(a: &Mat<f64>, weights: &[f64], b: &Mat<f64>, c: &Mat<f64>) -> Cube {
    let slice = |k: usize| {
        let weights: Vec<f64> = weights.iter().zip(c.col(k).iter()).map(|(w, c)| w * c).collect();
        weighted(a, &weights, b)
    };
    Cube { slices: (0..c.ncols()).map(slice).collect() }
}

/// A k x k x k array.
#[derive(Debug, Clone)]
pub(super) struct Cube {
    /// By the last index.
    slices: Vec<Mat<f64>>,
}

impl Cube {
    pub(super) fn from_fn(n: usize, f: impl Fn(usize, usize, usize) -> f64) -> Self {
        Self { slices: (0..n).map(|k| Mat::from_fn(n, n, |i, j| f(i, j, k))).collect() }
    }

    pub(super) fn at(&self, i: usize, j: usize, k: usize) -> f64 {
        self.slices[k][(i, j)]
    }

    pub(super) fn dimension(&self) -> usize {
        self.slices.len()
    }

    /// T(·, ·, a).
    pub(super) fn along(&self, a: &[f64]) -> Mat<f64> {
        let n = self.dimension();
        let mut sum = Mat::zeros(n, n);
        for (slice, a) in self.slices.iter().zip(a) {
            sum += slice * faer::Scale(*a);
        }
        sum
    }

    /// T(M, M, M), with the columns of M as new axes.
    pub(super) fn within(&self, m: &Mat<f64>) -> Self {
        let column = |k: usize| m.col(k).iter().copied().collect::<Vec<f64>>();
        Self { slices: (0..m.ncols()).map(|k| m.transpose() * self.along(&column(k)) * m).collect() }
    }

    /// T(u, u, u).
    pub(super) fn value(&self, u: &[f64]) -> f64 {
        product(&self.along(u), u).iter().zip(u).map(|(x, u)| x * u).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::simulated::units;
    use crate::tensor::stein::{Curve, hermite};
    use afterimage_nn::Activation;

    /// Stein's identity, every order, both gradients: the mean over many units
    /// is the sum over samples with the constants of quadrature.
    #[test]
    fn moments_are_sums_over_samples() {
        let samples = [(vec![0.6, 0.0, 0.8], 1.5), (vec![0.0, 1.0, 0.0], -0.7)];
        for sigma in [Activation::SquareCube, Activation::Tanh, Activation::Relu, Activation::Softplus { beta: 1.0 }] {
            let units = units(sigma, &samples, 400_000, 3);
            let curve = Curve::new(sigma, &[]);
            let a = [0.5, -0.5, 0.7];
            let dot = |p: &[f64]| -> f64 { p.iter().zip(&a).map(|(p, a)| p * a).sum() };
            let sum = |f: &dyn Fn(&[f64]) -> f64, k: usize| -> f64 {
                samples.iter().map(|(p, r)| r * curve.moment(1.0, k) * f(p)).sum()
            };
            for source in [Source::Output, Source::Hidden] {
                // The cubic's sixth powers spread most.
                let tolerance = if sigma == Activation::SquareCube { 0.6 } else { 0.05 };
                let near = |found: f64, expected: f64, what: &str| {
                    assert!((found - expected).abs() < tolerance, "{sigma} {source:?} {what}: {found} for {expected}");
                };
                let first = units.first(source);
                let (p2, p3) = (units.second(source, 2, &a), units.second(source, 3, &a));
                let (t3, t4) = (units.third(source, 3, &a), units.third(source, 4, &a));
                for i in 0..3 {
                    near(first[i], sum(&|p| p[i], 1), "first");
                    for j in 0..3 {
                        near(p2[(i, j)], sum(&|p| p[i] * p[j], 2), "second");
                        near(p3[(i, j)], sum(&|p| p[i] * p[j] * dot(p), 3), "third, contracted");
                        for k in 0..3 {
                            near(t3.at(i, j, k), sum(&|p| p[i] * p[j] * p[k], 3), "third");
                            near(t4.at(i, j, k), sum(&|p| p[i] * p[j] * p[k] * dot(p), 4), "fourth, contracted");
                        }
                    }
                }
            }
        }
    }

    /// Propositions 5.5 and 5.6: the second moment's error grows as √d and falls as
    /// 1/√m; inside the samples' span, the third's does not depend on d.
    #[test]
    fn errors_have_the_rates_of_the_theory() {
        let sigma = Activation::SquareCube;
        let curve = Curve::new(sigma, &[]);
        let errors = |d: usize, m: usize| {
            let axis = |i: usize| (0..d).map(|j| delta(i, j)).collect::<Vec<f64>>();
            let (mut second, mut third, runs) = (0.0, 0.0, 6);
            for seed in 0..runs {
                let units = units(sigma, &[(axis(0), 1.0), (axis(1), 1.2)], m, seed);
                let p = units.second(Source::Hidden, 2, &[]);
                let exact = |i, j| if i == j && i < 2 { [1.0, 1.2][i] * curve.moment(1.0, 2) } else { 0.0 };
                let off = Mat::from_fn(d, d, |i, j| p[(i, j)] - exact(i, j));
                second += off.self_adjoint_eigen(faer::Side::Lower).unwrap().S().column_vector().norm_max();
                let v = Mat::from_fn(d, 2, delta);
                let t = units.within(&v).third(Source::Hidden, 3, &[0.0; 2]);
                let value = |i: usize| t.at(i, i, i) - [1.0, 1.2][i] * curve.moment(1.0, 3);
                third += (value(0).powi(2) + value(1).powi(2) + 6.0 * t.at(0, 0, 1).powi(2)).sqrt();
            }
            [second / runs as f64, third / runs as f64]
        };
        let slope = |a: f64, b: f64, ratio: f64| (b / a).ln() / ratio.ln();
        let (small, wide, large) = (errors(20, 4000), errors(20, 64_000), errors(320, 4000));
        let [in_d, in_m] = [slope(small[0], large[0], 16.0), slope(small[0], wide[0], 16.0)];
        let [free, falls] = [slope(small[1], large[1], 16.0), slope(small[1], wide[1], 16.0)];
        println!("second moment: d^{in_d:.2} m^{in_m:.2}; third, inside the span: d^{free:.2} m^{falls:.2}");
        assert!((in_d - 0.5).abs() < 0.15 && (in_m + 0.5).abs() < 0.15, "{in_d} {in_m}");
        assert!(free.abs() < 0.15 && (falls + 0.5).abs() < 0.2, "{free} {falls}");
    }

    /// The contractions are exactly those of the full Hermite tensors.
    #[test]
    fn contractions_are_the_definitions() {
        let samples = [(vec![0.3, -0.4], 1.0)];
        let units = units(Activation::Tanh, &samples, 7, 1);
        let a = [0.2, 0.9];
        // He3 and He4 in one direction are the polynomials of one variable.
        let u = [0.6, 0.8];
        let at = product(&units.z, &u);
        let direct = |k: usize| mean(&(0..7).map(|j| units.outer[j] * hermite(at[j], k)).collect::<Vec<_>>());
        assert!((units.third(Source::Output, 3, &a).value(&u) - direct(3)).abs() < 1e-12);
        assert!((units.third(Source::Output, 4, &u).value(&u) - direct(4)).abs() < 1e-12);
        let p = units.second(Source::Output, 3, &u);
        let value: f64 = product(&p, &u).iter().zip(&u).map(|(x, u)| x * u).sum();
        assert!((value - direct(3)).abs() < 1e-12);
        let h = product(&units.inner, &u);
        let direct = |k: usize| mean(&(0..7).map(|j| h[j] * hermite(at[j], k)).collect::<Vec<_>>());
        assert!((units.third(Source::Hidden, 3, &a).value(&u) - direct(2)).abs() < 1e-12);
        assert!((units.third(Source::Hidden, 4, &u).value(&u) - direct(3)).abs() < 1e-12);
        let cube = units.third(Source::Output, 3, &a);
        let turned = Mat::from_fn(2, 2, |i, j| [[0.6, -0.8], [0.8, 0.6]][i][j]);
        assert!((cube.within(&turned).value(&[1.0, 0.0]) - cube.value(&u)).abs() < 1e-12);
    }
}
