//! The command line.

use std::path::PathBuf;

use anyhow::Context;
use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand};

/// How much of a model's training data can be rebuilt from what you are about to share?
///
/// Runs published reconstruction attacks against a model or an update, and
/// reports sample by sample what came back, beside controls that say what
/// would have come back by chance. Audit only what you own or are authorised
/// to audit.
#[derive(Debug, Parser)]
#[command(version = crate::provenance::VERSION, arg_required_else_help = true, max_term_width = 100)]
#[command(after_help = "New here? `afterimage demo` shows every kind of leak on built-in data in a few minutes.")]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show every kind of leak on built-in data: a few minutes, one report
    Demo(DemoArgs),
    /// Print the script that exports a PyTorch model, or make a folder of a federated update
    Init(InitArgs),
    /// Recompute the probe of an exported model, and say which attacks fit it and what they take
    Check(CheckArgs),
    /// Run every attack that fits an exported model, within a budget: one report, worst verdict first
    Audit(AuditArgs),
    /// Follow a plan: make a victim, attack it, score what came back
    Run(RunArgs),
    /// Make the victim of a plan, and no attack: its weights, and what it would share
    Train(TrainArgs),
    /// Search an attack's settings at random, choose without the truth, merge what was found
    Sweep(SweepArgs),
    /// Distil records into few that stand for them, and train networks on those
    Distill(DistillArgs),
    /// Take away the records that are easiest to rebuild, train and attack again
    Onion(OnionArgs),
    /// Try what federated clients could be asked for: what each setting lets through, and what it costs
    Policy(PolicyArgs),
    /// Say how exposed each record of a plan will be, without training and without an attack
    Exposure(ExposureArgs),
    /// Attack an observation file; no truth is needed or used
    Attack(AttackArgs),
    /// Compare what an attack brought back with the records, and with controls
    Score(ScoreArgs),
    /// Make reports again from the files of runs, or one report over several
    Report(ReportArgs),
    /// Measure what would have stopped the leak of a run: the same attack on twins that defend themselves
    Defences(DefencesArgs),
    /// Remove what records could be seen in or rebuilt from; the numbers stay
    Purge(DirArgs),
    /// List the attacks
    List,
    /// Explain an attack: what it needs, what it cannot do, its settings
    Explain(ExplainArgs),
    /// Print completions for a shell: `afterimage completions bash > /etc/bash_completion.d/afterimage`
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write manual pages, one for each command, into a folder
    Man {
        /// The folder, made if it is not there
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

/// Networks are trained on built-in photographs and digits, what they share is attacked, and one page shows what came
/// back beside what chance gives. Nothing is needed and nothing leaves this machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: afterimage demo --quick --out shown")]
pub(crate) struct DemoArgs {
    /// The short version: smaller batches, one attack fewer
    #[arg(long)]
    pub(crate) quick: bool,
    /// Directory for what is made; a new one under runs/ if absent
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Go on where an interrupted one stopped
    #[arg(long, value_name = "DIR", conflicts_with_all = ["quick", "out"])]
    pub(crate) resume: Option<PathBuf>,
    /// Print what was shown, in numbers, on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// The first step with a model of one's own.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct InitArgs {
    #[command(subcommand)]
    pub(crate) what: InitWhat,
}

#[derive(Debug, Subcommand)]
pub(crate) enum InitWhat {
    /// Print a script that writes a PyTorch model as a folder: `afterimage init pytorch > afterimage_export.py`
    Pytorch,
    /// Make a folder of an update that a client sent: its change of the weights stands for a gradient
    Federated(FederatedArgs),
}

/// Files may be safetensors, .pth, .pt or .npz; arrays without names are taken in the order of PyTorch's state dict.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: afterimage init federated exported --base round-12.npz --update client-7.npz --lr 0.01 --steps 5 --out observed"
)]
pub(crate) struct FederatedArgs {
    /// Folder of the model, as the script of `init pytorch` writes it
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    /// Weights that the round began with; those of MODEL if absent
    #[arg(long, value_name = "FILE")]
    pub(crate) base: Option<PathBuf>,
    /// What the client sent
    #[arg(long, value_name = "FILE")]
    pub(crate) update: PathBuf,
    /// What its numbers are
    #[arg(long, value_enum, default_value = "weights")]
    pub(crate) sent: Sent,
    /// The client's learning rate; not needed for a gradient
    #[arg(long, required_unless_present = "sent", default_value_if("sent", "gradient", "1"))]
    pub(crate) lr: Option<f64>,
    /// The client's steps
    #[arg(long, default_value_t = 1)]
    pub(crate) steps: usize,
    /// Samples of a step, if not all
    #[arg(long)]
    pub(crate) step_batch: Option<usize>,
    /// Samples that the client trained on, if known
    #[arg(long)]
    pub(crate) batch_size: Option<usize>,
    /// The folder to write
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}

/// What an update's numbers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sent {
    /// Weights after the client's steps
    Weights,
    /// Their change, after less before
    Difference,
    /// A gradient
    Gradient,
}

/// The folder is what the script of `afterimage init pytorch` writes; docs/own-model.md says what is in it.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// Folder of the model
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// How many records it was trained on, if training.toml does not say
    #[arg(long)]
    pub(crate) members: Option<usize>,
    /// Print what was found on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// Members and controls are read from any data `afterimage run` reads. Without either, the gradient of a client is judged by
/// what provably reproduces it alone.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a gate tripped, \
    4 a gate was asked for and the verdict is inconclusive, 130 stopped by Ctrl-C.\n\n\
    Example: afterimage audit exported --members train/ --controls held-out/ --budget 10m --fail-on reconstructed")]
pub(crate) struct AuditArgs {
    /// Folder of the model
    #[arg(value_name = "DIR", required_unless_present = "resume")]
    pub(crate) dir: Option<PathBuf>,
    /// Records it was trained on
    #[arg(long, value_name = "DATA")]
    pub(crate) members: Option<PathBuf>,
    /// Records of the same kind that it never saw: 400 if there are so many
    #[arg(long, value_name = "DATA")]
    pub(crate) controls: Option<PathBuf>,
    /// A csv file with one group (person, patient, scene) for each record, members first
    #[arg(long, value_name = "CSV")]
    pub(crate) groups: Option<PathBuf>,
    /// Time that all attacks may take together: 90s, 10m, 2h; a number alone is seconds; `none`: all steps of each, whatever
    /// they take, which are the same on every machine [default: 10m; of what is gone on with, what it had]
    #[arg(long, value_name = "TIME", value_parser = budget)]
    pub(crate) budget: Option<f64>,
    /// Seed of every random number
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    pub(crate) seed: u64,
    /// Directory for what is made; a new one under runs/ if absent
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Go on with an audit, with another budget if one is given; what is done stays, and what named nobody is made again where time is left
    #[arg(long, value_name = "DIR", conflicts_with_all = ["dir", "members", "controls", "groups", "out", "seed"])]
    pub(crate) resume: Option<PathBuf>,
    /// Print the summary on standard output
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) gate: GateArgs,
}

/// Seconds of `90s`, `10m` or `2h`.
fn duration(text: &str) -> Result<f64, String> {
    let (number, unit) = text.split_at(text.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(text.len()));
    let factor = match unit {
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err("write 90s, 10m or 2h".into()),
    };
    match number.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok((number * factor).min(UNLIMITED)),
        _ => Err("write 90s, 10m or 2h".into()),
    }
}

/// Seconds that nothing takes: thirty years.
const UNLIMITED: f64 = 1e9;

/// The same, or `none`.
fn budget(text: &str) -> Result<f64, String> {
    match text {
        "none" => Ok(UNLIMITED),
        _ => duration(text).map_err(|problem| format!("{problem}, or none")),
    }
}

/// Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a gate tripped, 4 a gate was
/// asked for and the verdict is inconclusive, 130 stopped by Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a gate tripped, \
    4 a gate was asked for and the verdict is inconclusive, 130 stopped by Ctrl-C.\n\n\
    Example: afterimage run plans/analytic.toml --seed 1 --set data.source=builtin:digits")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) task: TaskArgs,
    /// Print the findings (of a figure, its numbers) on standard output
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) gate: GateArgs,
}

/// What `run` begins with, by itself: `run --resume` with the same directory attacks it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: afterimage train plans/autoencoder/digits-20.toml --out trained\n\
    Then: afterimage run --resume trained, or in any plan of the same network victim.weights = \"trained/weights.safetensors\"")]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub(crate) task: TaskArgs,
}

/// Trials at settings drawn at random are run for a few iterations; those that explain
/// most of the weights go on with more; what the last round found is merged and scored.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A plan may have a section [sweep]: trials, rounds, keep, and ranges, \"released\" or \"paper\" for kkt,\n\
    \"none\" for restarts at the plan's own settings, or a list of { key = \"attack.lr\", from = 1e-5, to = 1.0, log = true }. The last round has the plan's\n\
    attack.iterations, each earlier one fewer by the factor `keep`.\n\n\
    Example: afterimage sweep plans/kkt/photos-20.toml --trials 27 --jobs 2"
)]
pub(crate) struct SweepArgs {
    #[command(flatten)]
    pub(crate) task: TaskArgs,
    /// Settings to draw; the plan's own number, or 27, if absent
    #[arg(long, conflicts_with = "resume")]
    pub(crate) trials: Option<usize>,
    /// Trials that run at a time; they share the cores
    #[arg(long, default_value_t = 1)]
    pub(crate) jobs: usize,
    /// Print the findings on standard output
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) gate: GateArgs,
}

/// |α| of each record: the weight it gets in the change of the weights, K⁻¹(y − f) at the start of training, with
/// K the network's tangent kernel. Records with a large one are what an attack from two checkpoints rebuilds first.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: afterimage exposure plans/ntk/digits-20.toml")]
pub(crate) struct ExposureArgs {
    /// The plan; of its sections, data, network and victim are used
    #[arg(value_name = "PLAN.toml")]
    pub(crate) plan: PathBuf,
    /// Change a key of the plan; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) changes: Vec<String>,
    /// Seed of every random number; the plan's own if absent
    #[arg(long, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    pub(crate) seed: Option<u64>,
}

/// Rebuilding fewer records than there were is distilling them (Loo et al., 2023): KIP, RKIP, RKIP-finite.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The plan has the sections [data] (members are distilled, accuracy is measured on controls), [network]\n\
    (what is trained on the distilled records), [distill] and [compute]. Every set is kept as pictures, .npz and .safetensors.\n\n\
    Example: afterimage distill plans/distill/mnist-500-20.toml --set data.source=train-images-idx3-ubyte.gz"
)]
pub(crate) struct DistillArgs {
    #[command(flatten)]
    pub(crate) task: TaskArgs,
    /// Print the accuracies on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// Loo et al. (2023), section 6.2: with the easiest records gone, others become easy.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The plan is one that `run` takes, with a section [onion]: rounds, remove (records after each), by\n\
    ([\"reconstruction\", \"random\"]), balanced, and width (times the root of the records) and lr (times the records).\n\n\
    Example: afterimage onion plans/ntk/onion-digits.toml"
)]
pub(crate) struct OnionArgs {
    #[command(flatten)]
    pub(crate) task: TaskArgs,
    /// Print the rounds on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// Batch size, steps, clients averaged, noise and clipping, all with all, on proxy data: one table.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The plan is one that `run` takes, of a federated client, with a section [policy]: batches, steps, clients, noise,\n\
    clip, attacks, seeds, records, rounds and lr.\n\n\
    Example: afterimage policy plans/federated/policy.toml"
)]
pub(crate) struct PolicyArgs {
    #[command(flatten)]
    pub(crate) task: TaskArgs,
    /// Print the settings on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// A plan to be followed from its start, or a directory where that stopped.
#[derive(Debug, clap::Args)]
pub(crate) struct TaskArgs {
    /// The plan
    #[arg(required_unless_present = "resume", value_name = "PLAN.toml")]
    pub(crate) plan: Option<PathBuf>,
    /// Change a key of the plan; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) changes: Vec<String>,
    /// Seed of every random number; the plan's own if absent
    #[arg(long, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    pub(crate) seed: Option<u64>,
    /// cpu or cuda:0; the plan's own if absent
    #[arg(long)]
    pub(crate) device: Option<String>,
    /// Directory for what is made; a new one under runs/ if absent
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Go on where an interrupted one stopped, to the same result; what is done is not done again
    #[arg(long, value_name = "DIR", conflicts_with_all = ["plan", "changes", "seed", "device", "out"])]
    pub(crate) resume: Option<PathBuf>,
}

impl TaskArgs {
    /// Changes of the plan: `--set`, then `--seed` and `--device`.
    pub(crate) fn changes(&self) -> Vec<String> {
        let seed = self.seed.map(|seed| format!("seed={seed}"));
        let device = self.device.as_ref().map(|device| format!("compute.device=\"{device}\""));
        self.changes.iter().cloned().chain(seed).chain(device).collect()
    }

    /// The plan.
    pub(crate) fn plan(&self) -> anyhow::Result<&PathBuf> {
        self.plan.as_ref().context("no plan was given")
    }
}

/// A verdict that a gate trips on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum FailOn {
    /// Training records were rebuilt
    Reconstructed,
    /// Training records were rebuilt, or left traces
    Traces,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AttackArgs {
    /// Name of the attack, `afterimage list` shows them; or `rowspace`: how many samples there were
    #[arg(required_unless_present = "resume", value_parser = attacks(), hide_possible_values = true)]
    pub(crate) name: Option<String>,
    /// What the attacker sees
    #[arg(long, value_name = "FILE.safetensors", required_unless_present = "resume")]
    pub(crate) observation: Option<PathBuf>,
    /// Seed of every random number
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    pub(crate) seed: u64,
    /// Directory for the reconstruction; a new one under runs/ if absent
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Change a setting of the attack; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) changes: Vec<String>,
    /// With `rowspace`: records to be looked for among the samples
    #[arg(long, value_name = "FILE")]
    pub(crate) candidates: Option<PathBuf>,
    /// Go on with an interrupted attack
    #[arg(long, value_name = "DIR", conflicts_with_all = ["name", "observation", "out", "changes"])]
    pub(crate) resume: Option<PathBuf>,
    /// cpu or cuda:0
    #[arg(long, default_value = "cpu")]
    pub(crate) device: String,
}

/// What `afterimage attack` rebuilt is compared with records it never saw.
#[derive(Debug, clap::Args)]
#[command(after_help = "Records are read from any data `afterimage run` reads: idx, CIFAR .bin, .npy, .npz, .csv,\n\
    image folders; or from a safetensors file with `x` (and `y`, `control_x`, `control_y`).\n\n\
    Example: afterimage score runs/mine --truth members.npz --controls others.npz")]
pub(crate) struct ScoreArgs {
    /// Directory of a run or of an attack
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// The records that were trained on; the run's own if absent
    #[arg(long, value_name = "FILE")]
    pub(crate) truth: Option<PathBuf>,
    /// Records that were not; half of them calibrate, half test
    #[arg(long, value_name = "FILE", requires = "truth")]
    pub(crate) controls: Option<PathBuf>,
    /// Change a rule of the score, such as score.criterion; noted in the findings
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) changes: Vec<String>,
    /// Print the findings on standard output
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) gate: GateArgs,
}

/// Names of attacks, known to completions too.
fn attacks() -> PossibleValuesParser {
    PossibleValuesParser::new(crate::commands::cards::names())
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (0.0..=1.0).contains(&rate) => Ok(rate),
        _ => Err("a rate lies between 0 and 1".into()),
    }
}

/// Gates for build pipelines.
#[derive(Debug, clap::Args)]
pub(crate) struct GateArgs {
    /// Exit with 3 if the verdict is this or worse
    #[arg(long, value_name = "VERDICT")]
    pub(crate) fail_on: Option<FailOn>,
    /// Exit with 3 if the lower 95 % bound of recovered/members is above this
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) fail_above: Option<f64>,
}

/// Batch size, noise, clipping, pruning, rounding, early stopping, steps at the client: whatever the victim can do.
#[derive(Debug, clap::Args)]
pub(crate) struct DefencesArgs {
    /// Directory of a run that followed a plan
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// Time for all of them together: 90s, 10m, 2h; a number alone is seconds
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    pub(crate) budget: f64,
    /// Print what was measured on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReportArgs {
    /// Directories of runs
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<PathBuf>,
    /// Judge the runs together: a report over all of them, summary.json and SARIF in this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DirArgs {
    /// Directories of runs
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    /// Name of the attack; without one, all are listed
    #[arg(value_parser = attacks())]
    pub(crate) name: Option<String>,
}
