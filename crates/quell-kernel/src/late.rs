//! Broadcast invalidations that take effect as late as an architecture allows.
//!
//! A broadcast is complete only after the CPU that sent it has waited for it; the same wait on
//! another CPU completes nothing of it. An emulator carries broadcasts out at once, so it hides a
//! wait that was left out, and one that was made on the wrong CPU. So for conformance and stress a
//! CPU keeps its broadcasts here until it waits, which a processor may do too.

use crate::arch;
use crate::cpu;
use crate::sync::Lock;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use quell::Invalidate;

/// How many a CPU keeps; more are sent as they come.
const MOST: usize = 64;

static KEEPS: AtomicBool = AtomicBool::new(false);
static KEPT: [Lock<([Invalidate; MOST], usize)>; cpu::MAX] =
    [const { Lock::new(([Invalidate::All; MOST], 0)) }; cpu::MAX];

/// Keeps broadcasts from now on.
pub fn start() {
    KEEPS.store(true, Relaxed);
}

/// Starts a broadcast, now or when this CPU waits for it; returns how many instructions were
/// executed.
pub fn broadcast(what: Invalidate) -> u64 {
    if KEEPS.load(Relaxed) {
        let mut kept = KEPT[arch::cpu::index()].lock();
        let (held, len) = &mut *kept;
        if let Some(place) = held.get_mut(*len) {
            *place = what;
            *len += 1;
            return 0;
        }
    }
    arch::paging::broadcast(what)
}

/// Starts what this CPU has kept and waits for all its broadcasts; returns how many instructions
/// started any.
pub fn complete() -> u64 {
    let mut sent = 0;
    if KEEPS.load(Relaxed) {
        let mut kept = KEPT[arch::cpu::index()].lock();
        let (held, len) = &mut *kept;
        sent = held[..*len]
            .iter()
            .map(|&what| arch::paging::broadcast(what))
            .sum();
        *len = 0;
    }
    arch::paging::complete_broadcasts();
    sent
}
