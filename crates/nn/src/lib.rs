//! Numbers and networks for Afterimage: multilayer perceptrons whose outputs,
//! gradients and *derivatives of gradients* are computed by explicit rules.
#![warn(missing_docs)]

mod activation;
pub mod algebra;
mod device;
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
mod network;
mod ops;
pub mod optim;
mod params;
mod pass;
mod rng;
mod spec;
mod tensor;
pub mod train;
pub mod zoo;

pub use activation::Activation;
pub use device::Device;
pub use error::{Error, Result, nearest};
pub use gradient::{GradientSink, Residuals};
pub use init::{Init, InitSpec};
pub use kernel::element::Element;
pub use loss::{Loss, Objective, Reduction, Targets};
pub use network::{Gradients, Network, Trace, Want};
pub use params::{ParamSpec, Params, Role};
pub use pass::{Along, Pass, Seed};
pub use rng::Stream;
pub use spec::{LayerKind, LayerSpec, NetworkSpec};
pub use tensor::{DType, Tensor};
