//! A progress bar, for work that takes longer than a second, on a terminal only.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use stentor_core::{Clock, Monotonic, clock::SystemClock};

use super::Output;

/// Shorter work needs no bar.
const APPEARS_AFTER: Duration = Duration::from_secs(1);

/// How far some work has come.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    clock: SystemClock,
    began: Monotonic,
    shown: bool,
    wanted: bool,
}

impl Progress {
    /// Progress towards `total` things; of an unknown number if there is none.
    pub(crate) fn new(output: Output, total: Option<u64>, what: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
        let template = match total {
            Some(_) => "{bar:30} {human_pos}/{human_len} {msg} ({per_sec}, {eta} left)",
            None => "{spinner} {human_pos} {msg} ({per_sec})",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(what);
        let clock = SystemClock::new();
        let began = clock.monotonic();
        let wanted = !output.quiet && !output.json && std::io::stderr().is_terminal();
        Self { bar, clock, began, shown: false, wanted }
    }

    /// `count` more things are done.
    pub(crate) fn add(&mut self, count: u64) {
        self.bar.inc(count);
        if self.wanted && !self.shown && self.clock.monotonic().since(self.began) >= APPEARS_AFTER {
            self.shown = true;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// Takes the bar away.
    pub(crate) fn done(&self) {
        self.bar.finish_and_clear();
    }
}
