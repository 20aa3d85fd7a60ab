//! The search inside the row space of the first layer.

use afterimage_nn::linalg::svd;
use afterimage_nn::{Network, Params};

use super::Span;
use super::spectrum::Noise;
use crate::AttackError;
use crate::dense::{DenseLayer, perceptron};

/// A perceptron that reads coordinates in the row space of its first layer.
///
/// A first layer that started near zero is a sum of outer products with the
/// training records: they lie in its row space. With an orthonormal basis V of
/// that space, a record is x = c V, and W₁ x = (W₁ Vᵀ) c: the network below
/// reads c. Distances between first-layer gradients are the same in both.
pub(crate) struct Reduced {
    /// The network, with as many inputs as the space has dimensions.
    pub(crate) network: Network,
    /// Its parameters.
    pub(crate) theta: Params,
    /// V.
    pub(crate) span: Span,
    /// Name of the first layer.
    pub(crate) layer: String,
    /// What training left of the random start in each entry of the first weight: its standard deviation.
    pub(crate) noise: f64,
    /// Dimensions of the space.
    pub(crate) rank: usize,
}

/// The first layer of a perceptron.
pub(crate) fn first_of_perceptron(network: &Network, attack: &'static str) -> Result<DenseLayer, AttackError> {
    perceptron(network).and_then(|layers| layers.into_iter().next()).ok_or_else(|| AttackError::NotApplicable {
        attack,
        reason: "the network is no perceptron: its first layer has no row space to go by".into(),
        hint: match attack {
            "kkt" => {
                "it takes any network if it is told how many candidates to search: `afterimage attack kkt --observation FILE \
                 --set candidates=200`, or attack.candidates in a plan"
            }
            _ => "`kkt` takes other networks, too",
        }
                .into(),
    })
}

impl Reduced {
    /// The search space of a perceptron: of so many dimensions, or of as many as
    /// stand out of noise; of all where none do.
    pub(crate) fn of(
        network: &Network,
        theta: &Params,
        dimensions: Option<usize>,
        attack: &'static str,
    ) -> Result<Self, AttackError> {
        let first = first_of_perceptron(network, attack)?;
        let name = format!("{}.weight", first.name);
        let weight = theta.get(&name)?;
        let (units, features) = (weight.rows(), weight.row_len());
        let decomposition = svd(weight)?;
        let found = Noise::of(&decomposition.s, units, features);
        let all = decomposition.s.len();
        let kept = match dimensions {
            Some(0) => return Err(AttackError::setting("dimensions", 0, "must be 1 or more")),
            Some(kept) => kept.min(all),
            None if found.rank == 0 => all,
            None => found.rank,
        };
        let (dtype, device) = (theta.dtype(), theta.device());
        let basis = decomposition.vt.slice_rows(0..kept)?.to_dtype(dtype)?.to_device(device)?;
        let mut spec = network.spec().clone();
        spec.input = vec![kept];
        let reduced = Network::new(spec)?;
        let named = theta.state().map(|(known, value)| {
            let value = if known == name { value.matmul_transposed(&basis)? } else { value.clone() };
            Ok((known.to_owned(), value))
        });
        let theta = reduced.params(named.collect::<Result<_, AttackError>>()?, dtype, device)?;
        Ok(Self {
            network: reduced,
            theta,
            span: Span { basis, shape: network.input_shape().to_vec() },
            layer: first.name.clone(),
            noise: if found.rank == 0 { 0.0 } else { found.sigma },
            rank: kept,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterimage_nn::zoo::Mlp;
    use afterimage_nn::{DType, Init, Stream};

    #[test]
    fn coordinates_are_answered_as_their_records() {
        let network = Network::new(Mlp { input: vec![1, 3, 4], ..Mlp::new(12, &[7, 5], 2) }.spec()).unwrap();
        let theta = network.init(&Init::Pytorch.into(), 3, DType::F64).unwrap();
        let space = Reduced::of(&network, &theta, Some(4), "unmix").unwrap();
        let c = Stream::new(1, "c", 0).normal_tensor(1.0, &[6, 4], DType::F64).unwrap();
        let x = space.span.records(&c).unwrap();
        assert_eq!(x.shape(), [6, 1, 3, 4]);
        let by_records = network.forward(&theta, &x).unwrap();
        let by_coordinates = space.network.forward(&space.theta, &c).unwrap();
        let off = by_records.combine(1.0, &by_coordinates, -1.0).unwrap();
        assert!(off.dot(&off).unwrap() < 1e-24);
    }
}
