//! Victims: what they share, what they keep, and what of a plan they refuse.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use afterimage_attacks::{DegradedSeen, GradientSeen, Kind, Observation, Tick};
use afterimage_audit::pipeline::model_hash;
use afterimage_audit::plan::Plan;
use afterimage_audit::run_dir::RunDir;
use afterimage_audit::victim::Victim;
use afterimage_audit::{AuditError, Sample, Truth};
use afterimage_nn::{Loss, Objective, Params, Reduction, Seed, Targets, Tensor, Want};

const CLASSIFIER: &str = r#"
    [data]
    source = "builtin:digits"
    members = 8
    controls = 20
    relabel = "odd-even"
    [network]
    kind = "mlp"
    hidden = [16]
    outputs = 1
    [victim]
    kind = "classifier"
    loss = "logistic"
    train = { epochs = 40, update = { kind = "sgd", lr = 0.5 } }
    [attack]
    kind = "model-inversion"
    [compute]
    dtype = "f64"
"#;

const AUTOENCODER: &str = r#"
    [data]
    source = "builtin:digits"
    members = 6
    controls = 10
    resize = [8, 8]
    [network]
    kind = "fc-autoencoder"
    depth = 3
    width = 32
    [victim]
    kind = "autoencoder"
    train = { epochs = 30, update = { kind = "adam", lr = 1e-3 } }
    degrade = { mask = "stripes" }
    [attack]
    kind = "ae-iterations"
    [compute]
    dtype = "f64"
"#;

fn plan(text: &str, changes: &[&str]) -> Plan {
    Plan::parse(text, &changes.iter().map(|change| (*change).to_owned()).collect::<Vec<_>>()).unwrap()
}

fn leak(plan: &Plan) -> (Observation, Truth) {
    Victim::new(plan).unwrap().leak(&mut |_| ControlFlow::Continue(())).unwrap().unwrap()
}

fn numbers(theta: &Params) -> Vec<f64> {
    theta.values().iter().flat_map(|value| value.to_f64_vec().unwrap()).collect()
}

fn checkpoints(more: &[&str]) -> (Params, Params) {
    match leak(&plan(CLASSIFIER, &[&["victim.share=checkpoints"], more].concat())).0 {
        Observation::WeightPair(seen) => (seen.model.theta, seen.before),
        other => panic!("{:?}", other.kind()),
    }
}

#[test]
fn a_classifier_is_trained_and_shares_its_weights_alone() {
    let plan = plan(CLASSIFIER, &[]);
    let mut epochs = Vec::new();
    let victim = Victim::new(&plan).unwrap();
    let (observation, truth) = victim
        .leak(&mut |tick: Tick| {
            epochs.push((tick.iteration, tick.loss.unwrap()));
            ControlFlow::Continue(())
        })
        .unwrap()
        .unwrap();
    assert_eq!(observation.kind(), Kind::Weights);
    assert_eq!((epochs.len(), truth.members.labels.len(), truth.controls.labels.len()), (40, 8, 20));
    assert!(epochs[39].1 < 0.5 * epochs[0].1, "training lowers the loss: {epochs:?}");
    // The same plan gives the same bits; another seed others.
    assert_eq!(numbers(&leak(&plan).0.model().theta), numbers(&observation.model().theta));
    let other = Plan { seed: 2, ..plan.clone() };
    assert_ne!(numbers(&leak(&other).0.model().theta), numbers(&observation.model().theta));
    // A stop during training leaves nothing.
    let stopped = Victim::new(&plan).unwrap().leak(&mut |_| ControlFlow::Break(())).unwrap();
    assert!(stopped.is_none());
}

#[test]
fn weights_are_loaded_instead_of_trained() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let (trained, _) = leak(&plan(CLASSIFIER, &[]));
    trained.model().theta.save(&path).unwrap();
    let file = format!("victim.weights={}", path.display());
    let loads = plan(CLASSIFIER, &[&file, "victim.train.epochs=1"]);
    assert_eq!(numbers(&leak(&loads).0.model().theta), numbers(&trained.model().theta));
    // The twin is trained: on other records, from another start.
    let twin = Victim::twin(&loads).unwrap();
    let members: BTreeSet<String> = leak(&loads).1.ids.into_iter().collect();
    assert!(twin.truth().ids.iter().all(|id| !members.contains(id)));
    let (twin, _) = twin.leak(&mut |_| ControlFlow::Continue(())).unwrap().unwrap();
    assert_ne!(numbers(&twin.model().theta), numbers(&trained.model().theta));
    // Weights of another network are refused by name.
    let wider = plan(CLASSIFIER, &[&file, "network.hidden=[17]"]);
    let refused = |plan: &Plan| Victim::new(plan).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(refused(&wider).contains("1.weight"), "{}", refused(&wider));
    let absent = plan(CLASSIFIER, &["victim.weights=absent.safetensors"]);
    assert!(refused(&absent).contains("absent.safetensors"), "{}", refused(&absent));
    let pair = plan(CLASSIFIER, &[&file, "victim.share=checkpoints"]);
    assert!(refused(&pair).contains("victim.before_weights"), "{}", refused(&pair));
}

#[test]
fn a_published_network_is_tuned_with_a_last_layer_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("published.safetensors");
    // Published: ten classes.
    let ten = ["data.relabel=none", "network.outputs=10", "victim.loss=cross-entropy"];
    let (published, _) = leak(&plan(CLASSIFIER, &ten));
    let published = published.model().theta.clone();
    published.save(&path).unwrap();
    let last = published.specs().last().unwrap().name.trim_end_matches(".bias").to_owned();
    let file = format!("victim.start_weights={}", path.display());
    let fresh = format!("victim.fresh_layers=[\"{last}\"]");
    let (tuned, start) = checkpoints(&[&file, &fresh]);
    let body: usize = published.values()[..2].iter().map(|value| value.to_f64_vec().unwrap().len()).sum();
    assert_eq!(numbers(&start)[..body], numbers(&published)[..body]);
    assert_ne!(numbers(&tuned)[..body], numbers(&start)[..body], "all layers are trained");
    assert_ne!(numbers(&checkpoints(&[&file, &fresh, "seed=2"]).1)[body..], numbers(&start)[body..]);
    // The twin starts from what is published, too.
    let tunes = plan(CLASSIFIER, &[&file, &fresh, "victim.share=checkpoints"]);
    let twin = Victim::twin(&tunes).unwrap().leak(&mut |_| ControlFlow::Continue(())).unwrap().unwrap().0;
    let Observation::WeightPair(twin) = twin else { panic!() };
    assert_eq!(numbers(&twin.before)[..body], numbers(&published)[..body]);
    let refused = |changes: &[&str]| Victim::new(&plan(CLASSIFIER, changes)).err().unwrap().to_string();
    assert!(refused(&[&file]).contains(&last), "ten classes are not one: {}", refused(&[&file]));
    assert!(refused(&[&file, "victim.fresh_layers=[\"9\"]"]).contains("no layer of this name"));
    assert!(refused(&[&fresh]).contains("start_weights"));
}

#[test]
fn constants_prepare_pixels_and_are_undone() {
    let constants = "data.normalise={ mean = [0.25], std = [0.5] }";
    let (_, truth) = leak(&plan(CLASSIFIER, &[constants]));
    let inputs = truth.preprocess.apply(&truth.members.pixels).unwrap().to_f64_vec().unwrap();
    let pixels = truth.members.pixels.to_f64_vec().unwrap();
    assert!(inputs.iter().zip(&pixels).all(|(x, pixel)| (x - (pixel - 0.25) / 0.5).abs() < 1e-12));
    assert_ne!(
        numbers(&leak(&plan(CLASSIFIER, &[])).0.model().theta),
        numbers(&leak(&plan(CLASSIFIER, &[constants])).0.model().theta)
    );
    let refused = |changes: &[&str]| Victim::new(&plan(CLASSIFIER, changes)).err().unwrap().to_string();
    assert!(refused(&["data.normalise={ mean = [0.1, 0.2, 0.3], std = [1.0] }"]).contains("data.normalise.mean"));
    assert!(refused(&["data.normalise={ mean = [0.1], std = [0.0] }"]).contains("data.normalise.std"));
    assert!(refused(&[constants, "data.subtract_mean=scalar"]).contains("beside another mean"));
}

#[test]
fn an_autoencoder_shares_damaged_members_and_controls_mixed() {
    let (observation, truth) = leak(&plan(AUTOENCODER, &[]));
    let Observation::Degraded(seen) = &observation else { panic!("{:?}", observation.kind()) };
    assert_eq!((seen.degraded.shape(), seen.mask.is_none(), seen.noise), (&[16, 1, 8, 8][..], true, Some(0.0)));
    let rows = |tensor: &Tensor| {
        let values = tensor.to_f64_vec().unwrap();
        values.chunks_exact(64).map(<[f64]>::to_vec).collect::<Vec<_>>()
    };
    let clean: Vec<Vec<f64>> = rows(&truth.members.pixels).into_iter().chain(rows(&truth.controls.pixels)).collect();
    let damaged = |record: &[f64]| -> Vec<f64> {
        record.iter().enumerate().map(|(place, x)| if place / 8 % 2 == 0 { *x } else { 0.0 }).collect()
    };
    let order: Vec<usize> = rows(&seen.degraded)
        .iter()
        .map(|row| clean.iter().position(|record| damaged(record) == *row).unwrap())
        .collect();
    let everyone: BTreeSet<usize> = order.iter().copied().collect();
    assert_eq!(everyone.len(), 16);
    assert!(!order.is_sorted(), "a place in the file tells nothing");
    let (told, _) = leak(&plan(AUTOENCODER, &["victim.share_mask=true", "victim.degrade.noise=0.1"]));
    let Observation::Degraded(told) = told else { panic!() };
    assert_eq!((told.mask.unwrap().shape(), told.noise), (&[1, 8, 8][..], Some(0.1)));
    // Through a file and back.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("o.safetensors");
    observation.write(&path).unwrap();
    let back = Observation::read(&path, afterimage_nn::Device::Cpu).unwrap();
    let Observation::Degraded(back) = back else { panic!() };
    assert_eq!(rows(&back.degraded), rows(&seen.degraded));
}

#[test]
fn the_earlier_checkpoint_is_the_one_asked_for() {
    let start = checkpoints(&["victim.train.epochs=7"]);
    let later = checkpoints(&["victim.train.epochs=7", "victim.before_epoch=3"]);
    let short = checkpoints(&["victim.train.epochs=3"]);
    assert_eq!(numbers(&start.0), numbers(&later.0));
    assert_eq!(numbers(&later.1), numbers(&short.0));
    assert_eq!(numbers(&start.1), numbers(&short.1));
    assert_ne!(numbers(&start.1), numbers(&start.0));
}

#[test]
fn a_twin_follows_the_rules_of_the_split() {
    // Two records a group, file order, balanced: the twin's members and controls share no group either.
    let folder = tempfile::tempdir().unwrap();
    let groups: String = (0..600).map(|index| format!("{}\n", index / 2)).collect();
    std::fs::write(folder.path().join("groups.csv"), format!("group\n{groups}")).unwrap();
    let file = format!("data.groups={}", folder.path().join("groups.csv").display());
    let changes = [&file, "data.controls=60", "data.balanced=true", "data.split=first-in-file-order"];
    let plan = plan(CLASSIFIER, &changes);
    let truth = Victim::twin(&plan).unwrap().truth().clone();
    assert_eq!(truth.members.labels.iter().sum::<usize>(), 4, "as many odd as even");
    let pixels = |tensor: &Tensor| {
        let values = tensor.to_f64_vec().unwrap();
        values.chunks_exact(784).map(<[f64]>::to_vec).collect::<Vec<_>>()
    };
    let all = pixels(
        &afterimage_audit::data::Source::Digits
            .read()
            .unwrap()
            .tensor(&(0..600).collect::<Vec<_>>(), afterimage_nn::DType::F64)
            .unwrap(),
    );
    let group = |record: &Vec<f64>| all.iter().position(|other| other == record).unwrap() / 2;
    let members: BTreeSet<usize> = pixels(&truth.members.pixels).iter().map(group).collect();
    assert!(pixels(&truth.controls.pixels).iter().all(|record| !members.contains(&group(record))));
}

#[test]
fn plans_that_cannot_be_followed_say_which_key() {
    for (text, changes, parts) in [
        (CLASSIFIER, vec!["data.relabel=none"], vec!["data.relabel", "out of range", "2 classes"]),
        (CLASSIFIER, vec!["victim.loss=cross-entropy"], vec!["out of range", "1 classes"]),
        (CLASSIFIER, vec!["network.outputs=3"], vec!["logistic needs one output"]),
        (
            CLASSIFIER,
            vec!["victim.share=checkpoints", "victim.before_epoch=40"],
            vec!["victim.before_epoch", "after 40"],
        ),
        (CLASSIFIER, vec!["victim.train.update.lr=0.0"], vec!["lr = 0"]),
        (AUTOENCODER, vec!["victim.degrade.noise=-1.0"], vec!["victim.degrade.noise", "-1"]),
        (CLASSIFIER, vec!["data.members=100000"], vec!["data.members", "600"]),
        (AUTOENCODER, vec!["network={ kind = \"mlp\", hidden = [3], outputs = 2 }"], vec!["gives back what it takes"]),
        (
            AUTOENCODER,
            vec!["network={ kind = \"layers\", input = [9], layers = [{ kind = \"linear\", outputs = 9 }] }"],
            vec!["network.input", "[9]"],
        ),
    ] {
        let error = Victim::new(&plan(text, &changes)).err().map(|error: AuditError| error.to_string());
        let error = error.unwrap_or_else(|| panic!("{changes:?} was accepted"));
        assert!(parts.iter().all(|part| error.contains(part)), "{changes:?}: {error}");
    }
}

const CLIENT: &str = r#"
    [data]
    source = "builtin:digits"
    members = 4
    controls = 20
    resize = [8, 8]
    [network]
    kind = "layers"
    input = [1, 8, 8]
    layers = [
        { name = "conv", kind = "conv", outputs = 4, kernel = 3, bias = false },
        { name = "bn", kind = "batch-norm" },
        { name = "act", kind = "activation", function = "sigmoid" },
        { name = "flat", kind = "flatten" },
        { name = "fc", kind = "linear", outputs = 10 },
    ]
    [victim]
    kind = "federated"
    [attack]
    kind = "gradinversion"
    [score]
    criterion = { metric = "mse", below = 1e-3 }
    [compute]
    dtype = "f64"
"#;

/// What a client of these settings shares.
fn shared(changes: &[&str]) -> GradientSeen {
    match leak(&plan(CLIENT, changes)).0 {
        Observation::Gradient(seen) => seen,
        other => panic!("{:?}", other.kind()),
    }
}

fn distance(a: &GradientSeen, b: &GradientSeen) -> f64 {
    let off = a.gradient.sub(&b.gradient).unwrap().norm_squared().unwrap();
    (off / b.gradient.norm_squared().unwrap()).sqrt()
}

#[test]
fn clients_share_gradients_steps_and_statistics_as_planned() {
    let whole = shared(&[]);
    // Two clients with two samples each, averaged, are one with four: unless the batch itself normalises.
    assert!(distance(&shared(&["victim.clients=2"]), &whole) < 1e-12);
    let train = shared(&["victim.mode=train"]);
    assert!(distance(&train, &whole) > 0.01);
    assert!(distance(&shared(&["victim.mode=train", "victim.clients=2"]), &train) > 0.01);
    // Steps that hardly move the model share its gradient; long ones do not.
    let steps = |lr: &str| shared(&[&format!("victim.local={{ steps = 3, lr = {lr} }}")]);
    let (short, long) = (distance(&steps("1e-7"), &whole), distance(&steps("0.5"), &whole));
    assert!(short < 1e-5 && long > 0.05, "{short} {long}");
    assert_eq!(steps("0.5").client.local.map(|local| local.steps), Some(3));
    // What batch normalisation saw is shared as it is, or follows from the running statistics.
    let exact = shared(&["victim.share_statistics=batch"]).client.statistics.unwrap();
    let running = shared(&["victim.mode=train", "victim.share_statistics=running"]);
    let after = running.client.after.as_ref().unwrap();
    let derived = running.model.network.untracked(&running.model.theta, after, 4).unwrap();
    for (exact, derived) in exact.iter().zip(&derived) {
        for (a, b) in [(&exact.mean, &derived.mean), (&exact.variance, &derived.variance)] {
            let off = a.combine(1.0, b, -1.0).unwrap();
            assert!(off.dot(&off).unwrap() < 1e-20 * a.dot(a).unwrap().max(1.0));
        }
    }
    assert_eq!((exact.len(), derived.len()), (1, 1));
    // A defence is told only if it is shared; mixed samples have another gradient.
    let prune = "victim.defence={ prune = 0.9 }";
    assert!(shared(&[prune]).client.defence.is_none());
    assert_eq!(shared(&[prune, "victim.share_defence=true"]).client.defence.map(|defence| defence.prune), Some(0.9));
    assert!(distance(&shared(&["victim.mixup=1.0"]), &whole) > 0.01);
    for (change, key) in [
        ("victim.clients=3", "victim.clients"),
        ("victim.local={ steps = 0, lr = 0.1 }", "victim.local"),
        ("victim.local={ steps = 1, lr = 0.1, batch = 3 }", "victim.local.batch"),
        ("victim.mixup=-1.0", "victim.mixup"),
        ("victim.share_statistics=running", "victim.share_statistics"),
    ] {
        let error = Victim::new(&plan(CLIENT, &[change])).map(drop).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn the_vulnerable_are_those_with_the_largest_gradients() {
    let alone = |pixels: &Tensor, label: usize, row: usize, seen: &GradientSeen, truth: &Truth| {
        let x = truth.preprocess.apply(&pixels.select_rows(&[row]).unwrap()).unwrap();
        let x = x.reshape(&seen.model.network.batch_shape(1)).unwrap();
        let objective = Objective::new(Loss::CrossEntropy, Reduction::Mean, Targets::Classes(vec![label]));
        let mut pass = seen.model.network.pass(&seen.model.theta, &x).unwrap();
        pass.backward(Seed::Loss(objective), Want::Weights).unwrap().weights.unwrap().norm_squared().unwrap()
    };
    let changes = ["victim.population=vulnerable", "data.controls=40"];
    let random = shared(&["data.controls=40"]);
    let (observation, truth) = leak(&plan(CLIENT, &changes));
    let Observation::Gradient(seen) = observation else { panic!("not a gradient") };
    let sizes = |sample: &Sample| -> Vec<f64> {
        let rows = 0..sample.labels.len();
        rows.map(|row| alone(&sample.pixels, sample.labels[row], row, &seen, &truth)).collect()
    };
    let smallest = sizes(&truth.members).into_iter().fold(f64::INFINITY, f64::min);
    let largest = sizes(&truth.controls).into_iter().fold(0.0, f64::max);
    assert!(smallest >= largest, "{smallest} {largest}");
    assert_eq!((truth.members.labels.len(), truth.controls.labels.len(), truth.ids.len()), (4, 40, 4));
    assert!(distance(&seen, &random) > 0.01);
    let (_, apart) = leak(&plan(CLIENT, &[changes[0], changes[1], "data.distinct=true"]));
    let labels: std::collections::HashSet<usize> = apart.members.labels.iter().copied().collect();
    assert_eq!(labels.len(), 4);
}

#[test]
fn labels_can_be_kept_apart() {
    let (_, truth) = leak(&plan(CLIENT, &["data.distinct=true", "data.members=10"]));
    let mut labels = truth.members.labels.clone();
    labels.sort_unstable();
    assert_eq!(labels, (0..10).collect::<Vec<_>>());
    let error = Victim::new(&plan(CLIENT, &["data.distinct=true", "data.members=11"])).map(drop).unwrap_err();
    assert!(error.to_string().contains("data.members"), "{error}");
}

/// Whoever stops a training goes on where it was, to the same bits, and nothing is left of it then.
#[test]
fn a_training_that_was_stopped_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    for (text, epochs) in [(CLASSIFIER, "victim.train.epochs=40"), (AUTOENCODER, "victim.train.epochs=40")] {
        let dir = RunDir::create(folder.path().join(text.len().to_string())).unwrap();
        let plan = plan(text, &[epochs, "victim.train.keep_epochs=[3]"]);
        let (whole, _) = leak(&plan);
        let states = || {
            let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
            names.filter(|name| name.to_string_lossy().starts_with("training-")).collect::<Vec<_>>()
        };
        let mut seen = Vec::new();
        let stopped = Victim::new(&plan).unwrap().keeping(&dir).leak(&mut |tick| {
            seen.push(tick.iteration);
            if tick.iteration == 15 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(stopped.unwrap().is_none() && states().len() == 1);
        let resumed = Victim::new(&plan).unwrap().keeping(&dir).leak(&mut |tick| {
            seen.push(tick.iteration);
            ControlFlow::Continue(())
        });
        let (resumed, _) = resumed.unwrap().unwrap();
        assert_eq!((seen, states()), ((1..=40).collect(), Vec::new()));
        assert_eq!(model_hash(&resumed).unwrap(), model_hash(&whole).unwrap());

        // A state that cannot be used is named, with what to do.
        dir.remove_folder("models").unwrap();
        Victim::new(&plan).unwrap().keeping(&dir).leak(&mut |_| ControlFlow::Break(())).unwrap();
        let state = dir.file(&states()[0].to_string_lossy());
        for damage in [b"nonsense".to_vec(), {
            afterimage_nn::io::TensorFile::default().write(&state).unwrap();
            std::fs::read(&state).unwrap()
        }] {
            std::fs::write(&state, damage).unwrap();
            let error = Victim::new(&plan).unwrap().keeping(&dir).leak(&mut |_| ControlFlow::Continue(()));
            let error = error.map(drop).unwrap_err().to_string();
            assert!(error.contains("training-") && error.contains("remove it to train from the start"), "{error}");
        }
        // Nothing of it is left when the run is purged.
        afterimage_audit::reporting::purge(&dir).unwrap();
        assert!(states().is_empty());
    }
}

/// One training serves every damage and every loss on the way; what it gave is kept as files of weights.
#[test]
fn a_training_is_kept_for_those_that_share_it() {
    let folder = tempfile::tempdir().unwrap();
    let dir = RunDir::create(folder.path().join("run")).unwrap();
    let settings = ["victim.train.epochs=400", "victim.train.keep_losses=[0.05, 0.02]"];
    let leak = |changes: &[&str]| {
        let plan = plan(AUTOENCODER, &[&settings[..], changes].concat());
        let mut epochs = 0;
        let made = Victim::new(&plan).unwrap().keeping(&dir).leak(&mut |_| {
            epochs += 1;
            ControlFlow::Continue(())
        });
        let Some((Observation::Degraded(seen), truth)) = made.unwrap() else { panic!("no damaged samples") };
        (seen, truth, epochs)
    };
    let (end, truth, epochs) = leak(&[]);
    assert_eq!(epochs, 400);
    let (early, _, again) = leak(&["victim.at_loss=0.05", "victim.degrade.mask=half"]);
    let (later, _, third) = leak(&["victim.at_loss=0.02"]);
    assert_eq!((again, third), (0, 0));
    // The loss is what it says: the mean squared error of the members.
    let loss = |seen: &DegradedSeen| {
        let x = truth.preprocess.apply(&truth.members.pixels).unwrap();
        let x = x.reshape(&seen.model.network.batch_shape(x.rows())).unwrap();
        let off = seen.model.network.forward(&seen.model.theta, &x).unwrap().reshape(x.shape()).unwrap();
        let off = off.combine(1.0, &x, -1.0).unwrap();
        off.dot(&off).unwrap() / x.count() as f64
    };
    let losses = [loss(&early), loss(&later), loss(&end)];
    assert!(losses[0] <= 0.05 && losses[1] <= 0.02 && losses[2] < losses[1], "{losses:?}");
    // Damaged copies of a few, from the same training: the first of each kind.
    let (few, first, none) = leak(&["victim.damaged=4"]);
    assert_eq!((few.degraded.rows(), none), (8, 0));
    assert_eq!(first.ids, truth.ids[..4]);
    assert_eq!((first.members.pixels.rows(), first.controls.pixels.rows()), (4, 4));
    assert_eq!(loss(&few), loss(&end));
    // Another training is another one; a loss that it does not come to is named.
    assert_eq!(leak(&["victim.train.epochs=401"]).2, 401);
    let far = plan(AUTOENCODER, &["victim.train.epochs=5", "victim.at_loss=1e-9"]);
    let error = Victim::new(&far).unwrap().leak(&mut |_| ControlFlow::Continue(())).map(drop).unwrap_err().to_string();
    assert!(error.contains("victim.at_loss") && error.contains("training ended at"), "{error}");
    // It is not tried a second time.
    for epochs in [5, 0] {
        let mut seen = 0;
        let made = Victim::new(&far).unwrap().keeping(&dir).leak(&mut |_| {
            seen += 1;
            ControlFlow::Continue(())
        });
        assert_eq!((made.map(drop).unwrap_err().to_string(), seen), (error.clone(), epochs));
    }
    // Members are where the owner says they are.
    let damaged = truth.damaged.clone().unwrap();
    let (left, records) = (end.degraded.to_f64_vec().unwrap(), truth.members.pixels.to_f64_vec().unwrap());
    let length = damaged.kept.len();
    for (member, &place) in damaged.places.iter().enumerate() {
        for element in 0..length {
            let expected = records[member * length + element] * damaged.kept[element];
            assert!((left[place * length + element] - expected).abs() < 1e-6);
        }
    }
}
