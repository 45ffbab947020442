//! Checks promises about zeroing, for mutants that no access can show.
//!
//! Some mutants change the order in which an extent is zeroed. That decides when a program gets its page and what the
//! caches hold then, but not whether the page is zero. So no access violates the contract. Other mutants are in the
//! [`Pool`], which nothing under the adversary uses, because the manager keeps zeroed frames in its own lists.
//!
//! Therefore this module zeroes one extent and fills one pool on a machine that only records its requests. It compares
//! the record with the promises of [`quell_zero`]. There is no interleaving. `quell_zero` tests its promises over many
//! extents and policies.

use crate::context;
use crate::mistake::Mistake;
use quell::{Extent, Frame};
use quell_zero::{
    Budget, ClearPolicy, Clearer, OwnedMemory, PhysicalMemory, Plan, Pool, PooledMemory, Strategy,
};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

const PAGE: u64 = 4096;
/// An extent of 2 MB.
const WHOLE: Extent = Extent { first: Frame(512), frames: 512 };
/// The frame of the extent for which a program waits.
const FAULT: Frame = Frame(700);
/// The maximum length of a piece, in bytes.
const CAP: u64 = 64 * PAGE;

/// A machine that can only zero, and records that.
#[derive(Default)]
struct Recorder {
    /// The extents in the order in which they were zeroed. `None` is a preemption point.
    log: Mutex<Vec<Option<Extent>>>,
}

impl Recorder {
    fn note(&self, what: Option<Extent>) {
        let mut log = self.log.lock().unwrap_or_else(|broken| broken.into_inner());
        log.push(what);
    }
}

impl PhysicalMemory for Recorder {
    unsafe fn zero(&self, extent: Extent, _: Strategy) {
        self.note(Some(extent));
    }
}

struct OwnedFrame(u64);

// SAFETY: no memory is behind any frame.
unsafe impl OwnedMemory for OwnedFrame {
    fn extent(&self) -> Extent {
        Extent { first: Frame(self.0), frames: 1 }
    }
}

impl PooledMemory for OwnedFrame {
    fn into_raw(self) -> u64 {
        self.0
    }
    unsafe fn from_raw(raw: u64) -> Self {
        OwnedFrame(raw)
    }
}

/// Returns the promise about zeroing that this mistake breaks, if any.
pub fn broken_by(mistake: Mistake) -> Option<&'static str> {
    match mistake {
        Mistake::Source(mutant) => context::alone(mutant, broken),
        Mistake::Boundary(_) | Mistake::Ordering(_) => None,
    }
}

/// Returns the first broken promise about zeroing, if any.
pub fn broken() -> Option<&'static str> {
    let machine = Recorder::default();
    let policy = ClearPolicy { cap_bytes: Some(CAP), ..ClearPolicy::cooperative(Plan::default()) };
    let clearer = Clearer::new(&machine, &policy);
    // SAFETY: no memory is behind any frame.
    unsafe { clearer.extent(WHOLE, Some(FAULT), || machine.note(None)) };
    let log = std::mem::take(&mut *machine.log.lock().unwrap_or_else(|broken| broken.into_inner()));
    let pieces = || log.iter().flatten();
    let near = |piece: &Extent| {
        piece.first.0 + policy.neighbours >= FAULT.0
            && piece.first.0 + piece.frames <= FAULT.0 + policy.neighbours + 1
    };
    let between = log.chunks(2).all(|two| match two {
        [piece, point] => piece.is_some() && point.is_none(),
        last => last[0].is_some(),
    });
    if pieces().any(|piece| piece.bytes() > CAP) {
        return Some("a piece is longer than the cap");
    }
    if !between {
        return Some("no preemption point between two pieces");
    }
    // After the neighbourhood of the fault has begun, nothing else may be zeroed.
    let begun = pieces().skip_while(|piece| !near(piece));
    if begun.clone().next().is_some() && begun.clone().any(|piece| !near(piece)) {
        return Some("the page that is read next is not cleared last");
    }
    let mut slots: [AtomicU64; 8] = Default::default();
    let pool = Pool::new(&mut slots, PAGE);
    let budget = Budget::new(1, 3 * PAGE, 1000);
    let mut frames = (0..100).map(OwnedFrame);
    let filled = pool.fill(&clearer, &budget, 1000, || frames.next(), || {});
    if filled.frames > 3 {
        return Some("clearing ahead took more bandwidth than its budget");
    }
    let zeroed =
        std::mem::take(&mut *machine.log.lock().unwrap_or_else(|broken| broken.into_inner()));
    while let Some(frame) = pool.take() {
        if !zeroed.contains(&Some(frame.get().extent())) {
            return Some("the pool hands out memory that was not zeroed (C8)");
        }
    }
    None
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_promise_is_broken() {
        assert_eq!(super::broken(), None);
    }
}
