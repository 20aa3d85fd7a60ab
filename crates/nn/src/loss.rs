//! Losses, their derivatives at the outputs, and how those move with the outputs.
//!
//! Outputs are few next to everything else a pass computes, so losses are
//! evaluated in double precision whatever the network's number type: the sum
//! loses nothing, and a margin of 500 still has a gradient.

use serde::{Deserialize, Serialize};

use crate::{Device, Error, Result, Tensor, ops};

/// A loss of one sample, as a function of its outputs f.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Loss {
    /// ln(1 + e^(−yf)) for labels y = ±1, summed over outputs: binary cross-entropy with logits.
    Logistic,
    /// ‖f − y‖² / outputs: PyTorch's `MSELoss`.
    Mse,
    /// ½ ‖f − y‖².
    HalfSquared,
    /// −Σ_k y_k ln softmax(f)_k, for a class or a distribution over classes.
    CrossEntropy,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Loss::Logistic => "logistic",
            Loss::Mse => "mse",
            Loss::HalfSquared => "half-squared",
            Loss::CrossEntropy => "cross-entropy",
        })
    }
}

/// How losses of samples become the loss of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reduction {
    /// Their mean.
    #[default]
    Mean,
    /// Their sum.
    Sum,
}

/// What the outputs should be.
#[derive(Debug, Clone)]
pub enum Targets {
    /// One class for each sample.
    Classes(Vec<usize>),
    /// One row for each sample: values to reach, labels ±1, or class probabilities.
    Values(Tensor),
}

impl Targets {
    /// Number of samples.
    pub fn len(&self) -> usize {
        match self {
            Targets::Classes(classes) => classes.len(),
            Targets::Values(values) => values.rows(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same with values on a device.
    pub fn to_device(&self, device: Device) -> Result<Self> {
        match self {
            Targets::Values(values) => values.to_device(device).map(Targets::Values),
            Targets::Classes(_) => Ok(self.clone()),
        }
    }

    /// Those of the samples at `indices`.
    pub fn select(&self, indices: &[usize]) -> Result<Self> {
        match self {
            Targets::Values(values) => values.select_rows(indices).map(Targets::Values),
            Targets::Classes(classes) => {
                let class = |&index: &usize| {
                    classes.get(index).copied().ok_or_else(|| Error::Label { index, problem: "does not exist".into() })
                };
                indices.iter().map(class).collect::<Result<_>>().map(Targets::Classes)
            }
        }
    }
}

/// A loss with its targets: a function of a batch's outputs.
///
/// ```
/// use afterimage_nn::{Loss, Objective, Reduction, Targets, Tensor};
/// let outputs = Tensor::from_vec(vec![0.0, 0.0, 0.0, 0.0], &[1, 4])?;
/// let objective = Objective::new(Loss::CrossEntropy, Reduction::Mean, Targets::Classes(vec![2]));
/// assert!((objective.value(&outputs)? - 4.0_f64.ln()).abs() < 1e-15);
/// assert_eq!(objective.gradient(&outputs)?.to_f64_vec()?, [0.25, 0.25, -0.75, 0.25]);
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Objective {
    /// The loss of one sample.
    pub loss: Loss,
    /// How samples are combined.
    pub reduction: Reduction,
    /// What the outputs should be.
    pub targets: Targets,
}

/// A batch of outputs with its targets, in double precision.
struct Rows {
    outputs: Vec<f64>,
    targets: Vec<f64>,
    samples: usize,
    width: usize,
}

impl Rows {
    fn iter(&self) -> impl Iterator<Item = (&[f64], &[f64])> {
        self.outputs.chunks_exact(self.width).zip(self.targets.chunks_exact(self.width))
    }
}

impl Objective {
    /// A loss with its targets.
    pub fn new(loss: Loss, reduction: Reduction, targets: Targets) -> Self {
        Self { loss, reduction, targets }
    }

    /// The loss of the batch.
    pub fn value(&self, outputs: &Tensor) -> Result<f64> {
        if let Some((targets, factor)) = self.squares_away(outputs)? {
            return Ok(factor * ops::squared_distance(outputs, &targets)?);
        }
        let rows = self.rows(outputs)?;
        Ok(self.total(&rows) * self.weight(rows.samples))
    }

    fn total(&self, rows: &Rows) -> f64 {
        rows.iter().map(|(f, y)| self.loss.value(f, y)).sum()
    }

    /// The derivative of the batch's loss in each output: the c of a backward pass.
    pub fn gradient(&self, outputs: &Tensor) -> Result<Tensor> {
        if let Some((targets, factor)) = self.squares_away(outputs)? {
            // Subtracted first: near the end of a training outputs and targets have most digits in common.
            return Ok(ops::residual(outputs, &targets, 2.0 * factor)?.0);
        }
        let rows = self.rows(outputs)?;
        self.gradient_scaled(outputs, &rows, self.weight(rows.samples))
    }

    /// The derivative in each output, the squares that the loss counts, unread, and what to multiply those with: of what
    /// [`squares_away`](Self::squares_away) is for.
    #[cfg(feature = "cuda")]
    pub(crate) fn unread(&self, outputs: &Tensor) -> Result<Option<(Tensor, ops::Total, f64)>> {
        let Some((targets, factor)) = self.squares_away(outputs)? else { return Ok(None) };
        let (gradient, squares) = ops::residual(outputs, &targets, 2.0 * factor)?;
        Ok(Some((gradient, squares, factor)))
    }

    /// The loss, and its gradient divided by it. The quotient stays of order
    /// one when the loss itself becomes too small for single precision.
    pub fn value_and_relative_gradient(&self, outputs: &Tensor) -> Result<(f64, Tensor)> {
        let rows = self.rows(outputs)?;
        let (weight, total) = (self.weight(rows.samples), self.total(&rows));
        let scale = if total > 0.0 { 1.0 / total } else { 0.0 };
        Ok((total * weight, self.gradient_scaled(outputs, &rows, scale)?))
    }

    /// The derivative of [`gradient`](Self::gradient) when the outputs move by `tangent`.
    pub fn gradient_along(&self, outputs: &Tensor, tangent: &Tensor) -> Result<Tensor> {
        if tangent.shape() != outputs.shape() {
            return Err(Error::shape("tangent of the outputs", outputs.shape(), tangent.shape()));
        }
        if let Some((_, factor)) = self.squares_away(outputs)? {
            return ops::scale(2.0 * factor, tangent);
        }
        let rows = self.rows(outputs)?;
        let tangent = tangent.to_f64_vec()?;
        let weight = self.weight(rows.samples);
        let mut out = vec![0.0; rows.outputs.len()];
        for (((f, y), t), out) in
            rows.iter().zip(tangent.chunks_exact(rows.width)).zip(out.chunks_exact_mut(rows.width))
        {
            self.loss.curvature(f, y, t, weight, out);
        }
        Tensor::from_f64(&out, outputs.shape(), outputs.dtype())?.to_device(outputs.device())
    }

    fn gradient_scaled(&self, outputs: &Tensor, rows: &Rows, scale: f64) -> Result<Tensor> {
        let mut out = vec![0.0; rows.outputs.len()];
        for ((f, y), out) in rows.iter().zip(out.chunks_exact_mut(rows.width)) {
            self.loss.gradient(f, y, scale, out);
        }
        Tensor::from_f64(&out, outputs.shape(), outputs.dtype())?.to_device(outputs.device())
    }

    /// Targets y and a factor, where the loss of the batch is factor · ‖f − y‖² and f is on a device:
    /// that needs no trip through main memory.
    fn squares_away(&self, outputs: &Tensor) -> Result<Option<(Tensor, f64)>> {
        let of_sample = match self.loss {
            Loss::Mse => 1.0 / outputs.row_len().max(1) as f64,
            Loss::HalfSquared => 0.5,
            Loss::Logistic | Loss::CrossEntropy => return Ok(None),
        };
        match &self.targets {
            Targets::Values(values) if !outputs.on_cpu() && outputs.count() > 0 => {
                if values.shape() != outputs.shape() {
                    return Err(Error::shape("targets", outputs.shape(), values.shape()));
                }
                let targets = values.to_dtype(outputs.dtype())?.to_device(outputs.device())?;
                Ok(Some((targets, of_sample * self.weight(outputs.rows()))))
            }
            _ => Ok(None),
        }
    }

    /// The weight of one of so many samples in the loss of their batch.
    pub fn weight(&self, samples: usize) -> f64 {
        match self.reduction {
            Reduction::Mean => 1.0 / samples as f64,
            Reduction::Sum => 1.0,
        }
    }

    /// Outputs and targets side by side, checked against each other.
    fn rows(&self, outputs: &Tensor) -> Result<Rows> {
        let (samples, width) = (outputs.rows(), outputs.row_len());
        if samples == 0 || width == 0 {
            return Err(Error::EmptyBatch { what: "outputs of the loss".into() });
        }
        let targets = match &self.targets {
            Targets::Values(values) if values.shape() == outputs.shape() => values.to_f64_vec()?,
            Targets::Values(values) => return Err(Error::shape("targets", outputs.shape(), values.shape())),
            Targets::Classes(classes) if classes.len() == samples => one_hot(classes, width, self.loss)?,
            Targets::Classes(classes) => return Err(Error::shape("labels", [samples], &[classes.len()])),
        };
        if let Some(index) = targets.iter().position(|y| !y.is_finite()) {
            return Err(Error::NonFinite { what: "targets".into(), index, value: targets[index] });
        }
        if self.loss == Loss::Logistic
            && let Some(index) = targets.iter().position(|y| y.abs() != 1.0)
        {
            let problem = format!("is {}; the logistic loss takes labels +1 and -1", targets[index]);
            return Err(Error::Label { index: index / width, problem });
        }
        Ok(Rows { outputs: outputs.to_f64_vec()?, targets, samples, width })
    }
}

fn one_hot(classes: &[usize], width: usize, loss: Loss) -> Result<Vec<f64>> {
    if loss != Loss::CrossEntropy {
        let problem = format!("is a class; the loss {loss} takes one value for each output");
        return Err(Error::Label { index: 0, problem });
    }
    let mut targets = vec![0.0; classes.len() * width];
    for (index, (row, &class)) in targets.chunks_exact_mut(width).zip(classes).enumerate() {
        let problem = || format!("is class {class}; the network has {width} outputs, classes 0 to {}", width - 1);
        *row.get_mut(class).ok_or_else(|| Error::Label { index, problem: problem() })? = 1.0;
    }
    Ok(targets)
}

/// ln(1 + e^z) without overflow.
fn softplus(z: f64) -> f64 {
    z.max(0.0) + (-z.abs()).exp().ln_1p()
}

fn sigmoid(z: f64) -> f64 {
    if z >= 0.0 {
        1.0 / (1.0 + (-z).exp())
    } else {
        let e = z.exp();
        e / (1.0 + e)
    }
}

/// A softmax that keeps small numbers: with the largest output at `top`,
/// p_top = 1/(1 + rest) and 1 − p_top = rest/(1 + rest), where
/// rest = Σ_{j≠top} e^(f_j − f_top) is never lost against the 1.
struct Softmax<'a> {
    f: &'a [f64],
    top: usize,
    rest: f64,
}

impl<'a> Softmax<'a> {
    fn new(f: &'a [f64]) -> Self {
        let top = (0..f.len()).max_by(|&a, &b| f[a].total_cmp(&f[b])).unwrap_or(0);
        let rest = (0..f.len()).filter(|&j| j != top).map(|j| (f[j] - f[top]).exp()).sum();
        Self { f, top, rest }
    }

    /// −ln p_k
    fn surprise(&self, k: usize) -> f64 {
        (self.f[self.top] - self.f[k]) + self.rest.ln_1p()
    }

    fn p(&self, k: usize) -> f64 {
        (self.f[k] - self.f[self.top]).exp() / (1.0 + self.rest)
    }

    /// 1 − p_k
    fn others(&self, k: usize) -> f64 {
        if k == self.top { self.rest / (1.0 + self.rest) } else { 1.0 - self.p(k) }
    }
}

impl Loss {
    fn value(self, f: &[f64], y: &[f64]) -> f64 {
        let pairs = f.iter().zip(y);
        let squares = |pairs: std::iter::Zip<_, std::slice::Iter<'_, f64>>| {
            pairs.map(|(f, y): (&f64, &f64)| (f - y) * (f - y)).sum::<f64>()
        };
        match self {
            Loss::Logistic => pairs.map(|(f, y)| softplus(-y * f)).sum(),
            Loss::Mse => squares(pairs) / f.len() as f64,
            Loss::HalfSquared => 0.5 * squares(pairs),
            Loss::CrossEntropy => {
                let softmax = Softmax::new(f);
                y.iter().enumerate().filter(|(_, y)| **y != 0.0).map(|(k, y)| y * softmax.surprise(k)).sum()
            }
        }
    }

    /// out = scale · ∂loss/∂f
    fn gradient(self, f: &[f64], y: &[f64], scale: f64, out: &mut [f64]) {
        match self {
            Loss::Logistic => each(f, y, out, |f, y| -scale * y * sigmoid(-y * f)),
            Loss::Mse => each(f, y, out, |d, y| scale * 2.0 * (d - y) / f.len() as f64),
            Loss::HalfSquared => each(f, y, out, |f, y| scale * (f - y)),
            // p_k Σ_{j≠k} y_j − y_k Σ_{j≠k} p_j
            Loss::CrossEntropy => {
                let (softmax, total) = (Softmax::new(f), y.iter().sum::<f64>());
                for (k, (out, y)) in out.iter_mut().zip(y).enumerate() {
                    *out = scale * (softmax.p(k) * (total - y) - y * softmax.others(k));
                }
            }
        }
    }

    /// out = scale · (∂²loss/∂f²) t
    fn curvature(self, f: &[f64], y: &[f64], t: &[f64], scale: f64, out: &mut [f64]) {
        match self {
            Loss::Logistic => each(f, t, out, |f, t| scale * sigmoid(f) * sigmoid(-f) * t),
            Loss::Mse => each(f, t, out, |_, t| scale * 2.0 * t / f.len() as f64),
            Loss::HalfSquared => each(f, t, out, |_, t| scale * t),
            // p_k (t_k − ⟨p, t⟩) = p_k Σ_j p_j (t_k − t_j), which loses nothing when one p is near 1
            Loss::CrossEntropy => {
                let (softmax, total) = (Softmax::new(f), y.iter().sum::<f64>());
                let top = t[softmax.top];
                let drift: f64 = t.iter().enumerate().map(|(j, t)| softmax.p(j) * (top - t)).sum();
                for (k, (out, t)) in out.iter_mut().zip(t).enumerate() {
                    *out = scale * total * softmax.p(k) * ((t - top) + drift);
                }
            }
        }
    }
}

fn each(a: &[f64], b: &[f64], out: &mut [f64], f: impl Fn(f64, f64) -> f64) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = f(*a, *b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    fn tensor(data: &[f64]) -> Tensor {
        Tensor::from_f64(data, &[2, data.len() / 2], DType::F64).unwrap()
    }

    fn objectives() -> Vec<Objective> {
        let values = |data: &[f64]| Targets::Values(tensor(data));
        let cases = [
            (Loss::Logistic, values(&[1.0, -1.0, -1.0, 1.0, 1.0, -1.0])),
            (Loss::Mse, values(&[0.3, 0.1, -2.0, 0.5, 0.2, 1.0])),
            (Loss::HalfSquared, values(&[0.3, 0.1, -2.0, 0.5, 0.2, 1.0])),
            (Loss::CrossEntropy, Targets::Classes(vec![2, 0])),
            (Loss::CrossEntropy, values(&[0.2, 0.3, 0.5, 0.6, 0.1, 0.1])),
        ];
        let reductions = [Reduction::Mean, Reduction::Sum];
        cases.into_iter().zip(reductions.into_iter().cycle()).map(|((l, t), r)| Objective::new(l, r, t)).collect()
    }

    #[test]
    fn derivatives_agree_with_central_differences() {
        let f = [0.4, -1.2, 0.9, 2.0, -0.3, 0.1];
        let t = [0.7, 0.2, -0.5, 1.0, -1.5, 0.3];
        let step = 1e-5;
        let moved = |h: f64| tensor(&std::array::from_fn::<f64, 6, _>(|i| f[i] + h * t[i]));
        for objective in objectives() {
            let gradient = objective.gradient(&tensor(&f)).unwrap().to_f64_vec().unwrap();
            let slope: f64 = gradient.iter().zip(t).map(|(g, t)| g * t).sum();
            let (above, below) = (moved(step), moved(-step));
            let expected = (objective.value(&above).unwrap() - objective.value(&below).unwrap()) / (2.0 * step);
            assert!((slope - expected).abs() < 1e-9, "{objective:?}");
            let along = objective.gradient_along(&tensor(&f), &tensor(&t)).unwrap().to_f64_vec().unwrap();
            let above = objective.gradient(&above).unwrap().to_f64_vec().unwrap();
            let below = objective.gradient(&below).unwrap().to_f64_vec().unwrap();
            for i in 0..6 {
                assert!((along[i] - (above[i] - below[i]) / (2.0 * step)).abs() < 1e-9, "{objective:?}");
            }
        }
    }

    #[test]
    fn relative_gradient_survives_margins_that_single_precision_cannot_hold() {
        let outputs = Tensor::from_vec(vec![500.0_f32, -501.0], &[2, 1]).unwrap();
        let targets = Targets::Values(Tensor::from_vec(vec![1.0_f32, -1.0], &[2, 1]).unwrap());
        let objective = Objective::new(Loss::Logistic, Reduction::Mean, targets);
        let (value, relative) = objective.value_and_relative_gradient(&outputs).unwrap();
        assert!(value > 0.0 && value < 1e-200);
        let relative = relative.to_f64_vec().unwrap();
        assert!((relative[0] + 1.0 / (1.0 + (-1.0_f64).exp())).abs() < 1e-6, "{relative:?}");
        assert!((relative[0].abs() + relative[1].abs() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn cross_entropy_keeps_its_gradient_at_any_margin() {
        for margin in [10.0_f64, 34.0, 200.0, 600.0] {
            let outputs = Tensor::from_vec(vec![margin, 0.0, 0.0], &[1, 3]).unwrap();
            let objective = Objective::new(Loss::CrossEntropy, Reduction::Mean, Targets::Classes(vec![0]));
            let rest = 2.0 * (-margin).exp();
            let close = |found: f64, expected: f64| (found / expected - 1.0).abs() < 1e-12;
            assert!(close(objective.value(&outputs).unwrap(), rest.ln_1p()));
            let gradient = objective.gradient(&outputs).unwrap().to_f64_vec().unwrap();
            assert!(close(gradient[0], -rest / (1.0 + rest)) && close(gradient[1], 0.5 * rest / (1.0 + rest)));
            // Along t = e_0 the gradient's derivative is p_0 (1 − p_0).
            let tangent = Tensor::from_vec(vec![1.0, 0.0, 0.0], &[1, 3]).unwrap();
            let along = objective.gradient_along(&outputs, &tangent).unwrap().to_f64_vec().unwrap();
            assert!(close(along[0], rest / (1.0 + rest).powi(2)), "{along:?}");
        }
    }

    #[test]
    fn wrong_labels_are_named() {
        let outputs = tensor(&[0.0; 6]);
        let message =
            |loss, targets| Objective::new(loss, Reduction::Mean, targets).value(&outputs).unwrap_err().to_string();
        assert!(message(Loss::CrossEntropy, Targets::Classes(vec![0, 3])).contains("label 1: is class 3"));
        assert!(message(Loss::CrossEntropy, Targets::Classes(vec![0])).contains("expected shape [2]"));
        assert!(message(Loss::Mse, Targets::Classes(vec![0, 1])).contains("one value for each output"));
        let zero_one = Targets::Values(tensor(&[0.0, 1.0, 1.0, 0.0, 1.0, 1.0]));
        assert!(message(Loss::Logistic, zero_one).contains("takes labels +1 and -1"));
        let nan = Targets::Values(tensor(&[f64::NAN, 1.0, 1.0, 0.0, 1.0, 1.0]));
        assert!(message(Loss::Mse, nan).contains("NaN"));
    }
}
