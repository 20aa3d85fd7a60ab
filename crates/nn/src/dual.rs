//! Dual numbers over tensors: a value and its derivative along one direction.
//!
//! `value + ε tangent` with ε² = 0. Run over duals, a backward pass gives the
//! directional derivative of the gradient, which is all the second-order
//! information that any attack needs (see [`Pass::along`](crate::Pass::along)).
//!
//! Three economies make the dual pass cost little more than its tangents:
//! a tangent that is zero by structure is `None` and costs nothing; values that
//! an earlier plain pass recorded are taken from its tape; and a value that is
//! not recorded is computed only if somebody reads it.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use crate::algebra::{Algebra, Stage, Tape, factor, reshape_rows};
use crate::cut::Cut;
use crate::difference::{Difference, Moved, Product};
use crate::ops::{self, Activated};
use crate::{Activation, Convolution, Error, Result, Tensor, Windows};

type Thunk = Box<dyn FnOnce() -> Result<Tensor>>;

/// A tensor that is computed when it is first read.
#[derive(Clone)]
struct Lazy(Rc<Inner>);

struct Inner {
    value: OnceCell<Tensor>,
    thunk: RefCell<Option<Thunk>>,
}

impl Lazy {
    fn known(value: Tensor) -> Self {
        Self(Rc::new(Inner { value: OnceCell::from(value), thunk: RefCell::new(None) }))
    }

    fn deferred(thunk: Thunk) -> Self {
        Self(Rc::new(Inner { value: OnceCell::new(), thunk: RefCell::new(Some(thunk)) }))
    }

    fn get(&self) -> Result<&Tensor> {
        if let Some(value) = self.0.value.get() {
            return Ok(value);
        }
        let thunk = self.0.thunk.borrow_mut().take();
        let failed = || Error::Algebra { operation: "dual pass", problem: "an earlier value failed".into() };
        let value = thunk.ok_or_else(failed)?()?;
        Ok(self.0.value.get_or_init(|| value))
    }
}

/// A value with its derivative along a direction; no tangent means zero.
///
/// ```
/// use afterimage_nn::{Tensor, dual::Dual};
/// let value = Tensor::from_vec(vec![1.0, 2.0], &[1, 2])?;
/// let x = Dual::new(value.clone(), Some(value));
/// assert_eq!(x.tangent().map(|t| t.count()), Some(2));
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
#[derive(Clone)]
pub struct Dual {
    value: Lazy,
    tangent: Option<Tensor>,
    /// The tangent of a weight that is not multiplied out; then there is no other.
    difference: Option<Rc<Difference>>,
}

impl Dual {
    /// A dual from its parts.
    pub fn new(value: Tensor, tangent: Option<Tensor>) -> Self {
        Self::lazy(Lazy::known(value), tangent)
    }

    fn lazy(value: Lazy, tangent: Option<Tensor>) -> Self {
        Self { value, tangent, difference: None }
    }

    /// A weight whose tangent stays in factors. Only a product may meet it.
    pub(crate) fn factored(value: Tensor, tangent: Rc<Difference>) -> Self {
        Self { value: Lazy::known(value), tangent: None, difference: Some(tangent) }
    }

    /// A parameter, for a pass with some of the samples.
    pub(crate) fn rows(&self, cut: &mut Cut) -> Result<Self> {
        let difference = self.difference.as_ref().map(|difference| difference.rows(cut).map(Rc::new)).transpose()?;
        Ok(Self { difference, ..self.clone() })
    }

    /// A value that does not move.
    pub fn constant(value: Tensor) -> Self {
        Self::new(value, None)
    }

    /// The value, computed now if it was not yet.
    pub fn value(&self) -> Result<&Tensor> {
        self.value.get()
    }

    /// The derivative; `None` is zero.
    pub fn tangent(&self) -> Option<&Tensor> {
        self.tangent.as_ref()
    }
}

/// Dual arithmetic, with the values of an earlier plain pass where it has them.
pub struct Duals<'a> {
    tape: Option<&'a Tape>,
    scope: Option<(usize, Stage)>,
    /// Results of the scope so far: the place on the tape.
    next: usize,
}

impl<'a> Duals<'a> {
    /// Arithmetic that computes every value it needs.
    pub fn new() -> Self {
        Self { tape: None, scope: None, next: 0 }
    }

    /// Arithmetic that takes its values from a recording.
    pub(crate) fn replaying(tape: Option<&'a Tape>) -> Self {
        Self { tape, scope: None, next: 0 }
    }

    fn recorded(&mut self) -> Option<Tensor> {
        let (node, stage) = self.scope?;
        let index = self.next;
        self.next += 1;
        self.tape?.get(node, stage, index).cloned()
    }

    /// The value of the next operation: recorded, or computed on demand.
    fn value(&mut self, compute: impl FnOnce() -> Result<Tensor> + 'static) -> Lazy {
        match self.recorded() {
            Some(value) => Lazy::known(value),
            None => Lazy::deferred(Box::new(compute)),
        }
    }

    /// A map linear in its one argument: the tangent goes the same way.
    fn linear(&mut self, x: &Dual, f: impl Fn(&Tensor) -> Result<Tensor> + 'static) -> Result<Dual> {
        let tangent = x.tangent.as_ref().map(&f).transpose()?;
        let x = x.value.clone();
        Ok(Dual::lazy(self.value(move || f(x.get()?)), tangent))
    }

    /// A map linear in each of two arguments: (ab)' = a'b + ab'.
    fn bilinear(
        &mut self,
        a: &Dual,
        b: &Dual,
        f: impl Fn(&Tensor, &Tensor) -> Result<Tensor> + 'static,
    ) -> Result<Dual> {
        let left = a.tangent.as_ref().map(|tangent| f(tangent, b.value()?)).transpose()?;
        let right = b.tangent.as_ref().map(|tangent| f(a.value()?, tangent)).transpose()?;
        let (a, b) = (a.value.clone(), b.value.clone());
        Ok(Dual::lazy(self.value(move || f(a.get()?, b.get()?)), sum(left, right)?))
    }
}

/// Products of pairs, added up, with each channel's bias.
trait Products: Fn(&[(&Tensor, &Tensor)], Option<&Tensor>) -> Result<Tensor> {}
impl<F: Fn(&[(&Tensor, &Tensor)], Option<&Tensor>) -> Result<Tensor>> Products for F {}

impl Duals<'_> {
    /// (a ⋆ b + s)' = a' ⋆ b + a ⋆ b' + s', both products into one output of the given samples.
    fn product(
        &mut self,
        a: &Dual,
        b: &Dual,
        bias: Option<&Dual>,
        sample: [usize; 3],
        f: impl Products + 'static,
    ) -> Result<Dual> {
        let mut pairs = Vec::with_capacity(2);
        if let Some(tangent) = &a.tangent {
            pairs.push((tangent, b.value()?));
        }
        if let Some(tangent) = &b.tangent {
            pairs.push((a.value()?, tangent));
        }
        let bias_tangent = bias.and_then(|bias| bias.tangent.as_ref());
        let tangent = match (pairs.as_slice(), bias_tangent) {
            ([], None) => None,
            ([], Some(bias)) => {
                let shape = [a.value()?.rows(), sample[0], sample[1], sample[2]];
                let zeros = Tensor::zeros(&shape, bias.dtype(), bias.device())?;
                Some(ops::combine_channels(&[(&zeros, bias)], Some(bias))?)
            }
            (pairs, bias) => Some(f(pairs, bias)?),
        };
        let (a, b, bias) = (a.value.clone(), b.value.clone(), bias.map(|bias| bias.value.clone()));
        let value = self.value(move || f(&[(a.get()?, b.get()?)], bias.as_ref().map(Lazy::get).transpose()?));
        Ok(Dual::lazy(value, tangent))
    }
}

fn nothing_to_combine() -> Error {
    Error::Algebra { operation: "channel factors", problem: "no terms".into() }
}

impl Default for Duals<'_> {
    fn default() -> Self {
        Self::new()
    }
}

fn sum(a: Option<Tensor>, b: Option<Tensor>) -> Result<Option<Tensor>> {
    match (a, b) {
        (Some(a), Some(b)) => ops::add(&a, &b).map(Some),
        (one, None) | (None, one) => Ok(one),
    }
}

impl Algebra for Duals<'_> {
    type Value = Dual;

    fn enter(&mut self, node: usize, stage: Stage) {
        self.scope = Some((node, stage));
        self.next = 0;
    }

    fn constant(&mut self, value: &Tensor) -> Dual {
        Dual::constant(value.clone())
    }

    fn count(&self, value: &Dual) -> Result<f64> {
        Ok(value.value()?.count() as f64)
    }

    fn one(&mut self, like: &Dual) -> Result<Dual> {
        let like = like.value()?;
        Ok(Dual::constant(Tensor::full(1.0, &[1], like.dtype(), like.device())?))
    }

    // (AB + 1bᵀ)' = A'B + AB' + 1b'ᵀ, both products into one output.
    fn matmul(
        &mut self,
        a: &Dual,
        a_transposed: bool,
        b: &Dual,
        b_transposed: bool,
        bias: Option<&Dual>,
    ) -> Result<Dual> {
        let factored = match &b.difference {
            Some(difference) => {
                let a = Moved { value: a.value()?, tangent: a.tangent(), transposed: a_transposed };
                Some(difference.product(a, b.value()?, b_transposed)?)
            }
            None => None,
        };
        let mut products = Vec::with_capacity(3);
        if let Some(product) = &factored {
            products.extend(product.pairs());
        }
        if let Some(tangent) = &b.tangent {
            products.push((factor(a.value()?, a_transposed), factor(tangent, b_transposed)));
        }
        if let Some(tangent) = &a.tangent
            && !factored.as_ref().is_some_and(Product::is_whole)
        {
            products.push((factor(tangent, a_transposed), factor(b.value()?, b_transposed)));
        }
        let bias_tangent = bias.and_then(|bias| bias.tangent.as_ref());
        let tangent = match (products.as_slice(), bias_tangent) {
            ([], None) => None,
            ([], Some(bias)) => {
                let rows = a.value()?.shape()[usize::from(a_transposed)];
                let ones = Tensor::full(1.0, &[rows, 1], bias.dtype(), bias.device())?;
                let bias = bias.reshape(&[1, bias.count()])?;
                Some(ops::matmul(factor(&ones, false), factor(&bias, false))?)
            }
            (products, bias) => Some(ops::matmul_sum(products, bias)?),
        };
        let tangent = match (&factored, tangent) {
            (Some(product), Some(tangent)) => Some(product.rest(tangent)?),
            (_, tangent) => tangent,
        };
        let (a, b) = (a.value.clone(), b.value.clone());
        let bias = bias.map(|bias| bias.value.clone());
        let value = self.value(move || {
            let bias = bias.as_ref().map(Lazy::get).transpose()?;
            ops::matmul_sum(&[(factor(a.get()?, a_transposed), factor(b.get()?, b_transposed))], bias)
        });
        Ok(Dual::lazy(value, tangent))
    }

    fn add(&mut self, a: &Dual, b: &Dual) -> Result<Dual> {
        let tangent = sum(a.tangent.clone(), b.tangent.clone())?;
        let (a, b) = (a.value.clone(), b.value.clone());
        Ok(Dual::lazy(self.value(move || ops::add(a.get()?, b.get()?)), tangent))
    }

    fn sub(&mut self, a: &Dual, b: &Dual) -> Result<Dual> {
        let tangent = match (&a.tangent, &b.tangent) {
            (Some(a), Some(b)) => Some(ops::sub(a, b)?),
            (None, Some(b)) => Some(ops::scale(-1.0, b)?),
            (a, None) => a.clone(),
        };
        let (a, b) = (a.value.clone(), b.value.clone());
        Ok(Dual::lazy(self.value(move || ops::sub(a.get()?, b.get()?)), tangent))
    }

    fn mul(&mut self, a: &Dual, b: &Dual) -> Result<Dual> {
        self.bilinear(a, b, ops::mul)
    }

    fn scale(&mut self, factor: f64, a: &Dual) -> Result<Dual> {
        self.linear(a, move |a| ops::scale(factor, a))
    }

    // r = (a + s)^(−1/2): r' = −r³ a' / 2
    fn inverse_sqrt(&mut self, a: &Dual, shift: f64) -> Result<Dual> {
        let root = match self.recorded() {
            Some(root) => root,
            None => ops::inverse_sqrt(a.value()?, shift)?,
        };
        let slope = |tangent: &Tensor| {
            let cube = ops::mul(&root, &ops::mul(&root, &root)?)?;
            ops::scale(-0.5, &ops::mul(&cube, tangent)?)
        };
        let tangent = a.tangent.as_ref().map(slope).transpose()?;
        Ok(Dual::new(root, tangent))
    }

    // φ(z)' = φ'(z) z'. The slope's own tangent, φ''(z) z', is left to `pull_back`,
    // which needs it only multiplied with a gradient and does both in one pass.
    fn activate(&mut self, f: Activation, z: &Dual) -> Result<(Dual, Dual)> {
        let (value, slope) = match (self.recorded(), self.recorded()) {
            (Some(value), Some(slope)) => (value, slope),
            (known, _) => {
                let (value, slope) = ops::activate(f, z.value()?)?;
                (known.unwrap_or(value), slope)
            }
        };
        let tangent = z.tangent.as_ref().map(|tangent| ops::mul(&slope, tangent)).transpose()?;
        Ok((Dual::new(value, tangent), Dual::constant(slope)))
    }

    fn pull_back(&mut self, f: Activation, z: &Dual, activated: (&Dual, &Dual), grad: &Dual) -> Result<Dual> {
        let (value, slope) = (activated.0.value()?, activated.1.value()?);
        let tangent = match (&z.tangent, &grad.tangent) {
            (Some(z_tangent), grad_tangent) if !f.is_piecewise_linear() => {
                let at = Activated { z: z.value()?, value, slope };
                Some(ops::pull_back_tangent(f, at, grad.value()?, grad_tangent.as_ref(), z_tangent)?)
            }
            (_, Some(grad_tangent)) => Some(ops::mul(grad_tangent, slope)?),
            (_, None) => None,
        };
        let (grad, slope) = (grad.value.clone(), slope.clone());
        Ok(Dual::lazy(self.value(move || ops::mul(grad.get()?, &slope)), tangent))
    }

    fn sum_rows(&mut self, x: &Dual) -> Result<Dual> {
        self.linear(x, ops::sum_rows)
    }

    // (Σ x f + s)' = Σ (x' f + x f') + s', all in one pass.
    fn combine_channels(&mut self, terms: &[(&Dual, &Dual)], shift: Option<&Dual>) -> Result<Dual> {
        let mut moving = Vec::with_capacity(2 * terms.len());
        for (x, factors) in terms {
            if let Some(tangent) = &x.tangent {
                moving.push((tangent, factors.value()?));
            }
            if let Some(tangent) = &factors.tangent {
                moving.push((x.value()?, tangent));
            }
        }
        let shift_tangent = shift.and_then(|shift| shift.tangent.as_ref());
        let tangent = match (moving.as_slice(), shift_tangent) {
            ([], None) => None,
            ([], Some(shift)) => {
                let Some((x, _)) = terms.first() else { return Err(nothing_to_combine()) };
                let zeros = x.value()?.zeros_like()?;
                Some(ops::combine_channels(&[(&zeros, shift)], Some(shift))?)
            }
            (terms, shift) => Some(ops::combine_channels(terms, shift)?),
        };
        let terms: Vec<(Lazy, Lazy)> = terms.iter().map(|(x, f)| (x.value.clone(), f.value.clone())).collect();
        let shift = shift.map(|shift| shift.value.clone());
        let value = self.value(move || {
            let terms = terms.iter().map(|(x, f)| Ok((x.get()?, f.get()?))).collect::<Result<Vec<_>>>()?;
            ops::combine_channels(&terms, shift.as_ref().map(Lazy::get).transpose()?)
        });
        Ok(Dual::lazy(value, tangent))
    }

    fn sum_channels(&mut self, x: &Dual, factors: usize) -> Result<Dual> {
        self.linear(x, move |x| ops::sum_channels(x, factors))
    }

    fn dot_channels(&mut self, a: &Dual, b: &Dual, factors: usize) -> Result<Dual> {
        self.bilinear(a, b, move |a, b| ops::dot_channels(a, b, factors))
    }

    fn convolve(&mut self, geometry: &Convolution, x: &Dual, w: &Dual, bias: Option<&Dual>) -> Result<Dual> {
        let geometry = *geometry;
        self.product(x, w, bias, geometry.output_shape(), move |pairs, bias| ops::convolve_sum(&geometry, pairs, bias))
    }

    fn convolve_inputs(&mut self, geometry: &Convolution, g: &Dual, w: &Dual, bias: Option<&Dual>) -> Result<Dual> {
        let geometry = *geometry;
        self.product(g, w, bias, geometry.input_shape(), move |pairs, bias| {
            ops::convolve_inputs(&geometry, pairs, bias)
        })
    }

    fn convolve_weights(&mut self, geometry: &Convolution, g: &Dual, x: &Dual) -> Result<Dual> {
        let geometry = *geometry;
        self.bilinear(g, x, move |g, x| ops::convolve_weights(&geometry, g, x))
    }

    fn pool(&mut self, windows: &Windows, x: &Dual) -> Result<Dual> {
        let windows = windows.clone();
        self.linear(x, move |x| ops::pool(&windows, x))
    }

    fn spread(&mut self, windows: &Windows, g: &Dual) -> Result<Dual> {
        let windows = windows.clone();
        self.linear(g, move |g| ops::spread(&windows, g))
    }

    // Which element is largest does not move, so both are linear in what they carry.
    fn largest(&mut self, windows: &Windows, x: &Dual) -> Result<Dual> {
        let tangent = x.tangent.as_ref().map(|tangent| ops::take_largest(windows, x.value()?, tangent)).transpose()?;
        let (windows, x) = (windows.clone(), x.value.clone());
        Ok(Dual::lazy(self.value(move || ops::take_largest(&windows, x.get()?, x.get()?)), tangent))
    }

    fn put_largest(&mut self, windows: &Windows, x: &Dual, g: &Dual) -> Result<Dual> {
        let tangent = g.tangent.as_ref().map(|tangent| ops::put_largest(windows, x.value()?, tangent)).transpose()?;
        let (windows, x, g) = (windows.clone(), x.value.clone(), g.value.clone());
        Ok(Dual::lazy(self.value(move || ops::put_largest(&windows, x.get()?, g.get()?)), tangent))
    }

    fn reshape_rows(&mut self, x: &Dual, row: &[usize]) -> Result<Dual> {
        let row = row.to_vec();
        self.linear(x, move |x| reshape_rows(x, &row))
    }

    fn concat(&mut self, parts: &[&Dual]) -> Result<Dual> {
        let tangent = if parts.iter().any(|part| part.tangent.is_some()) {
            let tangents = parts
                .iter()
                .map(|part| part.tangent.clone().map_or_else(|| part.value()?.zeros_like(), Ok))
                .collect::<Result<Vec<_>>>()?;
            Some(ops::concat(&tangents.iter().collect::<Vec<_>>())?)
        } else {
            None
        };
        let values: Vec<Lazy> = parts.iter().map(|part| part.value.clone()).collect();
        let value = self.value(move || ops::concat(&values.iter().map(Lazy::get).collect::<Result<Vec<_>>>()?));
        Ok(Dual::lazy(value, tangent))
    }

    fn narrow(&mut self, x: &Dual, start: usize, length: usize) -> Result<Dual> {
        self.linear(x, move |x| ops::narrow(x, start, length))
    }
}
