//! What an attack minimises: a weighted sum of terms.

use afterimage_nn::Tensor;

use crate::AttackError;
use crate::descent::{Evaluation, Problem};

/// One part of an objective: how well candidates explain what was seen, or how
/// plausible they are.
pub trait Term {
    /// Its value at a point, and its gradient in each variable; `None` where it
    /// does not depend on one.
    fn evaluate(&mut self, iteration: usize, at: &[Tensor]) -> Result<Contribution, AttackError>;
}

impl<T: Term + ?Sized> Term for Box<T> {
    fn evaluate(&mut self, iteration: usize, at: &[Tensor]) -> Result<Contribution, AttackError> {
        (**self).evaluate(iteration, at)
    }
}

/// What a term adds.
#[derive(Debug, Clone)]
pub struct Contribution {
    /// Its value.
    pub value: f64,
    /// Its gradient in each variable.
    pub gradients: Vec<Option<Tensor>>,
}

/// Σ_t w_t · term_t.
///
/// ```
/// use afterimage_attacks::{Contribution, Problem, Term, WeightedSum};
/// use afterimage_nn::Tensor;
/// /// ½‖x − a‖²
/// struct Near(f64);
/// impl Term for Near {
///     fn evaluate(&mut self, _: usize, at: &[Tensor]) -> Result<Contribution, afterimage_attacks::AttackError> {
///         let off = at[0].map(|x| x - self.0)?;
///         Ok(Contribution { value: 0.5 * off.dot(&off)?, gradients: vec![Some(off)] })
///     }
/// }
/// let mut objective = WeightedSum::new().with(1.0, Near(0.0)).with(2.0, Near(3.0));
/// let at = [Tensor::from_vec(vec![2.0], &[1])?];
/// let found = objective.evaluate(0, &at)?;
/// assert_eq!(found.loss, 2.0 + 1.0);
/// assert_eq!(found.gradients[0].as_ref().unwrap().to_scalar()?, 0.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct WeightedSum<'a> {
    terms: Vec<(f64, Box<dyn Term + 'a>)>,
}

impl<'a> WeightedSum<'a> {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more term. A weight of zero leaves it out: it is never computed.
    #[must_use]
    pub fn with(mut self, weight: f64, term: impl Term + 'a) -> Self {
        if weight != 0.0 {
            self.terms.push((weight, Box::new(term)));
        }
        self
    }
}

impl Problem for WeightedSum<'_> {
    fn evaluate(&mut self, iteration: usize, at: &[Tensor]) -> Result<Evaluation, AttackError> {
        let mut loss = 0.0;
        let mut sums: Vec<Option<Tensor>> = vec![None; at.len()];
        for (weight, term) in &mut self.terms {
            let Contribution { value, gradients } = term.evaluate(iteration, at)?;
            loss += *weight * value;
            for (sum, gradient) in sums.iter_mut().zip(gradients) {
                let Some(gradient) = gradient else { continue };
                *sum = Some(match sum.take() {
                    Some(sum) => sum.combine(1.0, &gradient, *weight)?,
                    None => gradient.scale(*weight)?,
                });
            }
        }
        Ok(Evaluation { loss, gradients: sums })
    }
}

/// A term's gradients are those of its value, by central differences; where it names
/// none, its value is none of that variable's.
#[cfg(test)]
pub(crate) fn check_gradients(term: &mut dyn Term, iteration: usize, at: &[Tensor], tolerance: f64) {
    let found = term.evaluate(iteration, at).unwrap();
    for (variable, gradient) in found.gradients.iter().enumerate() {
        let base = at[variable].to_f64_vec().unwrap();
        let gradient = gradient.as_ref().map_or(vec![0.0; base.len()], |gradient| gradient.to_f64_vec().unwrap());
        for index in 0..base.len() {
            let mut value = |step: f64| {
                let mut moved = base.clone();
                moved[index] += step;
                let mut at = at.to_vec();
                at[variable] = Tensor::from_f64(&moved, at[variable].shape(), at[variable].dtype()).unwrap();
                term.evaluate(iteration, &at).unwrap().value
            };
            let numeric = (value(1e-5) - value(-1e-5)) / 2e-5;
            let off = (numeric - gradient[index]).abs();
            assert!(off < tolerance * (1.0 + numeric.abs()), "variable {variable}, element {index}: {off}");
        }
    }
}
