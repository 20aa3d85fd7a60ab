//! The two number types every kernel is written for, and their vectors.

use std::fmt::{Debug, Display};
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub, SubAssign};

use pulp::Simd;

/// `f32` or `f64`: what a [`Tensor`](crate::Tensor) may hold.
///
/// Sealed by a supertrait that cannot be named outside: kernels rely on these two being all there is.
pub trait Element:
    Copy
    + Debug
    + Default
    + Display
    + PartialOrd
    + Send
    + Sync
    + Add<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + Lanes
    + 'static
{
    /// Rounds a double to this type.
    fn of(value: f64) -> Self;
    /// Widens to a double.
    fn wide(self) -> f64;
}

/// Vectors of an element on an instruction set, and the arithmetic that kernels need.
///
/// Not reachable from outside: it seals [`Element`] and keeps the backend's own trait out of sight.
pub trait Lanes: Sized + Copy + candle_core::WithDType {
    #[doc(hidden)]
    type Vector<S: Simd>: Copy;
    #[doc(hidden)]
    const ZERO: Self;
    #[doc(hidden)]
    const ONE: Self;
    /// Results smaller than this are set to zero: arithmetic on subnormal
    /// numbers is many times slower, and σ(αz) makes them by the million.
    #[doc(hidden)]
    const TINY: Self;
    /// Beyond this, e^s and its reciprocal are treated as infinite and zero.
    #[doc(hidden)]
    const SATURATED: Self;
    /// The smallest number that is not subnormal.
    #[doc(hidden)]
    const MIN_NORMAL: Self;
    #[doc(hidden)]
    fn v_splat<S: Simd>(simd: S, x: Self) -> Self::Vector<S>;
    #[doc(hidden)]
    fn v_add<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    #[doc(hidden)]
    fn v_sub<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    #[doc(hidden)]
    fn v_mul<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    #[doc(hidden)]
    fn v_mul_add<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>, c: Self::Vector<S>) -> Self::Vector<S>;
    #[doc(hidden)]
    fn v_sum<S: Simd>(simd: S, a: Self::Vector<S>) -> Self;
    /// e^x, to rounding; saturates instead of overflowing; NaN stays NaN.
    #[doc(hidden)]
    fn exp(self) -> Self;
    /// ln(1 + u) for 0 ≤ u ≤ 1, to rounding.
    #[doc(hidden)]
    fn ln_1p_unit(self) -> Self;
    /// `self * a + b`, rounded once where the processor can.
    #[doc(hidden)]
    fn fma(self, a: Self, b: Self) -> Self;
}

macro_rules! element {
    ($t:ident, $vectors:ident, $splat:ident, $add:ident, $sub:ident, $mul:ident, $mul_add:ident, $reduce:ident,
     tiny: $tiny:expr, saturated: $saturated:expr, low: $low:expr, high: $high:expr, ln2: [$ln2_hi:expr, $ln2_lo:expr],
     mantissa: $mantissa:expr, exp_terms: $exp_terms:expr, ln_terms: $ln_terms:expr) => {
        impl Element for $t {
            #[inline(always)]
            fn of(value: f64) -> Self {
                value as $t
            }
            #[inline(always)]
            fn wide(self) -> f64 {
                self as f64
            }
        }

        impl Lanes for $t {
            type Vector<S: Simd> = S::$vectors;
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const TINY: Self = $tiny;
            const SATURATED: Self = $saturated;
            const MIN_NORMAL: Self = $t::MIN_POSITIVE;
            #[inline(always)]
            fn v_splat<S: Simd>(simd: S, x: Self) -> Self::Vector<S> {
                simd.$splat(x)
            }
            #[inline(always)]
            fn v_add<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S> {
                simd.$add(a, b)
            }
            #[inline(always)]
            fn v_sub<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S> {
                simd.$sub(a, b)
            }
            #[inline(always)]
            fn v_mul<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S> {
                simd.$mul(a, b)
            }
            #[inline(always)]
            fn v_mul_add<S: Simd>(
                simd: S,
                a: Self::Vector<S>,
                b: Self::Vector<S>,
                c: Self::Vector<S>,
            ) -> Self::Vector<S> {
                simd.$mul_add(a, b, c)
            }
            #[inline(always)]
            fn v_sum<S: Simd>(simd: S, a: Self::Vector<S>) -> Self {
                simd.$reduce(a)
            }

            // e^x = 2^n e^r with n = round(x / ln 2) and |r| ≤ ln 2 / 2, where the
            // Taylor series of e^r is exact to rounding after a few terms. Adding
            // 1.5 · 2^mantissa rounds to an integer and leaves it in the low bits,
            // from where a shift puts it into the exponent field. No branch, no
            // table: the compiler turns a loop over this into vector code.
            #[inline(always)]
            fn exp(self) -> Self {
                const MAGIC: $t = (3u64 << ($mantissa - 1)) as $t;
                // Comparisons this way round let NaN through.
                let x = if self < $low { $low } else { self };
                let x = if x > $high { $high } else { x };
                let shifted = x.mul_add(std::$t::consts::LOG2_E, MAGIC);
                let n = shifted - MAGIC;
                let r = n.mul_add(-$ln2_hi, x);
                let r = n.mul_add(-$ln2_lo, r);
                let mut sum: $t = 1.0;
                let mut k = $exp_terms;
                while k > 0 {
                    sum = sum.mul_add(r * (1.0 / k as $t), 1.0);
                    k -= 1;
                }
                sum * $t::from_bits((shifted.to_bits() << $mantissa).wrapping_add((1.0 as $t).to_bits()))
            }

            // ln(1 + u) = 2 artanh(s) with s = u / (2 + u) ≤ 1/3: odd powers of s,
            // each term an order of magnitude below the last.
            #[inline(always)]
            fn ln_1p_unit(self) -> Self {
                let s = self / (2.0 + self);
                let s2 = s * s;
                let mut sum: $t = 0.0;
                let mut k = $ln_terms;
                while k > 0 {
                    sum = sum.mul_add(s2, 1.0 / (2 * k - 1) as $t);
                    k -= 1;
                }
                2.0 * s * sum
            }

            #[inline(always)]
            fn fma(self, a: Self, b: Self) -> Self {
                self.mul_add(a, b)
            }
        }
    };
}

element!(
    f32, f32s, splat_f32s, add_f32s, sub_f32s, mul_f32s, mul_add_f32s, reduce_sum_f32s,
    tiny: 1e-30, saturated: 69.5, low: -87.0, high: 88.0, ln2: [0.693_359_4, -2.121_944_4e-4],
    mantissa: 23, exp_terms: 7, ln_terms: 9
);
element!(
    f64, f64s, splat_f64s, add_f64s, sub_f64s, mul_f64s, mul_add_f64s, reduce_sum_f64s,
    tiny: 1e-290, saturated: 668.5, low: -708.0, high: 709.0, ln2: [0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10],
    mantissa: 52, exp_terms: 14, ln_terms: 18
);

/// Sets a result too small to matter to zero (see [`Lanes::TINY`]).
#[inline(always)]
pub(crate) fn flush<T: Element>(x: T) -> T {
    if x < T::TINY && x > -T::TINY { T::ZERO } else { x }
}

/// Sets a subnormal number to zero, and no other.
#[inline(always)]
pub(crate) fn flush_subnormal<T: Element>(x: T) -> T {
    if x < T::MIN_NORMAL && x > -T::MIN_NORMAL { T::ZERO } else { x }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_exact_to_rounding_and_keeps_nan() {
        for i in -8_700..8_800 {
            let x = f64::from(i) * 0.01;
            let relative = (Lanes::exp(x) / x.exp() - 1.0).abs();
            assert!(relative < 4e-16, "f64 exp({x}) is off by {relative:e}");
            let x = x as f32;
            let relative = (f64::from(Lanes::exp(x)) / f64::from(x).exp() - 1.0).abs();
            assert!(relative < 2e-7, "f32 exp({x}) is off by {relative:e}");
        }
        assert!(Lanes::exp(f32::NAN).is_nan() && Lanes::exp(f64::NAN).is_nan());
        assert!(Lanes::exp(1e30_f32).is_finite() && Lanes::exp(-1e300_f64) > 0.0);
    }

    #[test]
    fn ln_1p_is_exact_to_rounding_on_the_unit_interval() {
        for i in 0..=10_000 {
            let u = f64::from(i) / 10_000.0;
            assert!((u.ln_1p_unit() - u.ln_1p()).abs() <= 6e-16 * u, "ln(1 + {u})");
            let v = u as f32;
            assert!((v.ln_1p_unit().wide() - v.wide().ln_1p()).abs() <= 2e-7 * u + 1e-30, "f32 ln(1 + {u})");
        }
    }

    #[test]
    fn flush_keeps_normal_numbers_and_nan() {
        assert_eq!(flush(1e-31_f32), 0.0);
        assert_eq!(flush(-1e-31_f32), 0.0);
        assert_eq!(flush(1e-29_f32), 1e-29);
        assert!(flush(f64::NAN).is_nan());
        assert_eq!((flush_subnormal(1e-39_f32), flush_subnormal(2e-38_f32)), (0.0, 2e-38));
    }
}
