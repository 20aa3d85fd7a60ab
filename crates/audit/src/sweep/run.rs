//! Runs the trials of a sweep, several at a time, round by round.

use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use afterimage_attacks::{
    AttackError, Hooks, Observation, Reconstruction, Session, Stop, Tick, confidence, explained, merged,
};
use serde::{Deserialize, Serialize};

use super::SweepPlan;
use crate::pipeline::{OBSERVATION, RECONSTRUCTION, TRUTH, Watcher};
use crate::plan::Plan;
use crate::run_dir::RunDir;
use crate::score::{Scoring, score};
use crate::{AuditError, Result, Truth};

/// A trial in a round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The round, from 0.
    pub round: usize,
    /// The trial, from 0.
    pub trial: usize,
    /// What it changes.
    pub settings: Vec<String>,
    /// How much of the weights its candidates explain, told without the truth; none if it failed.
    /// Trials go on by it.
    pub explained: Option<f64>,
    /// Mean confidence in its surer half of candidates.
    pub confidence: Option<f64>,
    /// Why it failed, if it did.
    pub failure: Option<String>,
    /// Seconds it took.
    pub seconds: f64,
    /// Whether it went on, or into the merged reconstruction.
    pub kept: bool,
    /// Members rebuilt by it alone. Told by the truth: no attacker knows it, and nothing is chosen by it.
    pub oracle_recovered: Option<usize>,
}

/// All trials.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// By round, surest first.
    pub rows: Vec<Row>,
    /// The most members any one trial of the last round rebuilt: what choosing by the truth
    /// would have given. An upper bound, not a result.
    pub oracle_upper_bound: Option<usize>,
}

/// Tells a trial of the wish to stop; a trial that was stopped is run again.
struct TrialHooks<'a>(&'a AtomicBool);

impl Hooks for TrialHooks<'_> {
    fn tick(&mut self, _: Tick) -> ControlFlow<()> {
        if self.0.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Runs a sweep on the observation of a directory, from wherever it got to, and leaves
/// the merged reconstruction there; `None` if it was stopped. `base` is the plan
/// without the sweep; `jobs` trials run at a time and share the threads.
pub fn run(
    sweep: &SweepPlan,
    base: &str,
    dir: &RunDir,
    jobs: usize,
    watcher: &mut dyn Watcher,
) -> Result<Option<Table>> {
    let plan = Plan::parse(base, &[])?;
    plan.compute.prepare();
    let observation = Observation::read(dir.file(OBSERVATION), plan.compute.device()?)?;
    let trials = dir.inside("trials")?;
    let mut rows = Vec::new();
    let mut alive: Vec<usize> = (0..sweep.trials).collect();
    let mut last = Vec::new();
    for round in 0..sweep.rounds {
        watcher.stage(&format!("round {} of {}, {} trials", round + 1, sweep.rounds, alive.len()));
        let plans: Vec<Plan> =
            alive.iter().map(|&trial| Ok(sweep.trial(base, round, trial)?.1)).collect::<Result<_>>()?;
        let names: Vec<String> = alive.iter().map(|trial| format!("{round}-{trial:04}")).collect();
        let work = Work { plans: &plans, names: &names, observation: &observation, trials: &trials };
        if !work.all(jobs, watcher)? {
            return Ok(None);
        }
        let done: Vec<Trial> = names.iter().map(|name| Trial::read(&trials, name)).collect::<Result<_>>()?;
        let (surest, mut found) = ranked(sweep, base, round, &alive, done, &observation)?;
        let next = if round + 1 < sweep.rounds { sweep.count(round + 1) } else { alive.len() };
        let going: Vec<usize> = surest.iter().copied().filter(|&i| found[i].0.failure.is_none()).take(next).collect();
        for &i in &going {
            found[i].0.kept = true;
        }
        if !going.is_empty() {
            last = going.iter().filter_map(|&i| found[i].1.take()).collect();
            alive = going.iter().map(|&i| alive[i]).collect();
        }
        rows.extend(surest.iter().map(|&i| found[i].0.clone()));
        if going.is_empty() && !last.is_empty() {
            watcher.warn("every trial of this round failed; what the round before it found is merged");
            break;
        }
        if going.is_empty() {
            let reason = rows.iter().find_map(|row| row.failure.clone()).unwrap_or_default();
            return Err(AuditError::plan(
                "sweep",
                format!("every trial failed; the first: {reason}"),
                "narrow its ranges",
            ));
        }
    }
    watcher.stage("merge");
    let oracle = oracle(&plan, dir, &last)?;
    let merged_round = rows.iter().filter(|row| row.kept).map(|row| row.round).max();
    for (row, recovered) in rows.iter_mut().filter(|row| Some(row.round) == merged_round && row.kept).zip(&oracle) {
        row.oracle_recovered = Some(*recovered);
    }
    let table = Table { oracle_upper_bound: oracle.into_iter().max(), rows };
    if let Some(mut merged) = merged(&last)? {
        merged
            .notes
            .push("a twin, where one is needed, is attacked at the plan's own settings, not by the sweep".into());
        merged.write(dir.file(RECONSTRUCTION))?;
        dir.seal(RECONSTRUCTION)?;
    }
    dir.write_json(
        "timing.json",
        &serde_json::json!({ "seconds": table.rows.iter().map(|row| row.seconds).sum::<f64>() }),
    )?;
    dir.write("sweep.csv", csv(&table).as_bytes())?;
    // Last: with it the sweep is done.
    dir.write_json("sweep.json", &table)?;
    Ok(Some(table))
}

/// What is kept of a trial until its round is over.
struct Trial {
    rebuilt: Option<Reconstruction>,
    note: Note,
}

#[derive(Serialize, Deserialize)]
struct Note {
    failure: Option<String>,
    seconds: f64,
}

impl Trial {
    fn read(trials: &RunDir, name: &str) -> Result<Self> {
        let note: Note = trials.read_json(&format!("{name}.json"))?;
        let rebuilt = match note.failure {
            None => Some(Reconstruction::read(trials.file(&format!("{name}.safetensors")))?),
            Some(_) => None,
        };
        Ok(Self { rebuilt, note })
    }
}

/// Counts a thread that ends, whichever way it does.
struct Leaving<'a>(&'a AtomicUsize);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// Trials of a round, to be run.
struct Work<'a> {
    plans: &'a [Plan],
    names: &'a [String],
    observation: &'a Observation,
    trials: &'a RunDir,
}

impl Work<'_> {
    /// Runs those that are not done; false if it was stopped.
    fn all(&self, jobs: usize, watcher: &mut dyn Watcher) -> Result<bool> {
        let (next, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (stop, failed) = (AtomicBool::new(false), Mutex::new(None));
        let jobs = jobs.clamp(1, self.plans.len().max(1));
        let threads = (rayon::current_num_threads() / jobs).max(1);
        std::thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(|| {
                    let _finished = Leaving(&finished);
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                    while !stop.load(Ordering::Relaxed) {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        if index >= self.plans.len() {
                            break;
                        }
                        let mut hooks = TrialHooks(&stop);
                        let done = match &pool {
                            Ok(pool) => pool.install(|| self.one(index, &mut hooks)),
                            Err(_) => self.one(index, &mut hooks),
                        };
                        if let Err(error) = done {
                            stop.store(true, Ordering::Relaxed);
                            if let Ok(mut failed) = failed.lock() {
                                *failed = Some(error);
                            }
                        }
                    }
                });
            }
            let total = self.plans.len();
            while finished.load(Ordering::Acquire) < jobs {
                std::thread::sleep(Duration::from_millis(50));
                let begun = next.load(Ordering::Relaxed).min(total);
                if watcher.tick(Tick { iteration: begun, total, loss: None }).is_break() {
                    stop.store(true, Ordering::Relaxed);
                }
            }
        });
        match failed.into_inner() {
            Ok(Some(error)) => Err(error),
            _ => Ok(!stop.load(Ordering::Relaxed)),
        }
    }

    /// One trial, unless it is done.
    fn one(&self, index: usize, hooks: &mut TrialHooks<'_>) -> Result<()> {
        let (plan, name) = (&self.plans[index], &self.names[index]);
        if self.trials.has(&format!("{name}.json")) {
            return Ok(());
        }
        let started = Instant::now();
        let found = plan.attack.run(self.observation, &mut Session::new(plan.seed, hooks));
        let seconds = started.elapsed().as_secs_f64();
        let failure = match found {
            Ok(rebuilt) if rebuilt.stop == Stop::Interrupted => return Ok(()),
            Ok(rebuilt) => {
                let file = format!("{name}.safetensors");
                rebuilt.write(self.trials.file(&file))?;
                self.trials.seal(&file)?;
                None
            }
            // No setting makes the method fit.
            Err(error @ AttackError::NotApplicable { .. }) => return Err(error.into()),
            // Settings may be too wild; that is a fact about the trial.
            Err(error) => Some(error.to_string()),
        };
        // The note last: a trial with a note is done.
        self.trials.write_json(&format!("{name}.json"), &Note { failure, seconds })
    }
}

type Ranked = (Vec<usize>, Vec<(Row, Option<Reconstruction>)>);

/// The trials of a round with confidence in each, and their order, surest first.
fn ranked(
    sweep: &SweepPlan,
    base: &str,
    round: usize,
    alive: &[usize],
    done: Vec<Trial>,
    observation: &Observation,
) -> Result<Ranked> {
    let mut found = Vec::new();
    let judged: Vec<std::result::Result<(f64, Vec<f64>), String>> = (0..done.len())
        .map(|i| {
            let Some(own) = &done[i].rebuilt else { return Err(done[i].note.failure.clone().unwrap_or_default()) };
            let others: Vec<&Reconstruction> =
                (0..done.len()).filter(|&other| other != i).filter_map(|other| done[other].rebuilt.as_ref()).collect();
            // Candidates too wild to be judged are a fact about the trial, too.
            let model = observation.model();
            let both = explained(model, own).and_then(|part| Ok((part, confidence(model, own, &others)?)));
            both.map_err(|error| error.to_string())
        })
        .collect();
    for ((Trial { mut rebuilt, note }, judged), &trial) in done.into_iter().zip(judged).zip(alive) {
        let (judged, failure) = match judged {
            Ok(judged) => (Some(judged), None),
            Err(failure) => (None, Some(failure)),
        };
        if let (Some(rebuilt), Some((_, sure))) = (&mut rebuilt, &judged) {
            rebuilt.confidence.clone_from(sure);
        }
        found.push((
            Row {
                round,
                trial,
                settings: sweep.trial(base, round, trial)?.0,
                explained: judged.as_ref().map(|(part, _)| *part),
                confidence: judged.map(|(_, sure)| mean_of_surer_half(sure)),
                failure,
                seconds: note.seconds,
                kept: false,
                oracle_recovered: None,
            },
            rebuilt,
        ));
    }
    let mut order: Vec<usize> = (0..found.len()).collect();
    let value = |i: usize| found[i].0.explained.unwrap_or(f64::NEG_INFINITY);
    order.sort_by(|&a, &b| value(b).total_cmp(&value(a)));
    Ok((order, found))
}

fn mean_of_surer_half(mut sure: Vec<f64>) -> f64 {
    sure.sort_by(|a, b| b.total_cmp(a));
    let half = sure.len().div_ceil(2).max(1);
    sure.iter().take(half).sum::<f64>() / half as f64
}

/// Members that each trial alone would have rebuilt.
fn oracle(plan: &Plan, dir: &RunDir, last: &[Reconstruction]) -> Result<Vec<usize>> {
    let truth = Truth::read(dir.file(TRUTH))?;
    let count =
        |rebuilt: &Reconstruction| Ok(score(rebuilt, &truth, Scoring::by(plan.score.criterion))?.count.recovered);
    last.iter().map(count).collect()
}

fn csv(table: &Table) -> String {
    let mut text = String::from("round,trial,explained,confidence,kept,oracle_recovered,seconds,settings,failure\n");
    for row in &table.rows {
        let optional = |value: Option<String>| value.unwrap_or_default();
        text += &format!(
            "{},{},{},{},{},{},{:.3},{},\"{}\"\n",
            row.round + 1,
            row.trial,
            optional(row.explained.map(|value| format!("{value:.6}"))),
            optional(row.confidence.map(|value| format!("{value:.6}"))),
            row.kept,
            optional(row.oracle_recovered.map(|count| count.to_string())),
            row.seconds,
            row.settings.join(" "),
            optional(row.failure.clone()).replace('"', "'").replace('\n', " ")
        );
    }
    text
}
