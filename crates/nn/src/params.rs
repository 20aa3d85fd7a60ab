//! Named parameters of a network, and vectors of the same layout (gradients, directions).

use std::sync::Arc;

use crate::{DType, Device, Error, Result, Tensor, nearest, ops};

/// What a parameter is for; initialisers treat each kind differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Weights of a linear map.
    Weight,
    /// Constants added to its outputs.
    Bias,
    /// Learned negative slope of a PReLU.
    Slope,
    /// What a normalised channel is multiplied with.
    Scale,
    /// What is added to it then.
    Shift,
}

/// One parameter as the network declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamSpec {
    /// PyTorch's name: `layer.weight`, `layer.bias`.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// What it is for.
    pub role: Role,
    /// Number of inputs that each output of its layer sums over.
    pub fan_in: usize,
}

/// What a network keeps beside its parameters and no gradient reaches: the running
/// mean and variance of a batch normalisation.
#[derive(Debug, Clone)]
pub struct Buffer {
    /// PyTorch's name: `layer.running_mean`, `layer.running_var`.
    pub name: String,
    /// Its numbers.
    pub value: Tensor,
}

/// Values for every parameter of a network, in the network's order.
///
/// The same type holds the weights θ, a gradient, or a direction in parameter
/// space; vector arithmetic is defined between those of one network.
///
/// ```
/// use afterimage_nn::{DType, Init, Network, zoo::Mlp};
/// let network = Network::new(Mlp::new(4, &[8], 1).spec())?;
/// let theta = network.init(&Init::Pytorch.into(), 1, DType::F64)?;
/// assert_eq!(theta.names().collect::<Vec<_>>(), ["0.weight", "0.bias", "2.weight", "2.bias"]);
/// assert!((theta.dot(&theta)? - theta.norm_squared()?).abs() < 1e-12);
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Params<V = Tensor> {
    pub(crate) specs: Arc<[ParamSpec]>,
    pub(crate) values: Vec<V>,
    /// Carried along by arithmetic, unchanged.
    pub(crate) buffers: Arc<[Buffer]>,
}

impl<V> Params<V> {
    /// Names in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.specs.iter().map(|spec| spec.name.as_str())
    }

    /// The network's declarations, in order.
    pub fn specs(&self) -> &[ParamSpec] {
        &self.specs
    }

    /// Values in order.
    pub fn values(&self) -> &[V] {
        &self.values
    }

    /// The running statistics that go with them, in the network's order.
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// (name, value) in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        self.names().zip(&self.values)
    }

    /// The value of a parameter.
    pub fn get(&self, name: &str) -> Result<&V> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value).ok_or_else(|| Error::Parameter {
            name: name.into(),
            problem: "the network has no such parameter".into(),
            hint: match nearest(name, self.names()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("it has {}", self.names().collect::<Vec<_>>().join(", ")),
            },
        })
    }

    /// Something made from each value.
    pub fn map<W>(&self, f: impl FnMut(&V) -> Result<W>) -> Result<Params<W>> {
        let values = self.values.iter().map(f).collect::<Result<_>>()?;
        Ok(Params { specs: self.specs.clone(), values, buffers: self.buffers.clone() })
    }

    /// Something made from each pair of values of two sets with one layout.
    pub fn zip<U, W>(&self, other: &Params<U>, mut f: impl FnMut(&V, &U) -> Result<W>) -> Result<Params<W>> {
        self.same_layout(other)?;
        let pairs = self.values.iter().zip(&other.values);
        let values = pairs.map(|(v, u)| f(v, u)).collect::<Result<_>>()?;
        Ok(Params { specs: self.specs.clone(), values, buffers: self.buffers.clone() })
    }

    /// Fails, naming the first parameter that differs, unless both have one layout.
    pub fn same_layout<U>(&self, other: &Params<U>) -> Result<()> {
        if Arc::ptr_eq(&self.specs, &other.specs) {
            return Ok(());
        }
        for (ours, theirs) in self.specs.iter().zip(other.specs.iter()) {
            if ours.name != theirs.name || ours.shape != theirs.shape {
                return Err(Error::Parameter {
                    name: ours.name.clone(),
                    problem: format!("shape {:?} stands against `{}` {:?}", ours.shape, theirs.name, theirs.shape),
                    hint: "both sets of parameters must come from the same network".into(),
                });
            }
        }
        if self.specs.len() != other.specs.len() {
            let longer = if self.specs.len() > other.specs.len() { &self.specs } else { &other.specs };
            return Err(Error::Parameter {
                name: longer[self.specs.len().min(other.specs.len())].name.clone(),
                problem: "only one of two sets of parameters has it".into(),
                hint: "both sets of parameters must come from the same network".into(),
            });
        }
        Ok(())
    }
}

impl Params {
    /// Number of scalars.
    pub fn count(&self) -> usize {
        self.values.iter().map(Tensor::count).sum()
    }

    /// Number type of the values.
    pub fn dtype(&self) -> DType {
        self.values.first().map_or(DType::F32, Tensor::dtype)
    }

    /// Device of the values.
    pub fn device(&self) -> Device {
        self.values.first().map_or(Device::Cpu, Tensor::device)
    }

    /// The same values in another number type.
    pub fn to_dtype(&self, dtype: DType) -> Result<Self> {
        self.converted(|value| value.to_dtype(dtype))
    }

    /// The same values on another device.
    pub fn to_device(&self, device: Device) -> Result<Self> {
        self.converted(|value| value.to_device(device))
    }

    /// Parameters and running statistics alike.
    fn converted(&self, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let buffers = self.buffers.iter().map(|b| Ok(Buffer { name: b.name.clone(), value: f(&b.value)? }));
        Ok(Self { buffers: buffers.collect::<Result<_>>()?, ..self.map(&f)? })
    }

    /// Names and values of parameters and running statistics: a state dict.
    pub fn state(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.iter().chain(self.buffers.iter().map(|buffer| (buffer.name.as_str(), &buffer.value)))
    }

    /// All zero, with this layout.
    pub fn zeros_like(&self) -> Result<Self> {
        self.map(Tensor::zeros_like)
    }

    /// ⟨self, other⟩, summed in double precision.
    pub fn dot(&self, other: &Self) -> Result<f64> {
        Ok(self.zip(other, ops::dot)?.values.iter().sum())
    }

    /// ‖self‖².
    pub fn norm_squared(&self) -> Result<f64> {
        self.dot(self)
    }

    /// α self + β other.
    pub fn combine(&self, alpha: f64, other: &Self, beta: f64) -> Result<Self> {
        self.zip(other, |a, b| ops::combine(alpha, a, beta, b))
    }

    /// self − other.
    pub fn sub(&self, other: &Self) -> Result<Self> {
        self.zip(other, ops::sub)
    }

    /// factor · self.
    pub fn scale(&self, factor: f64) -> Result<Self> {
        self.map(|value| ops::scale(factor, value))
    }

    /// Fails, naming the parameter, unless every number is finite.
    pub fn check_finite(&self) -> Result<()> {
        self.state().try_for_each(|(name, value)| value.check_finite(&format!("parameter {name}")))
    }
}
