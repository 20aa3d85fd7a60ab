//! What the attacker can prove: samples whose own gradients are those observed.
//!
//! For a sample x the gradient at the layer is δ = Σ_c r_c ∂f_c/∂z, whatever the
//! loss; seen from the input, Wᵀδ = Σ_c r_c ∇_x f_c(x). A recovered pair (x, δ)
//! that satisfies this for some r was not put together by chance: r has as many
//! numbers as the network outputs, Wᵀδ as many as the sample has elements.

use afterimage_nn::optim::{Lbfgs, LbfgsOptions, LbfgsStep};
use afterimage_nn::{DType, Device, Params, Result, Seed, Tensor, Want};
use faer::linalg::solvers::Solve;
use faer::{Mat, Side};

use crate::Model;

/// The rest of the network, in double precision, as witness.
pub(super) struct Witness<'a> {
    model: &'a Model,
    theta: Params,
    outputs: usize,
}

/// How well a sample explains its column of Δᵀ.
#[derive(Debug, Clone)]
pub(super) struct Fit {
    /// ∂L/∂f of the sample.
    pub(super) residues: Vec<f64>,
    /// ‖Wᵀδ − Σ r ∇f‖ / ‖Wᵀδ‖.
    pub(super) misfit: f64,
}

/// Rows of a matrix.
pub(super) type Rows = Vec<Vec<f64>>;

impl<'a> Witness<'a> {
    pub(super) fn new(model: &'a Model) -> Result<Self> {
        let theta = model.theta.to_dtype(DType::F64)?.to_device(Device::Cpu)?;
        Ok(Self { model, theta, outputs: model.network.output_shape().iter().product() })
    }

    /// The parameters it computes with.
    pub(super) fn theta(&self) -> &Params {
        &self.theta
    }

    /// Samples as the network takes them.
    pub(super) fn batch(&self, samples: &[Vec<f64>]) -> Result<Tensor> {
        Tensor::from_f64(&samples.concat(), &self.model.network.batch_shape(samples.len()), DType::F64)
    }

    fn seed(&self, rows: Rows) -> Result<Seed> {
        Ok(Seed::Fixed(Tensor::from_f64(&rows.concat(), &[rows.len(), self.outputs], DType::F64)?))
    }

    /// For each sample the residues that explain its Wᵀδ best.
    pub(super) fn fits(&self, samples: &[Vec<f64>], pulled: &[Vec<f64>]) -> Result<Vec<Fit>> {
        samples.iter().zip(pulled).map(|(x, t)| self.fit(x, t)).collect()
    }

    fn fit(&self, x: &[f64], pulled: &[f64]) -> Result<Fit> {
        let unit = |c: usize| (0..self.outputs).map(|i| f64::from(u8::from(i == c))).collect::<Vec<f64>>();
        let repeated = self.batch(&vec![x.to_vec(); self.outputs])?;
        let seed = self.seed((0..self.outputs).map(unit).collect())?;
        let gradients = self.model.network.pass(&self.theta, &repeated)?.backward(seed, Want::Inputs)?.inputs;
        let rows = gradients.map_or_else(|| Ok(vec![0.0; self.outputs * x.len()]), |inputs| inputs.to_f64_vec())?;
        let jacobian = Mat::from_fn(self.outputs, x.len(), |c, i| rows[c * x.len() + i]);
        let target = Mat::from_fn(x.len(), 1, |i, _| pulled[i]);
        let total = pulled.iter().map(|t| t * t).sum::<f64>().sqrt();
        let mut gram = &jacobian * jacobian.transpose();
        let trace: f64 = (0..self.outputs).map(|c| gram[(c, c)]).sum();
        (0..self.outputs).for_each(|c| gram[(c, c)] += 1e-12 * trace + f64::MIN_POSITIVE);
        let Ok(factor) = gram.llt(Side::Lower) else {
            return Ok(Fit { residues: vec![0.0; self.outputs], misfit: 1.0 });
        };
        let residues = factor.solve(&jacobian * &target);
        let off = jacobian.transpose() * &residues - target;
        let misfit = off.col(0).iter().map(|x| x * x).sum::<f64>().sqrt() / total.max(f64::MIN_POSITIVE);
        Ok(Fit { residues: residues.col(0).iter().copied().collect(), misfit })
    }

    /// The gradient that samples with these residues would have shared.
    pub(super) fn gradient(&self, samples: &[Vec<f64>], residues: &[Vec<f64>]) -> Result<Params> {
        if samples.is_empty() {
            return self.theta.zeros_like();
        }
        let mut pass = self.model.network.pass(&self.theta, &self.batch(samples)?)?;
        let gradients = pass.backward(self.seed(residues.to_vec())?, Want::Weights)?;
        gradients.weights.map_or_else(|| self.theta.zeros_like(), Ok)
    }

    /// Samples and residues where ‖g − Σ r ∇f‖² / ‖g‖² over all layers is least,
    /// from these; as they are where no step makes it less.
    pub(super) fn polished(
        &self,
        samples: &[Vec<f64>],
        residues: &[Vec<f64>],
        gradient: &Params,
        steps: usize,
    ) -> Result<Vec<(Vec<f64>, Vec<f64>)>> {
        let total = gradient.norm_squared()?.max(f64::MIN_POSITIVE);
        let scales = vec![2.0 / total; gradient.values().len()];
        // Residues are small beside samples: searched in units of their own size.
        let flat = residues.concat();
        let unit = (flat.iter().map(|r| r * r).sum::<f64>() / flat.len().max(1) as f64).sqrt().max(f64::MIN_POSITIVE);
        let mut function = |at: &[Tensor]| {
            let mut pass = self.model.network.pass(&self.theta, &at[0])?;
            let found = pass.residual(Seed::Fixed(at[1].scale(unit)?), gradient, &scales)?;
            let along = pass.along(&found.direction)?;
            Ok((found.squares.iter().sum::<f64>() / total, vec![along.inputs, along.outputs.scale(unit)?]))
        };
        let shape = [residues.len(), self.outputs];
        let start = vec![self.batch(samples)?, Tensor::from_f64(&flat, &shape, DType::F64)?.scale(1.0 / unit)?];
        let options = LbfgsOptions { history: 20, gradient_tolerance: 1e-16 };
        let mut search = Lbfgs::new(options, start, &mut function)?;
        let mut before = f64::INFINITY;
        for step in 0..steps {
            // The function jumps where a unit changes its state: at such a place there is little left to gain.
            if step % 5 == 0 && search.value() > 0.9 * std::mem::replace(&mut before, search.value()) {
                break;
            }
            // In double precision nothing is gained below this.
            if search.value() < 1e-26 || !matches!(search.step(&mut function)?, LbfgsStep::Moved { .. }) {
                break;
            }
        }
        let (x, r) = (search.point()[0].to_f64_vec()?, search.point()[1].scale(unit)?.to_f64_vec()?);
        let width = x.len() / samples.len().max(1);
        let rows = x.chunks_exact(width.max(1)).zip(r.chunks_exact(self.outputs.max(1)));
        Ok(rows.map(|(x, r)| (x.to_vec(), r.to_vec())).collect())
    }
}
