//! Features written out, for networks whose gradients are no products of two factors.

use crate::{Network, Params, Pass, Result, Seed, Tensor, Want};

/// One feature a row.
pub(super) struct Written<'n> {
    passes: Vec<Pass<'n>>,
    rows: Tensor,
}

impl<'n> Written<'n> {
    pub(super) fn of(network: &'n Network, thetas: &[&Params], x: &Tensor) -> Result<Self> {
        let passes = thetas.iter().map(|theta| network.pass(theta, x)).collect::<Result<_>>()?;
        let rows = thetas.iter().map(|theta| rows(network, theta, x)).collect::<Result<Vec<_>>>()?;
        Ok(Self { passes, rows: Tensor::concat_rows(&rows.iter().collect::<Vec<_>>())? })
    }

    pub(super) fn count(&self) -> usize {
        self.rows.rows()
    }

    pub(super) fn gram(&self) -> Result<Vec<f64>> {
        self.rows.matmul_transposed(&self.rows)?.to_f64_vec()
    }

    pub(super) fn toward(&self, direction: &Params) -> Result<Vec<f64>> {
        self.rows.matmul_transposed(&flat(direction)?)?.to_f64_vec()
    }

    /// As [`Tangents::pull_back`](super::Tangents::pull_back).
    pub(super) fn pull_back(&mut self, c: &[f64], direction: &Params) -> Result<Tensor> {
        let weights = Tensor::from_f64(c, &[1, c.len()], self.rows.dtype())?.to_device(self.rows.device())?;
        let left = flat(direction)?.combine(1.0, &weights.matmul(&self.rows)?, -1.0)?;
        let (mut at, row) = (0, left.transpose()?);
        let left = direction.map(|value| {
            let part = row.slice_rows(at..at + value.count())?.reshape(value.shape());
            at += value.count();
            part
        })?;
        let mut total: Option<Tensor> = None;
        let each = c.len() / self.passes.len().max(1);
        for (pass, c) in self.passes.iter_mut().zip(c.chunks_exact(each)) {
            let like = pass.outputs();
            let c = Tensor::from_f64(c, like.shape(), like.dtype())?.to_device(like.device())?;
            let inputs = pass.along_with(Seed::Fixed(c), &left)?.inputs.scale(-2.0)?;
            total = Some(match total {
                None => inputs,
                Some(total) => total.combine(1.0, &inputs, 1.0)?,
            });
        }
        total.ok_or_else(|| crate::Error::EmptyBatch { what: "parameter vectors".into() })
    }
}

/// All parameters as one row.
fn flat(params: &Params) -> Result<Tensor> {
    let columns = params.values().iter().map(|value| value.reshape(&[value.count(), 1])).collect::<Result<Vec<_>>>()?;
    Tensor::concat_rows(&columns.iter().collect::<Vec<_>>())?.transpose()
}

/// ∇_θ f_k(x_i), one a row, record by record.
pub(super) fn rows(network: &Network, theta: &Params, x: &Tensor) -> Result<Tensor> {
    let outputs: usize = network.output_shape().iter().product();
    let mut rows = Vec::with_capacity(x.rows() * outputs);
    for record in 0..x.rows() {
        let mut pass = network.pass(theta, &x.slice_rows(record..record + 1)?)?;
        for output in 0..outputs {
            let unit: Vec<f64> = (0..outputs).map(|k| f64::from(u8::from(k == output))).collect();
            let unit = Tensor::from_f64(&unit, pass.outputs().shape(), x.dtype())?.to_device(x.device())?;
            let gradient = pass.backward(Seed::Fixed(unit), Want::Weights)?.weights;
            rows.extend(gradient.map(|gradient| flat(&gradient)).transpose()?);
        }
    }
    Tensor::concat_rows(&rows.iter().collect::<Vec<_>>())
}
