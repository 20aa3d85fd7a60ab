//! From directions to samples: norms, residues, signs and labels.

use afterimage_nn::{Activation, Loss, Reduction};
use faer::linalg::solvers::Solve;
use faer::{Mat, Side};

use super::diagonalise::{forms, weights};
use super::moments::{Cube, Source, Units, product};
use super::stein::Curve;

/// What is known of one sample.
#[derive(Debug, Clone)]
pub(super) struct Guess {
    /// p.
    pub(super) p: Vec<f64>,
    /// r = ∂L/∂f.
    pub(super) residue: f64,
}

/// Above this the output's bias decides the sign of every residue (remark 1).
const LARGE_BIAS: f64 = 5.0;

/// What the output's bias M says of residues: r = f + M − y has the sign of a large M,
/// with a squared loss and labels smaller than M.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Signs(Option<f64>);

impl Signs {
    pub(super) fn of(bias: f64, loss: Option<Loss>) -> Self {
        let squared = matches!(loss, Some(Loss::HalfSquared | Loss::Mse));
        Self((squared && bias.abs() > LARGE_BIAS).then_some(bias.signum()))
    }
}
/// Norms that are looked at.
const NORMS: [f64; 2] = [0.05, 20.0];
/// Subsets of this many samples at most are all tried.
const SUBSETS: usize = 16;

/// The moments that directions were found from.
pub(super) struct Found<'a> {
    pub(super) curve: &'a Curve,
    pub(super) source: Source,
    /// Orders of the moments.
    pub(super) orders: [usize; 2],
    /// What the higher ones were contracted with.
    pub(super) a: &'a [f64],
    pub(super) second: &'a Mat<f64>,
    pub(super) third: &'a Cube,
    /// ‖p‖ of every sample, if it is known.
    pub(super) norm: Option<f64>,
    /// What the bias says of residues.
    pub(super) signs: Signs,
}

impl Found<'_> {
    /// Samples along directions (one a column): each moment is a sum over them with weights
    /// r_i E[σ(β_i z) He_k(z)], so that two orders give β and r, and an even one the sign of r.
    pub(super) fn guesses(&self, directions: &Mat<f64>, units: &Units) -> Vec<Guess> {
        let columns: Vec<Vec<f64>> = directions.col_iter().map(|u| u.iter().copied().collect()).collect();
        let along: Vec<f64> = columns.iter().map(|u| dot(u, self.a)).collect();
        let first = units.first(self.source);
        let rho = weights(directions, &columns.iter().map(|u| dot(u, &first)).collect::<Vec<_>>(), 1);
        let nu = weights(directions, &forms(self.second, directions), 2);
        let lambda = weights(directions, &columns.iter().map(|u| self.third.value(u)).collect::<Vec<_>>(), 3);
        let mut guesses: Vec<Guess> = (0..columns.len())
            .map(|i| {
                let mut orders = Vec::new();
                if self.orders[0] == 2 {
                    orders.push((2, nu[i]));
                }
                orders.push((self.orders[1], if self.orders[1] == 3 { lambda[i] } else { lambda[i] / along[i] }));
                let norm = self.norm.unwrap_or_else(|| self.norm_of(rho[i], &orders));
                let slope = self.curve.moment(norm, 1);
                let size = (rho[i] / slope).abs();
                let even = orders.iter().find(|(k, _)| k % 2 == 0);
                let sign = match (self.signs.0, even) {
                    (Some(sign), _) => sign,
                    (None, Some((k, weight))) => (weight * self.curve.moment(norm, *k)).signum(),
                    (None, None) => 1.0,
                };
                let turn = (rho[i] * sign * slope).signum() * norm;
                Guess { p: columns[i].iter().map(|u| turn * u).collect(), residue: sign * size }
            })
            .collect();
        refit_residues(&mut guesses, units, self.curve.activation(), self.source);
        guesses
    }

    /// β from how the weights of two orders compare, by the order that tells it best; 1 if none does.
    fn norm_of(&self, rho: f64, orders: &[(usize, f64)]) -> f64 {
        let ratio = |k: usize, beta: f64| (self.curve.moment(beta, k) / self.curve.moment(beta, 1)).abs().ln();
        let tells = |k: usize| (ratio(k, 1.5) - ratio(k, 0.75)).abs();
        let best = orders.iter().max_by(|a, b| tells(a.0).total_cmp(&tells(b.0)));
        let Some(&(k, weight)) = best.filter(|(k, _)| tells(*k) > 0.1) else { return 1.0 };
        let target = (weight / rho).abs().ln();
        let [mut low, mut high] = NORMS;
        let rising = ratio(k, high) > ratio(k, low);
        for _ in 0..60 {
            let middle = (low * high).sqrt();
            if (ratio(k, middle) < target) == rising { low = middle } else { high = middle }
        }
        (low * high).sqrt()
    }
}

/// Residues that fit the gradient best, given the samples.
pub(super) fn refit_residues(guesses: &mut [Guess], units: &Units, sigma: Activation, source: Source) {
    let count = guesses.len();
    let values: Vec<Vec<f64>> = guesses
        .iter()
        .map(|guess| {
            let at = product(&units.z, &guess.p);
            let place = usize::from(source == Source::Hidden);
            at.iter().zip(&units.offset).map(|(z, b)| sigma.triple(z + b)[place]).collect()
        })
        .collect();
    let right: Vec<f64> = match source {
        Source::Output => values.iter().map(|v| dot(v, &units.outer)).collect(),
        Source::Hidden => guesses.iter().zip(&values).map(|(g, v)| dot(v, &product(&units.inner, &g.p))).collect(),
    };
    let gram = Mat::from_fn(count, count, |i, j| {
        let together = if source == Source::Hidden { dot(&guesses[i].p, &guesses[j].p) } else { 1.0 };
        together * dot(&values[i], &values[j])
    });
    let Ok(factor) = gram.llt(Side::Lower) else { return };
    let fitted = factor.solve(Mat::from_fn(count, 1, |i, _| right[i]));
    for (i, guess) in guesses.iter_mut().enumerate() {
        // A refit that turns a residue over says that the sample is not yet known well enough.
        if fitted[(i, 0)] * guess.residue > 0.0 {
            guess.residue = fitted[(i, 0)];
        }
    }
}

/// What a sign change of samples leaves as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Symmetry {
    /// Nothing: signs come with the fit.
    None,
    /// The hidden layer's gradient, but not the output's: σ' is even.
    Slope,
    /// Everything but the output's bias: σ is odd.
    Odd,
}

impl Symmetry {
    pub(super) fn of(sigma: Activation, offset: &[f64]) -> Self {
        let points = [0.3, 0.9, 1.7, 2.9];
        let near = |f: &dyn Fn(f64) -> f64| points.iter().all(|&z| f(z).abs() < 1e-12);
        let part = |z: f64, order: usize| sigma.triple(z)[order];
        if offset.iter().any(|b| *b != 0.0) || !near(&|z| part(z, 1) - part(-z, 1)) {
            Symmetry::None
        } else if near(&|z| part(z, 0) + part(-z, 0)) {
            Symmetry::Odd
        } else {
            Symmetry::Slope
        }
    }
}

/// Turns samples whose sign the hidden layer's gradient leaves open: as a large
/// bias says, else as the output layer's gradient does. False if nothing says.
pub(super) fn orient(guesses: &mut [Guess], units: &Units, sigma: Activation, signs: Signs) -> bool {
    let turn = |guess: &mut Guess| {
        guess.residue = -guess.residue;
        guess.p.iter_mut().for_each(|p| *p = -*p);
    };
    match (Symmetry::of(sigma, &units.offset), signs.0) {
        (Symmetry::None, _) => true,
        (_, Some(sign)) => {
            guesses.iter_mut().filter(|guess| guess.residue * sign < 0.0).for_each(turn);
            true
        }
        (Symmetry::Odd, None) => false,
        (Symmetry::Slope, None) => {
            // Turning sample i over changes every g_j by −2 r_i σ(0): the turns that explain the difference.
            let mut left = 0.0;
            let fits: Vec<Vec<f64>> = guesses.iter().map(|guess| product(&units.z, &guess.p)).collect();
            for (j, g) in units.outer.iter().enumerate() {
                let fit = |(guess, at): (&Guess, &Vec<f64>)| guess.residue * sigma.triple(at[j])[0];
                left += (g - guesses.iter().zip(&fits).map(fit).sum::<f64>()) / units.count() as f64;
            }
            let target = -left / (2.0 * sigma.triple(0.0)[0]);
            if guesses.len() > SUBSETS {
                return false;
            }
            let total = |set: usize| -> f64 {
                guesses.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1).map(|(_, guess)| guess.residue).sum()
            };
            let mut off: Vec<(f64, usize)> =
                (0..1_usize << guesses.len()).map(|set| ((total(set) - target).abs(), set)).collect();
            off.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (Some(&(nearest, chosen)), next) = (off.first(), off.get(1)) else { return true };
            // Two choices that explain it as well: nothing says which.
            if next.is_some_and(|next| nearest > 0.2 * next.0) {
                return false;
            }
            guesses.iter_mut().enumerate().filter(|(i, _)| chosen >> i & 1 == 1).for_each(|(_, guess)| turn(guess));
            true
        }
    }
}

/// The value a sample should have had, from its output f and residue r; `None`
/// for losses that do not say.
pub(super) fn target(loss: Option<Loss>, reduction: Option<Reduction>, batch: usize, f: f64, r: f64) -> Option<f64> {
    let share = match reduction {
        Some(Reduction::Sum) => 1.0,
        _ => 1.0 / batch.max(1) as f64,
    };
    match loss? {
        Loss::HalfSquared => Some(f - r / share),
        Loss::Mse => Some(f - r / (2.0 * share)),
        // r = −y share / (1 + e^(yf)): its sign is the label.
        Loss::Logistic => Some(-r.signum()),
        _ => None,
    }
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::diagonalise::{Diagonalise, components};
    use crate::tensor::simulated::units;
    use afterimage_nn::Stream;

    #[test]
    fn norms_residues_and_signs_come_from_the_moments() {
        let samples = [(vec![0.9, 0.0], 1.0), (vec![0.0, -1.6], -0.6)];
        for (sigma, orders) in [("square-cube", [2, 3]), ("tanh", [3, 3]), ("softplus", [2, 4])] {
            let sigma: Activation = sigma.parse().unwrap();
            let units = units(sigma, &samples, 300_000, 7);
            let curve = Curve::new(sigma, &[]);
            let first = units.first(Source::Hidden);
            let size = dot(&first, &first).sqrt();
            let a: Vec<f64> = first.iter().map(|x| x / size).collect();
            let (second, third) =
                (units.second(Source::Hidden, orders[0], &a), units.third(Source::Hidden, orders[1], &a));
            let mut stream = Stream::new(1, "t", 0);
            let directions = components(&third, &second, Diagonalise::Orthogonal, 50, &mut stream).unwrap();
            let found = Found {
                curve: &curve,
                source: Source::Hidden,
                orders,
                a: &a,
                second: &second,
                third: &third,
                norm: None,
                signs: Signs(None),
            };
            for (p, r) in &samples {
                let near = |guess: &Guess, sign: f64| {
                    let off: f64 = guess.p.iter().zip(p).map(|(a, b)| (sign * a - b).powi(2)).sum();
                    off.sqrt() < 0.15 && (sign * guess.residue - r).abs() < 0.15
                };
                let guesses = found.guesses(&directions, &units);
                // tanh is odd: without a bias (x, r) and (−x, −r) are one and the same.
                let odd = Symmetry::of(sigma, &[]) == Symmetry::Odd;
                assert!(guesses.iter().any(|g| near(g, 1.0) || odd && near(g, -1.0)), "{sigma}: {guesses:?}");
            }
        }
    }

    #[test]
    fn signs_that_one_gradient_leaves_open_come_from_the_other() {
        let truth = [(vec![0.8, 0.1, 0.2], 0.4), (vec![-0.3, 0.9, 0.1], -0.7), (vec![0.2, -0.2, 0.9], 0.9)];
        let seen = units(Activation::Sigmoid, &truth, 500, 1);
        let guess =
            |sign: f64, (p, r): &(Vec<f64>, f64)| Guess { p: p.iter().map(|p| sign * p).collect(), residue: sign * r };
        let mut turned: Vec<Guess> = [-1.0, 1.0, -1.0].into_iter().zip(&truth).map(|(s, t)| guess(s, t)).collect();
        assert!(orient(&mut turned, &seen, Activation::Sigmoid, Signs(None)));
        for (guess, (p, r)) in turned.iter().zip(&truth) {
            assert_eq!((&guess.p, guess.residue), (p, *r));
        }
        let odd = units(Activation::Tanh, &truth, 50, 1);
        assert!(!orient(&mut turned, &odd, Activation::Tanh, Signs(None)));
        assert!(orient(&mut turned, &odd, Activation::Tanh, Signs::of(30.0, Some(Loss::Mse))));
        assert!(turned.iter().all(|guess| guess.residue > 0.0));
        // The sign of a logistic residue is that of the label, whatever the bias.
        assert_eq!(Signs::of(30.0, Some(Loss::Logistic)), Signs(None));
    }

    #[test]
    fn labels_are_what_the_loss_says() {
        assert_eq!(target(Some(Loss::HalfSquared), Some(Reduction::Sum), 4, 2.0, 1.5), Some(0.5));
        assert_eq!(target(Some(Loss::Mse), Some(Reduction::Mean), 4, 2.0, 1.0), Some(0.0));
        assert_eq!(target(Some(Loss::Logistic), None, 4, 2.0, -0.1), Some(1.0));
        assert_eq!(target(None, None, 4, 2.0, -0.1), None);
    }
}
