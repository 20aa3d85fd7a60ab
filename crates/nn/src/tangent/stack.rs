//! The features of one batch at several parameter vectors, their Gram matrix, and how
//! both move with the records.

use super::factored::Factored;
use super::perceptron::dense_layers;
use super::written::Written;
use crate::{DType, Error, Network, Params, Result, Tensor};

/// The features ∇_θ f_k(x_i) of a batch at one or several parameter vectors of a
/// network, stacked: first all of the first vector, those of a record beside
/// each other.
///
/// Those of a perceptron are kept as factors; those of any other network are written out.
///
/// ```
/// use afterimage_nn::{DType, Init, Network, Tensor, tangent::Tangents, zoo::Mlp};
/// let network = Network::new(Mlp::new(3, &[8, 8], 1).spec())?;
/// let [before, after] = [1, 2].map(|seed| network.init(&Init::Pytorch.into(), seed, DType::F64));
/// let (before, after) = (before?, after?);
/// let x = Tensor::from_vec(vec![0.5, -0.2, 0.1, 0.3, 0.3, -0.4], &[2, 3])?;
/// let tangents = Tangents::of(&network, &[&before, &after], &x)?;
/// assert_eq!(tangents.count(), 4);
/// let change = after.sub(&before)?;
/// let toward = tangents.toward(&change)?;
/// // ⟨change, ∇f⟩ at `before`, as one pass along the change gives it.
/// let along = network.pass(&before, &x)?.outputs_along(&change)?.to_f64_vec()?;
/// assert!((toward.products()[0] - along[0]).abs() < 1e-12);
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
pub struct Tangents<'n> {
    features: Features<'n>,
}

enum Features<'n> {
    Factored(Factored),
    Written(Written<'n>),
}

/// Inner products of features with a direction in parameter space.
pub struct Toward<'a> {
    direction: &'a Params,
    products: Vec<f64>,
    /// Of factors, what their products were made of.
    pulled: Vec<Tensor>,
}

impl Toward<'_> {
    /// ⟨v, feature⟩, in the order of the features.
    pub fn products(&self) -> &[f64] {
        &self.products
    }
}

impl<'n> Tangents<'n> {
    /// The features of a batch.
    pub fn of(network: &'n Network, thetas: &[&Params], x: &Tensor) -> Result<Self> {
        if thetas.is_empty() {
            return Err(Error::EmptyBatch { what: "parameter vectors".into() });
        }
        let features = match dense_layers(network) {
            Some(_) => Features::Factored(Factored::of(network, thetas, x)?),
            None => Features::Written(Written::of(network, thetas, x)?),
        };
        Ok(Self { features })
    }

    /// How many features there are.
    pub fn count(&self) -> usize {
        match &self.features {
            Features::Factored(features) => features.count(),
            Features::Written(features) => features.count(),
        }
    }

    /// Inner products of all features with each other, as doubles.
    pub fn gram(&self) -> Result<Tensor> {
        let (count, gram) = match &self.features {
            Features::Factored(features) => (features.count(), features.gram()?),
            Features::Written(features) => (features.count(), features.gram()?),
        };
        Tensor::from_f64(&gram, &[count, count], DType::F64)
    }

    /// Inner products of all features with a direction.
    pub fn toward<'a>(&self, direction: &'a Params) -> Result<Toward<'a>> {
        let (products, pulled) = match &self.features {
            Features::Factored(features) => features.toward(direction)?,
            Features::Written(features) => (features.toward(direction)?, Vec::new()),
        };
        Ok(Toward { direction, products, pulled })
    }

    /// The gradient in the records of ‖v − Σ_r c_r feature_r‖², at fixed c.
    pub fn pull_back(&mut self, c: &[f64], toward: &Toward<'_>) -> Result<Tensor> {
        if c.len() != self.count() {
            return Err(Error::shape("weights of features", [self.count()], &[c.len()]));
        }
        match &mut self.features {
            Features::Factored(features) => features.pull_back(c, toward.direction, &toward.pulled),
            Features::Written(features) => features.pull_back(c, toward.direction),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zoo::{Bias, Mlp};
    use crate::{Activation, Init, Seed, Stream};

    /// A network, two parameter vectors, a change, records and weights of features.
    fn setting(outputs: usize, bias: Bias) -> (Network, [Params; 2], Params, Tensor, Vec<f64>) {
        let mlp = Mlp { bias, ..Mlp::new(4, &[7, 6], outputs) };
        let network = Network::new(mlp.with_activation(Activation::Softplus { beta: 3.0 }).spec()).unwrap();
        let theta = |seed| network.init(&Init::Pytorch.into(), seed, DType::F64).unwrap();
        let x = Stream::new(2, "x", 0).normal_tensor(1.0, &[5, 4], DType::F64).unwrap();
        let c = Stream::new(2, "c", 0).normal_tensor(1.0, &[10 * outputs], DType::F64).unwrap().to_f64_vec().unwrap();
        let (thetas, v) = ([theta(1), theta(2)], theta(3));
        (network, thetas, v, x, c)
    }

    /// ‖v − Σ c feature‖² by the factors.
    fn by_factors(network: &Network, thetas: &[&Params], v: &Params, x: &Tensor, c: &[f64]) -> f64 {
        let tangents = Tangents::of(network, thetas, x).unwrap();
        let gram = tangents.gram().unwrap().to_f64_vec().unwrap();
        let toward = tangents.toward(v).unwrap();
        let count = c.len();
        let along: f64 = c.iter().zip(toward.products()).map(|(c, t)| c * t).sum();
        let square: f64 = (0..count * count).map(|at| c[at / count] * gram[at] * c[at % count]).sum();
        v.norm_squared().unwrap() - 2.0 * along + square
    }

    #[test]
    fn factors_say_what_passes_say() {
        for (outputs, bias) in [(1, Bias::All), (3, Bias::All), (1, Bias::None), (2, Bias::First)] {
            let (network, [before, after], v, x, c) = setting(outputs, bias);
            let of = |theta: &Params, c: &[f64]| {
                let c = Tensor::from_f64(c, &[5, outputs], DType::F64).unwrap();
                let mut pass = network.pass(theta, &x).unwrap();
                pass.backward(Seed::Fixed(c), crate::Want::Weights).unwrap().weights.unwrap()
            };
            let half = 5 * outputs;
            let left = v.sub(&of(&before, &c[..half])).unwrap().sub(&of(&after, &c[half..])).unwrap();
            let value = by_factors(&network, &[&before, &after], &v, &x, &c);
            assert!((value - left.norm_squared().unwrap()).abs() < 1e-10 * value, "{outputs} outputs, {bias:?}");
            // The gradient in the records: twice the tangents along what is left, by the other route.
            let mut tangents = Tangents::of(&network, &[&before, &after], &x).unwrap();
            let toward = tangents.toward(&v).unwrap();
            let found = tangents.pull_back(&c, &toward).unwrap();
            let along = |theta: &Params, c: &[f64]| {
                let c = Tensor::from_f64(c, &[5, outputs], DType::F64).unwrap();
                network.along(theta, &left, &x, Seed::Fixed(c)).unwrap().inputs
            };
            let expected = along(&before, &c[..half]).combine(-2.0, &along(&after, &c[half..]), -2.0).unwrap();
            let off = found.combine(1.0, &expected, -1.0).unwrap();
            assert!(off.dot(&off).unwrap() < 1e-20 * expected.dot(&expected).unwrap(), "{outputs} outputs, {bias:?}");
        }
    }

    #[test]
    fn the_gradient_is_that_of_the_distance() {
        let (network, [before, after], v, x, c) = setting(2, Bias::All);
        let thetas = [&before, &after];
        let mut tangents = Tangents::of(&network, &thetas, &x).unwrap();
        let toward = tangents.toward(&v).unwrap();
        let gradient = tangents.pull_back(&c, &toward).unwrap().to_f64_vec().unwrap();
        let base = x.to_f64_vec().unwrap();
        for index in [0, 7, 19] {
            let value = |step: f64| {
                let mut moved = base.clone();
                moved[index] += step;
                let moved = Tensor::from_vec(moved, &[5, 4]).unwrap();
                by_factors(&network, &thetas, &v, &moved, &c)
            };
            let numeric = (value(1e-5) - value(-1e-5)) / 2e-5;
            assert!((numeric - gradient[index]).abs() < 1e-6 * (1.0 + numeric.abs()));
        }
        assert!(tangents.pull_back(&c[1..], &toward).is_err());
    }

    #[test]
    fn features_that_are_written_out_say_the_same() {
        let (network, [before, after], v, x, c) = setting(2, Bias::All);
        let thetas = [&before, &after];
        let factored = Factored::of(&network, &thetas, &x).unwrap();
        let mut written = Written::of(&network, &thetas, &x).unwrap();
        let near = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-10 * (1.0 + b.abs()));
        assert!(near(&factored.gram().unwrap(), &written.gram().unwrap()));
        let (products, pulled) = factored.toward(&v).unwrap();
        assert!(near(&products, &written.toward(&v).unwrap()));
        let by_factors = factored.pull_back(&c, &v, &pulled).unwrap().to_f64_vec().unwrap();
        assert!(near(&by_factors, &written.pull_back(&c, &v).unwrap().to_f64_vec().unwrap()));
    }
}
