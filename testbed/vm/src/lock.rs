//! Implements spin locks with the machine's words.
//!
//! A waiter spins in [`Hardware::relax`] with interrupts on. So it still takes shootdowns from the CPU that holds the
//! lock and flushes under it (C7). Locks under which no CPU flushes may be [masked ones](crate::masked_lock). Interrupt
//! handlers take no lock.
//!
//! When a lock is released, all waiting CPUs try to take it at once, and the machine decides which one succeeds. Two
//! locks are granted in order instead. One is the lock of a table ([`TableLock`](crate::table_lock::TableLock)), which
//! all CPUs of a process may want. The other is the lock of a file's page ([`QueuedLock`]): its holders wait for
//! devices, and any program can make a CPU take it.
//!
//! Functions that take a lock pass their caller on (`track_caller`), so that the clock's profile of lines names it.
//! Not in tests: races under loom are compiled from this file as tests, and need the places in it.
//!
//! # The order of locks
//!
//! A CPU that holds a lock takes only locks further down in this list:
//!
//! 1. the areas of a process (one process; a fork takes the parent's and has the child to itself);
//! 2. page locks: the lock of a page-cache slot, or of an anonymous frame. Reclaim, truncation and `sync` hold up to
//!    32, migration all pages that it moves together; faults on files, splits and remaps hold one. Only `sync` and
//!    truncation *wait* for a second one, in ascending order of one file's pages. Every other holder only tries to take
//!    another;
//! 3. the table that holds a word: of two tables the one of the higher level first. Only a remap holds two tables of
//!    one level, and it has the areas to itself; every other CPU holds one;
//! 4. a node's list of stale frames;
//! 5. the state of one frame, a swap slot, the set of dirty pages of a file, a CPU's frame cache;
//! 6. a node's buddy allocator.
//!
//! A CPU may wait for a flush under the locks of 1 to 3, but not under those of 4 to 6.
//!
//! # Assumptions of the unsafe code
//!
//! A word behaves like an atomic of the host, and only guards release locks. For `peek`: a value is borrowed mutably
//! only between two operations of the machine. A function that may be suspended in one takes a guard by `&mut`, never
//! the value behind it.

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::Ordering;
use quell::{Hardware, Word};

/// A lock around a value. For a lock around `()`, its owner documents the protected state.
pub(crate) struct Lock<W, T> {
    word: W,
    value: UnsafeCell<T>,
}

// SAFETY: only `Guard` gives access to the value, and at most one exists at a time (`peek` also does, but its caller
// excludes other threads). So sharing the lock moves the value from thread to thread, for which `T: Send` suffices. A
// shared guard hands out `&T` in several threads at once; there `Guard` requires `T: Sync`.
unsafe impl<W: Send + Sync, T: Send> Sync for Lock<W, T> {}

impl<W: Word, T> Lock<W, T> {
    pub(crate) fn new(value: T) -> Self {
        Lock { word: W::new(0), value: UnsafeCell::new(value) }
    }

    #[cfg_attr(not(test), track_caller)]
    fn try_acquire(&self) -> bool {
        // Acquire pairs with `release`: this CPU sees the last holder's writes under the lock. Lost without it: two
        // CPUs take a lock.
        self.word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn release(&self) {
        // Release pairs with `try_acquire`: the next holder sees this one's writes. Lost without it: two CPUs take a
        // lock.
        self.word.store(0, Ordering::Release);
    }

    /// Takes the lock, and waits for it if necessary.
    #[cfg_attr(not(test), track_caller)]
    pub(crate) fn lock(&self, hw: &impl Hardware<Word = W>) -> Guard<'_, W, T> {
        while !self.try_acquire() {
            while self.word.load(Ordering::Relaxed) != 0 {
                hw.relax();
            }
        }
        Guard { lock: self, value: PhantomData }
    }

    /// Takes the lock if no CPU holds it.
    #[cfg_attr(not(test), track_caller)]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, W, T>> {
        self.try_acquire().then(|| Guard { lock: self, value: PhantomData })
    }

    /// Returns the value, even if some CPU holds the lock.
    ///
    /// # Safety
    /// No other thread of the host uses the lock during the returned borrow, and no guard's `deref_mut` borrow is alive
    /// in this thread.
    pub(crate) unsafe fn peek(&self) -> &T {
        // SAFETY: the caller excludes every mutable borrow.
        unsafe { &*self.value.get() }
    }
}

/// A guard of a [`Lock`]. It may move to another thread if the value may (it is `&mut T`), and may be shared by threads
/// if the value may be (it hands out `&T`).
#[must_use = "the lock is given up with the guard"]
pub(crate) struct Guard<'l, W: Word, T> {
    lock: &'l Lock<W, T>,
    /// Makes a guard a `&mut T`. Otherwise it would be `Sync` whenever the lock is, for which `T: Send` suffices, and
    /// threads could share a `Cell` through it.
    value: PhantomData<&'l mut T>,
}

impl<W: Word, T> Deref for Guard<'_, W, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one, so the value is borrowed through it alone.
        unsafe { &*self.lock.value.get() }
    }
}

impl<W: Word, T> DerefMut for Guard<'_, W, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one and is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<W: Word, T> Drop for Guard<'_, W, T> {
    fn drop(&mut self) {
        self.lock.release();
    }
}

/// A lock around a value that CPUs get in the order in which they began to wait in `lock`. So a CPU that takes it again
/// and again can't starve another. If the lock is free and nobody waits, this costs two loads more than a [`Lock`].
pub(crate) struct QueuedLock<W, T> {
    lock: Lock<W, T>,
    /// The ticket of the next CPU that must wait.
    next: W,
    /// The ticket of the first waiting CPU, or `next` if none waits.
    turn: W,
}

impl<W: Word, T> QueuedLock<W, T> {
    pub(crate) fn new(value: T) -> Self {
        QueuedLock { lock: Lock::new(value), next: W::new(0), turn: W::new(0) }
    }

    /// Takes the lock, and waits for it if necessary.
    #[cfg_attr(not(test), track_caller)]
    pub(crate) fn lock(&self, hw: &impl Hardware<Word = W>) -> Guard<'_, W, T> {
        // Relaxed, here and below: tickets only decide which CPU tries next; the inner lock decides which one holds it.
        if self.next.load(Ordering::Relaxed) == self.turn.load(Ordering::Relaxed)
            && let Some(guard) = self.lock.try_lock()
        {
            return guard;
        }
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        while self.turn.load(Ordering::Relaxed) != ticket {
            hw.relax();
        }
        let guard = self.lock.lock(hw);
        self.turn.store(ticket.wrapping_add(1), Ordering::Relaxed);
        guard
    }

    /// Takes the lock if no CPU holds it, ahead of waiting CPUs.
    #[cfg_attr(not(test), track_caller)]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, W, T>> {
        self.lock.try_lock()
    }

    /// Returns the value, even if some CPU holds the lock.
    ///
    /// # Safety
    /// As for [`Lock::peek`].
    pub(crate) unsafe fn peek(&self) -> &T {
        // SAFETY: passed on to the caller.
        unsafe { self.lock.peek() }
    }
}

/// A lock that many readers or one writer hold. A waiting writer keeps new readers out.
pub(crate) struct RwLock<W, T> {
    /// The number of readers, and [`WRITER`].
    word: W,
    value: UnsafeCell<T>,
}

const WRITER: u64 = 1 << 63;

// SAFETY: as for `Lock`; readers share `&T` between threads, hence `T: Sync` too.
unsafe impl<W: Send + Sync, T: Send + Sync> Sync for RwLock<W, T> {}

impl<W: Word, T> RwLock<W, T> {
    pub(crate) fn new(value: T) -> Self {
        RwLock { word: W::new(0), value: UnsafeCell::new(value) }
    }

    #[cfg_attr(not(test), track_caller)]
    pub(crate) fn read(&self, hw: &impl Hardware<Word = W>) -> ReadGuard<'_, W, T> {
        // Acquire pairs with `WriteGuard::drop` and `downgrade`: a reader sees the last writer's changes. Lost without
        // it: a reader meets a writer.
        while self.word.fetch_add(1, Ordering::Acquire) & WRITER != 0 {
            self.word.fetch_add(u64::MAX, Ordering::Relaxed);
            while self.word.load(Ordering::Relaxed) & WRITER != 0 {
                hw.relax();
            }
        }
        ReadGuard { lock: self, value: PhantomData }
    }

    #[cfg_attr(not(test), track_caller)]
    pub(crate) fn write(&self, hw: &impl Hardware<Word = W>) -> WriteGuard<'_, W, T> {
        // Relaxed: the load below reads this change or a later one, and so acquires the last writer's release.
        while self.word.fetch_or(WRITER, Ordering::Relaxed) & WRITER != 0 {
            while self.word.load(Ordering::Relaxed) & WRITER != 0 {
                hw.relax();
            }
        }
        // Acquire pairs with `ReadGuard::drop` and `WriteGuard::drop`: the accesses of all earlier holders are over.
        // Lost without it: a reader meets a writer.
        while self.word.load(Ordering::Acquire) != WRITER {
            hw.relax();
        }
        WriteGuard { lock: self, value: PhantomData }
    }

    /// Returns the value, even if some CPU holds the lock.
    ///
    /// # Safety
    /// As for [`Lock::peek`].
    pub(crate) unsafe fn peek(&self) -> &T {
        // SAFETY: the caller excludes every mutable borrow.
        unsafe { &*self.value.get() }
    }
}

/// A reader's guard of an [`RwLock`]: to threads it is a `&T`.
pub(crate) struct ReadGuard<'l, W: Word, T> {
    lock: &'l RwLock<W, T>,
    value: PhantomData<&'l T>,
}

impl<W: Word, T> Deref for ReadGuard<'_, W, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: there is no writer while a reader is counted.
        unsafe { &*self.lock.value.get() }
    }
}

impl<W: Word, T> Drop for ReadGuard<'_, W, T> {
    fn drop(&mut self) {
        // Release pairs with `write`: this reader's accesses are over.
        // Lost without it: a reader meets a writer.
        self.lock.word.fetch_add(u64::MAX, Ordering::Release);
    }
}

/// The writer's guard of an [`RwLock`]: to threads it is a `&mut T`.
pub(crate) struct WriteGuard<'l, W: Word, T> {
    lock: &'l RwLock<W, T>,
    value: PhantomData<&'l mut T>,
}

impl<'l, W: Word, T> WriteGuard<'l, W, T> {
    /// Lets readers in. Writers wait until the returned guard is dropped.
    pub(crate) fn downgrade(self) -> ReadGuard<'l, W, T> {
        let lock = self.lock;
        core::mem::forget(self);
        // Release pairs with `read`: readers see this writer's changes. Lost without it: a reader meets a writer.
        lock.word.fetch_add(1_u64.wrapping_sub(WRITER), Ordering::Release);
        ReadGuard { lock, value: PhantomData }
    }
}

impl<W: Word, T> Deref for WriteGuard<'_, W, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the writer is alone.
        unsafe { &*self.lock.value.get() }
    }
}

impl<W: Word, T> DerefMut for WriteGuard<'_, W, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the writer is alone, and the guard is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<W: Word, T> Drop for WriteGuard<'_, W, T> {
    fn drop(&mut self) {
        // Release pairs with `read` and `write`: the next holder sees this writer's changes. Lost without it: a reader
        // meets a writer.
        self.lock.word.fetch_and(!WRITER, Ordering::Release);
    }
}

/// Checks at compile time which types are `Send` and `Sync`: each line below is ambiguous, and refused, if its type has
/// the trait that it must not have.
#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use core::sync::atomic::AtomicU64;
    use std::rc::Rc;
    use std::sync::MutexGuard;

    /// `lacks!(Type: Trait)` compiles only if the type doesn't have the trait: with it, `_` could be either of two
    /// implementations.
    macro_rules! lacks {
        ($type:ty: $trait:ident) => {{
            trait Ambiguity<A> {
                fn check() {}
            }
            impl<T: ?Sized> Ambiguity<()> for T {}
            impl<T: ?Sized + $trait> Ambiguity<u8> for T {}
            <$type as Ambiguity<_>>::check();
        }};
    }

    fn send<T: Send>() {}
    fn sync<T: Sync>() {}

    #[test]
    fn guards_may_cross_threads_only_as_their_values_may() {
        type L<T> = Lock<AtomicU64, T>;
        type TestRwLock<T> = RwLock<AtomicU64, T>;
        type G<T> = Guard<'static, AtomicU64, T>;
        type R<T> = ReadGuard<'static, AtomicU64, T>;
        type TestWriteGuard<T> = WriteGuard<'static, AtomicU64, T>;
        // A `Cell` may move to another thread, but may not be shared.
        sync::<L<Cell<u8>>>();
        send::<G<Cell<u8>>>();
        lacks!(G<Cell<u8>>: Sync);
        lacks!(TestRwLock<Cell<u8>>: Sync);
        lacks!(R<Cell<u8>>: Sync);
        lacks!(R<Cell<u8>>: Send);
        lacks!(TestWriteGuard<Cell<u8>>: Sync);
        // An `Rc` may neither move nor be shared.
        lacks!(L<Rc<u8>>: Send);
        lacks!(L<Rc<u8>>: Sync);
        lacks!(TestRwLock<Rc<u8>>: Sync);
        lacks!(G<Rc<u8>>: Send);
        lacks!(G<Rc<u8>>: Sync);
        // A guard of the standard library may be shared but not moved: a lock around it is not `Send` either, and
        // nothing of it is `Sync`.
        lacks!(L<MutexGuard<'static, u8>>: Sync);
        lacks!(G<MutexGuard<'static, u8>>: Send);
        lacks!(TestRwLock<MutexGuard<'static, u8>>: Sync);
        lacks!(R<MutexGuard<'static, u8>>: Send);
        lacks!(TestWriteGuard<MutexGuard<'static, u8>>: Send);
        // Values that may be moved and shared allow both everywhere.
        send::<G<u8>>();
        sync::<G<u8>>();
        send::<R<u8>>();
        sync::<R<u8>>();
        send::<TestWriteGuard<u8>>();
        sync::<TestWriteGuard<u8>>();
    }
}
