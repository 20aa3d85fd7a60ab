//! Tangent features: the gradients ∇_θ f_k(x_i), one for every record and output.
//!
//! They are what a change of weights is made of while a network is trained, and
//! their inner products are the (empirical) neural tangent kernel. A feature is
//! as long as the parameters; none is ever written down where it is a product of
//! factors.
//!
//! | to | use |
//! | --- | --- |
//! | have the kernel of any network, block by block | [`kernel`] |
//! | have that of infinitely wide perceptrons | [`InfiniteWidth`] |
//! | search records whose features make up a change of weights | [`Tangents`] |

mod factored;
mod infinite;
mod kernel;
mod perceptron;
mod stack;
mod written;

pub use infinite::InfiniteWidth;
pub use kernel::{kernel, kernel_distance};
pub use stack::{Tangents, Toward};
