//! What the integration tests share: networks that cover every layer, and comparisons.
#![allow(dead_code)] // not every test uses everything

use afterimage_nn::zoo::{FcAutoencoder, Mlp, Nonlinearity, TiedAutoencoder};
use afterimage_nn::{Activation, DType, Device, Network, NetworkSpec, Params, Stream, Tensor};

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
    all.into_iter().map(|(name, spec)| (name, Network::new(spec).unwrap())).collect()
}

/// Random parameters of moderate size, biases and slopes included.
pub(crate) fn parameters(network: &Network, name: &str, index: u64, dtype: DType) -> Params {
    let named = network.parameters().iter().map(|spec| {
        let mut stream = Stream::new(11, &format!("{name}/{}", spec.name), index);
        (spec.name.clone(), stream.normal_tensor(0.5, &spec.shape, dtype).unwrap())
    });
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
