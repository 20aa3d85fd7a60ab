//! The layers, one a file: an equation, its forward rule and its backward rules.
//!
//! Rules are written once over an [`Algebra`]; derivatives of the backward
//! rules come from running them over duals. CONTRIBUTING.md walks through
//! adding one.

mod activate;
mod conv;
mod dropout;
mod flatten;
mod linear;
mod merge;
mod norm;
mod pool;
mod prelu;

pub(crate) use activate::Activate;
pub(crate) use conv::Conv;
pub(crate) use dropout::Dropout;
pub(crate) use flatten::Flatten;
pub(crate) use linear::Linear;
pub(crate) use merge::{Add, Concat};
pub(crate) use norm::BatchNorm;
pub(crate) use pool::{AveragePool, MaxPool, Upsample};
pub(crate) use prelu::Prelu;

use crate::algebra::Algebra;
use crate::gradient::GradientSink;
use crate::{Result, Role};

/// The values around a layer when its backward rules run.
pub(crate) struct At<'a, V> {
    /// Parameters, then running statistics.
    pub(crate) parameters: &'a [&'a V],
    pub(crate) inputs: &'a [&'a V],
    pub(crate) output: &'a V,
    /// What the forward rule put aside.
    pub(crate) kept: &'a [V],
}

/// A parameter a layer asks for.
#[derive(Debug, PartialEq)]
pub(crate) struct Wanted {
    pub(crate) suffix: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) role: Role,
    pub(crate) fan_in: usize,
}

/// What a layer is, mathematically.
pub(crate) trait Rule {
    /// The output, and what the backward rules will need beside it.
    fn forward<A: Algebra>(
        &self,
        algebra: &mut A,
        parameters: &[&A::Value],
        inputs: &[&A::Value],
    ) -> Result<(A::Value, Vec<A::Value>)>;

    /// The gradient of each input, from the gradient of the output.
    fn backward<A: Algebra>(&self, algebra: &mut A, at: &At<'_, A::Value>, grad: &A::Value) -> Result<Vec<A::Value>>;

    /// The gradients of the parameters, sent to the sink under the given numbers.
    fn parameters<A: Algebra>(
        &self,
        _algebra: &mut A,
        _at: &At<'_, A::Value>,
        _grad: &A::Value,
        _numbers: &[usize],
        _sink: &mut dyn GradientSink<A>,
    ) -> Result<()> {
        Ok(())
    }
}

/// Every layer there is.
#[derive(Debug, Clone)]
pub(crate) enum Layer {
    Linear(Linear),
    Activate(Activate),
    Prelu(Prelu),
    Flatten(Flatten),
    Add(Add),
    Concat(Concat),
    Conv(Conv),
    BatchNorm(BatchNorm),
    AveragePool(AveragePool),
    MaxPool(MaxPool),
    Upsample(Upsample),
    Dropout(Dropout),
}

macro_rules! each {
    ($self:expr, $layer:ident => $body:expr) => {
        match $self {
            Layer::Linear($layer) => $body,
            Layer::Activate($layer) => $body,
            Layer::Prelu($layer) => $body,
            Layer::Flatten($layer) => $body,
            Layer::Add($layer) => $body,
            Layer::Concat($layer) => $body,
            Layer::Conv($layer) => $body,
            Layer::BatchNorm($layer) => $body,
            Layer::AveragePool($layer) => $body,
            Layer::MaxPool($layer) => $body,
            Layer::Upsample($layer) => $body,
            Layer::Dropout($layer) => $body,
        }
    };
}

impl Rule for Layer {
    fn forward<A: Algebra>(
        &self,
        algebra: &mut A,
        parameters: &[&A::Value],
        inputs: &[&A::Value],
    ) -> Result<(A::Value, Vec<A::Value>)> {
        each!(self, layer => layer.forward(algebra, parameters, inputs))
    }

    fn backward<A: Algebra>(&self, algebra: &mut A, at: &At<'_, A::Value>, grad: &A::Value) -> Result<Vec<A::Value>> {
        each!(self, layer => layer.backward(algebra, at, grad))
    }

    fn parameters<A: Algebra>(
        &self,
        algebra: &mut A,
        at: &At<'_, A::Value>,
        grad: &A::Value,
        numbers: &[usize],
        sink: &mut dyn GradientSink<A>,
    ) -> Result<()> {
        each!(self, layer => layer.parameters(algebra, at, grad, numbers, sink))
    }
}
