//! A spin lock that waits in this kernel's waiting loop, and masks interrupts while it's held.

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

/// A value behind a spin lock. Interrupts are masked while it's held, so a handler may take it, too. The handler of a
/// non-maskable interrupt may not.
pub struct Lock<T> {
    inner: SpinMutex<T, CpuRelax>,
}

/// The right to use the value. It unlocks and restores interrupts when dropped. It stays on its CPU, and no other code
/// uses it, because the interrupts are those of this CPU.
pub struct Guard<'a, T> {
    inner: Option<SpinMutexGuard<'a, T>>,
    were_on: bool,
    /// This makes the guard neither `Send` nor `Sync`.
    _of_this_cpu: PhantomData<*mut T>,
}

impl<T> Lock<T> {
    /// Creates a lock around `value`.
    pub const fn new(value: T) -> Self {
        Lock { inner: SpinMutex::new(value) }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> Guard<'_, T> {
        let were_on = crate::arch::cpu::mask_interrupts();
        Guard { inner: Some(self.inner.lock()), were_on, _of_this_cpu: PhantomData }
    }

    /// Takes the lock if it's free.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let were_on = crate::arch::cpu::mask_interrupts();
        match self.inner.try_lock() {
            Some(guard) => Some(Guard { inner: Some(guard), were_on, _of_this_cpu: PhantomData }),
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
        // We release the lock before an interrupt may arrive.
        drop(self.inner.take());
        crate::arch::cpu::restore_interrupts(self.were_on);
    }
}
