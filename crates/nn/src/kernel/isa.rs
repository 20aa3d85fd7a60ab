//! Which vector instructions this processor has, found once at run time.

use std::sync::OnceLock;

use pulp::{Scalar, Simd, WithSimd};

/// An instruction set that a kernel can be compiled for and run on.
///
/// A value of this type is proof that the processor has the instructions.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Isa {
    /// AVX-512 (F, BW, CD, DQ, VL): 32 registers of 512 bits.
    #[cfg(target_arch = "x86_64")]
    Avx512(pulp::x86::V4),
    /// AVX2 with FMA: 16 registers of 256 bits.
    #[cfg(target_arch = "x86_64")]
    Avx2(pulp::x86::V3),
    /// NEON: 32 registers of 128 bits.
    #[cfg(target_arch = "aarch64")]
    Neon(pulp::aarch64::Neon),
    /// No vector instructions known: elementwise loops as the compiler makes
    /// them, matrix products by the `gemm` crate.
    Portable,
}

impl Isa {
    /// The best instruction set of this processor, or the one that the environment variable `AFTERIMAGE_ISA`
    /// names (`avx512`, `avx2`, `neon`, `portable`), if it has that: to measure what another machine would do, or to
    /// have its bits.
    pub(crate) fn best() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| {
            let (asked, available) = (std::env::var("AFTERIMAGE_ISA").ok(), Self::available());
            let named = available.iter().find(|isa| asked.as_deref() == Some(isa.name()));
            named.or(available.first()).copied().unwrap_or(Isa::Portable)
        })
    }

    fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(_) => "avx2",
            #[cfg(target_arch = "aarch64")]
            Isa::Neon(_) => "neon",
            Isa::Portable => "portable",
        }
    }

    /// Every instruction set of this processor, best first, `Portable` last.
    pub(crate) fn available() -> Vec<Self> {
        let mut found = Vec::new();
        // Miri interprets no vendor intrinsics: there the portable loops are checked.
        if !cfg!(miri) {
            #[cfg(target_arch = "x86_64")]
            {
                found.extend(pulp::x86::V4::try_new().map(Isa::Avx512));
                found.extend(pulp::x86::V3::try_new().map(Isa::Avx2));
            }
            #[cfg(target_arch = "aarch64")]
            found.extend(pulp::aarch64::Neon::try_new().map(Isa::Neon));
        }
        found.push(Isa::Portable);
        found
    }

    /// Runs `op` compiled for this instruction set.
    #[inline]
    pub(crate) fn run<Op: WithSimd>(self, op: Op) -> Op::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(simd) => Simd::vectorize(simd, op),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(simd) => Simd::vectorize(simd, op),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon(simd) => Simd::vectorize(simd, op),
            Isa::Portable => Simd::vectorize(Scalar::new(), op),
        }
    }

    /// Runs a loop compiled for this instruction set. The closure must be
    /// `#[inline(always)]`, or it is compiled without.
    #[inline]
    pub(crate) fn vectorize<R>(self, f: impl FnMut() -> R) -> R {
        self.run(Loop(f))
    }
}

/// A closure as a vectorisable operation. Called through `FnMut`, because the
/// compiler's adapter from `FnOnce` is a function of its own that is not inlined.
struct Loop<F>(F);

impl<R, F: FnMut() -> R> WithSimd for Loop<F> {
    type Output = R;

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _: S) -> R {
        (self.0)()
    }
}
