//! Delays broadcast invalidations as long as an architecture allows.
//!
//! A broadcast is complete only after its sender has waited for it, and a wait on another CPU completes nothing. But an
//! emulator completes broadcasts at once. That hides a missing wait, for example, or a wait on the wrong CPU. So for
//! conformance and stress, a CPU keeps its broadcasts here until it waits, as a processor may.

use crate::arch;
use crate::cpu;
use crate::sync::Lock;
use alloc::collections::VecDeque;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use quell::Invalidation;

/// The maximum number of broadcasts that a CPU keeps. A further one starts the oldest.
const MOST: usize = 64;

static KEEPS: AtomicBool = AtomicBool::new(false);
/// Each CPU's broadcasts, the oldest first.
static KEPT: [Lock<VecDeque<Invalidation>>; cpu::MAX] =
    [const { Lock::new(VecDeque::new()) }; cpu::MAX];

/// Starts to keep broadcasts.
pub fn start() {
    KEEPS.store(true, Relaxed);
}

/// Starts a broadcast, now or when this CPU waits for it. Returns the number of instructions executed.
pub fn broadcast(what: Invalidation) -> u64 {
    if !KEEPS.load(Relaxed) {
        return arch::paging::broadcast(what);
    }
    let mut kept = KEPT[arch::cpu::index()].lock();
    kept.push_back(what);
    let oldest = if kept.len() > MOST { kept.pop_front() } else { None };
    oldest.map_or(0, arch::paging::broadcast)
}

/// Starts this CPU's delayed broadcasts and waits for all. Returns the number of instructions that started any.
pub fn complete() -> u64 {
    let sent = match KEEPS.load(Relaxed) {
        true => KEPT[arch::cpu::index()].lock().drain(..).map(arch::paging::broadcast).sum(),
        false => 0,
    };
    arch::paging::complete_broadcasts();
    sent
}
