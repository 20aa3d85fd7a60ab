//! The two losses, over the distilled records (variable 0).

use afterimage_attacks::{AttackError, Evaluation, Problem};
use afterimage_nn::Tensor;

use super::kernel::{Kernel, solved};
use crate::{AuditError, Result};

/// Records with the values their outputs should have, one a row.
#[derive(Clone)]
pub struct Labelled {
    /// The records, as a network is fed with them.
    pub x: Tensor,
    /// The values.
    pub y: Tensor,
}

/// ½ ‖y_T − K_TS K_SS⁻¹ y_S‖².
pub struct Kip<'a> {
    kernel: &'a Kernel,
    all: &'a Labelled,
    y: Tensor,
    ridge: f64,
}

/// ½ (α_SᵀK_SS α_S − 2 α_TᵀK_TS α_S + α_TᵀK_TT α_T).
pub struct Rkip<'a> {
    kernel: &'a Kernel,
    all: &'a Labelled,
    y: Tensor,
    ridge: f64,
    /// α_T.
    alpha: Tensor,
    /// α_TᵀK_TT α_T.
    size: f64,
}

impl<'a> Kip<'a> {
    /// To distil `all` into records with outputs `y`.
    pub fn new(kernel: &'a Kernel, all: &'a Labelled, y: Tensor, ridge: f64) -> Self {
        Self { kernel, all, y, ridge }
    }

    fn value(&self, s: &Tensor) -> Result<(f64, Tensor)> {
        let (own, across) = (self.kernel.between(s, None)?, self.kernel.between(&self.all.x, Some(s))?);
        let b = solved(&own, self.ridge, &self.y)?;
        let left = across.matmul(&b)?.combine(1.0, &self.all.y, -1.0)?;
        // Moving K_TS moves the prediction by dK b; moving K_SS moves b by −K⁻¹ dK b. The ridge stays as it is.
        let back = solved(&own, self.ridge, &across.transpose()?.matmul(&left)?)?;
        let of_across = self.kernel.pull_back(&b, &left, s, &self.all.x)?;
        let of_own = self.kernel.pull_back_own(&back, &b, s)?;
        Ok((0.5 * left.dot(&left)?, of_across.combine(1.0, &of_own, -1.0)?))
    }
}

impl<'a> Rkip<'a> {
    /// To distil `all` into records with outputs `y`.
    pub fn new(kernel: &'a Kernel, all: &'a Labelled, y: Tensor, ridge: f64) -> Result<Self> {
        let own = kernel.between(&all.x, None)?;
        let alpha = solved(&own, ridge, &all.y)?;
        let size = alpha.dot(&own.matmul(&alpha)?)?;
        Ok(Self { kernel, all, y, ridge, alpha, size })
    }

    fn value(&self, s: &Tensor) -> Result<(f64, Tensor)> {
        let (own, across) = (self.kernel.between(s, None)?, self.kernel.between(s, Some(&self.all.x))?);
        let alpha = solved(&own, self.ridge, &self.y)?;
        let (explained, met) = (own.matmul(&alpha)?, across.matmul(&self.alpha)?);
        let value = 0.5 * alpha.dot(&explained)? - alpha.dot(&met)? + 0.5 * self.size;
        let back = solved(&own, self.ridge, &explained.combine(1.0, &met, -1.0)?)?;
        let of_across = self.kernel.pull_back(&alpha, &self.alpha, s, &self.all.x)?;
        // ½ α αᵀ where K_SS stands, −K⁻¹(K α_S − K_ST α_T) αᵀ through α_S.
        let of_own = self.kernel.pull_back_own(&alpha.combine(0.5, &back, -1.0)?, &alpha, s)?;
        Ok((value, of_own.combine(1.0, &of_across, -1.0)?))
    }
}

/// What goes wrong in a kernel, as descents say it.
fn said(error: AuditError) -> AttackError {
    match error {
        AuditError::Attack(error) => error,
        AuditError::Nn(error) => error.into(),
        other => AttackError::File { file: "distillation".into(), problem: other.to_string() },
    }
}

impl Problem for Kip<'_> {
    fn evaluate(&mut self, _: usize, at: &[Tensor]) -> std::result::Result<Evaluation, AttackError> {
        let (loss, gradient) = self.value(&at[0]).map_err(said)?;
        Ok(Evaluation { loss, gradients: vec![Some(gradient)] })
    }
}

impl Problem for Rkip<'_> {
    fn evaluate(&mut self, _: usize, at: &[Tensor]) -> std::result::Result<Evaluation, AttackError> {
        let (loss, gradient) = self.value(&at[0]).map_err(said)?;
        Ok(Evaluation { loss, gradients: vec![Some(gradient)] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterimage_nn::tangent::InfiniteWidth;
    use afterimage_nn::zoo::Mlp;
    use afterimage_nn::{Activation, DType, Init, Network, Stream};

    fn random(name: &str, shape: &[usize]) -> Tensor {
        Stream::new(6, name, 0).normal_tensor(1.0, shape, DType::F64).unwrap()
    }

    fn kernels() -> Vec<Kernel> {
        let mlp = Mlp::new(5, &[16, 16], 1).with_activation(Activation::Softplus { beta: 2.0 });
        let network = Box::new(Network::new(mlp.spec()).unwrap());
        let theta = network.init(&Init::LecunNormal.into(), 1, DType::F64).unwrap();
        vec![Kernel::Infinite(InfiniteWidth { hidden: 2, weight_std: 1.0 }), Kernel::Empirical { network, theta }]
    }

    fn check(problem: &mut dyn Problem, s: &Tensor) {
        let gradient =
            problem.evaluate(0, std::slice::from_ref(s)).unwrap().gradients.remove(0).unwrap().to_f64_vec().unwrap();
        for index in 0..s.count() {
            let mut value = |step: f64| {
                let mut moved = s.to_f64_vec().unwrap();
                moved[index] += step;
                problem.evaluate(0, &[Tensor::from_vec(moved, s.shape()).unwrap()]).unwrap().loss
            };
            let numeric = (value(1e-5) - value(-1e-5)) / 2e-5;
            assert!((numeric - gradient[index]).abs() < 1e-5 * (1.0 + numeric.abs()), "{index}: {numeric}");
        }
    }

    #[test]
    fn gradients_are_those_of_the_losses() {
        for (kernel, outputs) in kernels().iter().zip([2, 1]) {
            let all = Labelled { x: random("t", &[7, 5]), y: random("y", &[7, outputs]) };
            let (s, y) = (random("s", &[3, 5]), random("ys", &[3, outputs]));
            check(&mut Kip::new(kernel, &all, y.clone(), 0.0), &s);
            check(&mut Rkip::new(kernel, &all, y, 0.0).unwrap(), &s);
        }
    }

    #[test]
    fn theorem_2_rebuilding_is_distilling_under_another_norm() {
        for kernel in &kernels() {
            let all = Labelled { x: random("t", &[7, 5]), y: random("y", &[7, 1]) };
            let (s, y) = (random("s", &[3, 5]), random("ys", &[3, 1]));
            let twice = 2.0 * Rkip::new(kernel, &all, y.clone(), 0.0).unwrap().value(&s).unwrap().0;
            // ‖y_T − K_TR K_RR⁻¹ y_R‖² in K_TT⁻¹, plus y_Rᵀ K_RR⁻¹ (K_RR − K_RT K_TT⁻¹ K_TR) K_RR⁻¹ y_R.
            let (tt, rr) = (kernel.between(&all.x, None).unwrap(), kernel.between(&s, None).unwrap());
            let tr = kernel.between(&all.x, Some(&s)).unwrap();
            let b = solved(&rr, 0.0, &y).unwrap();
            let left = all.y.combine(1.0, &tr.matmul(&b).unwrap(), -1.0).unwrap();
            let norm = left.dot(&solved(&tt, 0.0, &left).unwrap()).unwrap();
            let explained = tr.transpose().unwrap().matmul(&solved(&tt, 0.0, &tr).unwrap()).unwrap();
            let variance = b.dot(&rr.combine(1.0, &explained, -1.0).unwrap().matmul(&b).unwrap()).unwrap();
            assert!((twice - norm - variance).abs() < 1e-8 * twice, "{twice} {norm} {variance}");
        }
    }

    #[test]
    fn a_record_that_the_rest_predicts_has_no_weight() {
        // Appendix C: α_N = 0 iff y_N is what the others say.
        let kernel = &kernels()[0];
        let (x, mut y) = (random("t", &[6, 5]), random("y", &[6, 1]).to_f64_vec().unwrap());
        let rest = x.slice_rows(0..5).unwrap();
        let known = Tensor::from_vec(y[..5].to_vec(), &[5, 1]).unwrap();
        let weights = solved(&kernel.between(&rest, None).unwrap(), 0.0, &known).unwrap();
        let across = kernel.between(&x.slice_rows(5..6).unwrap(), Some(&rest)).unwrap();
        y[5] = across.matmul(&weights).unwrap().to_scalar().unwrap();
        let alpha = |y: &[f64]| {
            let y = Tensor::from_vec(y.to_vec(), &[6, 1]).unwrap();
            solved(&kernel.between(&x, None).unwrap(), 0.0, &y).unwrap().to_f64_vec().unwrap()
        };
        assert!(alpha(&y)[5].abs() < 1e-9);
        y[5] += 0.1;
        assert!(alpha(&y)[5].abs() > 1e-3);
    }
}
