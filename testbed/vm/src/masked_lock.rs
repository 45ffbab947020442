//! Spin locks that are held with interrupts off, where the machine is to show what that costs.
//!
//! In Linux interrupt handlers take the locks of the allocator, of its lists of pages and of a file's pages, so whoever
//! else takes one masks interrupts first. Here no handler takes a lock, and a [`MaskedLock`] is a [`Lock`], unless the
//! machine says otherwise ([`Machine::masks_locks`]).

use crate::lock::{Guard, Lock};
use crate::machine::Machine;
use core::ops::{Deref, DerefMut};
use quell::Word;

/// A lock of which other kernels' interrupt handlers take one, too, so that they wait for it and hold it with
/// interrupts off: Linux those of its allocator, of its lists of pages and of a file's pages. Here no handler takes a
/// lock, so interrupts are off only on machines that [are to show](Machine::masks_locks) what that costs: a shootdown's
/// target answers when it has the lock and gave it up. For locks under which no CPU waits for a flush, and no others.
pub(crate) struct MaskedLock<W, T>(Lock<W, T>);

impl<W: Word, T> MaskedLock<W, T> {
    pub(crate) fn new(value: T) -> Self {
        MaskedLock(Lock::new(value))
    }

    /// Waits for the lock.
    pub(crate) fn lock<'l, M: Machine<Word = W>>(
        &'l self,
        machine: &'l M,
    ) -> MaskedGuard<'l, M, T> {
        let were_on = machine.masks_locks() && machine.mask_interrupts();
        MaskedGuard {
            guard: self.0.lock(machine),
            _masked: Masked { machine, were_on },
        }
    }
}

/// Possession of a [`MaskedLock`]. The lock is given up first, then interrupts are on again.
pub(crate) struct MaskedGuard<'l, M: Machine, T> {
    guard: Guard<'l, M::Word, T>,
    _masked: Masked<'l, M>,
}

impl<M: Machine, T> Deref for MaskedGuard<'_, M, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<M: Machine, T> DerefMut for MaskedGuard<'_, M, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// Puts interrupts back as they were.
struct Masked<'l, M: Machine> {
    machine: &'l M,
    were_on: bool,
}

impl<M: Machine> Drop for Masked<'_, M> {
    fn drop(&mut self) {
        if self.were_on {
            self.machine.restore_interrupts(true);
        }
    }
}
