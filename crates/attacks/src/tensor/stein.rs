//! What Stein's lemma gives: E[σ(βz + b) He_k(z)] = β^k E[σ^(k)(βz + b)], z of N(0, 1).
//!
//! The left side needs no derivative, so that ReLU, whose fourth one is a
//! distribution, is no special case.

use afterimage_nn::Activation;

/// An activation as the units of a layer apply it: with their offsets.
#[derive(Debug, Clone)]
pub(super) struct Curve {
    sigma: Activation,
    /// A few of the units' offsets that stand for all of them.
    offsets: Vec<f64>,
}

/// Offsets that stand for all.
const OFFSETS: usize = 32;
/// A moment this small beside the spread of σ is none.
const NONE: f64 = 1e-3;
/// Nodes and weights of Gauss and Legendre's rule with five points on [−1, 1].
const NODES: [(f64, f64); 5] = [
    (-0.906_179_845_938_664, 0.236_926_885_056_189_1),
    (-0.538_469_310_105_683_1, 0.478_628_670_499_366_5),
    (0.0, 0.568_888_888_888_888_9),
    (0.538_469_310_105_683_1, 0.478_628_670_499_366_5),
    (0.906_179_845_938_664, 0.236_926_885_056_189_1),
];
/// Panels on either side of the kink, each this wide.
const PANELS: usize = 60;
const PANEL: f64 = 0.2;

impl Curve {
    pub(super) fn new(sigma: Activation, offsets: &[f64]) -> Self {
        let mut sorted = offsets.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (Some(first), Some(last)) = (sorted.first(), sorted.last()) else {
            return Self { sigma, offsets: vec![0.0] };
        };
        let offsets = if first == last {
            vec![*first]
        } else {
            (0..OFFSETS).map(|index| sorted[(2 * index + 1) * sorted.len() / (2 * OFFSETS)]).collect()
        };
        Self { sigma, offsets }
    }

    /// σ.
    pub(super) fn activation(&self) -> Activation {
        self.sigma
    }

    /// E[σ(βz + b) He_k(z)], by quadrature on both sides of σ's kink at 0.
    pub(super) fn moment(&self, beta: f64, k: usize) -> f64 {
        let f = |z: f64, b: f64| self.sigma.triple(beta * z + b)[0] * hermite(z, k);
        self.offsets.iter().map(|&b| expectation(|z| f(z, b), -b / beta)).sum::<f64>() / self.offsets.len() as f64
    }

    /// The spread of σ(βz + b).
    fn spread(&self, beta: f64) -> f64 {
        let square = |&b: &f64| expectation(|z| self.sigma.triple(beta * z + b)[0].powi(2), -b / beta);
        let squares = self.offsets.iter().map(square).sum::<f64>() / self.offsets.len() as f64;
        (squares - self.moment(beta, 0).powi(2)).max(0.0).sqrt()
    }

    /// Whether the k-th moment says anything: its part of σ's spread.
    pub(super) fn tells(&self, beta: f64, k: usize) -> bool {
        let factorial: f64 = (1..=k).map(|i| i as f64).product();
        self.moment(beta, k).abs() / factorial.sqrt() > NONE * self.spread(beta)
    }

    /// The lowest of these orders that says anything.
    pub(super) fn lowest(&self, beta: f64, orders: std::ops::RangeInclusive<usize>) -> Option<usize> {
        orders.into_iter().find(|&k| self.tells(beta, k))
    }
}

/// He_k(z), the Hermite polynomials of probability theory.
pub(super) fn hermite(z: f64, k: usize) -> f64 {
    let (mut last, mut value) = (0.0, 1.0);
    for i in 0..k {
        (last, value) = (value, z * value - i as f64 * last);
    }
    value
}

/// E[f(z)], with f smooth on both sides of `kink`.
fn expectation(f: impl Fn(f64) -> f64, kink: f64) -> f64 {
    let density = |z: f64| (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt();
    // Beyond twelve standard deviations there is nothing.
    let kink = if kink.is_finite() { kink.clamp(-12.0, 12.0) } else { 0.0 };
    let side = |sign: f64| {
        let panel = |index: usize| {
            let middle = kink + sign * (index as f64 + 0.5) * 2.0 * PANEL;
            let point = |&(node, weight): &(f64, f64)| {
                let z = middle + PANEL * node;
                weight * f(z) * density(z)
            };
            PANEL * NODES.iter().map(point).sum::<f64>()
        };
        (0..PANELS).map(panel).sum::<f64>()
    };
    side(1.0) + side(-1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_the_known_constants() {
        // E[σ^(k)], k = 0..4, at unit norm.
        let known = [
            ("square-cube", [1.0, 3.0, 2.0, 6.0, 0.0]),
            ("leaky-relu(0.01)", [0.395, 0.505, 0.395, 0.0, -0.395]),
            ("tanh", [0.0, 0.606, 0.0, -0.364, 0.0]),
            ("sigmoid", [0.5, 0.207, 0.0, -0.062, 0.0]),
            ("softplus(1)", [0.806, 0.5, 0.207, 0.0, -0.062]),
            ("relu", [0.399, 0.5, 0.399, 0.0, -0.399]),
            ("identity", [0.0, 1.0, 0.0, 0.0, 0.0]),
            ("square", [1.0, 0.0, 2.0, 0.0, 0.0]),
        ];
        for (name, moments) in known {
            let curve = Curve::new(name.parse().unwrap(), &[]);
            for (k, expected) in moments.into_iter().enumerate() {
                let found = curve.moment(1.0, k);
                assert!((found - expected).abs() < 6e-4, "{name}, order {k}: {found} for {expected}");
            }
        }
        // Closed forms, and a norm of its own.
        let relu = Curve::new(Activation::Relu, &[]);
        let root = (2.0 * std::f64::consts::PI).sqrt();
        assert!((relu.moment(3.0, 4) + 3.0 / root).abs() < 1e-9);
        let cubic = Curve::new(Activation::SquareCube, &[]);
        assert!((cubic.moment(2.0, 3) - 48.0).abs() < 1e-9);
    }

    #[test]
    fn offsets_break_the_symmetry() {
        let plain = Curve::new(Activation::Tanh, &[0.0; 9]);
        assert_eq!((plain.lowest(1.0, 2..=3), plain.lowest(1.0, 3..=4)), (Some(3), Some(3)));
        let shifted = Curve::new(Activation::Tanh, &[0.5; 9]);
        assert_eq!(shifted.lowest(1.0, 2..=3), Some(2));
        // E[(z + b)² + (z + b)³]'' = 2 + 6b.
        let spread: Vec<f64> = (0..1001).map(|i| f64::from(i) / 1000.0).collect();
        let cubic = Curve::new(Activation::SquareCube, &spread);
        assert!((cubic.moment(1.0, 2) - 5.0).abs() < 1e-2);
    }

    #[test]
    fn linear_and_quadratic_have_nothing_to_decompose() {
        for sigma in [Activation::Identity, Activation::Square] {
            assert_eq!(Curve::new(sigma, &[]).lowest(1.0, 3..=4), None);
        }
        assert_eq!(Curve::new(Activation::Softplus { beta: 1.0 }, &[]).lowest(1.0, 3..=4), Some(4));
    }
}
