//! The plan of each attack on one's own model: what is observed is loaded, what is a twin is made.

use std::path::Path;

use afterimage_attacks::{AnyAttack, Kind};
use afterimage_nn::optim::UpdateRule;
use afterimage_nn::train::{Recipe, Schedule};
use afterimage_nn::{DType, Init, LayerKind, Loss};

use super::audit::Request;
use super::belongs::{Belonging, belongs};
use super::fit::Fit;
use super::folder::Exported;
use super::series::CLASS_OF_CSV;
use crate::data::{Order, Source};
use crate::findings::{controls_needed, from_zero_to_one};
use crate::metrics::Metric;
use crate::plan::{
    AutoencoderPlan, ClassifierPlan, ComputePlan, DataPlan, Degrade, FederatedPlan, MeanKind, NetworkPlan, Plan,
    ScorePlan, Shared, VictimPlan, usual_criterion,
};
use crate::{AuditError, Result};

/// Most controls that are compared.
const MOST_CONTROLS: usize = 2000;
/// Records of a twin at most: few, so that it must leak.
const TWIN: usize = 10;
/// Seconds of sparse searches where noise hides what is there, for each sample, each unit, and each pair of searches: every search
/// is compared with those before it. Measured with 32 samples and 256 units: 320 searches 1.3 s, 480 3.1 s, 2,800 92 s.
const SEARCH: f64 = 1.5e-9;
/// Samples of a twin's batch at most.
const TWIN_BATCH: usize = 8;
/// Of one that pixels are searched for.
const TWIN_SEARCHED: usize = 2;

/// Members and controls as a plan names them.
pub(super) struct Records {
    source: String,
    members: usize,
    controls_from: String,
    controls: usize,
    resize: Option<[usize; 2]>,
    /// Whether all values lie between 0 and 1.
    unit: bool,
    /// Of a record, as it is read.
    shape: Vec<usize>,
    /// Of a classifier whose records carry no labels: how many classes there are.
    classes: Option<usize>,
}

impl Records {
    /// Reads both once, to count them and to see whether the network takes them.
    pub(super) fn read(exported: &Exported, members: &Path, controls: &Path) -> Result<Self> {
        let absolute = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned()).display().to_string();
        // Built-in data have no path.
        let named = |path: &Path| if path.exists() { absolute(path) } else { path.display().to_string() };
        let (source, controls_from) = (named(members), named(controls));
        let read = |name: &str| name.parse::<Source>()?.read();
        let (first, second) = (read(&source)?, read(&controls_from)?);
        let wanted = exported.network.input_shape();
        let resize = match (first.shape.as_slice(), wanted) {
            (&[c, h, w], &[channels, height, width]) if c == channels && [h, w] != [height, width] => {
                Some([height, width])
            }
            _ => None,
        };
        if resize.is_none() && first.shape.iter().product::<usize>() != wanted.iter().product::<usize>() {
            let problem = format!("has records of shape {:?}, and the network takes {wanted:?}", first.shape);
            return Err(AuditError::data(source, problem));
        }
        let controls = second.len().min(MOST_CONTROLS.max(first.len()));
        // Pictures are read as 0 to 1, whatever range the model was fed in.
        let unit = first.values.iter().chain(&second.values).all(|value| from_zero_to_one(f64::from(*value)));
        let (members, shape) = (first.len(), first.shape.clone());
        if let (Some(_), Some(batch)) = (&exported.gradient, exported.training.batch_size)
            && members > batch
        {
            let problem = format!(
                "holds {members} records, and the batch behind the gradient had {batch}: give those of the batch alone, or what came \
                 back would be counted among records that cannot"
            );
            return Err(AuditError::data(source, problem));
        }
        let outputs = exported.network.output_shape().iter().product::<usize>();
        let most = match exported.loss() {
            Loss::CrossEntropy => outputs,
            Loss::Logistic => 2,
            _ => usize::MAX,
        };
        for (records, source) in [(&first, &source), (&second, &controls_from)] {
            if let Some(label) = records.labels.iter().find(|label| **label >= most) {
                let problem =
                    format!("has a record of class {label}, and the network knows {most}, from 0 on{CLASS_OF_CSV}");
                return Err(AuditError::data(source, problem));
            }
        }
        let mut labels = first.labels.iter().chain(&second.labels);
        let told = labels.next().is_some_and(|one| labels.any(|other| other != one));
        let classifies = matches!(exported.loss(), Loss::CrossEntropy | Loss::Logistic) && !told;
        let classes = match exported.network.output_shape() {
            [1] if classifies => Some(2),
            [outputs] if classifies && *outputs > 1 => Some(*outputs),
            _ => None,
        };
        Ok(Self { members, controls, source, controls_from, resize, unit, shape, classes })
    }

    /// What the owner should know of them.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.classes.is_some() {
            notes.push(
                "the records carry no labels, so that twins take theirs in turn; labels come from folders inside the folder, one a \
                 class, from labels.csv, or from the array `y` of an .npz"
                    .into(),
            );
        }
        let wanted = 2 * controls_needed(self.members);
        if self.controls < wanted {
            notes.push(format!(
                "{} controls are few beside {} members: half of them set the line or are held back, and where nothing is found the rest says \
                 too little of chance; give {wanted} or more",
                self.controls, self.members
            ));
        }
        notes
    }

    pub(super) fn members(&self) -> usize {
        self.members
    }

    /// Whether records have the labels that they were trained with.
    pub(super) fn labelled(&self) -> bool {
        self.classes.is_none()
    }

    /// What the members' own gradient says of the one that is audited, where they are all of its batch.
    pub(super) fn belonging(&self, exported: &Exported, request: &Request, fit: &Fit) -> Result<Option<Belonging>> {
        let whole = exported.training.batch_size.is_none_or(|batch| batch == self.members);
        if exported.gradient.is_none() || !whole || !self.labelled() {
            return Ok(None);
        }
        belongs(exported, &plan(exported, request, self, &fit.attack, (fit.seconds, request.budget))?)
    }

    /// The section of a plan, with a twin of so many.
    pub(super) fn plan(&self, exported: &Exported, request: &Request, twin: usize) -> DataPlan {
        DataPlan {
            source: self.source.clone(),
            members: self.members,
            controls: self.controls,
            controls_from: Some(self.controls_from.clone()),
            twin_members: Some(twin),
            twin_classes: self.classes,
            // Folders are read class by class: the first of them would be of one class.
            split: Order::Random,
            balanced: false,
            distinct: false,
            relabel: Default::default(),
            resize: self.resize,
            clip: None,
            unit_norm: false,
            groups: request.groups.clone(),
            subtract_mean: MeanKind::None,
            mean_file: None,
            range: Some(exported.preprocessing.range_of(self.unit)),
            normalise: exported.preprocessing.normalise(self.unit),
        }
    }
}

/// The plan of an attack that may take so many seconds.
pub(super) fn plan(
    exported: &Exported,
    request: &Request,
    records: &Records,
    attack: &AnyAttack,
    (estimate, budget): (f64, f64),
) -> Result<Plan> {
    let name = attack.card().name;
    let twin = match attack.needs() {
        Kind::Gradient => {
            let local = exported.training.local.and_then(|local| local.batch);
            // A search for pixels is shown to work by fewer samples than algebra is.
            let most = if matches!(attack, AnyAttack::Gradinversion(_)) { TWIN_SEARCHED } else { TWIN_BATCH };
            let batch = exported.training.batch_size.unwrap_or(records.members).min(most).min(records.controls / 2);
            local.unwrap_or(batch.max(1))
        }
        _ => records.members.min(TWIN),
    };
    let smaller = match (records.shape.as_slice(), records.resize) {
        (_, Some([height, width])) | (&[_, height, width], None) => height.min(width),
        _ => 0,
    };
    let image = smaller > 7;
    let copies = ["analytic", "exact", "tensor"].contains(&name);
    let criterion = match usual_criterion(name) {
        // Of one's own records, which may have been rounded on their way to a file: a copy, whatever its last digits.
        _ if copies => r#"{ metric = "mse", below = 1e-4 }"#,
        // Of what is no picture, structure says nothing.
        text if !image && (text.contains("ssim") || text.contains("psnr")) => {
            r#"{ metric = "mse", threshold = "calibrated" }"#
        }
        text => text,
    };
    let criterion = toml::from_str::<toml::Table>(&format!("criterion = {criterion}"))
        .ok()
        .and_then(|mut table| table.remove("criterion")?.try_into().ok())
        .ok_or_else(|| AuditError::plan("score.criterion", "cannot be read", "report this"))?;
    // The window of the structural similarity is eleven pixels wide.
    let metrics = match smaller {
        0..=7 => vec![Metric::Mse],
        8..=10 => vec![Metric::Mse, Metric::Psnr],
        _ => vec![Metric::Mse, Metric::Psnr, Metric::Ssim],
    };
    let wide = matches!(attack.needs(), Kind::Weights | Kind::Degraded) && exported.theta.count() < 5_000_000;
    Ok(Plan {
        seed: request.seed,
        data: records.plan(exported, request, twin),
        network: network(exported, attack.needs()),
        victim: victim(exported, attack.needs()),
        attack: within(exported, attack, estimate, budget),
        score: ScorePlan {
            metrics,
            criterion,
            also: if copies { vec![1e-8] } else { Vec::new() },
            identify: Default::default(),
            alignments: Vec::new(),
            lpips: None,
        },
        compute: ComputePlan { dtype: if wide { DType::F64 } else { DType::F32 }, ..ComputePlan::default() },
    })
}

/// The attack with as many iterations as half of the budget allows: the other half is the twin's.
pub(super) fn within(exported: &Exported, attack: &AnyAttack, estimate: f64, budget: f64) -> AnyAttack {
    let batch = exported.training.batch_size.unwrap_or(1).max(1) as f64;
    let widest =
        exported.theta.specs().iter().filter_map(|spec| spec.shape.first()).max().map_or(1.0, |&units| units as f64);
    let share = (0.5 * budget / estimate.max(1e-6)).min(1.0);
    let mut attack = attack.clone();
    if let AnyAttack::Exact(settings) = &mut attack {
        // What is there is found at once; where noise hides it, all searches are made.
        let squared = 0.5 * budget / (SEARCH * batch.powi(3) * widest);
        settings.searches = (squared.sqrt() as usize).clamp(10, settings.searches.max(10));
    }
    if let Some((iterations, least)) = iterations(&mut attack) {
        *iterations = ((*iterations as f64 * share) as usize).clamp(least.min(*iterations), *iterations);
    }
    attack
}

/// The steps that an attack makes, of those whose number follows the budget.
pub(super) fn steps(attack: &AnyAttack) -> Option<usize> {
    iterations(&mut attack.clone()).map(|(iterations, _)| *iterations)
}

/// The number of an attack's steps, and the fewest worth making.
fn iterations(attack: &mut AnyAttack) -> Option<(&mut usize, usize)> {
    match attack {
        AnyAttack::Gradinversion(settings) => Some((&mut settings.iterations, 300)),
        AnyAttack::Kkt(settings) => Some((&mut settings.iterations, 1000)),
        AnyAttack::Unmix(settings) => Some((&mut settings.iterations, 600)),
        AnyAttack::Ntk(settings) => Some((&mut settings.iterations, 1000)),
        _ => None,
    }
}

/// The network. A twin whose weights are attacked starts its first layer near zero: so it must leak.
fn network(exported: &Exported, kind: Kind) -> NetworkPlan {
    let spec = exported.network.spec().clone();
    let first = spec.layers.iter().enumerate().find(|(_, layer)| matches!(layer.kind, LayerKind::Linear { .. }));
    let first = first.map(|(place, layer)| layer.name.clone().unwrap_or_else(|| place.to_string()));
    let small = first.filter(|_| kind == Kind::Weights).map(|layer| (layer, Init::Normal { std: 1e-4 }));
    NetworkPlan::Layers { spec, init: Init::Pytorch, init_of: small }
}

/// What is shared, and how a twin is made.
fn victim(exported: &Exported, kind: Kind) -> VictimPlan {
    let (loss, training) = (exported.loss(), &exported.training);
    match kind {
        Kind::Gradient => VictimPlan::Federated(FederatedPlan {
            batch: training.batch_size,
            gradient: exported.gradient.clone(),
            population: Default::default(),
            loss,
            pretrain: None,
            classes_as_numbers: None,
            weights: Some(exported.weights.clone()),
            clients: 1,
            mode: training.mode.unwrap_or_default(),
            local: training.local,
            mixup: 0.0,
            defence: Default::default(),
            share_defence: false,
            share_statistics: Default::default(),
            share_mode: training.mode.is_some(),
            reduction: training.reduction,
            share_batch_size: true,
            share_labels: false,
            share_preprocessing: true,
        }),
        Kind::Degraded => VictimPlan::Autoencoder(AutoencoderPlan {
            train: Recipe {
                update: UpdateRule::adam(1e-3),
                epochs: 6000,
                stop_loss: Some(1e-7),
                schedule: Schedule::Settle { from: 0.5 },
                ..Recipe::default()
            },
            weights: Some(exported.weights.clone()),
            start_weights: None,
            at_loss: None,
            rounding: None,
            degrade: Degrade::default(),
            damaged: None,
            share_mask: true,
            share_noise: true,
            share_preprocessing: true,
        }),
        _ => {
            let pair = kind == Kind::WeightPair;
            let classifies = matches!(loss, Loss::CrossEntropy | Loss::Logistic);
            let train = match (pair, classifies) {
                (false, true) => {
                    Recipe { normalised: true, epochs: 10_000, stop_loss: Some(1e-4), ..Recipe::default() }
                }
                (true, true) => {
                    Recipe { update: UpdateRule::sgd(0.01), epochs: 3000, stop_loss: Some(1e-2), ..Recipe::default() }
                }
                (_, false) => Recipe {
                    update: UpdateRule::Sgd { lr: 5e-4, momentum: 0.9 },
                    epochs: 20_000,
                    stop_loss: Some(1e-5),
                    ..Recipe::default()
                },
            };
            VictimPlan::Classifier(ClassifierPlan {
                loss,
                train,
                start_weights: exported.before.clone().filter(|_| pair),
                fresh_layers: Vec::new(),
                weights: Some(exported.weights.clone()),
                share: if pair { Shared::Checkpoints } else { Shared::Weights },
                rounding: None,
                before_epoch: 0,
                between_epochs: Vec::new(),
                before_weights: exported.before.clone().filter(|_| pair),
                share_preprocessing: true,
            })
        }
    }
}
