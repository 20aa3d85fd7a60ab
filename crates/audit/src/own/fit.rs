//! Which attacks fit a model, why others do not, and what they would take on this machine.

use std::time::Instant;

use afterimage_attacks::{
    AnyAttack, AttackError, Client, DegradedSeen, GradientSeen, Kind, Model, Observation, PairSeen, RowSpace,
    WeightsSeen,
};
use afterimage_nn::{DType, Device, LayerKind, Seed, Tensor, Want};

use super::folder::Exported;
use crate::Result;
use crate::victim::read_gradient;

/// Whether an attack fits.
#[derive(Debug, Clone, PartialEq)]
pub enum Fitting {
    /// It does.
    Fits,
    /// It cannot work on this.
    No(String),
    /// It could run, but far from where it has been shown to work: a result would mean nothing.
    Outside(String),
}

/// An attack beside a model.
#[derive(Debug, Clone)]
pub struct Fit {
    /// The attack at its default settings.
    pub attack: AnyAttack,
    /// Whether it fits.
    pub fitting: Fitting,
    /// Seconds it takes here, roughly.
    pub seconds: f64,
    /// Bytes of memory it takes, roughly.
    pub bytes: f64,
}

/// Attacks that audits are made with. The others are baselines, which say what is had without an attack.
const AUDITS: [&str; 10] =
    ["labels", "analytic", "exact", "tensor", "gradinversion", "kinks", "unmix", "kkt", "ntk", "autoencoder"];

/// Every attack beside a model; with the number of members, where it is known.
pub fn fits(exported: &Exported, members: Option<usize>) -> Result<Vec<Fit>> {
    let observations = observations(exported)?;
    let cost = Cost::of(exported, members)?;
    let mut fits = Vec::new();
    let records = exported.training.records.or(members);
    for attack in AnyAttack::all().into_iter().filter(|attack| AUDITS.contains(&attack.card().name)) {
        let needs = attack.needs();
        let attack = searching(attack, records, &observations);
        let fitting = match observations.iter().find(|observation| observation.kind() == needs) {
            None => Fitting::No(format!("it needs {needs}, and {}", absent(exported, needs))),
            Some(observation) => match attack.applies(observation) {
                Err(AttackError::NotApplicable { reason, hint, .. }) => Fitting::No(format!("{reason} ({hint})")),
                Err(error) => Fitting::No(error.to_string()),
                Ok(()) => match (one_alone(&attack, observation), outside(exported, &attack, members)) {
                    (Some(reason), _) => Fitting::No(reason),
                    (None, Some(reason)) => Fitting::Outside(reason),
                    (None, None) => Fitting::Fits,
                },
            },
        };
        let (seconds, bytes) = cost.of_attack(&attack);
        fits.push(Fit { attack, fitting, seconds, bytes });
    }
    Ok(fits)
}

/// The attack with two candidates for each record, as the papers search, whose number the owner knows: the rank of a layer that did
/// not start near zero does not tell it, and of convolutions none does.
fn searching(mut attack: AnyAttack, records: Option<usize>, observations: &[Observation]) -> AnyAttack {
    let wanted = records.map(|records| 2 * records);
    match &mut attack {
        AnyAttack::Kkt(settings) => settings.candidates = settings.candidates.or(wanted),
        AnyAttack::Unmix(settings) => settings.candidates = settings.candidates.or(wanted),
        AnyAttack::Ntk(settings) => {
            let pair = observations.iter().find(|seen| seen.kind() == Kind::WeightPair);
            let told = pair.is_some_and(|pair| RowSpace::of_observation(pair).is_ok_and(|(_, space)| !space.full));
            settings.candidates = settings.candidates.or(wanted.filter(|_| !told));
        }
        _ => {}
    }
    attack
}

/// Why an attack on a single sample does not fit a gradient whose batch size nobody told, if it shows several.
fn one_alone(attack: &AnyAttack, observation: &Observation) -> Option<String> {
    let (AnyAttack::Analytic(_), Observation::Gradient(seen)) = (attack, observation) else { return None };
    let (_, space) = RowSpace::of_observation(observation).ok().filter(|_| seen.batch_size.is_none())?;
    (space.rank > 1)
        .then(|| format!("the gradient shows {} samples (`exact` and `gradinversion` take whole batches)", space.rank))
}

/// Why an observation of a kind is not there.
fn absent(exported: &Exported, kind: Kind) -> &'static str {
    match kind {
        Kind::Gradient => "the folder holds no gradient.safetensors",
        Kind::WeightPair => "the folder holds no before.safetensors",
        Kind::Degraded => "the network does not give back what it takes",
        _ if exported.gradient.is_some() => "what is shared here is a gradient",
        _ => "the network is an autoencoder",
    }
}

/// What of the model is shared, in every kind that attacks know.
pub(super) fn observations(exported: &Exported) -> Result<Vec<Observation>> {
    let preprocess = Some(exported.preprocessing.constants()?);
    let (network, theta, loss) = (exported.network.clone(), exported.theta.clone(), Some(exported.loss()));
    let model = Model { network, theta, loss, preprocess };
    if let Some(path) = &exported.gradient {
        let (gradient, after) = read_gradient(&exported.network, &exported.theta, path)?;
        let training = &exported.training;
        // After several steps, statistics are those of all of them.
        let after = after.filter(|_| training.local.is_none());
        let client = Client { mode: training.mode, after, local: training.local, ..Client::default() };
        let (reduction, batch_size) = (Some(training.reduction), training.batch_size);
        let seen = GradientSeen { model, gradient, reduction, batch_size, labels: None, client };
        return Ok(vec![Observation::Gradient(seen)]);
    }
    if exported.autoencodes() {
        let degraded = Tensor::zeros(&exported.network.batch_shape(1), DType::F32, Device::Cpu)?;
        let seen = DegradedSeen { model, degraded, mask: None, blur: None, noise: Some(0.0) };
        return Ok(vec![Observation::Degraded(seen)]);
    }
    let mut seen = vec![Observation::Weights(WeightsSeen { model: model.clone() })];
    if let Some(path) = &exported.before {
        let before = exported.network.load(path, DType::F32, Device::Cpu)?;
        seen.push(Observation::WeightPair(PairSeen { model, before, between: Vec::new() }));
    }
    Ok(seen)
}

/// Why a result would mean nothing, if it would: how far the attack has been shown to reach, and where the model is.
fn outside(exported: &Exported, attack: &AnyAttack, members: Option<usize>) -> Option<String> {
    let name = attack.card().name;
    let records = exported.training.records.or(members);
    let count = |most: usize, shown: &str| {
        let yours = records.filter(|records| *records > most)?;
        Some(format!(
            "{name} has been shown to work on {shown}; yours: {} parameters, {} samples: outside that",
            grouped(exported.theta.count()),
            grouped(yours)
        ))
    };
    let batch = |most: usize| {
        let yours = exported.training.batch_size.filter(|batch| *batch > most)?;
        Some(format!(
            "{name} has been shown to work on batches of at most {most} samples; yours: {yours}: outside that"
        ))
    };
    let normalised =
        exported.network.spec().layers.iter().any(|layer| matches!(layer.kind, LayerKind::BatchNorm { .. }));
    match name {
        "kkt" | "unmix" | "kinks" if normalised => Some(format!(
            "{name} has been shown to work on networks without normalisation; yours has batch normalisation"
        )),
        "kkt" | "unmix" | "kinks" => {
            count(1000, "networks trained to near-zero loss on at most about a thousand samples")
        }
        "ntk" => count(500, "two checkpoints of wide networks trained on at most about five hundred samples"),
        "autoencoder" => count(25_000, "autoencoders of at most 25,000 samples, fitted to a loss of 1e-4 or less"),
        "exact" => batch(128),
        "tensor" => batch(64),
        "gradinversion" => batch(48),
        _ => None,
    }
}

/// A number with its thousands apart.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// What a network costs on this machine.
struct Cost {
    /// Seconds of a forward and backward pass of one sample, in a batch.
    sample: f64,
    /// Numbers that a pass keeps of one sample.
    kept: f64,
    parameters: f64,
    batch: f64,
    members: f64,
    /// Records that it was trained on, as far as is known.
    trained: f64,
    widest: f64,
}

/// Samples that one pass is timed with; more where that is so quick that its overhead is what was timed.
const TIMED: [usize; 2] = [8, 128];
/// Seconds of a pass that are no overhead.
const ENOUGH: f64 = 0.02;

/// Seconds of a forward and backward pass of one sample: the less of two tries, the first of which warms up.
fn per_sample(exported: &Exported) -> Result<f64> {
    let network = &exported.network;
    let mut found = f64::INFINITY;
    for count in TIMED {
        let x = Tensor::full(0.5, &network.batch_shape(count), DType::F32, Device::Cpu)?;
        let outputs: Vec<usize> = std::iter::once(count).chain(network.output_shape().iter().copied()).collect();
        let seed = Tensor::full(1e-3, &outputs, DType::F32, Device::Cpu)?;
        for _ in 0..2 {
            let started = Instant::now();
            network.pass(&exported.theta, &x)?.backward(Seed::Fixed(seed.clone()), Want::Both)?;
            found = found.min(started.elapsed().as_secs_f64() / count as f64);
        }
        if found * count as f64 > ENOUGH {
            break;
        }
    }
    Ok(found)
}

impl Cost {
    fn of(exported: &Exported, members: Option<usize>) -> Result<Self> {
        let network = &exported.network;
        let kept: usize = network.sizes().iter().sum();
        let widest = exported.theta.specs().iter().map(|spec| spec.shape.first().copied().unwrap_or(1)).max();
        Ok(Self {
            sample: per_sample(exported)?,
            kept: kept as f64,
            parameters: exported.theta.count() as f64,
            batch: exported.training.batch_size.unwrap_or(1) as f64,
            members: members.or(exported.training.records).unwrap_or(20) as f64,
            trained: exported.training.records.or(members).unwrap_or(20) as f64,
            widest: widest.unwrap_or(1) as f64,
        })
    }

    /// Seconds and bytes of an attack at its defaults.
    fn of_attack(&self, attack: &AnyAttack) -> (f64, f64) {
        let Self { sample, kept, parameters, batch, members, trained, widest } = *self;
        // A step of matching is a pass on values and one on duals: three passes.
        let steps = |iterations: f64, candidates: f64| 3.0 * sample * iterations * candidates;
        let space = |copies: f64, candidates: f64| 4.0 * (copies * parameters + 6.0 * candidates * kept);
        match attack {
            AnyAttack::Gradinversion(settings) => {
                let starts = settings.starts as f64;
                (steps(settings.iterations as f64, starts * batch), space(6.0, starts * batch))
            }
            AnyAttack::Kkt(settings) => {
                let candidates = settings.candidates.map_or(2.0 * trained, |candidates| candidates as f64);
                (steps(settings.iterations as f64, candidates), space(10.0, candidates))
            }
            AnyAttack::Unmix(settings) => {
                let candidates = settings.candidates.map_or(2.0 * trained, |candidates| candidates as f64);
                (steps(settings.iterations as f64, candidates), space(10.0, candidates))
            }
            AnyAttack::Ntk(settings) => {
                let candidates = settings.candidates.map_or(1.5 * members, |candidates| candidates as f64);
                (steps((settings.restarts * settings.iterations) as f64, candidates), space(10.0, candidates))
            }
            AnyAttack::Autoencoder(settings) => {
                // Members and as many others, some thirty steps of conjugate gradients for each of some twenty.
                let samples = members + members.max(200.0);
                (sample * samples * (settings.inner as f64 + 600.0), space(2.0, samples))
            }
            // Measured: 32 samples of 1,024 units in a second, growing with the cube of the batch.
            AnyAttack::Exact(_) => ((batch / 32.0).powi(3) * widest / 1024.0 + 0.1, space(8.0, batch)),
            AnyAttack::Tensor(_) => (2.0 + batch * parameters * 1e-7, space(8.0, batch)),
            _ => (0.1, space(3.0, batch)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn exported(case: &str) -> Exported {
        Exported::read(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/import").join(case)).unwrap()
    }

    fn of(exported: &Exported, name: &str) -> Fitting {
        let fits = fits(exported, None).unwrap();
        assert!(fits.iter().all(|fit| fit.seconds > 0.0 && fit.bytes > 0.0));
        fits.into_iter().find(|fit| fit.attack.card().name == name).unwrap().fitting
    }

    #[test]
    fn each_attack_says_whether_it_fits_and_why_not() {
        let mut mlp = exported("mlp");
        assert_eq!(of(&mlp, "kkt"), Fitting::Fits);
        assert_eq!(
            of(&mlp, "exact"),
            Fitting::No("it needs a gradient, and the folder holds no gradient.safetensors".into())
        );
        mlp.training.records = Some(120_000);
        let Fitting::Outside(reason) = of(&mlp, "kkt") else { panic!("kkt fits 120,000 samples") };
        assert!(
            reason.contains("at most about a thousand samples; yours: 1,276 parameters, 120,000 samples"),
            "{reason}"
        );
        assert!(matches!(of(&exported("resnet-18"), "kkt"), Fitting::No(_)));
        assert_eq!(of(&exported("autoencoder"), "autoencoder"), Fitting::Fits);
        assert!(matches!(of(&exported("autoencoder"), "kkt"), Fitting::No(_)));
    }

    #[test]
    fn candidates_are_two_for_each_record_that_it_was_trained_on() {
        let candidates = |exported: &Exported, members| -> Vec<Option<usize>> {
            let fits = fits(exported, members).unwrap();
            let of = |fit: &Fit| match &fit.attack {
                AnyAttack::Kkt(settings) => Some(settings.candidates),
                AnyAttack::Unmix(settings) => Some(settings.candidates),
                _ => None,
            };
            fits.iter().filter_map(of).collect()
        };
        let mut mlp = exported("mlp");
        mlp.training.records = None;
        assert_eq!(candidates(&mlp, None), [None, None]);
        assert_eq!(candidates(&mlp, Some(20)), [Some(40), Some(40)]);
        mlp.training.records = Some(300);
        assert_eq!(candidates(&mlp, Some(20)), [Some(600), Some(600)]);
        // So kkt fits convolutions, and what keeps it from those with normalisation is said.
        let mut convolutions = exported("resnet-18");
        convolutions.training.records = Some(300);
        let Fitting::Outside(reason) = of(&convolutions, "kkt") else { panic!("kkt fits a ResNet") };
        assert!(reason.contains("without normalisation"), "{reason}");
    }
}
