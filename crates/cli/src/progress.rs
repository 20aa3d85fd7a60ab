//! Progress on standard error: a bar on a terminal, plain lines otherwise.

use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use afterimage_attacks::Tick;
use afterimage_audit::pipeline::Watcher;
use indicatif::{ProgressBar, ProgressStyle};

static STOP: AtomicBool = AtomicBool::new(false);

/// Between plain lines of a long attack.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Shows where a run is and passes on the wish to stop.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    stage: String,
    started: Instant,
    /// The first iteration seen of this stage: a resumed one does not begin at nothing.
    first: Option<usize>,
    /// The iteration seen last.
    last: Option<Tick>,
    line: Instant,
}

impl Progress {
    /// Starts to watch; Ctrl-C asks the run to stop at its next step, a second one ends it at once.
    pub(crate) fn new() -> Self {
        static HANDLER: OnceLock<()> = OnceLock::new();
        HANDLER.get_or_init(|| {
            let set = ctrlc::set_handler(|| {
                if STOP.swap(true, Ordering::SeqCst) {
                    std::process::exit(crate::commands::STOPPED.into());
                }
                eprintln!("stopping at the next step; press Ctrl-C again to end at once");
            });
            if let Err(error) = set {
                eprintln!("warning: Ctrl-C will end the run at once ({error})");
            }
        });
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self { bar, stage: String::new(), started: Instant::now(), first: None, last: None, line: Instant::now() }
    }

    /// The last iteration of this stage so far.
    pub(crate) fn last(&self) -> Option<Tick> {
        self.last
    }

    /// A line of its own, above the bar.
    fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{line}")),
            None => eprintln!("{line}"),
        }
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Watcher for Progress {
    fn stage(&mut self, name: &str) {
        self.stage = name.to_owned();
        self.started = Instant::now();
        (self.first, self.last) = (None, None);
        match &self.bar {
            Some(bar) => bar.set_message(name.to_owned()),
            None => eprintln!("{name} …"),
        }
    }

    fn tick(&mut self, tick: Tick) -> ControlFlow<()> {
        let first = *self.first.get_or_insert(tick.iteration);
        self.last = Some(tick);
        let loss = tick.loss.map_or(String::new(), |loss| format!("loss {loss:.3e}"));
        match &self.bar {
            Some(bar) => {
                if bar.length() != Some(tick.total as u64) {
                    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {per_sec} {eta}");
                    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
                    bar.set_length(tick.total as u64);
                }
                bar.set_position(tick.iteration as u64);
                bar.set_message(format!("{} {loss}", self.stage));
            }
            None if self.line.elapsed() >= LINE_EVERY => {
                self.line = Instant::now();
                let rate = tick.iteration.saturating_sub(first) as f64 / self.started.elapsed().as_secs_f64();
                eprintln!("{} {}/{} {rate:.1}/s {loss}", self.stage, tick.iteration, tick.total);
            }
            None => {}
        }
        if STOP.load(Ordering::SeqCst) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn warn(&mut self, message: &str) {
        self.say(&format!("warning: {message}"));
    }

    fn done(&mut self, message: &str) {
        self.say(message);
    }
}
