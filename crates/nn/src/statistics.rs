//! The statistics that batch normalisation sees, and the running ones it keeps.

use crate::layers::Layer;
use crate::params::Buffer;
use crate::{Error, Network, Params, Pass, Result, Tensor, ops};

/// Mean and variance of one normalisation's inputs over a batch, for each channel.
#[derive(Debug, Clone)]
pub struct Statistics {
    /// The layer that normalises.
    pub layer: String,
    /// Mean.
    pub mean: Tensor,
    /// Variance, divided by the count: what the layer itself divides by.
    pub variance: Tensor,
    /// Numbers in each mean: samples times pixels.
    pub count: usize,
}

impl Statistics {
    pub(crate) fn of(layer: &str, x: &Tensor) -> Result<Self> {
        let channels = x.shape().get(1).copied().unwrap_or(1);
        let count = x.count() / channels.max(1);
        let mean = ops::scale(1.0 / count as f64, &ops::sum_channels(x, channels)?)?;
        let one = Tensor::full(1.0, &[1], x.dtype(), x.device())?;
        let centred = ops::combine_channels(&[(x, &one)], Some(&ops::scale(-1.0, &mean)?))?;
        let variance = ops::scale(1.0 / count as f64, &ops::dot_channels(&centred, &centred, channels)?)?;
        Ok(Self { layer: layer.into(), mean, variance, count })
    }
}

impl Pass<'_> {
    /// What each batch normalisation saw, in the order of the layers, in either mode.
    ///
    /// ```
    /// use afterimage_nn::{DType, Init, Network, NetworkSpec, Tensor};
    /// let text = r#"
    ///     input = [2]
    ///     layers = [{ name = "bn", kind = "batch-norm" }]
    /// "#;
    /// let network = Network::new(NetworkSpec::from_toml(text)?)?;
    /// let theta = network.init(&Init::Pytorch.into(), 1, DType::F64)?;
    /// let x = Tensor::from_vec(vec![1.0, 0.0, 3.0, 0.0], &[2, 2])?;
    /// let seen = network.pass(&theta, &x)?.statistics()?;
    /// assert_eq!(seen[0].mean.to_f64_vec()?, [2.0, 0.0]);
    /// assert_eq!(seen[0].variance.to_f64_vec()?, [1.0, 0.0]);
    ///
    /// // One step of the running statistics: a tenth of the way, to the unbiased variance.
    /// let after = network.tracked(&theta, &seen)?;
    /// assert_eq!(after.buffers()[0].value.to_f64_vec()?, [0.2, 0.0]);
    /// assert_eq!(after.buffers()[1].value.to_f64_vec()?, [1.1, 0.9]);
    /// # Ok::<(), afterimage_nn::Error>(())
    /// ```
    pub fn statistics(&self) -> Result<Vec<Statistics>> {
        let normalising = self.network().nodes().iter().filter(|node| matches!(node.layer, Layer::BatchNorm(_)));
        normalising.map(|node| Statistics::of(&node.name, &self.values()[node.inputs[0]])).collect()
    }
}

impl Network {
    /// The parameters with their running statistics moved towards those of a batch, as
    /// PyTorch does in training: by the layer's momentum, and to the unbiased variance.
    pub fn tracked(&self, theta: &Params, seen: &[Statistics]) -> Result<Params> {
        let momenta = self.nodes().iter().filter_map(|node| match &node.layer {
            Layer::BatchNorm(norm) => Some(norm.momentum),
            _ => None,
        });
        let wrong = |problem: String| Error::Algebra { operation: "tracking running statistics", problem };
        if 2 * seen.len() != theta.buffers.len() {
            return Err(wrong(format!("{} layers were seen where {} keep them", seen.len(), theta.buffers.len() / 2)));
        }
        if let Some(one) = seen.iter().find(|seen| seen.count < 2) {
            return Err(wrong(format!("layer {} saw one number a channel, which has no variance", one.layer)));
        }
        let mut buffers = Vec::with_capacity(theta.buffers.len());
        for ((pair, seen), momentum) in theta.buffers.chunks(2).zip(seen).zip(momenta) {
            let unbiased = seen.count as f64 / (seen.count as f64 - 1.0);
            for (buffer, (batch, factor)) in pair.iter().zip([(&seen.mean, 1.0), (&seen.variance, unbiased)]) {
                let value = ops::combine(1.0 - momentum, &buffer.value, momentum * factor, batch)?;
                buffers.push(Buffer { name: buffer.name.clone(), value });
            }
        }
        Ok(Params { buffers: buffers.into(), ..theta.clone() })
    }
}
