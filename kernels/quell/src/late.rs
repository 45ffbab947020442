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

/// How many a CPU keeps; the oldest goes when another comes.
const MOST: usize = 64;

/// What a CPU keeps: those from `first` on, each at its number modulo [`MOST`].
struct DelayedRequests {
    held: [Invalidate; MOST],
    first: usize,
    next: usize,
}

static KEEPS: AtomicBool = AtomicBool::new(false);
static KEPT: [Lock<DelayedRequests>; cpu::MAX] = [const {
    Lock::new(DelayedRequests {
        held: [Invalidate::All; MOST],
        first: 0,
        next: 0,
    })
}; cpu::MAX];

/// Keeps broadcasts from now on.
pub fn start() {
    KEEPS.store(true, Relaxed);
}

/// Starts a broadcast, now or when this CPU waits for it; returns how many instructions were
/// executed.
pub fn broadcast(what: Invalidate) -> u64 {
    if !KEEPS.load(Relaxed) {
        return arch::paging::broadcast(what);
    }
    let mut kept = KEPT[arch::cpu::index()].lock();
    let sent = if kept.next - kept.first == MOST {
        start_oldest(&mut kept)
    } else {
        0
    };
    let place = kept.next % MOST;
    kept.held[place] = what;
    kept.next += 1;
    sent
}

fn start_oldest(kept: &mut DelayedRequests) -> u64 {
    let oldest = kept.held[kept.first % MOST];
    kept.first += 1;
    arch::paging::broadcast(oldest)
}

/// Starts what this CPU has kept and waits for all its broadcasts; returns how many instructions
/// started any.
pub fn complete() -> u64 {
    let mut sent = 0;
    if KEEPS.load(Relaxed) {
        let mut kept = KEPT[arch::cpu::index()].lock();
        while kept.first < kept.next {
            sent += start_oldest(&mut kept);
        }
    }
    arch::paging::complete_broadcasts();
    sent
}
