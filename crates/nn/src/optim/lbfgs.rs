//! L-BFGS with a strong-Wolfe line search (Nocedal & Wright, algorithm 7.5).

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::line_search::{Point, strong_wolfe};
use super::{combine, dot, scale};
use crate::{Result, Tensor};

/// Settings of [`Lbfgs`].
///
/// | setting | default | purpose |
/// | --- | --- | --- |
/// | `history` | 10 | pairs (s, y) that stand for the Hessian |
/// | `gradient_tolerance` | 1e-10 | done when the gradient's Euclidean norm is at or below it |
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LbfgsOptions {
    /// Number of remembered steps.
    pub history: usize,
    /// Euclidean norm of the gradient at which to stop.
    pub gradient_tolerance: f64,
}

impl Default for LbfgsOptions {
    fn default() -> Self {
        Self { history: 10, gradient_tolerance: 1e-10 }
    }
}

/// What one step of [`Lbfgs`] did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LbfgsStep {
    /// It moved; more can be gained.
    Moved {
        /// The function's value now.
        value: f64,
    },
    /// The gradient is as small as asked for.
    Converged {
        /// The function's value.
        value: f64,
    },
    /// No step along the direction lowers the function: rounding has taken over.
    Stuck {
        /// The function's value.
        value: f64,
    },
}

/// A quasi-Newton minimiser of a smooth function of a list of tensors.
///
/// ```
/// use afterimage_nn::{Tensor, optim::{Lbfgs, LbfgsOptions, LbfgsStep}};
/// // Rosenbrock's valley.
/// let mut rosenbrock = |p: &[Tensor]| {
///     let v = p[0].to_f64_vec()?;
///     let (x, y) = (v[0], v[1]);
///     let gradient = vec![-2.0 * (1.0 - x) - 400.0 * x * (y - x * x), 200.0 * (y - x * x)];
///     Ok(((1.0 - x).powi(2) + 100.0 * (y - x * x).powi(2), vec![Tensor::from_vec(gradient, &[2])?]))
/// };
/// let start = vec![Tensor::from_vec(vec![-1.2, 1.0], &[2])?];
/// let mut lbfgs = Lbfgs::new(LbfgsOptions::default(), start, &mut rosenbrock)?;
/// while let LbfgsStep::Moved { .. } = lbfgs.step(&mut rosenbrock)? {}
/// let solution = lbfgs.point()[0].to_f64_vec()?;
/// assert!(solution.iter().all(|v| (v - 1.0).abs() < 1e-8));
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Lbfgs {
    options: LbfgsOptions,
    point: Vec<Tensor>,
    value: f64,
    gradient: Vec<Tensor>,
    history: VecDeque<Pair>,
    evaluations: usize,
}

/// A step s and the change y of the gradient over it.
#[derive(Debug, Clone)]
struct Pair {
    s: Vec<Tensor>,
    y: Vec<Tensor>,
    sy: f64,
}

/// The value and gradient of the function to minimise.
type Function<'a> = &'a mut dyn FnMut(&[Tensor]) -> Result<(f64, Vec<Tensor>)>;

impl Lbfgs {
    /// Starts at a point; evaluates the function there.
    pub fn new(options: LbfgsOptions, start: Vec<Tensor>, function: Function<'_>) -> Result<Self> {
        let (value, gradient) = function(&start)?;
        Ok(Self { options, point: start, value, gradient, history: VecDeque::new(), evaluations: 1 })
    }

    /// Where it is.
    pub fn point(&self) -> &[Tensor] {
        &self.point
    }

    /// The function's value there.
    pub fn value(&self) -> f64 {
        self.value
    }

    /// How often the function was evaluated.
    pub fn evaluations(&self) -> usize {
        self.evaluations
    }

    /// One step: a direction, a line search along it, the pair remembered.
    pub fn step(&mut self, function: Function<'_>) -> Result<LbfgsStep> {
        let norm = dot(&self.gradient, &self.gradient)?.sqrt();
        if norm <= self.options.gradient_tolerance {
            return Ok(LbfgsStep::Converged { value: self.value });
        }
        let mut direction = self.direction()?;
        let mut slope = dot(&self.gradient, &direction)?;
        if slope >= 0.0 {
            // The remembered curvature misleads: start again from steepest descent.
            self.history.clear();
            direction = scale(-1.0, &self.gradient)?;
            slope = -norm * norm;
        }
        // Without curvature, a first step of length one or less.
        let first = if self.history.is_empty() { (1.0 / norm).min(1.0) } else { 1.0 };
        let origin = Point { step: 0.0, value: self.value, slope, gradient: self.gradient.clone() };
        let search = strong_wolfe(origin, first, |step| {
            let (value, gradient) = function(&combine(1.0, &self.point, step, &direction)?)?;
            Ok(Point { step, value, slope: dot(&gradient, &direction)?, gradient })
        })?;
        self.evaluations += search.evaluations;
        let found = search.point;
        if found.step == 0.0 || (!search.satisfied && found.value >= self.value) {
            if self.history.is_empty() {
                return Ok(LbfgsStep::Stuck { value: self.value });
            }
            self.history.clear();
            return self.step(function);
        }
        let s = scale(found.step, &direction)?;
        let y = combine(1.0, &found.gradient, -1.0, &self.gradient)?;
        self.point = combine(1.0, &self.point, 1.0, &s)?;
        self.value = found.value;
        self.gradient = found.gradient;
        self.remember(s, y)?;
        Ok(LbfgsStep::Moved { value: self.value })
    }

    fn remember(&mut self, s: Vec<Tensor>, y: Vec<Tensor>) -> Result<()> {
        let sy = dot(&s, &y)?;
        // Only a positive curvature keeps the approximation positive definite.
        if sy > f64::EPSILON * dot(&y, &y)? {
            self.history.push_back(Pair { s, y, sy });
            if self.history.len() > self.options.history {
                self.history.pop_front();
            }
        }
        Ok(())
    }

    /// −H·gradient by the two-loop recursion.
    fn direction(&self) -> Result<Vec<Tensor>> {
        let mut q = self.gradient.clone();
        let mut weights = Vec::with_capacity(self.history.len());
        for Pair { s, y, sy } in self.history.iter().rev() {
            let weight = dot(s, &q)? / sy;
            q = combine(1.0, &q, -weight, y)?;
            weights.push(weight);
        }
        let shrink = match self.history.back() {
            Some(Pair { y, sy, .. }) => sy / dot(y, y)?,
            None => 1.0,
        };
        q = scale(-shrink, &q)?;
        for (Pair { s, y, sy }, weight) in self.history.iter().zip(weights.into_iter().rev()) {
            let correction = -weight - dot(y, &q)? / sy;
            q = combine(1.0, &q, correction, s)?;
        }
        Ok(q)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minimise(start: Vec<f64>, mut f: impl FnMut(&[f64]) -> (f64, Vec<f64>)) -> (Vec<f64>, usize, LbfgsStep) {
        let mut function = |p: &[Tensor]| {
            let x = p[0].to_f64_vec()?;
            let (value, gradient) = f(&x);
            Ok((value, vec![Tensor::from_vec(gradient, &[x.len()])?]))
        };
        let len = start.len();
        let start = vec![Tensor::from_vec(start, &[len]).unwrap()];
        let mut lbfgs = Lbfgs::new(LbfgsOptions::default(), start, &mut function).unwrap();
        let mut last = LbfgsStep::Moved { value: lbfgs.value() };
        for _ in 0..1500 {
            last = lbfgs.step(&mut function).unwrap();
            if !matches!(last, LbfgsStep::Moved { .. }) {
                break;
            }
        }
        (lbfgs.point()[0].to_f64_vec().unwrap(), lbfgs.evaluations(), last)
    }

    #[test]
    fn an_ill_conditioned_quadratic_is_solved() {
        // f = Σ κ_i (x_i − i)²/2 with κ from 1 to 1e4.
        let curvature: Vec<f64> = (0..30).map(|i| 10_f64.powf(4.0 * f64::from(i) / 29.0)).collect();
        let (x, evaluations, last) = minimise(vec![0.0; 30], |x| {
            let terms = x.iter().zip(&curvature).enumerate();
            let value = terms.clone().map(|(i, (x, k))| 0.5 * k * (x - i as f64).powi(2)).sum();
            (value, terms.map(|(i, (x, k))| k * (x - i as f64)).collect())
        });
        assert!(matches!(last, LbfgsStep::Converged { .. } | LbfgsStep::Stuck { .. }), "{last:?}");
        assert!(x.iter().enumerate().all(|(i, x)| (x - i as f64).abs() < 1e-6), "{x:?}");
        // SciPy's L-BFGS-B with as long a history takes 1036.
        assert!(evaluations < 1200, "{evaluations}");
    }

    #[test]
    fn a_wall_of_infinities_is_backed_away_from() {
        // −ln x + x: infinite for x ≤ 0, minimum at 1.
        let (x, _, _) = minimise(vec![30.0], |x| {
            if x[0] <= 0.0 { (f64::INFINITY, vec![f64::NAN]) } else { (x[0] - x[0].ln(), vec![1.0 - 1.0 / x[0]]) }
        });
        assert!((x[0] - 1.0).abs() < 1e-6, "{x:?}");
    }

    #[test]
    fn a_stationary_start_is_recognised() {
        let (_, evaluations, last) = minimise(vec![0.0; 3], |x| (0.0, x.to_vec()));
        assert_eq!((evaluations, last), (1, LbfgsStep::Converged { value: 0.0 }));
    }
}
