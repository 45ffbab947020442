//! Counters for measurements, also in the unchanged kernel. Not part of the port.

use core::sync::atomic::AtomicU64;

/// Interrupts sent to other CPUs, and invalidations on all of them.
pub struct Counts {
    /// Interrupts sent.
    pub interrupts: AtomicU64,
    /// Invalidations of single pages.
    pub pages: AtomicU64,
    /// Invalidations of everything.
    pub full: AtomicU64,
}

/// Since the machine was started.
pub static COUNTS: Counts = Counts {
    interrupts: AtomicU64::new(0),
    pages: AtomicU64::new(0),
    full: AtomicU64::new(0),
};
