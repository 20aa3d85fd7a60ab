//! A step length that satisfies the strong Wolfe conditions
//! (Nocedal & Wright, *Numerical Optimization*, 2nd ed., algorithms 3.5 and 3.6).

use crate::{Result, Tensor};

/// Sufficient decrease: φ(a) ≤ φ(0) + c₁ a φ'(0).
const DECREASE: f64 = 1e-4;
/// Curvature: |φ'(a)| ≤ c₂ |φ'(0)|.
const CURVATURE: f64 = 0.9;
/// Evaluations before the best point so far is taken.
const MOST_EVALUATIONS: usize = 25;

/// A point on the line: step, value, slope, and the gradient there.
#[derive(Debug, Clone)]
pub(super) struct Point {
    pub(super) step: f64,
    pub(super) value: f64,
    pub(super) slope: f64,
    pub(super) gradient: Vec<Tensor>,
}

/// The outcome of a search: the point it settled on and what it cost.
pub(super) struct Search {
    pub(super) point: Point,
    pub(super) evaluations: usize,
    /// Whether both conditions hold there.
    pub(super) satisfied: bool,
}

/// Searches along a descent direction from `origin` (step 0), first at `first`.
pub(super) fn strong_wolfe(
    origin: Point,
    first: f64,
    mut evaluate: impl FnMut(f64) -> Result<Point>,
) -> Result<Search> {
    let (start_value, start_slope) = (origin.value, origin.slope);
    let decreases =
        |point: &Point| point.value.is_finite() && point.value <= start_value + DECREASE * point.step * start_slope;
    let flat = |point: &Point| point.slope.abs() <= -CURVATURE * start_slope;
    let mut evaluations = 0;
    let mut previous = origin;
    let mut step = first;
    // Algorithm 3.5: lengthen the step until a good one is inside a bracket.
    let (mut low, mut high) = loop {
        let point = evaluate(step)?;
        evaluations += 1;
        if !decreases(&point) || (evaluations > 1 && point.value >= previous.value) {
            break (previous, point);
        }
        if flat(&point) {
            return Ok(Search { point, evaluations, satisfied: true });
        }
        if point.slope >= 0.0 {
            break (point, previous);
        }
        if evaluations >= MOST_EVALUATIONS {
            return Ok(Search { point, evaluations, satisfied: false });
        }
        step = 2.0 * point.step;
        previous = point;
    };
    // Algorithm 3.6: shrink the bracket; `low` is always the best point that decreases enough.
    while evaluations < MOST_EVALUATIONS {
        let point = evaluate(between(&low, &high))?;
        evaluations += 1;
        if !decreases(&point) || point.value >= low.value {
            high = point;
        } else {
            if flat(&point) {
                return Ok(Search { point, evaluations, satisfied: true });
            }
            if point.slope * (high.step - low.step) >= 0.0 {
                high = low;
            }
            low = point;
        }
        if (high.step - low.step).abs() <= f64::EPSILON * low.step.abs() {
            break;
        }
    }
    Ok(Search { point: low, evaluations, satisfied: false })
}

/// The minimiser of the cubic through two points and their slopes, kept off
/// the ends of the bracket; its middle where the cubic has none.
fn between(low: &Point, high: &Point) -> f64 {
    let width = high.step - low.step;
    let middle = low.step + 0.5 * width;
    if !high.value.is_finite() || !high.slope.is_finite() {
        return middle;
    }
    let d1 = low.slope + high.slope - 3.0 * (low.value - high.value) / (low.step - high.step);
    let root = d1 * d1 - low.slope * high.slope;
    if root < 0.0 {
        return middle;
    }
    let d2 = width.signum() * root.sqrt();
    let fraction = 1.0 - (high.slope + d2 - d1) / (high.slope - low.slope + 2.0 * d2);
    if fraction.is_finite() { low.step + fraction.clamp(0.1, 0.9) * width } else { middle }
}
