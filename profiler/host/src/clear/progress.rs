//! Shows progress while zeroing is measured.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// Progress on standard error, in measured time.
pub struct Progress {
    bar: ProgressBar,
    started: Instant,
}

impl Progress {
    /// Creates a bar as long as `budget`.
    pub fn new(budget: Duration) -> Self {
        let bar = ProgressBar::new(budget.as_millis() as u64);
        let style = ProgressStyle::with_template("{wide_bar} {elapsed_precise}  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress { bar, started: Instant::now() }
    }
    /// Creates a bar that isn't shown.
    #[cfg(test)]
    pub fn hidden() -> Self {
        Progress { bar: ProgressBar::hidden(), started: Instant::now() }
    }
    /// Sets the current activity.
    pub fn say(&self, what: &'static str) {
        self.bar.set_message(what);
        self.tick();
    }
    /// Moves the bar to the current time.
    pub fn tick(&self) {
        self.bar.set_position(self.started.elapsed().as_millis() as u64);
    }
    /// Removes the bar.
    pub fn done(&self) {
        self.bar.finish_and_clear();
    }
}
