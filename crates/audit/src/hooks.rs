//! What surrounds an attack in a run directory: its trace, its checkpoints, whoever watches.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use afterimage_attacks::{AttackError, Hooks, TRACE_POINTS, Tick, TracePoint, checkpoint_iteration};
use afterimage_nn::io::TensorFile;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::pipeline::Watcher;
use crate::run_dir::RunDir;

const CHECKPOINT: &str = "checkpoint/state.safetensors";
const TIMING: &str = "timing.json";
const TRACE: &str = "trace.jsonl";

/// How long an attack took, kept so that a report can be made again.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Timing {
    pub(crate) seconds: f64,
}

impl Timing {
    pub(crate) fn read(dir: &RunDir) -> Result<Self> {
        dir.read_json(TIMING)
    }
}

/// Passes on progress, keeps nothing: what was stopped is run again.
pub(crate) struct Watched<'a>(pub(crate) &'a mut dyn Watcher);

impl Hooks for Watched<'_> {
    fn tick(&mut self, tick: Tick) -> ControlFlow<()> {
        self.0.tick(tick)
    }

    fn warn(&mut self, message: &str) {
        self.0.warn(message);
    }
}

/// Passes on progress, and nothing that an attack has to say: it is one of many, of which the user asked none.
pub(crate) struct Unheard<'a>(pub(crate) &'a mut dyn Watcher);

impl Watcher for Unheard<'_> {
    fn stage(&mut self, name: &str) {
        self.0.stage(name);
    }

    fn tick(&mut self, tick: Tick) -> ControlFlow<()> {
        self.0.tick(tick)
    }

    fn warn(&mut self, _: &str) {}
}

/// Passes on progress, each step with the name of what it is a step of.
pub(crate) struct Named<'a> {
    inner: &'a mut dyn Watcher,
    name: String,
}

impl<'a> Named<'a> {
    pub(crate) fn new(inner: &'a mut dyn Watcher, name: String) -> Self {
        Self { inner, name }
    }
}

impl Watcher for Named<'_> {
    fn stage(&mut self, name: &str) {
        self.inner.stage(&format!("{}: {name}", self.name));
    }

    fn tick(&mut self, tick: Tick) -> ControlFlow<()> {
        self.inner.tick(tick)
    }

    fn warn(&mut self, message: &str) {
        self.inner.warn(&format!("{}: {message}", self.name));
    }
}

/// Passes on progress, and asks to stop when time is over.
pub(crate) struct Deadline<'a> {
    inner: &'a mut dyn Watcher,
    until: Instant,
    /// Whether time was over.
    pub(crate) over: bool,
}

impl<'a> Deadline<'a> {
    pub(crate) fn new(inner: &'a mut dyn Watcher, seconds: f64) -> Self {
        Self { inner, until: Instant::now() + Duration::from_secs_f64(seconds.max(0.0)), over: false }
    }
}

impl Watcher for Deadline<'_> {
    fn stage(&mut self, name: &str) {
        self.inner.stage(name);
    }

    fn tick(&mut self, tick: Tick) -> ControlFlow<()> {
        self.inner.tick(tick)?;
        self.over = Instant::now() >= self.until;
        if self.over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn out_of_time(&self) -> bool {
        self.over
    }

    fn warn(&mut self, message: &str) {
        self.inner.warn(message);
    }
}

/// Hooks that keep checkpoints, a trace and the time in a run directory.
pub(crate) struct DirHooks<'a> {
    dir: &'a RunDir,
    watcher: &'a mut dyn Watcher,
    every: Duration,
    last: Instant,
    started: Instant,
    /// Seconds that earlier parts of the run took.
    earlier: f64,
    /// The last iteration that is in the trace.
    traced: Option<usize>,
}

impl<'a> DirHooks<'a> {
    pub(crate) fn new(dir: &'a RunDir, checkpoint_seconds: u64, watcher: &'a mut dyn Watcher) -> Result<Self> {
        dir.inside("checkpoint")?;
        // An attack that starts from the beginning starts its trace there, too.
        if !dir.has(CHECKPOINT) {
            dir.remove(TRACE)?;
        }
        let (every, now) = (Duration::from_secs(checkpoint_seconds), Instant::now());
        Ok(Self { dir, watcher, every, last: now, started: now, earlier: 0.0, traced: None })
    }

    /// Whether the clock stopped the attack.
    pub(crate) fn out_of_time(&self) -> bool {
        self.watcher.out_of_time()
    }

    /// Writes down how long it took.
    pub(crate) fn keep_time(&self) -> Result<()> {
        let seconds = self.earlier + self.started.elapsed().as_secs_f64();
        self.dir.write_json(TIMING, &Timing { seconds })
    }

    /// Takes out of the trace what a killed run wrote after its checkpoint.
    fn rewind_trace(&mut self, to: usize) -> Result<()> {
        let mut kept = trace(self.dir);
        kept.retain(|point| point.iteration < to);
        self.traced = kept.last().map(|point| point.iteration);
        let lines = kept.iter().filter_map(|point| serde_json::to_string(point).ok());
        let kept: Vec<String> = lines.map(|line| line + "\n").collect();
        self.dir.write(TRACE, kept.concat().as_bytes())
    }
}

/// The trace of a run, as far as it can be read.
pub(crate) fn trace(dir: &RunDir) -> Vec<TracePoint> {
    let text = std::fs::read_to_string(dir.file(TRACE)).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

impl Hooks for DirHooks<'_> {
    fn tick(&mut self, tick: Tick) -> ControlFlow<()> {
        // The loss was measured before the step that is reported. One point for each stretch of the run,
        // whether an attack counts its steps by ones or by eights.
        let (at, every) = (tick.iteration.saturating_sub(1), tick.total.div_ceil(TRACE_POINTS).max(1));
        let fresh = self.traced.is_none_or(|last| at / every > last / every);
        if let Some(loss) = tick.loss.filter(|_| fresh) {
            self.traced = Some(at);
            let line = serde_json::to_string(&TracePoint { iteration: at, loss }).unwrap_or_default();
            if let Err(error) = self.dir.append(TRACE, &line) {
                self.watcher.warn(&error.to_string());
            }
        }
        self.watcher.tick(tick)
    }

    fn wants_checkpoint(&mut self) -> bool {
        self.last.elapsed() >= self.every
    }

    fn keep(&mut self, state: &TensorFile) -> std::result::Result<(), AttackError> {
        self.last = Instant::now();
        let kept = self.keep_time().and_then(|()| {
            state.write(self.dir.file(CHECKPOINT))?;
            self.dir.seal(CHECKPOINT)
        });
        kept.map_err(|error| AttackError::File { file: "checkpoint".into(), problem: error.to_string() })
    }

    fn resumed(&mut self) -> Option<TensorFile> {
        let state = match self.dir.has(CHECKPOINT).then(|| TensorFile::read(self.dir.file(CHECKPOINT))) {
            Some(Ok(state)) => Some(state),
            Some(Err(error)) => {
                self.watcher.warn(&format!("starting again, because the checkpoint cannot be used: {error}"));
                None
            }
            None => None,
        };
        if state.is_some() {
            self.earlier = Timing::read(self.dir).unwrap_or_default().seconds;
        }
        let to = state.as_ref().and_then(checkpoint_iteration).unwrap_or(0);
        if self.dir.has(TRACE)
            && let Err(error) = self.rewind_trace(to)
        {
            self.watcher.warn(&error.to_string());
        }
        state
    }

    fn warn(&mut self, message: &str) {
        self.watcher.warn(message);
    }
}
