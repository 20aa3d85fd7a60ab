//! From records to distilled sets to accuracies, one file a set.

use std::time::Instant;

use afterimage_attacks::ntk::Ntk;
use afterimage_attacks::{Attack, Descent, Model, PairSeen, Problem, Session, Stop, Variable};
use afterimage_nn::io::TensorFile;
use afterimage_nn::optim::UpdateRule;
use afterimage_nn::tangent::InfiniteWidth;
use afterimage_nn::{DType, Device, InitSpec, Loss, Network, Params, Stream, Tensor};
use serde::{Deserialize, Serialize};

use super::kernel::Kernel;
use super::objective::{Kip, Labelled, Rkip};
use super::plan::{DistillPlan, KernelKind, Method};
use super::retrain::{Accuracy, linearised, regression, trained};
use crate::accuracy::Test;
use crate::data::in_turn;
use crate::hooks::Watched;
use crate::pipeline::{Watcher, hash};
use crate::run_dir::RunDir;
use crate::truth::Truth;
use crate::victim::{Draw, values_of};
use crate::{AuditError, Result, export};

/// One set and what is learnt from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// How it was made.
    pub method: Method,
    /// Records that were asked for.
    pub size: usize,
    /// Records it has: those of `rkip-finite` that are alike are one.
    pub kept: usize,
    /// The seed it was made with.
    pub seed: u64,
    /// Hash of the plan: a row of another plan is not taken for this one.
    pub plan_sha256: String,
    /// What is learnt from it.
    pub accuracy: Accuracy,
    /// The loss it ended with, where one was minimised.
    pub loss: Option<f64>,
    /// Seconds it took to make.
    pub seconds: f64,
}

/// A finished distillation: `distillation.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Number of the schema.
    pub schema: u32,
    /// Name and version of the program.
    pub tool: String,
    /// Records that were distilled.
    pub records: usize,
    /// Records that accuracy was measured on.
    pub tested: usize,
    /// One for each set.
    pub rows: Vec<Row>,
}

/// A set as a page shows it.
pub struct Distilled {
    /// Of which row.
    pub row: Row,
    /// Its records as pixels.
    pub pixels: Tensor,
    /// The values that outputs should have.
    pub values: Tensor,
}

const ROWS: &str = "rows.jsonl";
/// Of the networks that are trained on sets: none has the start of the one that was attacked.
const RETRAINED: u64 = 0x5e7_5e7;

/// Fails, before anything is written, if a plan cannot be followed.
pub fn check(plan: &DistillPlan) -> Result<()> {
    plan.compute.check()?;
    Work::new(plan, plan.seed).map(drop)
}

/// Follows a plan, from wherever the directory says it got to; `date` is written on the page. `None` if it was asked
/// to stop: sets that are done are kept.
pub fn run(plan: &DistillPlan, date: &str, dir: &RunDir, watcher: &mut dyn Watcher) -> Result<Option<Table>> {
    plan.compute.prepare();
    let plan_sha256 = hash(plan.to_toml()?.as_bytes());
    let earlier: Vec<Row> = dir.read_lines(ROWS)?;
    let mut rows: Vec<Row> = Vec::new();
    let mut shown = Vec::new();
    for index in 0..plan.distill.runs {
        let seed = plan.seed.wrapping_add(index as u64);
        let mut work: Option<Work> = None;
        for (method, size) in sets(plan) {
            let name = format!("{}-{size}-{seed}", method.name());
            let file = format!("sets/{name}.safetensors");
            let own =
                |row: &&Row| (row.method, row.size, row.seed, &row.plan_sha256) == (method, size, seed, &plan_sha256);
            let row = match earlier.iter().find(own).filter(|_| dir.has(&file)) {
                Some(done) => done.clone(),
                None => {
                    watcher.stage(&name);
                    let work = match &mut work {
                        Some(work) => work,
                        none => none.insert(Work::new(plan, seed)?),
                    };
                    let Some((set, row)) = work.made(method, size, &plan_sha256, watcher)? else {
                        return Ok(None);
                    };
                    dir.inside("sets")?;
                    let pixels = work.truth.preprocess.undo(&set.x)?;
                    let mut tensors = TensorFile::default();
                    tensors.tensors.insert("pixels".into(), pixels.clone());
                    tensors.tensors.insert("y".into(), set.y.clone());
                    tensors.write(dir.file(&file))?;
                    dir.write(&format!("sets/{name}.npz"), &export::npz(&[("x", &pixels), ("y", &set.y)])?)?;
                    if let Some(png) = export::contact_sheet(&pixels)? {
                        dir.write(&format!("sets/{name}.png"), &png)?;
                    }
                    let line =
                        serde_json::to_string(&row).map_err(|error| AuditError::file(dir.path(), error.to_string()))?;
                    dir.append(ROWS, &line)?;
                    row
                }
            };
            if index == 0 && method != Method::Full {
                let mut tensors = TensorFile::read(dir.file(&file))?.tensors;
                let mut take = |name: &str| {
                    tensors.remove(name).ok_or_else(|| AuditError::file(&dir.file(&file), format!("has no `{name}`")))
                };
                shown.push(Distilled { row: row.clone(), pixels: take("pixels")?, values: take("y")? });
            }
            rows.push(row);
        }
    }
    watcher.stage("report");
    let records = plan.data.members;
    // There may be fewer than the plan asks for.
    let tested = Draw::new(&plan.data, plan.seed)?.controls();
    let table = Table { schema: 1, tool: crate::tool(), records, tested, rows };
    dir.write_json("distillation.json", &table)?;
    dir.write("report.html", export::distillation_page(plan, &table, &shown, date).as_bytes())?;
    Ok(Some(table))
}

/// Every set of a run: all records once, the others at every size.
fn sets(plan: &DistillPlan) -> Vec<(Method, usize)> {
    let full = plan.distill.methods.iter().filter(|method| **method == Method::Full);
    let others = plan.distill.methods.iter().filter(|method| **method != Method::Full);
    let sizes = &plan.distill.sizes;
    full.map(|&method| (method, plan.data.members))
        .chain(sizes.iter().flat_map(|&size| others.clone().map(move |&method| (method, size))))
        .collect()
}

/// One repetition: its records, its networks.
struct Work<'a> {
    plan: &'a DistillPlan,
    seed: u64,
    truth: Truth,
    all: Labelled,
    test: Test,
    network: Network,
    init: InitSpec,
    /// The network that was trained on all records, with its start.
    teacher: Option<(Params, Params)>,
}

impl<'a> Work<'a> {
    fn new(plan: &'a DistillPlan, seed: u64) -> Result<Self> {
        let truth = Draw::new(&plan.data, seed)?.truth(DType::F64)?;
        let (spec, init) = plan.network.build(truth.shape());
        let network = Network::new(spec)?;
        let inputs = |pixels: &Tensor| -> Result<Tensor> {
            let x = truth.preprocess.apply(pixels)?;
            Ok(x.reshape(&network.batch_shape(x.rows()))?)
        };
        let outputs: usize = network.output_shape().iter().product();
        let classes = if outputs == 1 { 2 } else { outputs };
        if let Some(label) = truth.members.labels.iter().chain(&truth.controls.labels).find(|label| **label >= classes)
        {
            let problem = format!("class {label} is out of range: the network tells {classes} classes apart");
            return Err(AuditError::plan("data.relabel", problem, "relabel, or give the network more outputs"));
        }
        if plan.distill.kernel == KernelKind::Empirical && outputs > 1 {
            let problem = "\"empirical\" is for networks with one output".to_owned();
            return Err(AuditError::plan("distill.kernel", problem, "use \"infinite\", or one output"));
        }
        let y = values_of(&truth.members.labels, outputs);
        let y = Tensor::from_f64(&y, &[truth.members.labels.len(), outputs], DType::F64)?;
        let all = Labelled { x: inputs(&truth.members.pixels)?, y };
        let test = Test { x: inputs(&truth.controls.pixels)?, labels: truth.controls.labels.clone() };
        if test.labels.is_empty() {
            return Err(AuditError::plan("data.controls", "is 0: nothing to measure accuracy on", "ask for some"));
        }
        Ok(Self { plan, seed, truth, all, test, network, init, teacher: None })
    }

    fn outputs(&self) -> usize {
        self.all.y.row_len()
    }

    fn start(&self, seed: u64) -> Result<Params> {
        let theta = self.network.init(&self.init, seed, self.plan.compute.dtype)?;
        Ok(theta.to_device(self.plan.compute.device()?)?)
    }

    /// Makes a set and learns from it; `None` if it was stopped.
    fn made(
        &mut self,
        method: Method,
        size: usize,
        plan_sha256: &str,
        watcher: &mut dyn Watcher,
    ) -> Result<Option<(Labelled, Row)>> {
        let started = Instant::now();
        let settings = &self.plan.distill;
        if matches!(method, Method::Full | Method::RkipFinite) && self.teacher.is_none() {
            watcher.stage("the network on all records");
            let start = self.start(self.seed)?;
            let observe = &mut |tick| watcher.tick(tick);
            let Some(theta) = trained(&self.network, &start, &self.all, &settings.teacher, self.seed, observe)? else {
                return Ok(None);
            };
            self.teacher = Some((start, theta));
        }
        let (set, loss) = match method {
            Method::Full => (self.all.clone(), None),
            Method::Random => (self.random(size)?, None),
            Method::Kip | Method::Rkip => match self.minimised(method, size, watcher)? {
                Some((set, loss)) => (set, Some(loss)),
                None => return Ok(None),
            },
            Method::RkipFinite => match self.rebuilt(size, watcher)? {
                Some((set, loss)) => (set, loss),
                None => return Ok(None),
            },
        };
        let seconds = started.elapsed().as_secs_f64();
        let Some(accuracy) = self.learnt(method, &set, watcher)? else { return Ok(None) };
        let plan_sha256 = plan_sha256.to_owned();
        let kept = set.x.rows();
        let row = Row { method, size, kept, seed: self.seed, plan_sha256, accuracy, loss, seconds };
        Ok(Some((set, row)))
    }

    /// Labels in turn, with the values that outputs should have.
    fn labels(&self, size: usize) -> Result<Tensor> {
        let classes = self.outputs().max(2);
        let labels: Vec<usize> = (0..size).map(|index| index % classes).collect();
        Ok(Tensor::from_f64(&values_of(&labels, self.outputs()), &[size, self.outputs()], DType::F64)?)
    }

    /// So many records at random, as many of each label as can be.
    fn random(&self, size: usize) -> Result<Labelled> {
        let order = Stream::new(self.seed, "distill/random", 0).permutation(self.all.x.rows());
        let mut chosen = in_turn(&order, &self.truth.members.labels);
        chosen.truncate(size);
        Ok(Labelled { x: self.all.x.select_rows(&chosen)?, y: self.all.y.select_rows(&chosen)? })
    }

    fn kernel(&self) -> Result<Kernel> {
        Ok(match self.plan.distill.kernel {
            KernelKind::Infinite => self.infinite(),
            KernelKind::Empirical => {
                let theta = self.network.init(&self.init, self.seed, DType::F64)?;
                Kernel::Empirical { network: Box::new(self.network.clone()), theta }
            }
        })
    }

    fn infinite(&self) -> Kernel {
        Kernel::Infinite(InfiniteWidth { hidden: self.plan.distill.hidden, weight_std: 1.0 })
    }

    /// KIP or RKIP, by Adam from noise.
    fn minimised(&self, method: Method, size: usize, watcher: &mut dyn Watcher) -> Result<Option<(Labelled, f64)>> {
        let settings = &self.plan.distill;
        let (kernel, y) = (self.kernel()?, self.labels(size)?);
        let mut problem: Box<dyn Problem> = match method {
            Method::Kip => Box::new(Kip::new(&kernel, &self.all, y.clone(), settings.ridge)),
            _ => Box::new(Rkip::new(&kernel, &self.all, y.clone(), settings.ridge)?),
        };
        let mut hooks = Watched(watcher);
        let mut session = Session::new(self.seed, &mut hooks);
        let shape = self.network.batch_shape(size);
        let start = session.stream("distill", size as u64).normal_tensor(settings.sigma, &shape, DType::F64)?;
        let x = Variable { name: "x".into(), start, update: UpdateRule::adam(settings.lr) };
        let descent = Descent { iterations: settings.iterations, ..Descent::default() };
        let found = descent.run(&[x], &mut *problem, &mut session)?;
        Ok((found.stop != Stop::Interrupted).then(|| (Labelled { x: found.values[0].clone(), y }, found.loss)))
    }

    /// What the attack finds in the network that was trained on all records; labels y = K₀ α, which
    /// is ⟨Δθ, ∇f(x)⟩ at the start, by how much the change moves the outputs there.
    fn rebuilt(&self, size: usize, watcher: &mut dyn Watcher) -> Result<Option<(Labelled, Option<f64>)>> {
        let Some((start, theta)) = &self.teacher else {
            return Err(AuditError::plan("distill.methods", "rkip-finite has no network to look at", "report this"));
        };
        let model = Model {
            network: self.network.clone(),
            theta: theta.clone(),
            loss: Some(Loss::HalfSquared),
            preprocess: Some(self.truth.preprocess.clone()),
        };
        let seen = PairSeen { model, before: start.clone(), between: Vec::new() };
        // The zeros of the change would show the records themselves, and as many as there are.
        let attack = Ntk { candidates: Some(size), zeros: false, ..self.plan.distill.search.clone() };
        let mut hooks = Watched(watcher);
        let found = attack.reconstruct(&seen, &mut Session::new(self.seed, &mut hooks))?;
        if found.stop == Stop::Interrupted {
            return Ok(None);
        }
        let x = found.samples.to_dtype(start.dtype())?.to_device(start.device())?;
        let y = self.network.pass(start, &x)?.outputs_along(&theta.sub(start)?)?;
        let [x, y] = [x, y].map(|part| part.to_dtype(DType::F64)?.to_device(Device::Cpu));
        let (x, y) = (x?, y?);
        let y = y.reshape(&[x.rows(), self.outputs()])?;
        Ok(Some((Labelled { x, y }, found.trace.last().map(|point| point.loss))))
    }

    /// What networks learn from a set; `None` if it was stopped.
    fn learnt(&self, method: Method, set: &Labelled, watcher: &mut dyn Watcher) -> Result<Option<Accuracy>> {
        let settings = &self.plan.distill;
        let start = self.start(self.seed ^ RETRAINED)?;
        let theta = match (method, &self.teacher) {
            (Method::Full, Some((_, theta))) => theta.clone(),
            _ => {
                watcher.stage(&format!("a network on {} ({})", set.x.rows(), method.name()));
                let observe = &mut |tick| watcher.tick(tick);
                match trained(&self.network, &start, set, &settings.retrain, self.seed ^ RETRAINED, observe)? {
                    Some(theta) => theta,
                    None => return Ok(None),
                }
            }
        };
        let forward = |x: &Tensor| -> Result<Tensor> {
            let x = x.to_dtype(theta.dtype())?.to_device(theta.device())?;
            Ok(self.network.forward(&theta, &x)?)
        };
        Ok(Some(Accuracy {
            standard: self.test.accuracy(forward)?,
            linearised: self.test.accuracy(linearised(&self.network, &start, set, settings.ridge)?)?,
            infinite: self.test.accuracy(regression(&self.infinite(), set, settings.ridge)?)?,
        }))
    }
}
