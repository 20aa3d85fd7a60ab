//! What the integration tests share: networks that cover every layer, and comparisons.
#![allow(dead_code)] // not every test uses everything

use afterimage_nn::zoo::{FcAutoencoder, Mlp, Nonlinearity, TiedAutoencoder};
use afterimage_nn::{Activation, DType, Device, Init, Mode, Network, NetworkSpec, Params, Stream, Tensor};

/// Networks that together contain every layer, in every arrangement that matters.
pub(crate) fn networks() -> Vec<(String, Network)> {
    let mut all = Vec::new();
    let nonlinearities = Activation::all().map(Nonlinearity::Fixed).into_iter().chain([Nonlinearity::Prelu]);
    for nonlinearity in nonlinearities {
        let mlp = Mlp::new(5, &[7, 6], 3).with_activation(nonlinearity);
        all.push((format!("mlp {nonlinearity}"), mlp.spec()));
    }
    let tied = TiedAutoencoder { features: 6, width: 4, activation: Activation::Tanh.into(), bias: true };
    all.push(("tied autoencoder".into(), tied.spec()));
    let deep = FcAutoencoder { depth: 4, width: 9, ..FcAutoencoder::new(&[2, 3]) };
    all.push(("autoencoder".into(), deep.spec()));
    let graph = r#"
        input = [2, 4]
        layers = [
            { name = "slopes", kind = "prelu", slopes = 2 },
            { name = "flat", kind = "flatten" },
            { name = "a", kind = "linear", outputs = 5 },
            { name = "bend", kind = "activation", function = "softplus(2)" },
            { name = "b", kind = "linear", outputs = 5, bias = false },
            { name = "sum", kind = "add", inputs = ["bend", "b", "a"] },
            { name = "join", kind = "concat", inputs = ["sum", "flat", "sum"] },
            { name = "more", kind = "prelu", slopes = 18 },
            { name = "out", kind = "linear", outputs = 2 },
            { name = "end", kind = "activation", function = "silu" },
        ]"#;
    all.push(("branches".into(), NetworkSpec::from_toml(graph).unwrap()));
    // Several values are read by several layers, some of them upstream of all parameters.
    let dense = r#"
        input = [4]
        layers = [
            { name = "a", kind = "linear", outputs = 4, inputs = ["input"] },
            { name = "b", kind = "linear", outputs = 4, inputs = ["input"] },
            { name = "s", kind = "add", inputs = ["input", "a", "b"] },
            { name = "t", kind = "activation", function = "tanh" },
            { name = "u", kind = "concat", inputs = ["t", "input", "a", "b", "a"] },
            { name = "v", kind = "activation", function = "softplus(3)" },
            { name = "out", kind = "linear", outputs = 3 },
        ]"#;
    all.push(("dense connections".into(), NetworkSpec::from_toml(dense).unwrap()));
    let mut networks: Vec<(String, Network)> =
        all.into_iter().map(|(name, spec)| (name, Network::new(spec).unwrap())).collect();
    networks.extend(image_networks());
    networks
}

/// Networks on images that together contain every layer for them, normalisation in both modes.
fn image_networks() -> Vec<(String, Network)> {
    let written = [
        (
            "convolutions",
            r#"
            input = [2, 7, 6]
            layers = [
                { kind = "conv", outputs = 4, kernel = 3, stride = 2, padding = 1 },
                { kind = "activation", function = "tanh" },
                { kind = "conv", outputs = 6, kernel = [2, 3], dilation = [2, 1], groups = 2, padding = "same" },
                { kind = "activation", function = "softplus(2)" },
                { kind = "conv", outputs = 12, kernel = 3, stride = [1, 2], padding = [1, 0], groups = 6, bias = false },
                { kind = "flatten" },
                { kind = "linear", outputs = 3 },
            ]"#,
        ),
        (
            "transposed convolutions",
            r#"
            input = [3, 3, 4]
            layers = [
                { kind = "conv-transpose", outputs = 4, kernel = 3, stride = 2, padding = 1, output_padding = 1 },
                { kind = "activation", function = "silu" },
                { kind = "conv-transpose", outputs = 2, kernel = 2, dilation = 2, groups = 2, bias = false },
                { kind = "upsample", factor = [2, 1] },
                { kind = "activation", function = "sigmoid" },
                { kind = "avg-pool", kernel = 3, stride = 2, padding = 1 },
                { kind = "flatten" },
                { kind = "linear", outputs = 2 },
            ]"#,
        ),
        (
            "poolings",
            r#"
            input = [2, 9, 7]
            layers = [
                { kind = "conv", outputs = 3, kernel = 3 },
                { kind = "max-pool", kernel = 3, stride = 2, padding = 1 },
                { kind = "activation", function = "tanh" },
                { kind = "adaptive-avg-pool", output = [3, 2] },
                { kind = "max-pool", kernel = 2, stride = 1 },
                { kind = "dropout", p = 0.5 },
                { kind = "flatten" },
                { kind = "linear", outputs = 3 },
            ]"#,
        ),
        (
            "normalisations",
            r#"
            input = [2, 5, 5]
            layers = [
                { kind = "conv", outputs = 3, kernel = 3, bias = false },
                { name = "bn", kind = "batch-norm", eps = 1e-3 },
                { kind = "activation", function = "tanh" },
                { kind = "conv", outputs = 4, kernel = 2 },
                { kind = "batch-norm", affine = false },
                { kind = "activation", function = "softplus(2)" },
                { kind = "flatten" },
                { kind = "linear", outputs = 5 },
                { kind = "batch-norm" },
                { kind = "activation", function = "silu" },
                { kind = "linear", outputs = 3 },
            ]"#,
        ),
        (
            "residual block",
            r#"
            input = [3, 6, 6]
            layers = [
                { name = "conv1", kind = "conv", outputs = 4, kernel = 3, stride = 2, padding = 1, bias = false },
                { name = "bn1", kind = "batch-norm" },
                { name = "slopes", kind = "prelu", slopes = 4 },
                { name = "conv2", kind = "conv", outputs = 4, kernel = 3, padding = 1, bias = false },
                { name = "bn2", kind = "batch-norm" },
                { name = "down", kind = "conv", outputs = 4, kernel = 1, stride = 2, bias = false, inputs = ["input"] },
                { name = "sum", kind = "add", inputs = ["bn2", "down"] },
                { name = "join", kind = "concat", inputs = ["sum", "slopes"] },
                { name = "bend", kind = "activation", function = "relu" },
                { name = "pool", kind = "adaptive-avg-pool", output = 1 },
                { name = "flat", kind = "flatten" },
                { name = "fc", kind = "linear", outputs = 3 },
            ]"#,
        ),
    ];
    let mut all = Vec::new();
    for (name, text) in written {
        let network = Network::new(NetworkSpec::from_toml(text).unwrap()).unwrap();
        if network.buffer_names().next().is_some() {
            all.push((format!("{name} in training"), network.in_mode(Mode::Train)));
        }
        all.push((name.into(), network));
    }
    all
}

/// Random parameters of moderate size, biases and slopes included.
pub(crate) fn parameters(network: &Network, name: &str, index: u64, dtype: DType) -> Params {
    let draw = |parameter: &str, shape: &[usize]| {
        let mut stream = Stream::new(11, &format!("{name}/{parameter}"), index);
        (parameter.to_owned(), stream.normal_tensor(0.5, shape, dtype).unwrap())
    };
    let fresh = network.init(&Init::Pytorch.into(), 1, dtype).unwrap();
    let buffers = fresh.buffers().iter().map(|buffer| {
        let (name, value) = draw(&buffer.name, buffer.value.shape());
        // Variances are positive.
        let variance = name.ends_with("running_var");
        let value = if variance { value.map(|x| 0.5 + x * x).unwrap() } else { value };
        (name, value)
    });
    let named = network.parameters().iter().map(|spec| draw(&spec.name, &spec.shape)).chain(buffers);
    network.params(named.collect(), dtype, Device::Cpu).unwrap()
}

/// A random batch of `rows` with the given sample shape.
pub(crate) fn batch(shape: &[usize], rows: usize, name: &str, index: u64) -> Tensor {
    let shape: Vec<usize> = std::iter::once(rows).chain(shape.iter().copied()).collect();
    Stream::new(12, name, index).normal_tensor(1.0, &shape, DType::F64).unwrap()
}

/// a + h b.
pub(crate) fn moved(a: &Tensor, h: f64, b: &Tensor) -> Tensor {
    let sum: Vec<f64> = a.to_f64_vec().unwrap().iter().zip(b.to_f64_vec().unwrap()).map(|(a, b)| a + h * b).collect();
    Tensor::from_f64(&sum, a.shape(), a.dtype()).unwrap()
}

/// Σ a b.
pub(crate) fn dot(a: &Tensor, b: &Tensor) -> f64 {
    a.to_f64_vec().unwrap().iter().zip(b.to_f64_vec().unwrap()).map(|(a, b)| a * b).sum()
}

/// ‖a − b‖ / max(‖b‖, floor).
pub(crate) fn relative(a: &Tensor, b: &Tensor, floor: f64) -> f64 {
    assert_eq!(a.shape(), b.shape());
    let difference = moved(&a.to_dtype(DType::F64).unwrap(), -1.0, b);
    dot(&difference, &difference).sqrt() / dot(b, b).sqrt().max(floor)
}
