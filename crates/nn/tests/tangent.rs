//! Tangent kernels: against neural-tangents (`golden/tangent/make.py`), and what theory says of
//! networks that are trained in their tangent space.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::ops::ControlFlow;
use std::path::PathBuf;

use afterimage_nn::io::TensorFile;
use afterimage_nn::linalg::{cholesky_solve, eigh};
use afterimage_nn::optim::UpdateRule;
use afterimage_nn::tangent::{self, InfiniteWidth, Tangents};
use afterimage_nn::train::{Dataset, Dynamics, Recipe};
use afterimage_nn::zoo::Mlp;
use afterimage_nn::{DType, Init, Loss, Network, Params, Stream, Targets, Tensor};
use common::relative;

#[test]
fn infinite_width_agrees_with_neural_tangents() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/tangent/golden.safetensors");
    let golden = TensorFile::read(path).unwrap().tensors;
    let (x, y) = (&golden["x"], &golden["y"]);
    for hidden in 1..=3 {
        for weight_std in [1.0, 1.3] {
            let kernel = InfiniteWidth { hidden, weight_std };
            let of = |what: &str| &golden[&format!("{hidden}.{weight_std:.1}.{what}")];
            assert!(relative(&kernel.between(x, Some(y)).unwrap(), of("between"), 0.0) < 1e-9);
            assert!(relative(&kernel.between(x, None).unwrap(), of("own"), 0.0) < 1e-9);
            let gradient = kernel.pull_back(of("weights"), x, y).unwrap();
            assert!(relative(&gradient, of("gradient"), 0.0) < 1e-9, "{hidden} layers, {weight_std}");
        }
    }
}

/// Five records, their labels, a network of two layers and its start.
struct Setting {
    network: Network,
    start: Params,
    x: Tensor,
    y: Vec<f64>,
}

impl Setting {
    fn new() -> Self {
        let network = Network::new(Mlp::new(6, &[40, 40], 1).spec()).unwrap();
        let start = network.init(&Init::LecunNormal.into(), 3, DType::F64).unwrap();
        let x = Stream::new(8, "x", 0).normal_tensor(1.0, &[5, 6], DType::F64).unwrap();
        Self { network, start, x, y: vec![1.0, -1.0, 1.0, 1.0, -1.0] }
    }

    /// The change of the weights after linearised training, and how much each record drove it.
    fn trained(&self, update: UpdateRule, epochs: usize) -> (Params, Vec<f64>) {
        let targets = Targets::Values(Tensor::from_vec(self.y.clone(), &[5, 1]).unwrap());
        let data = Dataset { x: self.x.clone(), targets, loss: Loss::HalfSquared };
        let dynamics = Dynamics::Linearised;
        let recipe = Recipe { update, epochs, dynamics, ..Recipe::default() };
        let trained = recipe.train(&self.network, &self.start, &data, 1, &mut |_| ControlFlow::Continue(())).unwrap();
        (trained.theta.sub(&self.start).unwrap(), trained.driven.unwrap().to_f64_vec().unwrap())
    }

    fn missing(&self) -> Vec<f64> {
        let f = self.network.forward(&self.start, &self.x).unwrap().to_f64_vec().unwrap();
        self.y.iter().zip(f).map(|(y, f)| y - f).collect()
    }

    fn kernel(&self) -> Tensor {
        tangent::kernel(&self.network, &self.start, &self.x, None).unwrap()
    }

    /// ‖change − Σ α ∇f₀(x)‖² beside ‖change‖².
    fn left(&self, change: &Params, alpha: &[f64]) -> f64 {
        let c = Tensor::from_vec(alpha.to_vec(), &[5, 1]).unwrap();
        let sum = self.network.backward(&self.start, &self.x, &c, afterimage_nn::Want::Weights).unwrap();
        let left = change.sub(&sum.weights.unwrap()).unwrap();
        left.norm_squared().unwrap() / change.norm_squared().unwrap()
    }
}

/// V f(λ) Vᵀ b for a symmetric matrix.
fn function(matrix: &Tensor, b: &[f64], f: impl Fn(f64) -> f64) -> Vec<f64> {
    let eigen = eigh(matrix).unwrap();
    let v = eigen.vectors.to_f64_vec().unwrap();
    let n = b.len();
    let inside: Vec<f64> =
        (0..n).map(|k| f(eigen.values[k]) * (0..n).map(|i| v[i * n + k] * b[i]).sum::<f64>()).collect();
    (0..n).map(|i| (0..n).map(|k| v[i * n + k] * inside[k]).sum()).collect()
}

#[test]
fn a_linearised_network_ends_at_a_sum_of_its_gradients() {
    // Eq. 3: Δθ = ∇f₀(X)ᵀ K₀⁻¹ (y − f₀).
    let setting = Setting::new();
    let (change, driven) = setting.trained(UpdateRule::Sgd { lr: 0.05, momentum: 0.95 }, 4000);
    let missing = Tensor::from_vec(setting.missing(), &[5, 1]).unwrap();
    let alpha = cholesky_solve(&setting.kernel(), &missing).unwrap().to_f64_vec().unwrap();
    assert!(setting.left(&change, &alpha) < 1e-10);
    assert!(driven.iter().zip(&alpha).all(|(a, b)| (a - b).abs() < 1e-5 * (1.0 + b.abs())), "with momentum, too");
    assert!(setting.left(&change, &driven) < 1e-20, "wherever training is");
    // And the features say so by themselves: what is left after projection is nothing.
    let tangents = Tangents::of(&setting.network, &[&setting.start], &setting.x).unwrap();
    let toward = tangents.toward(&change).unwrap();
    let t = Tensor::from_vec(toward.products().to_vec(), &[5, 1]).unwrap();
    let best = cholesky_solve(&tangents.gram().unwrap(), &t).unwrap().to_f64_vec().unwrap();
    assert!(best.iter().zip(&alpha).all(|(a, b)| (a - b).abs() < 1e-6 * b.abs()));
}

#[test]
fn stopped_early_it_is_one_too_with_other_weights() {
    // Appendix G, with steps in the place of time: α = K⁻¹ (I − (I − ηK/n)^t) (y − f₀).
    let setting = Setting::new();
    let (lr, epochs) = (0.02, 37);
    let (change, driven) = setting.trained(UpdateRule::sgd(lr), epochs);
    let step = lr / 5.0;
    let early = |eigenvalue: f64| (1.0 - (1.0 - step * eigenvalue).powi(epochs as i32)) / eigenvalue;
    let alpha = function(&setting.kernel(), &setting.missing(), early);
    assert!(setting.left(&change, &alpha) < 1e-20);
    // C.1: a weight is the sum of what was missing on the way.
    let mut sum = [0.0; 5];
    for t in 0..epochs {
        let missing = function(&setting.kernel(), &setting.missing(), |e| (1.0 - step * e).powi(t as i32));
        sum.iter_mut().zip(missing).for_each(|(sum, missing)| *sum += step * missing);
    }
    assert!(sum.iter().zip(&alpha).all(|(a, b)| (a - b).abs() < 1e-10 * (1.0 + b.abs())));
    assert!(driven.iter().zip(&alpha).all(|(a, b)| (a - b).abs() < 1e-10 * (1.0 + b.abs())));
}

#[test]
fn the_kernel_distance_of_equals_is_zero() {
    let setting = Setting::new();
    let other = setting.network.init(&Init::LecunNormal.into(), 4, DType::F64).unwrap();
    let (a, b) = (setting.kernel(), tangent::kernel(&setting.network, &other, &setting.x, None).unwrap());
    assert!(tangent::kernel_distance(&a, &a).unwrap().abs() < 1e-12);
    let distance = tangent::kernel_distance(&a, &b).unwrap();
    assert!((0.0..1.0).contains(&distance) && distance > 1e-4);
    assert!(tangent::kernel_distance(&a, &a.scale(0.0).unwrap()).is_err());
}
