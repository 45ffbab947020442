//! The tests of machines whose CPUs are threads. They are one program, because building dominates their time.

mod stress;
mod workloads;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lets machines run one after the other. If several shared a few cores, their CPUs would hardly ever run at the same
/// time, and no races would happen.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
