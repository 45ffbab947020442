//! Detects batches that were begun but never finished, in libraries with debug assertions.
//!
//! No call refers to such a batch any more. But sooner or later another batch is begun in its memory, mostly because
//! the next call uses the same part of the stack. That's when it's detected.

use crate::held::BatchPlace;
use crate::machine::Machine;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use quell::AddressSpace;

const DETECTS: bool = cfg!(debug_assertions);

/// The addresses of batches with changes, and of the space of the first change. We don't note more than 64.
static OPEN: [[AtomicUsize; 2]; 64] = [const { [const { AtomicUsize::new(0) }; 2] }; 64];

#[inline]
pub(crate) fn begins(batch: *const BatchPlace) {
    if !DETECTS {
        return;
    }
    for [at, space] in &OPEN {
        let left = at.load(Relaxed);
        if left != 0 && left.abs_diff(batch.addr()) < size_of::<BatchPlace>() {
            at.store(0, Relaxed);
            panic!(
                "the batch at {left:#x} was left with changes of the space at {:#x}, and another one is begun in its \
                 memory: call quell_batch_finish on every path after quell_batch_begin",
                space.load(Relaxed)
            );
        }
    }
}

#[inline]
pub(crate) fn reported(batch: *const BatchPlace, space: &AddressSpace<Machine>) {
    let address = batch.addr();
    if !DETECTS || OPEN.iter().any(|[at, _]| at.load(Relaxed) == address) {
        return;
    }
    for [at, of] in &OPEN {
        if at.compare_exchange(0, address, Relaxed, Relaxed).is_ok() {
            return of.store(core::ptr::from_ref(space).addr(), Relaxed);
        }
    }
}

#[inline]
pub(crate) fn finished(batch: *const BatchPlace) {
    if !DETECTS {
        return;
    }
    for [at, _] in &OPEN {
        // We ignore a failure: only the batch's own CPU removes its entry.
        let _ = at.compare_exchange(batch.addr(), 0, Relaxed, Relaxed);
    }
}
