//! The closed form, on observations made here: no audit, no truth beyond this file.
#![allow(clippy::unwrap_used, clippy::panic)]

use afterimage_attacks::{
    Analytic, AnyAttack, AttackError, Client, GradientSeen, Kind, Model, Observation, Preprocess, Quiet,
    Reconstruction, Session, WeightsSeen,
};
use afterimage_nn::zoo::{Bias, Mlp};
use afterimage_nn::{
    DType, Device, Init, Loss, Network, NetworkSpec, Objective, Params, Reduction, Seed, Stream, Targets, Tensor, Want,
};

fn observe(spec: NetworkSpec, samples: usize, dtype: DType) -> (Tensor, GradientSeen) {
    let network = Network::new(spec).unwrap();
    let theta = network.init(&Init::Pytorch.into(), 3, dtype).unwrap();
    let shape: Vec<usize> = std::iter::once(samples).chain(network.input_shape().iter().copied()).collect();
    let x = Stream::new(4, "x", 0).tensor(&shape, dtype, |stream| stream.uniform(0.0, 1.0)).unwrap();
    let labels = Targets::Classes((0..samples).collect());
    let objective = Objective::new(Loss::CrossEntropy, Reduction::Mean, labels);
    let gradients = network.pass(&theta, &x).unwrap().backward(Seed::Loss(objective), Want::Weights).unwrap();
    let model = Model { network, theta, loss: Some(Loss::CrossEntropy), preprocess: Some(Preprocess::default()) };
    let gradient = gradients.weights.unwrap();
    let reduction = Some(Reduction::Mean);
    (x, GradientSeen { model, gradient, reduction, batch_size: Some(samples), labels: None, client: Client::default() })
}

fn attack(seen: GradientSeen) -> Result<Reconstruction, AttackError> {
    let attack = AnyAttack::Analytic(Analytic::default());
    attack.run(&Observation::Gradient(seen), &mut Session::new(1, &mut Quiet))
}

fn error(a: &Tensor, b: &Tensor) -> f64 {
    let (a, b) = (a.to_f64_vec().unwrap(), b.to_f64_vec().unwrap());
    a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn one_sample_comes_back_exactly() {
    // x = ∂W_k / ∂b_k, for every architecture whose first layer is linear with a bias.
    let flattened = Mlp { input: vec![1, 5, 4], ..Mlp::new(20, &[16, 8], 4) };
    for spec in [Mlp::new(20, &[16, 8], 4).spec(), flattened.spec(), Mlp::new(20, &[], 4).spec()] {
        for (dtype, tolerance) in [(DType::F64, 1e-13), (DType::F32, 1e-6)] {
            let (x, seen) = observe(spec.clone(), 1, dtype);
            let found = attack(seen).unwrap();
            assert!(error(&found.samples, &x) < tolerance);
            assert_eq!((found.certified.as_slice(), found.samples.shape()), (&[true][..], x.shape()));
        }
    }
}

/// The gradient with noise on some rows of the first layer.
fn spoilt(gradient: &Params, rows: usize, size: f64) -> Params {
    let weight = gradient.get("0.weight").unwrap();
    let features = weight.row_len();
    let mut values = weight.to_f64_vec().unwrap();
    let mut stream = Stream::new(5, "noise", 0);
    values.iter_mut().take(rows * features).for_each(|value| *value += size * stream.normal());
    let spoilt = Tensor::from_f64(&values, weight.shape(), weight.dtype()).unwrap();
    gradient
        .zip(gradient, |value, _| Ok(if value.shape() == spoilt.shape() { spoilt.clone() } else { value.clone() }))
        .unwrap()
}

#[test]
fn a_minority_of_spoilt_rows_is_outvoted() {
    let (x, seen) = observe(Mlp::new(20, &[64], 4).spec(), 1, DType::F64);
    let gradient = spoilt(&seen.gradient, 12, 10.0);
    let found = attack(GradientSeen { gradient, ..seen }).unwrap();
    assert!(error(&found.samples, &x) < 1e-12);
    // But it is not certified: the sample does not explain everything that was seen.
    assert_eq!(found.certified, [false]);
    assert!(found.notes[0].contains("noise was added"));
}

#[test]
fn what_cannot_be_read_out_says_why() {
    let not = |seen: GradientSeen| attack(seen).unwrap_err().to_string();
    let (_, two) = observe(Mlp::new(20, &[16], 4).spec(), 2, DType::F64);
    assert!(not(two.clone()).contains("the batch has 2 samples"));
    // Not told the size, it sees that one sample does not explain the gradient.
    let unknown = attack(GradientSeen { batch_size: None, ..two }).unwrap();
    assert_eq!(unknown.certified, [false]);
    let (_, bare) = observe(Mlp { bias: Bias::None, ..Mlp::new(20, &[16], 4) }.spec(), 1, DType::F64);
    assert!(not(bare).contains("no fully connected layer with a bias"));
    let (_, seen) = observe(Mlp::new(20, &[16], 4).spec(), 1, DType::F64);
    let gradient = seen.gradient.zeros_like().unwrap();
    assert!(not(GradientSeen { gradient, ..seen.clone() }).contains("is zero"));
    let weights = Observation::Weights(WeightsSeen { model: seen.model });
    let wrong = AnyAttack::Analytic(Analytic::default()).run(&weights, &mut Session::new(1, &mut Quiet)).unwrap_err();
    assert_eq!(wrong.to_string(), "attack `analytic` needs a gradient, and the observation is final weights");
}

#[test]
fn observations_and_reconstructions_survive_their_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("observation.safetensors");
    let (_, mut seen) = observe(Mlp::new(20, &[16], 4).spec(), 1, DType::F32);
    seen.model.preprocess =
        Some(Preprocess { mean: Some(Tensor::from_vec(vec![0.25], &[1]).unwrap()), ..Preprocess::default() });
    for labels in
        [None, Some(Targets::Classes(vec![3])), Some(Targets::Values(Tensor::from_vec(vec![1.0], &[1, 1]).unwrap()))]
    {
        let before = Observation::Gradient(GradientSeen { labels, ..seen.clone() });
        before.write(&path).unwrap();
        let after = Observation::read(&path, Device::Cpu).unwrap();
        assert_eq!((after.kind(), after.model().loss), (Kind::Gradient, Some(Loss::CrossEntropy)));
        let (Observation::Gradient(a), Observation::Gradient(b)) = (&before, &after) else { panic!("another kind") };
        assert_eq!(a.gradient.sub(&b.gradient).unwrap().norm_squared().unwrap(), 0.0);
        assert_eq!((a.batch_size, a.reduction, a.labels.is_some()), (b.batch_size, b.reduction, b.labels.is_some()));
        let mean = b.model.preprocess.as_ref().and_then(|preprocess| preprocess.mean.clone());
        assert_eq!(mean.unwrap().to_f64_vec().unwrap(), [0.25]);
        let run = |observation: &Observation| {
            AnyAttack::Analytic(Analytic::default()).run(observation, &mut Session::new(1, &mut Quiet)).unwrap()
        };
        let found = run(&after);
        assert_eq!(error(&found.samples, &run(&before).samples), 0.0);
        let kept = folder.path().join("reconstruction.safetensors");
        found.write(&kept).unwrap();
        let again = Reconstruction::read(&kept).unwrap();
        assert_eq!((again.certified, again.stop, again.confidence), (found.certified, found.stop, found.confidence));
    }
}

#[test]
fn files_that_hold_no_observation_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("o.safetensors");
    let (_, seen) = observe(Mlp::new(20, &[16], 4).spec(), 1, DType::F32);
    seen.model.theta.save(&path).unwrap();
    let message = |path| Observation::read(path, Device::Cpu).unwrap_err().to_string();
    assert!(message(&path).contains("holds no observation"), "{}", message(&path));
    Observation::Gradient(seen).write(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 9]).unwrap();
    assert!(message(&path).contains("o.safetensors"));
    assert!(Reconstruction::read(&path).is_err());
    let cut = String::from_utf8_lossy(&bytes).find("grad.0.bias").unwrap();
    let mut renamed = bytes;
    renamed[cut] = b'G';
    std::fs::write(&path, &renamed).unwrap();
    assert!(message(&path).contains("grad: parameter 0.bias: missing"), "{}", message(&path));
}
