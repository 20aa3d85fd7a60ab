//! Initial parameters.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::activation::split_parameter;
use crate::params::ParamSpec;
use crate::{DType, Error, Network, Params, Result, Role, Stream, Tensor, nearest};

/// How a layer's parameters start.
///
/// Written as `"pytorch"`, `"kaiming"`, `"fan-in"`, `"lecun-normal"`,
/// `"normal(1e-4)"`, `"uniform(0.5)"`, `"constant(0.5)"`, `"eye"`, `"mirrored-eye"` or `"mirrored-normal"`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum Init {
    /// Weights and biases U(±1/√fan_in), as `nn.Linear` and `nn.Conv2d` do.
    Pytorch,
    /// Weights N(0, 2/fan_in), biases 0.
    Kaiming,
    /// Weights N(0, 1/fan_in), biases 0.
    FanIn,
    /// Weights N(0, 1/fan_in) cut at two standard deviations and rescaled to
    /// that variance, as JAX does; biases 0.
    LecunNormal,
    /// Weights and biases N(0, σ²).
    Normal {
        /// σ.
        std: f64,
    },
    /// Weights and biases U(±b).
    Uniform {
        /// b.
        bound: f64,
    },
    /// Weights and biases all the same.
    Constant {
        /// What they are.
        value: f64,
    },
    /// Weights I, as far as the shape goes; biases 0.
    Eye,
    /// Weights [I; −I]; biases 0. After ReLU both signs of every input are kept.
    MirroredEye,
    /// Weights [Z, −Z] with Z of N(0, 1); biases 0. Puts together what
    /// [`MirroredEye`](Init::MirroredEye) took apart.
    MirroredNormal,
}

/// Standard deviation of a standard normal cut at ±2.
const CUT_NORMAL_STD: f64 = 0.879_625_661_034_239_8;

/// PReLU slopes start here, as in PyTorch.
const PRELU_SLOPE: f64 = 0.25;

impl Init {
    /// `named`: whether the parameter was named itself, and not only its layer or nothing.
    fn tensor(self, spec: &ParamSpec, named: bool, stream: &mut Stream, dtype: DType) -> Result<Tensor> {
        let fan_in = spec.fan_in.max(1) as f64;
        let zero_bias = spec.role == Role::Bias;
        if spec.role == Role::Weight
            && let Some(entry) = self.pattern()
        {
            let (rows, columns) = (spec.shape.first().copied().unwrap_or(0), spec.fan_in.max(1));
            let data: Vec<f64> = (0..rows).flat_map(|row| entry([rows, columns], row, stream)).collect();
            return Tensor::from_f64(&data, &spec.shape, dtype);
        }
        stream.tensor(&spec.shape, dtype, |stream| match (spec.role, self) {
            (Role::Slope, _) if !named => PRELU_SLOPE,
            (Role::Scale, _) if !named => 1.0,
            (Role::Shift, _) if !named => 0.0,
            (_, Init::Pytorch) => stream.uniform(-1.0, 1.0) / fan_in.sqrt(),
            (_, Init::Normal { std }) => std * stream.normal(),
            (_, Init::Uniform { bound }) => stream.uniform(-1.0, 1.0) * bound,
            (_, Init::Constant { value }) => value,
            _ if zero_bias => 0.0,
            (_, Init::Kaiming) => stream.normal() * (2.0 / fan_in).sqrt(),
            (_, Init::FanIn) => stream.normal() / fan_in.sqrt(),
            (_, Init::LecunNormal) => cut_normal(stream) / (CUT_NORMAL_STD * fan_in.sqrt()),
            (_, Init::Eye | Init::MirroredEye | Init::MirroredNormal) => 0.0,
        })
    }

    /// How a row of a patterned weight is made, of an initialiser that has a pattern.
    fn pattern(self) -> Option<Row> {
        match self {
            Init::Eye => Some(|[_, columns], row, _| unit(columns, row, 1.0)),
            Init::MirroredEye => Some(|[rows, columns], row, _| {
                let half = rows.div_ceil(2);
                if row < half { unit(columns, row, 1.0) } else { unit(columns, row - half, -1.0) }
            }),
            Init::MirroredNormal => Some(|[_, columns], _, stream| {
                let half: Vec<f64> = (0..columns.div_ceil(2)).map(|_| stream.normal()).collect();
                half.iter().copied().chain(half.iter().map(|z| -z)).take(columns).collect()
            }),
            _ => None,
        }
    }
}

/// From [rows, columns] and the place of a row to its values.
type Row = fn([usize; 2], usize, &mut Stream) -> Vec<f64>;

/// `value` at one place, zero elsewhere.
fn unit(columns: usize, place: usize, value: f64) -> Vec<f64> {
    (0..columns).map(|column| if column == place { value } else { 0.0 }).collect()
}

fn cut_normal(stream: &mut Stream) -> f64 {
    loop {
        let draw = stream.normal();
        if draw.abs() <= 2.0 {
            return draw;
        }
    }
}

/// An initialiser for a whole network, with exceptions by layer.
///
/// ```
/// use afterimage_nn::{Init, InitSpec};
/// // The KKT paper's victims: a tiny first layer, PyTorch's default elsewhere.
/// let init = InitSpec::from(Init::Pytorch).with("0", Init::Normal { std: 1e-4 });
/// assert_eq!(init.layers["0"], Init::Normal { std: 1e-4 });
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitSpec {
    /// For every layer not named below.
    pub default: Init,
    /// By name of a layer, or of one of its parameters (`"output.bias"`), which comes first.
    #[serde(default)]
    pub layers: BTreeMap<String, Init>,
}

impl From<Init> for InitSpec {
    fn from(default: Init) -> Self {
        Self { default, layers: BTreeMap::new() }
    }
}

impl InitSpec {
    /// The same with an exception.
    pub fn with(mut self, layer: impl Into<String>, init: Init) -> Self {
        self.layers.insert(layer.into(), init);
        self
    }
}

impl Network {
    /// Initial parameters. Each parameter draws from a stream of its own name,
    /// so that adding a layer changes no other layer's values.
    pub fn init(&self, spec: &InitSpec, seed: u64, dtype: DType) -> Result<Params> {
        let layer_of = |name: &str| name.rsplit_once('.').map_or(String::new(), |(layer, _)| layer.to_owned());
        let layers: Vec<String> = self.parameters().iter().map(|parameter| layer_of(&parameter.name)).collect();
        let known = |name: &String| layers.contains(name) || self.parameters().iter().any(|own| own.name == *name);
        if let Some(unknown) = spec.layers.keys().find(|name| !known(name)) {
            return Err(Error::Spec {
                layer: format!("`{unknown}`"),
                problem: "an initialiser names it, and the network has no such layer with parameters".into(),
                hint: match nearest(unknown, layers.iter().map(String::as_str)) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("layers with parameters are {}", layers.join(", ")),
                },
            });
        }
        let values = self.parameters().iter().zip(&layers).map(|(parameter, layer)| {
            let own = spec.layers.get(&parameter.name).or_else(|| spec.layers.get(layer));
            let init = own.copied().unwrap_or(spec.default);
            let named = spec.layers.contains_key(&parameter.name);
            init.tensor(parameter, named, &mut Stream::new(seed, &format!("init/{}", parameter.name), 0), dtype)
        });
        let values = values.collect::<Result<_>>()?;
        Ok(Params { specs: self.shared_parameters().clone(), values, buffers: self.fresh_buffers(dtype)? })
    }
}

impl fmt::Display for Init {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Init::Pytorch => f.write_str("pytorch"),
            Init::Kaiming => f.write_str("kaiming"),
            Init::FanIn => f.write_str("fan-in"),
            Init::LecunNormal => f.write_str("lecun-normal"),
            Init::Normal { std } => write!(f, "normal({std})"),
            Init::Uniform { bound } => write!(f, "uniform({bound})"),
            Init::Constant { value } => write!(f, "constant({value})"),
            Init::Eye => f.write_str("eye"),
            Init::MirroredEye => f.write_str("mirrored-eye"),
            Init::MirroredNormal => f.write_str("mirrored-normal"),
        }
    }
}

impl From<Init> for String {
    fn from(init: Init) -> String {
        init.to_string()
    }
}

impl TryFrom<String> for Init {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl FromStr for Init {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |problem: &str| Error::Parse { what: format!("initialiser `{text}`"), problem: problem.into() };
        match split_parameter(text)? {
            ("pytorch", None) => Ok(Init::Pytorch),
            ("kaiming", None) => Ok(Init::Kaiming),
            ("fan-in", None) => Ok(Init::FanIn),
            ("lecun-normal", None) => Ok(Init::LecunNormal),
            ("normal", Some(std)) if std >= 0.0 => Ok(Init::Normal { std }),
            ("normal", _) => Err(wrong("give its standard deviation, as in normal(1e-4)")),
            ("uniform", Some(bound)) if bound >= 0.0 => Ok(Init::Uniform { bound }),
            ("uniform", _) => Err(wrong("give its bound, as in uniform(0.5)")),
            ("constant", Some(value)) => Ok(Init::Constant { value }),
            ("constant", None) => Err(wrong("give the value, as in constant(0.5)")),
            ("eye", None) => Ok(Init::Eye),
            ("mirrored-eye", None) => Ok(Init::MirroredEye),
            ("mirrored-normal", None) => Ok(Init::MirroredNormal),
            _ => Err(wrong(
                "known are pytorch, kaiming, fan-in, lecun-normal, normal(σ), uniform(b), constant(x), eye, mirrored-eye and mirrored-normal",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zoo::Mlp;

    #[test]
    fn variances_are_as_declared() {
        let network = Network::new(Mlp::new(400, &[500], 1).spec()).unwrap();
        for (init, weight, bias) in [
            (Init::Pytorch, 1.0 / (3.0 * 400.0), 1.0 / (3.0 * 400.0)),
            (Init::Kaiming, 2.0 / 400.0, 0.0),
            (Init::FanIn, 1.0 / 400.0, 0.0),
            (Init::LecunNormal, 1.0 / 400.0, 0.0),
            (Init::Normal { std: 1e-4 }, 1e-8, 1e-8),
            (Init::Uniform { bound: 0.5 }, 0.25 / 3.0, 0.25 / 3.0),
        ] {
            let theta = network.init(&init.into(), 1, DType::F64).unwrap();
            for (name, expected) in [("0.weight", weight), ("0.bias", bias)] {
                let values = theta.get(name).unwrap().to_f64_vec().unwrap();
                let variance = values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64;
                assert!((variance - expected).abs() <= 0.15 * expected, "{init} {name}: {variance} for {expected}");
            }
            assert_eq!(init.to_string().parse::<Init>().unwrap(), init);
        }
    }

    #[test]
    fn patterns_are_what_their_names_say() {
        let network = Network::new(Mlp::new(2, &[4], 1).spec()).unwrap();
        let weights = |init: Init, name: &str| {
            assert_eq!(init.to_string().parse::<Init>().unwrap(), init);
            network.init(&init.into(), 1, DType::F64).unwrap().get(name).unwrap().to_f64_vec().unwrap()
        };
        assert_eq!(weights(Init::Constant { value: 0.5 }, "0.bias"), [0.5; 4]);
        assert_eq!(weights(Init::Eye, "0.weight"), [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(weights(Init::Eye, "0.bias"), [0.0; 4]);
        assert_eq!(weights(Init::MirroredEye, "0.weight"), [1.0, 0.0, 0.0, 1.0, -1.0, 0.0, 0.0, -1.0]);
        let mirrored = weights(Init::MirroredNormal, "2.weight");
        assert!(mirrored[0] != 0.0 && mirrored[0] == -mirrored[2] && mirrored[1] == -mirrored[3]);
        // What is learned beside weights and biases keeps its own start, unless it is named itself.
        let text = "input = [2]\nlayers = [{ name = \"bn\", kind = \"batch-norm\" }]";
        let norm = Network::new(crate::NetworkSpec::from_toml(text).unwrap()).unwrap();
        let spec = InitSpec::from(Init::Normal { std: 1.0 }).with("bn.weight", Init::Constant { value: 0.0 });
        let theta = norm.init(&spec, 1, DType::F64).unwrap();
        assert_eq!(theta.get("bn.weight").unwrap().to_f64_vec().unwrap(), [0.0; 2]);
        assert_eq!(theta.get("bn.bias").unwrap().to_f64_vec().unwrap(), [0.0; 2]);
        let theta = norm.init(&Init::Normal { std: 1.0 }.into(), 1, DType::F64).unwrap();
        assert_eq!(theta.get("bn.weight").unwrap().to_f64_vec().unwrap(), [1.0; 2]);
        let spec = InitSpec::from(Init::Eye).with("0.bias", Init::Constant { value: 3.0 });
        let theta = network.init(&spec, 1, DType::F64).unwrap();
        assert_eq!(theta.get("0.bias").unwrap().to_f64_vec().unwrap(), [3.0; 4]);
    }

    #[test]
    fn exceptions_apply_to_their_layer_and_unknown_ones_are_named() {
        let network = Network::new(Mlp::new(4, &[5], 1).spec()).unwrap();
        let plain = network.init(&Init::Pytorch.into(), 1, DType::F64).unwrap();
        let spec = InitSpec::from(Init::Pytorch).with("0", Init::Normal { std: 0.0 });
        let mixed = network.init(&spec, 1, DType::F64).unwrap();
        assert!(mixed.get("0.weight").unwrap().to_f64_vec().unwrap().iter().all(|x| *x == 0.0));
        let same =
            |name| plain.get(name).unwrap().to_f64_vec().unwrap() == mixed.get(name).unwrap().to_f64_vec().unwrap();
        assert!(same("2.weight") && same("2.bias") && !same("0.bias"));
        let error = network.init(&spec.with("fc", Init::Kaiming), 1, DType::F64).unwrap_err().to_string();
        assert!(error.contains("`fc`") && error.contains("0, 0, 2, 2"), "{error}");
    }
}
