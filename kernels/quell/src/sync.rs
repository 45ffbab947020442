//! A spin lock that waits by this kernel's loop and masks interrupts while held.

use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use spin::mutex::{SpinMutex, SpinMutexGuard};

/// Waits with [`crate::arch::cpu::relax`], which lets an emulator run the CPU that holds the lock.
struct CpuRelax;

impl spin::RelaxStrategy for CpuRelax {
    #[inline]
    fn relax() {
        crate::watchdog::relax();
    }
}

/// A value behind a spin lock. Interrupts are masked while it is held, so a handler may take it
/// too; a non-maskable interrupt may not.
pub struct Lock<T> {
    inner: SpinMutex<T, CpuRelax>,
}

/// The right to use the value; unlocks and restores interrupts when dropped. It stays on its CPU, and is
/// used by no other code: those are this CPU's interrupts.
pub struct Guard<'a, T> {
    inner: Option<SpinMutexGuard<'a, T>>,
    were_on: bool,
    /// Neither `Send` nor `Sync`.
    _of_this_cpu: PhantomData<*mut T>,
}

impl<T> Lock<T> {
    /// A lock around `value`.
    pub const fn new(value: T) -> Self {
        Lock {
            inner: SpinMutex::new(value),
        }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> Guard<'_, T> {
        let were_on = crate::arch::cpu::mask_interrupts();
        Guard {
            inner: Some(self.inner.lock()),
            were_on,
            _of_this_cpu: PhantomData,
        }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let were_on = crate::arch::cpu::mask_interrupts();
        match self.inner.try_lock() {
            Some(guard) => Some(Guard {
                inner: Some(guard),
                were_on,
                _of_this_cpu: PhantomData,
            }),
            None => {
                crate::arch::cpu::restore_interrupts(were_on);
                None
            }
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inner.as_ref().expect("held until dropped")
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("held until dropped")
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        // The lock is given up before an interrupt may come.
        drop(self.inner.take());
        crate::arch::cpu::restore_interrupts(self.were_on);
    }
}
