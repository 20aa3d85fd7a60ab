//! Parity with PyTorch: `golden/mlp/make.py` made the numbers, by autograd and double backward.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use afterimage_nn::io::TensorFile;
use afterimage_nn::zoo::Mlp;
use afterimage_nn::{DType, Device, Loss, Network, Objective, Params, Reduction, Seed, Targets, Tensor, Want};
use common::{networks, relative};

/// The golden file, with the entries of one case or quantity picked out by prefix.
struct Golden(TensorFile);

impl Golden {
    fn read() -> Self {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/mlp/golden.safetensors");
        Self(TensorFile::read(path).unwrap())
    }

    fn cases(&self) -> BTreeSet<String> {
        self.0.tensors.keys().map(|key| key.split('/').next().unwrap().to_owned()).collect()
    }

    fn tensor(&self, key: &str) -> &Tensor {
        self.0.tensors.get(key).unwrap_or_else(|| panic!("golden file lacks {key}"))
    }

    fn params(&self, network: &Network, prefix: &str, dtype: DType) -> Params {
        let named: BTreeMap<String, Tensor> = (self.0.tensors.iter())
            .filter_map(|(key, value)| Some((key.strip_prefix(prefix)?.strip_prefix('/')?.to_owned(), value.clone())))
            .collect();
        network.params(named, dtype, Device::Cpu).unwrap()
    }

    fn objective(&self, case: &str, loss: &str, dtype: DType) -> Objective {
        let key = format!("{case}/{loss}/y");
        let values = || Targets::Values(self.tensor(&key).to_dtype(dtype).unwrap());
        let (loss, targets) = match loss {
            "logistic" => (Loss::Logistic, values()),
            "mse" => (Loss::Mse, values()),
            "half-squared" => (Loss::HalfSquared, values()),
            "cross-entropy-soft" => (Loss::CrossEntropy, values()),
            _ => {
                let classes = self.0.integers[&key].values.iter().map(|&class| class as usize).collect();
                (Loss::CrossEntropy, Targets::Classes(classes))
            }
        };
        Objective::new(loss, Reduction::Mean, targets)
    }
}

fn network(case: &str) -> Network {
    let named = |name: &str| networks().into_iter().find(|(known, _)| known == name).unwrap().1;
    match case {
        "tied" => named("tied autoencoder"),
        "branches" => named("branches"),
        activation => {
            let mlp = Mlp { activation: activation.parse().unwrap(), ..Mlp::new(5, &[7, 6], 3) };
            Network::new(mlp.spec()).unwrap()
        }
    }
}

/// Checks one case in one precision; relative errors of whole tensors.
fn check(golden: &Golden, case: &str, dtype: DType, tolerance: f64) {
    let network = network(case);
    let theta = golden.params(&network, &format!("{case}/theta"), dtype);
    let target = golden.params(&network, &format!("{case}/target"), dtype);
    let x = golden.tensor(&format!("{case}/x")).to_dtype(dtype).unwrap();
    let scales = vec![2.0; theta.values().len()];
    let same = |found: &Tensor, key: String| {
        // The floor is for gradients that vanish, such as those of dead units.
        let error = relative(found, golden.tensor(&key), 1e-3);
        assert!(error <= tolerance, "{key} in {dtype}: relative error {error:e}");
    };

    same(&network.forward(&theta, &x).unwrap(), format!("{case}/outputs"));

    let c = golden.tensor(&format!("{case}/fixed/c")).to_dtype(dtype).unwrap();
    let mut pass = network.pass(&theta, &x).unwrap();
    let residuals = pass.residual(Seed::Fixed(c), &target, &scales).unwrap();
    let along = pass.along(&residuals.direction).unwrap();
    same(&along.inputs, format!("{case}/fixed/outer_x"));
    same(&along.outputs, format!("{case}/fixed/outer_c"));

    for loss in ["logistic", "mse", "half-squared", "cross-entropy-classes", "cross-entropy-soft"] {
        let objective = golden.objective(case, loss, dtype);
        let mut pass = network.pass(&theta, &x).unwrap();
        let value = objective.value(pass.outputs()).unwrap();
        let expected = golden.tensor(&format!("{case}/{loss}/value")).to_scalar().unwrap();
        assert!((value - expected).abs() <= tolerance * expected.abs(), "{case}/{loss}: {value} for {expected}");
        let gradients = pass.backward(Seed::Loss(objective.clone()), Want::Weights).unwrap().weights.unwrap();
        for (name, gradient) in gradients.iter() {
            same(gradient, format!("{case}/{loss}/grad/{name}"));
        }
        let residuals = pass.residual(Seed::Loss(objective), &target, &scales).unwrap();
        same(&pass.along(&residuals.direction).unwrap().inputs, format!("{case}/{loss}/outer_x"));
    }
}

#[test]
fn agrees_with_pytorch_in_double_precision() {
    let golden = Golden::read();
    assert_eq!(golden.cases().len(), 14, "{:?}", golden.cases());
    for case in golden.cases() {
        check(&golden, &case, DType::F64, 1e-9);
    }
}

#[test]
fn agrees_with_pytorch_in_single_precision() {
    let golden = Golden::read();
    for case in golden.cases() {
        check(&golden, &case, DType::F32, 1e-4);
    }
}
