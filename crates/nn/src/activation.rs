//! Activations as triples (φ, φ', φ'').
//!
//! The second derivative is part of an activation because the gradient of a
//! gradient-matching loss needs it (see [`Pass::along`](crate::Pass::along)).
//! It also lets the *surrogate ReLU* of Haim et al. (2022) be an ordinary
//! member: its value is that of ReLU, its derivative a smooth σ(αz), and
//! nothing else has to know that the two do not belong together.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::kernel::element::{Element, flush};
use crate::{Error, Result, nearest};

/// An elementwise function with its first and second derivative.
///
/// Written in text as its name, with its parameter in brackets where it has one: `"identity"`, `"relu"`,
/// `"leaky-relu(0.2)"`, `"softplus(10)"`, `"sigmoid"`, `"tanh"`, `"silu"`, `"relu6"`, `"square"`, `"square-cube"` (x² + x³),
/// `"surrogate-relu(100)"`.
///
/// ```
/// use afterimage_nn::Activation;
/// let f: Activation = "softplus(10)".parse()?;
/// assert_eq!(f, Activation::Softplus { beta: 10.0 });
/// let [value, slope, curvature] = Activation::SquareCube.triple(2.0);
/// assert_eq!([value, slope, curvature], [12.0, 16.0, 14.0]);
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum Activation {
    /// φ(z) = z
    Identity,
    /// φ(z) = max(z, 0)
    Relu,
    /// φ(z) = max(z, 0) + slope · min(z, 0)
    LeakyRelu {
        /// Slope for z < 0; PyTorch's default is 0.01.
        slope: f64,
    },
    /// φ(z) = ln(1 + e^(βz)) / β
    Softplus {
        /// Sharpness; PyTorch's default is 1, ReLU is the limit β → ∞.
        beta: f64,
    },
    /// φ(z) = 1 / (1 + e^(−z))
    Sigmoid,
    /// φ(z) = tanh z
    Tanh,
    /// φ(z) = z σ(z)
    Silu,
    /// φ(z) = min(max(z, 0), 6)
    Relu6,
    /// φ(z) = z², whose gradients tell samples apart up to a rotation only
    Square,
    /// φ(z) = z² + z³, the polynomial of the tensor-decomposition attack
    SquareCube,
    /// φ(z) = max(z, 0) with φ'(z) = σ(αz): not each other's derivative, by design
    SurrogateRelu {
        /// Sharpness of the stand-in derivative.
        alpha: f64,
    },
}

/// One activation as the kernels see it: written once, compiled into each loop.
pub(crate) trait Pointwise<T: Element>: Copy + Sync {
    /// (φ(z), φ'(z))
    fn value_and_slope(self, z: T) -> (T, T);
    /// φ''(z), from z and what [`value_and_slope`](Self::value_and_slope) gave for it
    fn curvature(self, z: T, value: T, slope: T) -> T;
}

/// Evaluates an expression with `$f` bound to the [`Pointwise`] of an activation,
/// so that a loop is compiled for each activation instead of asking at every element.
macro_rules! with_pointwise {
    ($activation:expr, $T:ty, $f:ident => $body:expr) => {
        match $activation {
            $crate::Activation::Identity => {
                let $f = $crate::activation::Identity;
                $body
            }
            $crate::Activation::Relu => {
                let $f = $crate::activation::Leaky(<$T>::of(0.0));
                $body
            }
            $crate::Activation::LeakyRelu { slope } => {
                let $f = $crate::activation::Leaky(<$T>::of(slope));
                $body
            }
            $crate::Activation::Softplus { beta } => {
                let $f = $crate::activation::Softplus(<$T>::of(beta));
                $body
            }
            $crate::Activation::Sigmoid => {
                let $f = $crate::activation::Sigmoid;
                $body
            }
            $crate::Activation::Tanh => {
                let $f = $crate::activation::Tanh;
                $body
            }
            $crate::Activation::Silu => {
                let $f = $crate::activation::Silu;
                $body
            }
            $crate::Activation::Relu6 => {
                let $f = $crate::activation::Relu6;
                $body
            }
            $crate::Activation::Square => {
                let $f = $crate::activation::Square;
                $body
            }
            $crate::Activation::SquareCube => {
                let $f = $crate::activation::SquareCube;
                $body
            }
            $crate::Activation::SurrogateRelu { alpha } => {
                let $f = $crate::activation::SurrogateRelu(<$T>::of(alpha));
                $body
            }
        }
    };
}
pub(crate) use with_pointwise;

impl Activation {
    /// (φ(z), φ'(z), φ''(z)) in double precision.
    pub fn triple(self, z: f64) -> [f64; 3] {
        with_pointwise!(self, f64, f => {
            let (value, slope) = f.value_and_slope(z);
            [value, slope, f.curvature(z, value, slope)]
        })
    }

    /// Fails, naming the parameter, if it has one that is out of range.
    pub fn check(self) -> Result<()> {
        let (name, parameter) = self.parts();
        let fits = match self {
            Activation::Softplus { .. } | Activation::SurrogateRelu { .. } => parameter.is_some_and(|p| p > 0.0),
            _ => true,
        };
        match parameter {
            Some(value) if !fits || !value.is_finite() => Err(Error::Setting {
                setting: "parameter of an activation",
                value: format!("{name}({value})"),
                expected: "must be a finite number, greater than zero for softplus and surrogate-relu".into(),
            }),
            _ => Ok(()),
        }
    }

    /// Whether φ'' is zero everywhere it exists: then it costs nothing.
    pub fn is_piecewise_linear(self) -> bool {
        matches!(self, Activation::Identity | Activation::Relu | Activation::LeakyRelu { .. } | Activation::Relu6)
    }

    /// Name and parameter, if there is one.
    fn parts(self) -> (&'static str, Option<f64>) {
        match self {
            Activation::Identity => ("identity", None),
            Activation::Relu => ("relu", None),
            Activation::LeakyRelu { slope } => ("leaky-relu", Some(slope)),
            Activation::Softplus { beta } => ("softplus", Some(beta)),
            Activation::Sigmoid => ("sigmoid", None),
            Activation::Tanh => ("tanh", None),
            Activation::Silu => ("silu", None),
            Activation::Relu6 => ("relu6", None),
            Activation::Square => ("square", None),
            Activation::SquareCube => ("square-cube", None),
            Activation::SurrogateRelu { alpha } => ("surrogate-relu", Some(alpha)),
        }
    }

    /// Every activation, those with a parameter at its default.
    pub fn all() -> [Activation; 11] {
        [
            Activation::Identity,
            Activation::Relu,
            Activation::LeakyRelu { slope: 0.01 },
            Activation::Softplus { beta: 1.0 },
            Activation::Sigmoid,
            Activation::Tanh,
            Activation::Silu,
            Activation::Relu6,
            Activation::Square,
            Activation::SquareCube,
            Activation::SurrogateRelu { alpha: 100.0 },
        ]
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            (name, None) => write!(f, "{name}"),
            (name, Some(parameter)) => write!(f, "{name}({parameter})"),
        }
    }
}

impl From<Activation> for String {
    fn from(activation: Activation) -> String {
        activation.to_string()
    }
}

impl TryFrom<String> for Activation {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

/// Splits `name(parameter)`; the brackets may be left out.
pub(crate) fn split_parameter(text: &str) -> Result<(&str, Option<f64>)> {
    let wrong = |problem: String| Error::Parse { what: format!("activation `{text}`"), problem };
    let Some((name, rest)) = text.split_once('(') else { return Ok((text.trim(), None)) };
    let parameter = rest.strip_suffix(')').ok_or_else(|| wrong("the bracket is not closed".into()))?;
    let parameter: f64 =
        parameter.trim().parse().map_err(|_| wrong(format!("`{parameter}` in the brackets is not a number")))?;
    if !parameter.is_finite() {
        return Err(wrong("the number in the brackets is not finite".into()));
    }
    Ok((name.trim(), Some(parameter)))
}

impl FromStr for Activation {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |problem: String| Error::Parse { what: format!("activation `{text}`"), problem };
        let (name, parameter) = split_parameter(text)?;
        let all = Activation::all();
        let Some(&default) = all.iter().find(|activation| activation.parts().0 == name) else {
            let names = || all.iter().map(|activation| activation.parts().0);
            let hint = nearest(name, names()).map_or_else(
                || format!("known are {}", names().collect::<Vec<_>>().join(", ")),
                |near| format!("did you mean `{near}`?"),
            );
            return Err(wrong(format!("there is no such activation; {hint}")));
        };
        let activation = match (default, parameter) {
            (_, None) => default,
            (Activation::LeakyRelu { .. }, Some(slope)) => Activation::LeakyRelu { slope },
            (Activation::Softplus { .. }, Some(beta)) => Activation::Softplus { beta },
            (Activation::SurrogateRelu { .. }, Some(alpha)) => Activation::SurrogateRelu { alpha },
            (_, Some(_)) => return Err(wrong(format!("`{name}` takes no parameter"))),
        };
        activation.check()?;
        Ok(activation)
    }
}

/// σ(z), zero where it would be subnormal.
#[inline(always)]
fn sigmoid<T: Element>(z: T) -> T {
    // Kept where e^(−z) is large but its reciprocal is not yet subnormal.
    let z = if z < -T::SATURATED { -T::SATURATED } else { z };
    flush(T::ONE / (T::ONE + (-z).exp()))
}

/// e^(−s) for s ≥ 0, never so small that arithmetic on it is subnormal.
#[inline(always)]
fn decay<T: Element>(s: T) -> T {
    let s = if s > T::SATURATED { T::SATURATED } else { s };
    (-s).exp()
}

/// max(z, 0) that lets NaN through.
#[inline(always)]
fn positive<T: Element>(z: T) -> T {
    if z < T::ZERO { T::ZERO } else { z }
}

#[derive(Clone, Copy)]
pub(crate) struct Identity;

impl<T: Element> Pointwise<T> for Identity {
    #[inline(always)]
    fn value_and_slope(self, z: T) -> (T, T) {
        (z, T::ONE)
    }
    #[inline(always)]
    fn curvature(self, _: T, _: T, _: T) -> T {
        T::ZERO
    }
}

/// ReLU is the leaky one with slope 0; at z = 0 the derivative is the slope, as in PyTorch.
#[derive(Clone, Copy)]
pub(crate) struct Leaky<T>(pub(crate) T);

impl<T: Element> Pointwise<T> for Leaky<T> {
    #[inline(always)]
    fn value_and_slope(self, z: T) -> (T, T) {
        let slope = if z > T::ZERO { T::ONE } else { self.0 };
        let value = if self.0 == T::ZERO { positive(z) } else { z * slope };
        (value, slope)
    }
    #[inline(always)]
    fn curvature(self, _: T, _: T, _: T) -> T {
        T::ZERO
    }
}

/// ln(1 + e^(βz))/β = max(z, 0) + ln(1 + e^(−β|z|))/β, which neither over- nor underflows.
#[derive(Clone, Copy)]
pub(crate) struct Softplus<T>(pub(crate) T);

impl<T: Element> Pointwise<T> for Softplus<T> {
    #[inline(always)]
    fn value_and_slope(self, z: T) -> (T, T) {
        let beta = self.0;
        let magnitude = if z < T::ZERO { -z } else { z };
        let decay = decay(beta * magnitude);
        let value = positive(z) + decay.ln_1p_unit() / beta;
        // σ(βz) for either sign, from the one exponential.
        let small = decay / (T::ONE + decay);
        let slope = if z < T::ZERO { small } else { T::ONE - small };
        (flush(value), flush(slope))
    }
    #[inline(always)]
    fn curvature(self, _: T, _: T, slope: T) -> T {
        self.0 * slope * (T::ONE - slope)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Sigmoid;

impl<T: Element> Pointwise<T> for Sigmoid {
    #[inline(always)]
    fn value_and_slope(self, z: T) -> (T, T) {
        let value = sigmoid(z);
        (value, flush(value * (T::ONE - value)))
    }
    #[inline(always)]
    fn curvature(self, _: T, value: T, slope: T) -> T {
        slope * (T::ONE - value - value)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Tanh;

/// tanh z = z Σ_k a_k z^(2k).
const TANH_SERIES: [f64; 7] =
    [1.0, -1.0 / 3.0, 2.0 / 15.0, -17.0 / 315.0, 62.0 / 2835.0, -1382.0 / 155_925.0, 21_844.0 / 6_081_075.0];

impl<T: Element> Pointwise<T> for Tanh {
    #[inline(always)]
    fn value_and_slope(self, z: T) -> (T, T) {
        let magnitude = if z < T::ZERO { -z } else { z };
        let decay = decay(magnitude + magnitude);
        let far = (T::ONE - decay) / (T::ONE + decay);
        // 1 − e cancels near zero: there the Taylor series, exact to rounding below 0.1.
        let square = z * z;
        let mut near = T::of(TANH_SERIES[TANH_SERIES.len() - 1]);
        for &coefficient in TANH_SERIES.iter().rev().skip(1) {
            near = near.fma(square, T::of(coefficient));
        }
        let value = if magnitude < T::of(0.1) { magnitude * near } else { far };
        // 1 − tanh² = 4e/(1 + e)², without the cancellation.
        let slope = T::of(4.0) * decay / ((T::ONE + decay) * (T::ONE + decay));
        (if z < T::ZERO { -value } else { value }, flush(slope))
    }
    #[inline(always)]
    fn curvature(self, _: T, value: T, slope: T) -> T {
        -(value + value) * slope
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Silu;

impl<T: Element> Pointwise<T> for Silu {
    #[inline(always)]
    fn value_and_slope(self, z: T) -> (T, T) {
        let s = sigmoid(z);
        (flush(z * s), flush(s * (T::ONE + z * (T::ONE - s))))
    }
    #[inline(always)]
    fn curvature(self, z: T, _: T, _: T) -> T {
        let s = sigmoid(z);
        s * (T::ONE - s) * (T::of(2.0) + z * (T::ONE - s - s))
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Relu6;

impl<T: Element> Pointwise<T> for Relu6 {
    #[inline(always)]
    fn value_and_slope(self, z: T) -> (T, T) {
        let six = T::of(6.0);
        let value = positive(z);
        let value = if value > six { six } else { value };
        (value, if (z > T::ZERO) & (z < six) { T::ONE } else { T::ZERO })
    }
    #[inline(always)]
    fn curvature(self, _: T, _: T, _: T) -> T {
        T::ZERO
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Square;

impl<T: Element> Pointwise<T> for Square {
    #[inline(always)]
    fn value_and_slope(self, z: T) -> (T, T) {
        (z * z, z + z)
    }
    #[inline(always)]
    fn curvature(self, _: T, _: T, _: T) -> T {
        T::ONE + T::ONE
    }
}

#[derive(Clone, Copy)]
pub(crate) struct SquareCube;

impl<T: Element> Pointwise<T> for SquareCube {
    #[inline(always)]
    fn value_and_slope(self, z: T) -> (T, T) {
        (z * z * (T::ONE + z), z * (T::of(2.0) + T::of(3.0) * z))
    }
    #[inline(always)]
    fn curvature(self, z: T, _: T, _: T) -> T {
        T::of(2.0) + T::of(6.0) * z
    }
}

#[derive(Clone, Copy)]
pub(crate) struct SurrogateRelu<T>(pub(crate) T);

impl<T: Element> Pointwise<T> for SurrogateRelu<T> {
    #[inline(always)]
    fn value_and_slope(self, z: T) -> (T, T) {
        (positive(z), sigmoid(self.0 * z))
    }
    #[inline(always)]
    fn curvature(self, _: T, _: T, slope: T) -> T {
        self.0 * slope * (T::ONE - slope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derivatives_agree_with_central_differences() {
        for activation in Activation::all().into_iter().chain([
            Activation::Softplus { beta: 10.0 },
            Activation::LeakyRelu { slope: -0.3 },
            Activation::SurrogateRelu { alpha: 3.0 },
        ]) {
            for i in -400..=800 {
                // Off the kinks at 0 and 6.
                let z = f64::from(i) * 0.0101 + 0.0037;
                let sharpness = activation.parts().1.unwrap_or(1.0).abs().max(1.0);
                let step = 1e-5 / sharpness;
                let [above, at, below] = [z + step, z, z - step].map(|z| activation.triple(z));
                let slope = (above[0] - below[0]) / (2.0 * step);
                let curvature = (above[1] - below[1]) / (2.0 * step);
                if !matches!(activation, Activation::SurrogateRelu { .. }) {
                    assert!((at[1] - slope).abs() < 1e-6 * at[1].abs().max(1e-3), "{activation}'({z})");
                }
                let floor = 1e-3 * sharpness;
                assert!((at[2] - curvature).abs() < 1e-6 * at[2].abs().max(floor), "{activation}''({z})");
            }
        }
    }

    #[test]
    fn small_numbers_keep_their_relative_accuracy() {
        for exponent in -30..2 {
            let z = 10_f64.powi(exponent) * 0.7;
            assert!((Activation::Tanh.triple(z)[0] / z.tanh() - 1.0).abs() < 1e-14, "tanh({z})");
            with_pointwise!(Activation::Tanh, f32, f => {
                let value = f64::from(f.value_and_slope(z as f32).0);
                let expected = f64::from(z as f32).tanh();
                assert!(z < 1e-30 || (value / expected - 1.0).abs() < 1e-6, "f32 tanh({z})");
            });
        }
    }

    #[test]
    fn nan_is_never_hidden() {
        for activation in Activation::all() {
            assert!(activation.triple(f64::NAN)[0].is_nan(), "{activation}");
        }
    }

    #[test]
    fn slopes_hold_no_subnormal_number() {
        for activation in Activation::all() {
            with_pointwise!(activation, f32, f => {
                for i in -3000..3000 {
                    let z = i as f32 * 0.05;
                    let (value, slope) = f.value_and_slope(z);
                    assert!(!value.is_subnormal() && !slope.is_subnormal(), "{activation}({z})");
                }
            });
        }
    }

    #[test]
    fn text_round_trips_and_errors_name_the_problem() {
        for activation in Activation::all() {
            assert_eq!(activation.to_string().parse::<Activation>().unwrap(), activation);
        }
        for (text, part) in [
            ("rellu", "did you mean `relu`"),
            ("softplus(-1)", "greater than zero"),
            ("tanh(2)", "takes no parameter"),
            ("softplus(two)", "not a number"),
            ("softplus(2", "not closed"),
        ] {
            let message = text.parse::<Activation>().unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
