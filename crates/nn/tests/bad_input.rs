//! What users get wrong: always a typed error that names the thing, never a panic.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::fs;

use afterimage_nn::io::{Integers, TensorFile, write_atomically};
use afterimage_nn::zoo::Mlp;
use afterimage_nn::{DType, Device, Error, Init, Network, NetworkSpec, Params, Seed, Tensor, Want};
use common::{batch, parameters};

fn network() -> Network {
    Network::new(Mlp::new(3, &[4], 2).spec()).unwrap()
}

fn named(theta: &Params) -> BTreeMap<String, Tensor> {
    theta.iter().map(|(name, value)| (name.to_owned(), value.clone())).collect()
}

#[track_caller]
fn says(error: Error, parts: &[&str]) {
    let message = error.to_string();
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

#[test]
fn descriptions_that_do_not_type_check() {
    let check = |text: &str| NetworkSpec::from_toml(text).and_then(Network::new).unwrap_err();
    let linear = r#"{ name = "fc", kind = "linear", outputs = 4 }"#;
    for (text, parts) in [
        (
            r#"input = [3, 8, 8]
               layers = [{ name = "fc", kind = "linear", outputs = 4 }]"#
                .to_owned(),
            vec!["layer `fc` (number 0)", "[3, 8, 8]", "put a `flatten` layer before it, which gives [192]"],
        ),
        (
            format!("input = [3]\nlayers = [{linear}, {{ kind = \"add\", inputs = [\"fc\", \"input\"] }}]"),
            vec!["layer `1` (number 1)", "[4] and [3]", "one shape"],
        ),
        (
            format!("input = [3]\nlayers = [{linear}, {{ kind = \"add\", inputs = [\"fd\"] }}]"),
            vec!["it reads `fd`", "did you mean `fc`?"],
        ),
        (
            format!("input = [3]\nlayers = [{{ kind = \"flatten\", inputs = [\"fc\"] }}, {linear}]"),
            vec!["it reads `fc`, which is no layer above it"],
        ),
        (format!("input = [3]\nlayers = [{linear}, {linear}]"), vec!["the name `fc` is taken by a layer above"]),
        (
            r#"input = [3]
            layers = [{ name = "input", kind = "flatten" }]"#
                .to_owned(),
            vec!["`input` is reserved"],
        ),
        (format!("input = [0]\nlayers = [{linear}]"), vec!["input shape is [0]", "such as [784]"]),
        (format!("input = []\nlayers = [{linear}]"), vec!["input shape is []"]),
        ("input = [3]\nlayers = []".to_owned(), vec!["no layers"]),
        ("input = [3]\nlayers = [{ kind = \"linear\", outputs = 0 }]".to_owned(), vec!["0 outputs"]),
        (
            "input = [4611686018427387904, 4]\nlayers = [{ kind = \"flatten\" }]".to_owned(),
            vec!["more numbers than can be addressed"],
        ),
        (
            "input = [1000000]\nlayers = [{ kind = \"linear\", outputs = 9000000000 }]".to_owned(),
            vec!["too large to address"],
        ),
        (
            format!("input = [3]\nlayers = [{linear}, {{ kind = \"prelu\", slopes = 3 }}]"),
            vec!["3 slopes and reads shape [4]", "slopes = 1 or slopes = 4"],
        ),
        (
            format!("input = [3]\nlayers = [{linear}, {{ kind = \"relu\" }}]"),
            vec!["unknown variant `relu`", "activation"],
        ),
        (
            format!("input = [3]\nlayers = [{linear}, {{ kind = \"flatten\", inputs = [\"fc\", \"input\"] }}]"),
            vec!["it reads 2 layers", "join several"],
        ),
        (
            "input = [3]\nlayers = [{ kind = \"activation\", function = \"softplus(0)\" }]".to_owned(),
            vec!["softplus(0)", "greater than zero"],
        ),
        (
            r#"input = [3, 2]
               layers = [{ name = "f", kind = "flatten" }, { kind = "concat", inputs = ["f", "input"] }]"#
                .to_owned(),
            vec!["joins shapes [6] and [3, 2]"],
        ),
        (
            format!(
                "input = [3]\nlayers = [{linear}, {{ kind = \"flatten\" }}, {{ kind = \"tied-linear\", to = \"1\" }}]"
            ),
            vec!["`1` is no `linear` layer"],
        ),
        (
            format!(
                "input = [3]\nlayers = [{linear}, {{ kind = \"tied-linear\", to = \"fc\", inputs = [\"input\"] }}]"
            ),
            vec!["reads 3 features", "[4, 3]", "give it 4 features"],
        ),
    ] {
        says(check(&text), &parts);
    }
}

#[test]
fn layers_on_images_that_do_not_type_check() {
    let check = |input: &str, layer: &str| {
        let text = format!("input = {input}\nlayers = [{layer}]");
        NetworkSpec::from_toml(&text).and_then(Network::new).unwrap_err()
    };
    for (input, layer, parts) in [
        ("[784]", r#"{ kind = "conv", outputs = 4, kernel = 3 }"#, ["takes images of shape", "reads shape [784]"]),
        ("[3, 8, 8]", r#"{ kind = "conv", outputs = 4, kernel = 9 }"#, ["9x9", "does not fit an image of 8x8"]),
        ("[3, 8, 8]", r#"{ kind = "conv", outputs = 4, kernel = 0 }"#, ["kernel is 0", "at least 1"]),
        ("[3, 8, 8]", r#"{ kind = "conv", outputs = 4, kernel = 3, stride = [1, 0] }"#, ["stride is 0", "at least 1"]),
        (
            "[3, 8, 8]",
            r#"{ kind = "conv", outputs = 4, kernel = 3, groups = 2 }"#,
            ["2 groups", "3 channels in and 4 out"],
        ),
        ("[3, 8, 8]", r#"{ kind = "conv", outputs = 4, kernel = 3, groups = 0 }"#, ["0 groups", "divides both"]),
        ("[3, 8, 8]", r#"{ kind = "conv", outputs = 0, kernel = 3 }"#, ["number of outputs is 0", "at least 1"]),
        ("[3, 8, 8]", r#"{ kind = "conv", outputs = 4, kernel = 3, padding = "sane" }"#, ["a number", "same"]),
        (
            "[3, 8, 8]",
            r#"{ kind = "conv", outputs = 4, kernel = 3, padding = 9999999 }"#,
            ["padding is 9999999", "could have"],
        ),
        ("[1, 99999999, 1]", r#"{ kind = "upsample", factor = 1 }"#, ["99999999", "could have"]),
        ("[512, 16000, 1]", r#"{ kind = "upsample", factor = 16000 }"#, ["256000000x16000", "smaller factor"]),
        (
            "[2, 8, 8]",
            r#"{ kind = "conv", outputs = 2, kernel = 16000, dilation = 16000, padding = "same" }"#,
            ["out of proportion", "smaller kernel"],
        ),
        (
            "[2, 1, 1]",
            r#"{ kind = "conv-transpose", outputs = 2, kernel = 3, stride = 1048576 }"#,
            ["stride is 1048576", "could have"],
        ),
        ("[1, 8, 8]", r#"{ kind = "adaptive-avg-pool", output = [1048576, 1] }"#, ["output is 1048576", "could have"]),
        ("[1, 8, 8]", r#"{ kind = "adaptive-avg-pool", output = 0 }"#, ["output is 0", "at least 1"]),
        ("[3, 8, 8]", r#"{ kind = "max-pool", kernel = 9 }"#, ["9x9", "does not fit"]),
        ("[3, 8, 8]", r#"{ kind = "avg-pool", kernel = 3, padding = 2 }"#, ["padding is [2, 2]", "half the kernel"]),
        (
            "[3, 8, 8]",
            r#"{ kind = "conv-transpose", outputs = 4, kernel = 3, output_padding = 1 }"#,
            ["output padding is [1, 1]", "less than the stride"],
        ),
        (
            "[3, 1, 1]",
            r#"{ kind = "conv-transpose", outputs = 4, kernel = 2, padding = 1 }"#,
            ["cuts the whole output off", "use less"],
        ),
        ("[3, 8, 8]", r#"{ kind = "batch-norm", eps = -1.0 }"#, ["eps is -1", "not be negative"]),
        ("[3, 8, 8]", r#"{ kind = "dropout", p = 1.5 }"#, ["share is 1.5", "between 0 and 1"]),
    ] {
        says(check(input, layer), &parts);
    }
}

#[test]
fn running_statistics_that_do_not_fit() {
    let text = "input = [2]\nlayers = [{ name = \"bn\", kind = \"batch-norm\" }]";
    let network = Network::new(NetworkSpec::from_toml(text).unwrap()).unwrap();
    let theta = network.init(&Init::Pytorch.into(), 1, DType::F64).unwrap();
    let state = || -> BTreeMap<String, Tensor> { theta.state().map(|(n, v)| (n.to_owned(), v.clone())).collect() };
    let load = |named| network.params(named, DType::F64, Device::Cpu);

    // PyTorch's counter is passed over; a gradient, which has no statistics, gets fresh ones.
    let mut counted = state();
    counted.insert("bn.num_batches_tracked".into(), Tensor::from_vec(vec![3.0], &[1]).unwrap());
    assert_eq!(load(counted).unwrap().buffers().len(), 2);
    assert_eq!(load(named(&theta)).unwrap().buffers()[1].value.to_f64_vec().unwrap(), [1.0, 1.0]);

    let mut half = state();
    half.remove("bn.running_var");
    says(load(half).unwrap_err(), &["bn.running_var", "missing", "[2]"]);
    let mut wrong = state();
    wrong.insert("bn.running_mean".into(), Tensor::from_vec(vec![0.0; 3], &[3]).unwrap());
    says(load(wrong).unwrap_err(), &["bn.running_mean", "expected shape [2], found [3]"]);
    let mut negative = state();
    negative.insert("bn.running_var".into(), Tensor::from_vec(vec![1.0, -0.1], &[2]).unwrap());
    says(load(negative).unwrap_err(), &["bn.running_var", "negative"]);
    let mut spoilt = state();
    spoilt.insert("bn.running_mean".into(), Tensor::from_vec(vec![0.0, f64::NAN], &[2]).unwrap());
    says(load(spoilt).unwrap_err(), &["bn.running_mean"]);

    // Weights in a file must have theirs.
    let folder = std::env::temp_dir().join(format!("afterimage-statistics-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("weights.safetensors");
    TensorFile { tensors: named(&theta), ..TensorFile::default() }.write(&path).unwrap();
    says(network.load(&path, DType::F64, Device::Cpu).unwrap_err(), &["bn.running_mean", "whole state dict"]);
    theta.save(&path).unwrap();
    assert_eq!(network.load(&path, DType::F64, Device::Cpu).unwrap().buffers().len(), 2);
    fs::remove_dir_all(&folder).unwrap();

    let one = Tensor::from_vec(vec![1.0, 2.0], &[1, 2]).unwrap();
    let error = network.in_mode(afterimage_nn::Mode::Train).forward(&theta, &one).unwrap_err();
    says(error, &["no variance", "more samples"]);
}

#[test]
fn inputs_that_do_not_fit() {
    let network = network();
    let theta = parameters(&network, "theta", 0, DType::F64);
    let forward = |x: &Tensor| network.forward(&theta, x).unwrap_err();
    says(forward(&batch(&[4], 2, "x", 0)), &["network input", "[batch, 3]", "[2, 4]"]);
    says(forward(&batch(&[3, 1], 2, "x", 0)), &["[batch, 3]", "[2, 3, 1]"]);
    says(forward(&Tensor::from_vec(vec![1.0; 3], &[3]).unwrap()), &["[batch, 3]"]);
    says(forward(&Tensor::from_vec(Vec::<f64>::new(), &[0, 3]).unwrap()), &["network input", "empty"]);
    says(forward(&batch(&[3], 2, "x", 0).to_dtype(DType::F32).unwrap()), &["f64", "f32"]);
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let x = Tensor::from_vec(vec![0.0, 1.0, 2.0, 3.0, value, 5.0], &[2, 3]).unwrap();
        says(forward(&x), &["network input", "element 4", &value.to_string()]);
        says(network.pass(&theta, &x).err().unwrap(), &["element 4"]);
    }
    let x = batch(&[3], 2, "x", 0);
    let c = batch(&[3], 2, "c", 0);
    says(network.backward(&theta, &x, &c, Want::Both).unwrap_err(), &["output coefficients", "[2, 2]", "[2, 3]"]);
    let spoilt = Tensor::from_vec(vec![1.0, f64::NAN, 0.0, 0.0], &[2, 2]).unwrap();
    says(network.backward(&theta, &x, &spoilt, Want::Both).unwrap_err(), &["output coefficients", "element 1 is NaN"]);
    // Parameters that became NaN after they were checked are still named.
    let broken = theta.scale(f64::NAN).unwrap();
    says(network.forward(&broken, &x).unwrap_err(), &["parameter 0.weight", "NaN"]);
    says(network.pass(&broken, &x).err().unwrap(), &["parameter 0.weight", "NaN"]);
    let mut pass = network.pass(&theta, &x).unwrap();
    let good = Seed::Fixed(batch(&[2], 2, "c", 0));
    says(pass.residual(good.clone(), &broken, &[2.0; 4]).unwrap_err(), &["parameter 0.weight", "NaN"]);
    says(pass.along_with(good, &broken).unwrap_err(), &["parameter 0.weight", "NaN"]);
    let other = Network::new(Mlp::new(3, &[5], 2).spec()).unwrap();
    let strange = parameters(&other, "theta", 0, DType::F64);
    says(network.forward(&strange, &x).unwrap_err(), &["0.weight", "[4, 3]", "[5, 3]"]);
    let mut pass = network.pass(&theta, &x).unwrap();
    says(pass.along(&theta).unwrap_err(), &["no backward pass"]);
    let c = batch(&[2], 2, "c", 0);
    says(pass.residual(Seed::Fixed(c.clone()), &strange, &[2.0; 4]).unwrap_err(), &["0.weight"]);
    says(pass.residual(Seed::Fixed(c.clone()), &theta, &[2.0; 3]).unwrap_err(), &["scales", "[4]", "[3]"]);
    let single = theta.to_dtype(DType::F32).unwrap();
    says(pass.along_with(Seed::Fixed(c), &single).unwrap_err(), &["direction", "f32"]);
}

#[test]
fn parameters_that_do_not_fit() {
    let network = network();
    let good = named(&network.init(&Init::Pytorch.into(), 1, DType::F64).unwrap());
    let params = |change: &dyn Fn(&mut BTreeMap<String, Tensor>)| {
        let mut changed = good.clone();
        change(&mut changed);
        network.params(changed, DType::F32, Device::Cpu)
    };
    assert!(params(&|_| {}).is_ok());
    let missing = params(&|map| {
        let weight = map.remove("0.weight").unwrap();
        map.insert("0.wieght".into(), weight);
    });
    says(missing.unwrap_err(), &["parameter 0.weight: missing; expected shape [4, 3]", "`0.wieght` was given"]);
    let surplus = params(&|map| {
        map.insert("9.weight".into(), map["0.bias"].clone());
    });
    says(surplus.unwrap_err(), &["9.weight", "no such parameter", "did you mean"]);
    let turned = params(&|map| {
        map.insert("0.weight".into(), map["0.weight"].transpose().unwrap());
    });
    says(turned.unwrap_err(), &["0.weight", "expected shape [4, 3], found [3, 4]", "transposed"]);
    let poisoned = params(&|map| {
        map.insert("2.bias".into(), Tensor::from_vec(vec![1.0, f64::NAN], &[2]).unwrap());
    });
    says(poisoned.unwrap_err(), &["parameter 2.bias", "element 1 is NaN"]);
    let huge = params(&|map| {
        map.insert("2.bias".into(), Tensor::from_vec(vec![1.0, 1e300], &[2]).unwrap());
    });
    says(huge.unwrap_err(), &["parameter 2.bias as f32", "element 1 is inf"]);
    says(network.init(&Init::Pytorch.into(), 1, DType::F64).unwrap().get("0.wait").unwrap_err(), &["did you mean"]);
}

#[test]
fn files_that_are_not_what_they_should_be() {
    let folder = std::env::temp_dir().join(format!("afterimage-bad-input-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("weights.safetensors");
    let network = network();
    let theta = network.init(&Init::Pytorch.into(), 1, DType::F64).unwrap();
    theta.save(&path).unwrap();
    let load = || network.load(&path, DType::F64, Device::Cpu);
    assert_eq!(load().unwrap().sub(&theta).unwrap().norm_squared().unwrap(), 0.0);
    // Nothing but the file itself is left behind.
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);

    let bytes = fs::read(&path).unwrap();
    for length in [0, 1, 7, 8, 9, 100, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&path, &bytes[..length]).unwrap();
        says(load().unwrap_err(), &["weights.safetensors", "not a readable safetensors file"]);
    }
    // Any single byte changed: an error or other numbers, never a panic.
    for index in 0..bytes.len().min(600) {
        let mut changed = bytes.clone();
        changed[index] ^= 0x5a;
        fs::write(&path, &changed).unwrap();
        let _ = load();
    }
    let mut file = TensorFile { tensors: named(&theta), ..TensorFile::default() };
    file.integers.insert("0.num_batches_tracked".into(), Integers { shape: vec![2], values: vec![7, -7] });
    file.metadata.insert("kind".into(), "weights".into());
    file.write(&path).unwrap();
    assert!(load().is_ok());
    let again = TensorFile::read(&path).unwrap();
    assert_eq!((again.integers, again.metadata), (file.integers.clone(), file.metadata.clone()));

    let mut whole = file.clone();
    whole.tensors.remove("0.bias");
    whole.integers.insert("0.bias".into(), Integers { shape: vec![4], values: vec![0; 4] });
    whole.write(&path).unwrap();
    says(load().unwrap_err(), &["weights.safetensors", "0.bias", "whole numbers"]);
    file.write(&path).unwrap();

    let other = Network::new(Mlp::new(3, &[5], 2).spec()).unwrap();
    let error = other.load(&path, DType::F64, Device::Cpu).unwrap_err();
    says(error, &["weights.safetensors", "0.weight", "expected shape [5, 3], found [4, 3]"]);
    says(network.load(folder.join("absent"), DType::F64, Device::Cpu).unwrap_err(), &["absent", "cannot be read"]);
    says(write_atomically(folder.join("no/such/folder"), b"x").unwrap_err(), &["folder", "cannot be written"]);
    says(write_atomically("/", b"x").unwrap_err(), &["not the name of a file"]);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn devices_that_are_not_there() {
    let x = Tensor::from_vec(vec![1.0], &[1]).unwrap();
    assert!(x.to_device(Device::Cpu).is_ok());
    if !cfg!(feature = "cuda") {
        says(x.to_device(Device::Cuda(0)).unwrap_err(), &["cuda:0", "--features cuda"]);
    }
    says("tpu".parse::<Device>().unwrap_err(), &["device tpu", "cuda:0"]);
    says("cuda:x".parse::<Device>().unwrap_err(), &["cuda:x"]);
}

#[test]
fn tensors_that_cannot_be_made() {
    says(Tensor::from_vec(vec![1.0; 5], &[2, 3]).unwrap_err(), &["5 elements", "[2, 3]"]);
    says(Tensor::from_vec(vec![1.0; 5], &[usize::MAX, 2]).unwrap_err(), &["5 elements"]);
    says(Tensor::zeros(&[usize::MAX, 2], DType::F32, Device::Cpu).unwrap_err(), &["can be addressed"]);
    says(Tensor::zeros(&[1 << 61], DType::F32, Device::Cpu).unwrap_err(), &["can be addressed"]);
    let x = Tensor::from_vec(vec![1.0; 6], &[2, 3]).unwrap();
    says(x.reshape(&[1 << 63, 2]).unwrap_err(), &["reshape"]);
    says(x.reshape(&[4]).unwrap_err(), &["reshape", "[4]", "[2, 3]"]);
    says(x.select_rows(&[0, 2]).unwrap_err(), &["row 2"]);
    says(x.slice_rows(1..3).unwrap_err(), &["rows 1..3"]);
    says(x.to_scalar().unwrap_err(), &["a scalar"]);
    assert!(x.slice_rows(0..1).unwrap().transpose().is_ok());
    assert!(Tensor::from_vec(vec![1.0; 8], &[2, 2, 2]).unwrap().reshape(&[8]).unwrap().transpose().is_err());
}
