//! Spin locks made of the machine's words.
//!
//! A waiter turns in [`Hardware::relax`] with interrupts on, so a CPU that waits here still takes
//! the shootdowns of the CPU that holds the lock and flushes under it (C7). Nothing that runs in
//! an interrupt handler takes a lock.
//!
//! # The order of locks
//!
//! A CPU that holds a lock takes only locks that stand below it in this list:
//!
//! 1. the areas of a process (one process; a fork takes the parent's and has the child to itself);
//! 2. page locks: the lock of a page-cache slot, or of an anonymous frame. Reclaim, migration and
//!    `sync` hold up to 32, faults on files, splits and remaps one. Only `sync` *waits* for a second
//!    one, in ascending order of the file's pages; everybody else tries;
//! 3. the table that holds a word: of two tables the one of the higher level first. Two tables of
//!    one level are held only by a remap, which has the areas to itself; all others hold one;
//! 4. a node's list of stale frames;
//! 5. the state of one frame, a swap slot, the set of dirty pages of a file, a CPU's frame cache;
//! 6. a node's buddy allocator.
//!
//! Waiting for a flush is allowed under every lock of 1 to 3 and forbidden under 4 to 6.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::Ordering;
use quell::{Hardware, Word};

/// A lock around nothing: it protects what its owner says it protects.
pub(crate) struct RawLock<W> {
    word: W,
}

impl<W: Word> RawLock<W> {
    pub(crate) fn new() -> Self {
        RawLock { word: W::new(0) }
    }

    pub(crate) fn try_lock(&self) -> bool {
        // Acquire: what the last holder did under the lock is seen.
        self.word
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Whether somebody holds it; the next moment it may be otherwise.
    pub(crate) fn is_held(&self) -> bool {
        self.word.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn lock(&self, hw: &impl Hardware<Word = W>) {
        while !self.try_lock() {
            while self.word.load(Ordering::Relaxed) != 0 {
                hw.relax();
            }
        }
    }

    /// Gives the lock up; only its holder may.
    pub(crate) fn unlock(&self) {
        // Release: pairs with the acquire of the next holder.
        self.word.store(0, Ordering::Release);
    }
}

/// A lock around a value.
pub(crate) struct Lock<W, T> {
    raw: RawLock<W>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through `Guard` alone, of which at most one exists at a time (and
// through `peek`, whose caller vouches for there being no other thread), so sharing the lock hands
// the value from thread to thread, for which `T: Send` suffices.
unsafe impl<W: Send + Sync, T: Send> Sync for Lock<W, T> {}

impl<W: Word, T> Lock<W, T> {
    pub(crate) fn new(value: T) -> Self {
        Lock {
            raw: RawLock::new(),
            value: UnsafeCell::new(value),
        }
    }

    pub(crate) fn lock(&self, hw: &impl Hardware<Word = W>) -> Guard<'_, W, T> {
        self.raw.lock(hw);
        Guard { lock: self }
    }

    pub(crate) fn try_lock(&self) -> Option<Guard<'_, W, T>> {
        self.raw.try_lock().then(|| Guard { lock: self })
    }

    /// The value, whoever holds the lock.
    ///
    /// # Safety
    /// No other thread of the host uses the lock during the returned borrow, and no guard's
    /// `deref_mut` borrow is alive in this thread.
    pub(crate) unsafe fn peek(&self) -> &T {
        // SAFETY: the caller excludes every mutable borrow.
        unsafe { &*self.value.get() }
    }
}

/// Possession of a [`Lock`].
pub(crate) struct Guard<'l, W: Word, T> {
    lock: &'l Lock<W, T>,
}

impl<W: Word, T> Deref for Guard<'_, W, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one, so nobody else borrows the value.
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
        self.lock.raw.unlock();
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
        RwLock {
            word: W::new(0),
            value: UnsafeCell::new(value),
        }
    }

    pub(crate) fn read(&self, hw: &impl Hardware<Word = W>) -> ReadGuard<'_, W, T> {
        // Acquire: pairs with the release of the last writer.
        while self.word.fetch_add(1, Ordering::Acquire) & WRITER != 0 {
            self.word.fetch_add(u64::MAX, Ordering::Relaxed);
            while self.word.load(Ordering::Relaxed) & WRITER != 0 {
                hw.relax();
            }
        }
        ReadGuard { lock: self }
    }

    pub(crate) fn write(&self, hw: &impl Hardware<Word = W>) -> WriteGuard<'_, W, T> {
        while self.word.fetch_or(WRITER, Ordering::Acquire) & WRITER != 0 {
            while self.word.load(Ordering::Relaxed) & WRITER != 0 {
                hw.relax();
            }
        }
        // Acquire: pairs with the release of the last reader.
        while self.word.load(Ordering::Acquire) != WRITER {
            hw.relax();
        }
        WriteGuard { lock: self }
    }

    /// As [`Lock::peek`].
    ///
    /// # Safety
    /// As for [`Lock::peek`].
    pub(crate) unsafe fn peek(&self) -> &T {
        // SAFETY: the caller excludes every mutable borrow.
        unsafe { &*self.value.get() }
    }
}

/// Shared possession of an [`RwLock`].
pub(crate) struct ReadGuard<'l, W: Word, T> {
    lock: &'l RwLock<W, T>,
}

impl<W: Word, T> Deref for ReadGuard<'_, W, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: while a reader is counted there is no writer.
        unsafe { &*self.lock.value.get() }
    }
}

impl<W: Word, T> Drop for ReadGuard<'_, W, T> {
    fn drop(&mut self) {
        self.lock.word.fetch_add(u64::MAX, Ordering::Release);
    }
}

/// Sole possession of an [`RwLock`].
pub(crate) struct WriteGuard<'l, W: Word, T> {
    lock: &'l RwLock<W, T>,
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
        self.lock.word.fetch_and(!WRITER, Ordering::Release);
    }
}
