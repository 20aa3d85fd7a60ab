//! The matching problem both halves of a comparison compute.

use afterimage_nn::optim::{Optimizer, UpdateRule};
use afterimage_nn::zoo::{Bias, Mlp};
use afterimage_nn::{
    Activation, DType, Device, Form, Loss, Matching, Network, Objective, Params, Reduction, Result, Seed, Targets,
    Tensor, Want,
};

/// Sharpness of the surrogate ReLU's derivative.
const ALPHA: f64 = 100.0;

/// SplitMix64 of (stream, index), mapped to [-scale, scale): `matching.py` has the same.
pub(crate) fn uniform(stream: u64, count: usize, scale: f64) -> impl Iterator<Item = f64> {
    uniform_of(stream.wrapping_mul(0xD1B5_4A32_D192_ED03), count).map(move |u| u * scale)
}

/// Such numbers as a tensor, with none of them held twice: what an iteration needs is measured after it.
pub(crate) fn uniform_tensor(stream: u64, shape: &[usize], scale: f64, dtype: DType) -> Result<Tensor> {
    let data = uniform(stream, shape.iter().product(), scale);
    match dtype {
        DType::F32 => Tensor::from_vec(data.map(|x| x as f32).collect(), shape),
        DType::F64 => Tensor::from_vec(data.collect::<Vec<f64>>(), shape),
    }
}

/// SplitMix64 from a start, mapped to [-1, 1).
pub(crate) fn uniform_of(start: u64, count: usize) -> impl Iterator<Item = f64> {
    (1..=count as u64).map(move |index| {
        let mut z = index.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(start);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        let unit = (z >> 40) as f64 / (1_u64 << 24) as f64;
        unit * 2.0 - 1.0
    })
}

/// The sizes (inputs, width, candidates) of a named case, or as numbers: `784,1000,200`.
pub(crate) fn case(name: &str) -> Option<(usize, usize, usize)> {
    if let [d, h, m] =
        name.split(',').map(str::parse).collect::<std::result::Result<Vec<_>, _>>().unwrap_or_default()[..]
    {
        return Some((d, h, m));
    }
    Some(match name {
        "a" => (784, 1000, 200),
        "b" => (3072, 1000, 1000),
        "c" => (3072, 4096, 100),
        "e" => (3072, 4096, 40),
        "f" => (3072, 4096, 1000),
        "tiny" => (20, 30, 7),
        _ => return None,
    })
}

/// Parameters of a network from consecutive streams with these scales.
pub(crate) fn parameters(network: &Network, streams: &[u64], scales: &[f64], dtype: DType) -> Result<Params> {
    let named =
        network.parameters().iter().zip(streams.iter().zip(scales)).map(|(spec, (&stream, &scale))| {
            Ok((spec.name.clone(), uniform_tensor(stream, &spec.shape, scale, dtype)?))
        });
    network.params(named.collect::<Result<_>>()?, dtype, Device::Cpu)
}

/// The network of a matching case.
pub(crate) fn perceptron((d, h, _): (usize, usize, usize)) -> Result<Network> {
    let mlp = Mlp::new(d, &[h, h], 1).with_activation(Activation::SurrogateRelu { alpha: ALPHA });
    Network::new(mlp.spec())
}

/// Candidates x, coefficients c and a target gradient made from others.
pub(crate) struct Problem<'n> {
    matching: Matching<'n>,
    x: Tensor,
    c: Tensor,
}

impl<'n> Problem<'n> {
    pub(crate) fn new(
        network: &'n Network,
        (d, h, m): (usize, usize, usize),
        dtype: DType,
        device: Device,
        form: Form,
        own: bool,
    ) -> Result<Self> {
        let (s1, s2) = ((6.0 / d as f64).sqrt(), (6.0 / h as f64).sqrt());
        let theta = parameters(network, &[1, 2, 3, 4, 5, 10], &[s1, 0.1, s2, 0.1, s2, 0.1], dtype)?;
        let theta = theta.to_device(device)?;
        let tensor = |stream, shape: &[usize]| uniform_tensor(stream, shape, 1.0, dtype)?.to_device(device);
        let (x, c) = (tensor(6, &[m, d])?, tensor(7, &[m, 1])?);
        // The weights themselves (KKT), or a gradient of others (NTK, gradient matching).
        let others = || network.backward(&theta, &tensor(8, &[m, d])?, &tensor(9, &[m, 1])?, Want::Weights);
        let target = match if own { None } else { others()?.weights } {
            Some(target) => target,
            None => theta.clone(),
        };
        Ok(Self { matching: Matching::new(network, &theta, &target, &[2.0; 6], form)?, x, c })
    }

    /// Loss and its gradients in x and c: one iteration of an attack.
    pub(crate) fn iterate(&mut self) -> Result<(f64, Tensor, Tensor)> {
        let matched = self.matching.evaluate(&self.x, &self.c)?;
        Ok((matched.squares.iter().sum(), matched.along.inputs, matched.along.outputs))
    }
}

/// Full-batch training of the KKT paper's kind of victim, one epoch at a time.
pub(crate) struct Training {
    network: Network,
    theta: Params,
    x: Tensor,
    objective: Objective,
    optimizer: Optimizer,
}

impl Training {
    pub(crate) fn new(dtype: DType, device: Device) -> Result<Self> {
        let (d, h, n) = (784, 1000, 500);
        let network = Network::new(Mlp::new(d, &[h, h], 1).spec())?;
        let (s1, s2) = (1.0 / (d as f64).sqrt(), 1.0 / (h as f64).sqrt());
        let theta = parameters(&network, &[20, 21, 22, 23, 24, 25], &[s1, s1, s2, s2, s2, s2], dtype)?;
        let x = uniform_tensor(30, &[n, d], 1.0, dtype)?.to_device(device)?;
        let signs: Vec<f64> = uniform(31, n, 1.0).map(f64::signum).collect();
        let targets = Targets::Values(Tensor::from_f64(&signs, &[n, 1], dtype)?);
        Ok(Self {
            network,
            theta: theta.to_device(device)?,
            x,
            objective: Objective::new(Loss::Logistic, Reduction::Mean, targets),
            optimizer: Optimizer::new(UpdateRule::sgd(0.01))?,
        })
    }

    /// One step of gradient descent; the loss before it.
    pub(crate) fn epoch(&mut self) -> Result<f64> {
        let mut pass = self.network.pass(&self.theta, &self.x)?;
        let loss = self.objective.value(pass.outputs())?;
        let gradients = pass.backward(Seed::Loss(self.objective.clone()), Want::Weights)?;
        if let Some(gradients) = gradients.weights {
            self.theta = self.optimizer.updated(&self.theta, &gradients, 1.0)?;
        }
        Ok(loss)
    }
}

/// Sizes (m, n, k) of the matrix products that are timed alone.
pub(crate) const PRODUCTS: [(usize, usize, usize); 4] =
    [(4096, 4096, 4096), (1000, 1000, 3072), (200, 1000, 784), (40, 4096, 4096)];

/// A linear layer: its forward pass is a product with a transposed matrix,
/// its backward pass one with a plain matrix.
pub(crate) struct Product {
    network: Network,
    theta: Params,
    x: Tensor,
    c: Tensor,
}

impl Product {
    pub(crate) fn new((m, n, k): (usize, usize, usize), dtype: DType) -> Result<Self> {
        let network = Network::new(Mlp { bias: Bias::None, ..Mlp::new(k, &[], n) }.spec())?;
        let theta = parameters(&network, &[1], &[1.0], dtype)?;
        let (x, c) = (uniform_tensor(2, &[m, k], 1.0, dtype)?, uniform_tensor(3, &[m, n], 1.0, dtype)?);
        Ok(Self { network, theta, x, c })
    }

    /// X Wᵀ
    pub(crate) fn transposed(&self) -> Result<Tensor> {
        self.network.forward(&self.theta, &self.x)
    }

    /// X Wᵀ and then C W: twice the arithmetic.
    pub(crate) fn both(&self) -> Result<Option<Tensor>> {
        Ok(self.network.backward(&self.theta, &self.x, &self.c, Want::Inputs)?.inputs)
    }
}
