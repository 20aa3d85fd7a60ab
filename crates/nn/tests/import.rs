//! Models as other programs save them: `golden/import/make.py` made the folders, and PyTorch the numbers in them.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use afterimage_nn::io::TensorFile;
use afterimage_nn::{
    DType, Device, Loss, Network, NetworkSpec, Objective, Params, Reduction, Seed, Targets, Tensor, Want, onnx,
};
use common::relative;

const CASES: [&str; 12] = [
    "mlp",
    "rows",
    "mixed",
    "lite",
    "autoencoder",
    "lenet",
    "lenet-leakage",
    "convnet",
    "resnet-18",
    "resnet-50",
    "unet",
    "unet-transposed",
];

fn folder(case: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/import").join(case)
}

fn described(folder: &Path) -> Network {
    let text = std::fs::read_to_string(folder.join("network.toml")).unwrap();
    Network::new(NetworkSpec::from_toml(&text).unwrap()).unwrap()
}

/// Outputs and gradients are those of the probe to 1e-4; how many gradients were compared.
fn agrees(case: &str, network: &Network, theta: &Params) -> usize {
    let probe = TensorFile::read(folder(case).join("probe.safetensors")).unwrap();
    let (x, outputs) = (&probe.tensors["inputs"].to_dtype(DType::F64).unwrap(), &probe.tensors["outputs"]);
    assert!(relative(&network.forward(theta, x).unwrap(), outputs, 1e-6) < 1e-6, "{case}: outputs");
    let objective = match probe.integers.get("labels") {
        Some(labels) => {
            let classes = labels.values.iter().map(|&label| label as usize).collect();
            Objective::new(Loss::CrossEntropy, Reduction::Mean, Targets::Classes(classes))
        }
        None => Objective::new(Loss::Mse, Reduction::Mean, Targets::Values(x.clone())),
    };
    let gradients = network.pass(theta, x).unwrap().backward(Seed::Loss(objective), Want::Weights).unwrap();
    let mut compared = 0;
    for (name, found) in gradients.weights.unwrap().iter() {
        let same = |expected: &Tensor| relative(found, &expected.reshape(found.shape()).unwrap(), 1e-6) < 1e-6;
        let fits = |expected: &&Tensor| expected.count() == found.count();
        match probe.tensors.get(&format!("grad.{name}")) {
            Some(expected) => assert!(same(expected), "{case}: gradient of {name}"),
            // An exporter that folds constants leaves them without their names: one of the gradients must be it.
            None => assert!(probe.tensors.values().filter(fits).any(same), "{case}: gradient of {name}"),
        }
        compared += 1;
    }
    compared
}

#[test]
fn exported_folders_agree_with_pytorch() {
    for case in CASES {
        let network = described(&folder(case));
        let theta = network.load(folder(case).join("weights.safetensors"), DType::F64, Device::Cpu).unwrap();
        assert_eq!(agrees(case, &network, &theta), network.parameters().len(), "{case}");
    }
}

#[test]
fn what_torch_saves_is_read_without_being_run() {
    for case in CASES {
        let network = described(&folder(case));
        let theta = network.load(folder(case).join("model.pth"), DType::F64, Device::Cpu).unwrap();
        assert_eq!(agrees(case, &network, &theta), network.parameters().len(), "{case}");
    }
}

fn imported(path: PathBuf) -> (Network, Params) {
    let onnx::Imported { spec, tensors } = onnx::read(path).unwrap();
    let network = Network::new(spec).unwrap();
    let theta = network.params(tensors, DType::F64, Device::Cpu).unwrap();
    (network, theta)
}

#[test]
fn onnx_agrees_with_pytorch() {
    for case in CASES {
        let (network, theta) = imported(folder(case).join("model.onnx"));
        let compared = agrees(case, &network, &theta);
        assert_eq!(compared, network.parameters().len(), "{case}: {:?}", network.spec());
    }
    // As traced, with every constant computed in the graph.
    let (network, theta) = imported(folder("mixed").join("verbatim.onnx"));
    assert_eq!(agrees("mixed", &network, &theta), network.parameters().len());
    // Of the older exporter, whose graph computes the shape of a view.
    let (network, theta) = imported(folder("rows").join("older.onnx"));
    agrees("rows", &network, &theta);
}

#[test]
fn arrays_of_numpy_are_read_by_name() {
    let seed = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/npz/seed");
    let file = TensorFile::read(seed).unwrap();
    let names: Vec<&String> = file.tensors.keys().chain(file.integers.keys()).collect();
    assert_eq!(names, ["x", "y"]);
}

#[test]
fn what_is_not_known_is_named_with_its_place() {
    let bytes = std::fs::read(folder("mlp").join("model.onnx")).unwrap();
    // The same length, so that the file stays well formed.
    let changed = |from: &[u8], to: &[u8]| {
        let place = bytes.windows(from.len()).position(|window| window == from).unwrap();
        let mut changed = bytes.clone();
        changed[place..place + to.len()].copy_from_slice(to);
        onnx::parse(&changed, None).map(|imported: onnx::Imported| imported.spec).unwrap_err()
    };
    let message = changed(b"Relu", b"Gelu");
    assert!(message.contains("operator Gelu") && message.contains("is not known. Do this:"), "{message}");
    assert!(onnx::parse(b"", None).is_err());
    assert!(onnx::parse(&[0xff; 40], None).unwrap_err().contains("not a readable ONNX file"));
}

#[test]
fn a_state_dict_may_lie_inside_a_checkpoint() {
    let whole: BTreeMap<String, Tensor> =
        TensorFile::read(folder("mlp").join("checkpoint.pth")).unwrap().tensors.into_iter().collect();
    let plain = TensorFile::read(folder("mlp").join("model.pth")).unwrap().tensors;
    assert_eq!(whole.keys().collect::<Vec<_>>(), plain.keys().collect::<Vec<_>>());
    // A whole model is a program, and refused by the name of what it would call.
    let refused = TensorFile::read(folder("mlp").join("whole.pth")).unwrap_err().to_string();
    assert!(refused.contains("refused") && refused.contains("torch.nn.modules"), "{refused}");
    let hostile = TensorFile::read(folder("mlp").join("hostile.pth")).unwrap_err().to_string();
    assert!(hostile.contains("would call `posix.system`"), "{hostile}");
}
