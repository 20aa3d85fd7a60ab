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
        let (mean, channels, count) = mean_of(x)?;
        let one = Tensor::full(1.0, &[1], x.dtype(), x.device())?;
        let centred = ops::combine_channels(&[(x, &one)], Some(&ops::scale(-1.0, &mean)?))?;
        let variance = ops::scale(1.0 / count as f64, &ops::dot_channels(&centred, &centred, channels)?)?;
        Ok(Self { layer: layer.into(), mean, variance, count })
    }
}

/// The mean of each channel, how many channels there are, and how many numbers in each.
fn mean_of(x: &Tensor) -> Result<(Tensor, usize, usize)> {
    let channels = x.shape().get(1).copied().unwrap_or(1);
    let count = x.count() / channels.max(1);
    Ok((ops::scale(1.0 / count as f64, &ops::sum_channels(x, channels)?)?, channels, count))
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

    /// The gradient in x of Σ_ik c_ik f_k(x_i) + Φ, where Φ is a function of the
    /// [`statistics`](Self::statistics) with these derivatives in each of them: with n numbers a
    /// channel, ∂Φ/∂z = (∂Φ/∂μ + 2 (z − μ) ∂Φ/∂σ²) / n at the input z of a normalisation.
    ///
    /// ```
    /// use afterimage_nn::{DType, Init, Network, NetworkSpec, Tensor};
    /// let text = r#"
    ///     input = [1]
    ///     layers = [{ name = "bn", kind = "batch-norm" }]
    /// "#;
    /// let network = Network::new(NetworkSpec::from_toml(text)?)?;
    /// let theta = network.init(&Init::Pytorch.into(), 1, DType::F64)?;
    /// let pass_of = |x: Vec<f64>| network.pass(&theta, &Tensor::from_vec(x, &[2, 1])?);
    /// let pass = pass_of(vec![1.0, 3.0])?;
    /// // Φ = σ²: the variance of 1 and 3 grows by 2 (x − 2) / 2.
    /// let mut slopes = pass.statistics()?;
    /// slopes[0].mean = Tensor::from_vec(vec![0.0], &[1])?;
    /// slopes[0].variance = Tensor::from_vec(vec![1.0], &[1])?;
    /// assert_eq!(pass.pull_statistics(None, &slopes)?.to_f64_vec()?, [-1.0, 1.0]);
    /// # Ok::<(), afterimage_nn::Error>(())
    /// ```
    pub fn pull_statistics(&self, c: Option<&Tensor>, slopes: &[Statistics]) -> Result<Tensor> {
        let normalising = self.network().nodes().iter().filter(|node| matches!(node.layer, Layer::BatchNorm(_)));
        let mut from: Vec<(usize, Tensor)> = Vec::with_capacity(slopes.len() + 1);
        for (node, slope) in normalising.zip(slopes) {
            let value = node.inputs[0];
            let x = &self.values()[value];
            let (mean, _, count) = mean_of(x)?;
            let each = 1.0 / count as f64;
            let factors = ops::scale(2.0 * each, &slope.variance)?;
            let shift = ops::combine(each, &slope.mean, -1.0, &ops::mul(&factors, &mean)?)?;
            let gradient = ops::combine_channels(&[(x, &factors)], Some(&shift))?;
            // Two normalisations may read the same value.
            match from.iter_mut().find(|(place, _)| *place == value) {
                Some((_, sum)) => *sum = ops::add(sum, &gradient)?,
                None => from.push((value, gradient)),
            }
        }
        from.extend(c.map(|c| (self.values().len() - 1, c.clone())));
        self.pull_back(from)
    }
}

impl Network {
    /// Names and channels of its batch normalisations, in the order of the layers.
    pub fn normalisations(&self) -> impl Iterator<Item = (&str, usize)> {
        self.nodes().iter().filter_map(|node| match &node.layer {
            Layer::BatchNorm(norm) => Some((node.name.as_str(), norm.channels)),
            _ => None,
        })
    }

    /// What batch normalisations saw of a batch of so many samples that moved the running
    /// statistics from one state to another in one step: [`tracked`](Self::tracked) solved for it.
    ///
    /// ```
    /// use afterimage_nn::{DType, Init, Network, NetworkSpec, Tensor};
    /// let text = r#"
    ///     input = [1]
    ///     layers = [{ name = "bn", kind = "batch-norm" }]
    /// "#;
    /// let network = Network::new(NetworkSpec::from_toml(text)?)?;
    /// let theta = network.init(&Init::Pytorch.into(), 1, DType::F64)?;
    /// let x = Tensor::from_vec(vec![1.0, 3.0], &[2, 1])?;
    /// let after = network.tracked(&theta, &network.pass(&theta, &x)?.statistics()?)?;
    /// let seen = network.untracked(&theta, &after, 2)?;
    /// assert!((seen[0].mean.to_scalar()? - 2.0).abs() < 1e-12);
    /// assert!((seen[0].variance.to_scalar()? - 1.0).abs() < 1e-12);
    /// # Ok::<(), afterimage_nn::Error>(())
    /// ```
    pub fn untracked(&self, before: &Params, after: &Params, samples: usize) -> Result<Vec<Statistics>> {
        let wrong = |problem: String| Error::Algebra { operation: "running statistics of a batch", problem };
        let pairs = before.buffers.chunks(2).zip(after.buffers.chunks(2));
        let normalising = self.nodes().iter().filter_map(|node| match &node.layer {
            Layer::BatchNorm(norm) => Some((node, norm)),
            _ => None,
        });
        let layers = self.normalisations().count();
        if before.buffers.len() != 2 * layers || after.buffers.len() != 2 * layers {
            return Err(wrong(format!("there are not two for each of {layers} layers")));
        }
        let mut seen = Vec::with_capacity(layers);
        for ((node, norm), (before, after)) in normalising.zip(pairs) {
            let count = samples * node.shape.iter().product::<usize>() / norm.channels.max(1);
            if count < 2 {
                return Err(wrong(format!("layer {} saw one number a channel, which has no variance", node.name)));
            }
            if norm.momentum == 0.0 {
                return Err(wrong(format!("layer {} has no momentum: they do not move", node.name)));
            }
            let one = |place: usize, factor: f64| {
                let scale = factor / norm.momentum;
                ops::combine(scale, &after[place].value, -scale * (1.0 - norm.momentum), &before[place].value)
            };
            let biased = (count as f64 - 1.0) / count as f64;
            seen.push(Statistics { layer: node.name.clone(), mean: one(0, 1.0)?, variance: one(1, biased)?, count });
        }
        Ok(seen)
    }

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
