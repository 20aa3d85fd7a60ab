//! y = γ (x − μ) / √(σ² + ε) + β, for each channel.

use super::{At, Rule, Wanted};
use crate::algebra::Algebra;
use crate::gradient::GradientSink;
use crate::network::Mode;
use crate::{Error, Result, Role};

/// Batch normalisation: μ and σ² are the batch's own in training, the running ones otherwise.
///
/// With r = (σ² + ε)^(−1/2) and n numbers a channel, the gradients in training are
///
/// ```text
/// ∂L/∂β = Σ g        ∂L/∂γ = r Σ g (x − μ)
/// ∂L/∂x = γ r [ g − Σ g / n − (x − μ) r² Σ g (x − μ) / n ]
/// ```
///
/// and otherwise ∂L/∂x = γ r g. Either is a sum of tensors times numbers of their channel.
#[derive(Debug, Clone)]
pub(crate) struct BatchNorm {
    pub(crate) channels: usize,
    pub(crate) eps: f64,
    /// How far a batch moves the running statistics.
    pub(crate) momentum: f64,
    /// Whether there are γ and β.
    pub(crate) affine: bool,
    pub(crate) mode: Mode,
}

impl BatchNorm {
    pub(crate) fn wanted(&self) -> Vec<Wanted> {
        if !self.affine {
            return Vec::new();
        }
        let channels = self.channels;
        let wanted = |suffix, role| Wanted { suffix, shape: vec![channels], role, fan_in: 1 };
        vec![wanted("weight", Role::Scale), wanted("bias", Role::Shift)]
    }

    /// γ and β, then the running mean and variance.
    fn split<'a, V>(&self, parameters: &[&'a V]) -> (Option<(&'a V, &'a V)>, [&'a V; 2]) {
        match *parameters {
            [scale, shift, mean, variance] => (Some((scale, shift)), [mean, variance]),
            // The graph hands out two or four.
            _ => (None, [parameters[0], parameters[1]]),
        }
    }

    /// γ r, or r where there is no γ.
    fn slope<A: Algebra>(&self, algebra: &mut A, scale: Option<&A::Value>, root: &A::Value) -> Result<A::Value> {
        match scale {
            Some(scale) => algebra.mul(scale, root),
            None => Ok(root.clone()),
        }
    }
}

impl Rule for BatchNorm {
    fn forward<A: Algebra>(
        &self,
        algebra: &mut A,
        parameters: &[&A::Value],
        inputs: &[&A::Value],
    ) -> Result<(A::Value, Vec<A::Value>)> {
        let (affine, [running_mean, running_variance]) = self.split(parameters);
        let (scale, shift) = (affine.map(|(scale, _)| scale), affine.map(|(_, shift)| shift));
        let x = inputs[0];
        if self.mode == Mode::Eval {
            let root = algebra.inverse_sqrt(running_variance, self.eps)?;
            let slope = self.slope(algebra, scale, &root)?;
            let moved = algebra.mul(&slope, running_mean)?;
            let offset = match shift {
                Some(shift) => algebra.sub(shift, &moved)?,
                None => algebra.scale(-1.0, &moved)?,
            };
            return Ok((algebra.combine_channels(&[(x, &slope)], Some(&offset))?, vec![root, slope]));
        }
        let sums = algebra.sum_channels(x, self.channels)?;
        let count = algebra.count(x)? / self.channels as f64;
        if count <= 1.0 {
            let problem = "one number a channel has no variance; training mode needs more samples or pixels".into();
            return Err(Error::Algebra { operation: "batch normalisation", problem });
        }
        let one = algebra.one(x)?;
        let offset = algebra.scale(-1.0 / count, &sums)?;
        let centred = algebra.combine_channels(&[(x, &one)], Some(&offset))?;
        let squares = algebra.dot_channels(&centred, &centred, self.channels)?;
        let variance = algebra.scale(1.0 / count, &squares)?;
        let root = algebra.inverse_sqrt(&variance, self.eps)?;
        let slope = self.slope(algebra, scale, &root)?;
        let output = algebra.combine_channels(&[(&centred, &slope)], shift)?;
        Ok((output, vec![root, slope, centred]))
    }

    fn backward<A: Algebra>(&self, algebra: &mut A, at: &At<'_, A::Value>, grad: &A::Value) -> Result<Vec<A::Value>> {
        let [root, slope, centred @ ..] = at.kept else { return Ok(Vec::new()) };
        let [centred] = centred else { return Ok(vec![algebra.combine_channels(&[(grad, slope)], None)?]) };
        let count = algebra.count(grad)? / self.channels as f64;
        let sums = algebra.sum_channels(grad, self.channels)?;
        let products = algebra.dot_channels(grad, centred, self.channels)?;
        let all_moved = algebra.mul(slope, &sums)?;
        let offset = algebra.scale(-1.0 / count, &all_moved)?;
        let squared = algebra.mul(root, root)?;
        let scaled = algebra.mul(&squared, &products)?;
        let widened = algebra.mul(slope, &scaled)?;
        let inward = algebra.scale(-1.0 / count, &widened)?;
        Ok(vec![algebra.combine_channels(&[(grad, slope), (centred, &inward)], Some(&offset))?])
    }

    fn parameters<A: Algebra>(
        &self,
        algebra: &mut A,
        at: &At<'_, A::Value>,
        grad: &A::Value,
        numbers: &[usize],
        sink: &mut dyn GradientSink<A>,
    ) -> Result<()> {
        let (Some(_), [running_mean, _]) = self.split(at.parameters) else { return Ok(()) };
        let [root, _, kept @ ..] = at.kept else { return Ok(()) };
        let centred = match kept {
            [centred] => centred.clone(),
            _ => {
                let (one, offset) = (algebra.one(grad)?, algebra.scale(-1.0, running_mean)?);
                algebra.combine_channels(&[(at.inputs[0], &one)], Some(&offset))?
            }
        };
        let products = algebra.dot_channels(grad, &centred, self.channels)?;
        let scales = algebra.mul(&products, root)?;
        sink.direct(algebra, numbers[0], scales)?;
        let shifts = algebra.sum_channels(grad, self.channels)?;
        sink.direct(algebra, numbers[1], shifts)
    }
}
