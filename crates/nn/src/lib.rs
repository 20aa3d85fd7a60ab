//! Numbers and networks for Afterimage: outputs, gradients, and derivatives of
//! gradients, by explicit rules instead of automatic differentiation.
//!
//! Reconstruction attacks look for inputs x whose weighted parameter gradient
//! explains a vector T that somebody shared:
//!
//! ```text
//! G(x, c) = Σ_i Σ_k c_ik ∇_θ f_k(θ; x_i)        minimise D(T, G) over x and c
//! ```
//!
//! With v = ∂D/∂G held fixed, both outer gradients are derivatives of an
//! ordinary pass through the network along v in parameter space:
//!
//! ```text
//! ∂D/∂c_ik = d/dε f_k(θ + εv; x_i)             ∂D/∂x = d/dε ∇_x Σ c f(θ + εv; x)
//! ```
//!
//! So one forward and backward pass on tensors gives G, and one on dual numbers
//! gives everything else: see [`Pass`].
//!
//! | to | use |
//! | --- | --- |
//! | describe a network | [`NetworkSpec`], or a function of [`zoo`] |
//! | build it and give it parameters | [`Network::new`], [`Network::init`], [`Network::load`] |
//! | compute with it | [`Network::forward`], [`Network::backward`], [`Network::along`], [`Network::pass`] |
//! | train it | [`train::Recipe`] |
//! | have its tangent kernel | [`tangent`] |
//! | decompose a matrix | [`linalg`] |
//! | draw random numbers | [`Stream`] |
//! | read and write tensors | [`io::TensorFile`] |
//!
//! The same seed gives the same bits for the same build, processor features and
//! device, whatever the number of threads.

mod activation;
pub mod algebra;
mod convolution;
#[cfg(feature = "cuda")]
mod cuda;
mod cut;
mod device;
mod difference;
pub mod dual;
mod error;
mod gradient;
mod graph;
mod init;
pub mod io;
mod kernel;
mod layers;
pub mod linalg;
mod loss;
mod matching;
mod network;
pub mod onnx;
mod ops;
pub mod optim;
mod params;
mod pass;
mod rng;
mod sides;
mod spec;
mod statistics;
mod steps;
pub mod tangent;
mod tensor;
pub mod train;
mod windows;
pub mod zoo;

pub use activation::Activation;
pub use convolution::{Axis, Convolution};
pub use device::{Device, allow_tf32, tf32};
pub use error::{Error, Result, nearest};
pub use gradient::{GradientSink, Residuals};
pub use init::{Init, InitSpec};
pub use kernel::element::Element;
pub use loss::{Loss, Objective, Reduction, Targets};
pub use matching::{Form, Matched, Matching};
pub use network::{Gradients, Mode, Network, Trace, Want};
pub use params::{Buffer, ParamSpec, Params, Role};
pub use pass::{Along, Pass, Seed};
pub use rng::Stream;
pub use sides::{Padding, Sides};
pub use spec::{LayerKind, LayerSpec, NetworkSpec};
pub use statistics::Statistics;
pub use steps::Steps;
pub use tensor::{DType, Tensor};
pub use windows::Windows;

/// The README's example, compiled and run with the other documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
