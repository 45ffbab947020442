//! Shows the progress of a run to other threads of the host.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How many of a program's steps are behind it. The run writes it, other threads look at it; it has no
/// effect on the run, and orders nothing.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    all: AtomicU64,
}

impl Progress {
    /// No step was made, of an unknown number.
    pub const fn new() -> Self {
        Progress {
            done: AtomicU64::new(0),
            all: AtomicU64::new(0),
        }
    }

    pub(crate) fn tell(&self, done: u64, all: u64) {
        self.done.store(done, Relaxed);
        self.all.store(all, Relaxed);
    }

    /// The run has ended, however it did.
    pub fn end(&self) {
        self.tell(1, 1);
    }

    /// The part that is done, from 0 to 1.
    pub fn share(&self) -> f64 {
        match self.all.load(Relaxed) {
            0 => 0.0,
            all => (self.done.load(Relaxed) as f64 / all as f64).min(1.0),
        }
    }
}
