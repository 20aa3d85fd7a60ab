//! The one optimiser step that is worth a pass of its own.

use super::{on_device, same_shape};
use crate::kernel::element::{Element, flush_subnormal};
use crate::kernel::elementwise;
use crate::tensor::on_host;
use crate::{Result, Tensor};

/// The numbers of one Adam step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdamRates {
    pub(crate) step: f64,
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    /// 1 − β₁ᵗ and 1 − β₂ᵗ.
    pub(crate) correction1: f64,
    pub(crate) correction2: f64,
    pub(crate) epsilon: f64,
}

/// (p, m, v) after one Adam step with gradient g, as PyTorch computes it.
pub(crate) fn adam(p: &Tensor, g: &Tensor, m: &Tensor, v: &Tensor, rates: AdamRates) -> Result<[Tensor; 3]> {
    same_shape("Adam step", &[p, g, m, v])?;
    on_device!(p, crate::cuda::adam(p, g, m, v, rates));
    on_host!(p.dtype(), T => {
        let [beta1, beta2, epsilon] = [rates.beta1, rates.beta2, rates.epsilon].map(T::of);
        let [rest1, rest2] = [1.0 - rates.beta1, 1.0 - rates.beta2].map(T::of);
        let [step, shrink] = [rates.step / rates.correction1, 1.0 / rates.correction2.sqrt()].map(T::of);
        let inputs = [&*p.host::<T>()?, &*g.host::<T>()?, &*m.host::<T>()?, &*v.host::<T>()?];
        let [p_new, m_new, v_new] = elementwise::map_many(inputs, #[inline(always)] |[p, g, m, v]| {
            let m = flush_subnormal(beta1 * m + rest1 * g);
            let v = flush_subnormal(beta2 * v + rest2 * g * g);
            [p - step * m / (T::of(v.wide().sqrt()) * shrink + epsilon), m, v]
        });
        let tensor = |data| Tensor::from_vec(data, p.shape());
        Ok([tensor(p_new)?, tensor(m_new)?, tensor(v_new)?])
    })
}
