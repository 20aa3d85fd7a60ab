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
use crate::ops::{self, Activated};
use crate::{Activation, Error, Result, Tensor};

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
}

impl Dual {
    /// A dual from its parts.
    pub fn new(value: Tensor, tangent: Option<Tensor>) -> Self {
        Self { value: Lazy::known(value), tangent }
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
        Ok(Dual { value: self.value(move || f(x.get()?)), tangent })
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
        Ok(Dual { value: self.value(move || f(a.get()?, b.get()?)), tangent: sum(left, right)? })
    }
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

    // (AB + 1bᵀ)' = A'B + AB' + 1b'ᵀ, both products into one output.
    fn matmul(
        &mut self,
        a: &Dual,
        a_transposed: bool,
        b: &Dual,
        b_transposed: bool,
        bias: Option<&Dual>,
    ) -> Result<Dual> {
        let mut products = Vec::with_capacity(2);
        if let Some(tangent) = &b.tangent {
            products.push((factor(a.value()?, a_transposed), factor(tangent, b_transposed)));
        }
        if let Some(tangent) = &a.tangent {
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
        let (a, b) = (a.value.clone(), b.value.clone());
        let bias = bias.map(|bias| bias.value.clone());
        let value = self.value(move || {
            let bias = bias.as_ref().map(Lazy::get).transpose()?;
            ops::matmul_sum(&[(factor(a.get()?, a_transposed), factor(b.get()?, b_transposed))], bias)
        });
        Ok(Dual { value, tangent })
    }

    fn add(&mut self, a: &Dual, b: &Dual) -> Result<Dual> {
        let tangent = sum(a.tangent.clone(), b.tangent.clone())?;
        let (a, b) = (a.value.clone(), b.value.clone());
        Ok(Dual { value: self.value(move || ops::add(a.get()?, b.get()?)), tangent })
    }

    fn sub(&mut self, a: &Dual, b: &Dual) -> Result<Dual> {
        let tangent = match (&a.tangent, &b.tangent) {
            (Some(a), Some(b)) => Some(ops::sub(a, b)?),
            (None, Some(b)) => Some(ops::scale(-1.0, b)?),
            (a, None) => a.clone(),
        };
        let (a, b) = (a.value.clone(), b.value.clone());
        Ok(Dual { value: self.value(move || ops::sub(a.get()?, b.get()?)), tangent })
    }

    fn mul(&mut self, a: &Dual, b: &Dual) -> Result<Dual> {
        self.bilinear(a, b, ops::mul)
    }

    // φ(z)' = φ'(z) z'. The slope's own tangent, φ''(z) z', is left to `pull_back`,
    // which needs it only multiplied with a gradient and does both in one pass.
    fn activate(&mut self, f: Activation, z: &Dual) -> Result<(Dual, Dual)> {
        let (value, slope) = match (self.recorded(), self.recorded()) {
            (Some(value), Some(slope)) => (value, slope),
            _ => ops::activate(f, z.value()?)?,
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
        Ok(Dual { value: self.value(move || ops::mul(grad.get()?, &slope)), tangent })
    }

    fn sum_rows(&mut self, x: &Dual) -> Result<Dual> {
        self.linear(x, ops::sum_rows)
    }

    fn scale_channels(&mut self, x: &Dual, factors: &Dual) -> Result<Dual> {
        self.bilinear(x, factors, ops::scale_channels)
    }

    fn sum_channels(&mut self, x: &Dual, factors: usize) -> Result<Dual> {
        self.linear(x, move |x| ops::sum_channels(x, factors))
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
        Ok(Dual { value, tangent })
    }

    fn narrow(&mut self, x: &Dual, start: usize, length: usize) -> Result<Dual> {
        self.linear(x, move |x| ops::narrow(x, start, length))
    }
}
