//! A spin lock that waits in this kernel's waiting loop, and masks interrupts while it's held.

use crate::{arch, watchdog};
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use spin::mutex::{SpinMutex, SpinMutexGuard};

/// Waits with [`watchdog::relax`], which lets an emulator run the CPU that holds the lock.
struct CpuRelax;

impl spin::RelaxStrategy for CpuRelax {
    #[inline]
    fn relax() {
        watchdog::relax();
    }
}

/// Interrupts of this CPU are masked until this is dropped. Then they are as they were before.
pub struct Masked {
    were_on: bool,
    /// This makes it neither `Send` nor `Sync`, because the interrupts are those of this CPU.
    _of_this_cpu: PhantomData<*mut ()>,
}

impl Masked {
    /// Masks interrupts.
    #[inline]
    pub fn new() -> Self {
        Masked { were_on: arch::cpu::mask_interrupts(), _of_this_cpu: PhantomData }
    }
}

impl Drop for Masked {
    #[inline]
    fn drop(&mut self) {
        arch::cpu::restore_interrupts(self.were_on);
    }
}

/// A value behind a spin lock. Interrupts are masked while it's held, so a handler may take it, too. The handler of a
/// non-maskable interrupt may not.
pub struct Lock<T>(SpinMutex<T, CpuRelax>);

/// The right to use the value. It unlocks and restores interrupts when dropped.
pub struct Guard<'a, T> {
    /// This is dropped first, so we release the lock before an interrupt may arrive.
    inner: SpinMutexGuard<'a, T>,
    _masked: Masked,
}

impl<T> Lock<T> {
    /// Creates a lock around `value`.
    pub const fn new(value: T) -> Self {
        Lock(SpinMutex::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> Guard<'_, T> {
        let _masked = Masked::new();
        Guard { inner: self.0.lock(), _masked }
    }

    /// Takes the lock if it's free.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let _masked = Masked::new();
        Some(Guard { inner: self.0.try_lock()?, _masked })
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}
