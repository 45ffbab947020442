//! The tests of machines whose CPUs are threads, in one program because building dominates their time.

mod conformance;
mod stress;
mod workloads;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Machines run one after the other: where several share a few cores, their CPUs hardly ever run at
/// the same time, and races do not happen.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
