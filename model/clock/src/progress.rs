//! Shows the progress of a run to other threads of the host.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The progress of a run: the number of steps that its program has completed.
///
/// The run writes it and other threads read it. It has no effect on the run and orders nothing.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    all: AtomicU64,
}

impl Progress {
    /// Creates a progress without completed steps.
    pub const fn new() -> Self {
        Progress { done: AtomicU64::new(0), all: AtomicU64::new(0) }
    }

    pub(crate) fn tell(&self, done: u64, all: u64) {
        self.done.store(done, Relaxed);
        self.all.store(all, Relaxed);
    }

    /// Records that the run has ended, for whatever reason.
    pub fn end(&self) {
        self.tell(1, 1);
    }

    /// Returns the completed part, from 0 to 1. It's 0 while the number of steps is unknown.
    pub fn share(&self) -> f64 {
        match self.all.load(Relaxed) {
            0 => 0.0,
            all => (self.done.load(Relaxed) as f64 / all as f64).min(1.0),
        }
    }
}
