//! Implements spin locks that mask interrupts on machines that model the cost of masking.
//!
//! In Linux, interrupt handlers take the locks of the allocator, of its lists of pages and of a file's pages. So other
//! code masks interrupts before it takes one. In quell no handler takes a lock, and a [`MaskedLock`] is a [`Lock`]
//! unless [`Machine::masks_locks`] returns `true`.

use crate::lock::{Guard, Lock};
use crate::machine::Machine;
use core::ops::{Deref, DerefMut};
use quell::Word;

/// A lock that Linux would hold with interrupts off, because its interrupt handlers take it too. For example, the
/// allocator's lock is one. Our handlers take no lock, so interrupts are off only on machines that
/// [model](Machine::masks_locks) the cost: a shootdown's target answers after it has taken and released the lock. No
/// CPU may wait for a flush under it.
pub(crate) struct MaskedLock<W, T>(Lock<W, T>);

impl<W: Word, T> MaskedLock<W, T> {
    pub(crate) fn new(value: T) -> Self {
        MaskedLock(Lock::new(value))
    }

    /// Takes the lock, and waits for it if necessary.
    #[track_caller]
    pub(crate) fn lock<'l, M: Machine<Word = W>>(
        &'l self,
        machine: &'l M,
    ) -> MaskedGuard<'l, M, T> {
        let were_on = machine.masks_locks() && machine.mask_interrupts();
        MaskedGuard { guard: self.0.lock(machine), _masked: MaskGuard { machine, were_on } }
    }
}

/// A guard of a [`MaskedLock`]. It releases the lock first, then restores interrupts.
pub(crate) struct MaskedGuard<'l, M: Machine, T> {
    guard: Guard<'l, M::Word, T>,
    _masked: MaskGuard<'l, M>,
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

/// Restores the interrupt mask.
struct MaskGuard<'l, M: Machine> {
    machine: &'l M,
    were_on: bool,
}

impl<M: Machine> Drop for MaskGuard<'_, M> {
    fn drop(&mut self) {
        if self.were_on {
            self.machine.restore_interrupts(true);
        }
    }
}
