//! Delays broadcast invalidations as long as an architecture allows.
//!
//! A broadcast is complete only after its sender has waited for it, and a wait on another CPU completes nothing. But an
//! emulator completes broadcasts at once. That hides a missing wait, for example, or a wait on the wrong CPU. So for
//! conformance and stress, a CPU keeps its broadcasts here until it waits, as a processor may.

use crate::arch;
use crate::cpu;
use crate::sync::Lock;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use quell::Invalidation;

/// The maximum number of broadcasts that a CPU keeps. A further one starts the oldest.
const MOST: usize = 64;

/// A CPU's broadcasts. Those from `first` on are each at their number modulo [`MOST`].
struct DelayedRequests {
    held: [Invalidation; MOST],
    first: usize,
    next: usize,
}

static KEEPS: AtomicBool = AtomicBool::new(false);
static KEPT: [Lock<DelayedRequests>; cpu::MAX] =
    [const { Lock::new(DelayedRequests { held: [Invalidation::All; MOST], first: 0, next: 0 }) };
        cpu::MAX];

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
    let sent = if kept.next - kept.first == MOST { start_oldest(&mut kept) } else { 0 };
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

/// Starts this CPU's delayed broadcasts and waits for all. Returns the number of instructions that started any.
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
