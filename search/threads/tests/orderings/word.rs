//! The engine's words on loom's atomics; each ordering can be weakened.
//!
//! Loom treats a sequentially consistent access as acquire and release. Such an access adds *one total order that every
//! thread respects*. We supply it without a fence, because that would also order neighbouring accesses and hide their
//! mistakes. The order is that of loom's execution: a sequentially consistent load returns no value older than the last
//! sequentially consistent store. It may miss any later store that was weaker. This is C++20's definition of such a
//! load.

use crate::machine::{PausePoint, reach};
use crate::source::Place;
use loom::sync::atomic::{AtomicBool, AtomicU64, fence};
use quell::Word;
use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};

/// The sources whose orderings are weakened.
const SOURCES: [&str; 3] = ["engine/quell/src/", "engine/quell-zero/src/", "testbed/vm/src/"];

/// The kind of operation that has an ordering.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    Load,
    Store,
    Modification,
    Fence,
}

/// An ordering above `Relaxed` that a race has passed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// The file's path from the root of the workspace.
    pub file: String,
    pub line: u32,
    /// Its index among the orderings above `Relaxed` of this call.
    pub nth: usize,
    pub operation: Operation,
    pub order: Ordering,
}

/// An access: its call, the index of its ordering, its operation and the ordering.
type Access = (&'static Location<'static>, usize, Operation, Ordering);

std::thread_local! {
    static WEAK: Cell<Option<&'static Place>> = const { Cell::new(None) };
    /// The accesses of this thread. Loom runs a race on one thread of the host.
    static SEEN: RefCell<Vec<Access>> = const { RefCell::new(Vec::new()) };
}

/// Returns the orderings that this thread has passed.
pub fn seen() -> Vec<Seen> {
    let seen = SEEN.take().into_iter().filter_map(|(call, nth, operation, order)| {
        let at = SOURCES.iter().find_map(|source| call.file().find(source))?;
        Some(Seen { file: call.file()[at..].into(), line: call.line(), nth, operation, order })
    });
    seen.collect()
}

/// Makes this thread weaken an ordering from now on, or none.
pub fn weaken(weak: Option<&'static Place>) {
    WEAK.set(weak);
}

/// Returns `order`, or its weaker form if it is the ordering to weaken. It is the `nth` on the caller's line.
#[track_caller]
fn nth_ordered(order: Ordering, nth: usize, operation: Operation) -> Ordering {
    if order == Relaxed {
        return order;
    }
    let here = Location::caller();
    let Some(weak) = WEAK.get() else {
        let access = (here, nth, operation, order);
        SEEN.with_borrow_mut(|seen| {
            if !seen.contains(&access) {
                seen.push(access);
            }
        });
        return order;
    };
    let seen = &weak.seen;
    let chosen = seen.nth == nth
        && seen.line == here.line()
        && seen.order == order
        && here.file().ends_with(&seen.file);
    if chosen { weak.to } else { order }
}

#[track_caller]
fn ordered(order: Ordering, operation: Operation) -> Ordering {
    nth_ordered(order, 0, operation)
}

/// A value that no word of the engine ever holds.
const NEVER: u64 = 0xdead_dead_dead_dead;

pub struct LoomWord {
    cell: AtomicU64,
    /// Makes loom try both orders of loads by different threads.
    ///
    /// Of the accesses before a store, loom remembers only one, and would otherwise overlook one thread's load behind a
    /// later load of another thread.
    loads: AtomicBool,
    written: Mutex<LastStores>,
}

/// The values that a sequentially consistent load may return.
struct LastStores {
    /// The last sequentially consistent store.
    consistently: u64,
    /// Later stores.
    later: Vec<u64>,
}

impl LoomWord {
    fn wrote(&self, value: u64, order: Ordering) {
        let mut written = self.written.lock().expect("no thread panics with it");
        if order == SeqCst {
            written.consistently = value;
            written.later.clear();
        } else {
            written.later.push(value);
        }
    }

    fn may_return(&self, value: u64) -> bool {
        let written = self.written.lock().expect("no thread panics with it");
        written.consistently == value || written.later.contains(&value)
    }

    #[track_caller]
    fn modify(
        &self,
        order: Ordering,
        operation: impl FnOnce(&AtomicU64, Ordering) -> u64,
        change: impl FnOnce(u64) -> u64,
    ) -> u64 {
        let order = ordered(order, Operation::Modification);
        let held = operation(&self.cell, order);
        self.wrote(change(held), order);
        held
    }
}

// SAFETY: the words are loom's atomics. We weaken an ordering only to check that loom notices, in memory that loom
// watches.
unsafe impl Word for LoomWord {
    /// Three CPUs are two groups.
    const GROUP: usize = 2;

    fn new(value: u64) -> Self {
        let cell = AtomicU64::new(value);
        // Loom doesn't count the initial value of a word as written with sequential consistency.
        cell.store(value, SeqCst);
        LoomWord {
            cell,
            loads: AtomicBool::new(false),
            written: Mutex::new(LastStores { consistently: value, later: Vec::new() }),
        }
    }
    #[track_caller]
    fn fence(order: Ordering) {
        match ordered(order, Operation::Fence) {
            Relaxed => {}
            order => fence(order),
        }
        if order == Release {
            reach(PausePoint::Locked);
        }
    }
    #[track_caller]
    fn load(&self, order: Ordering) -> u64 {
        let order = ordered(order, Operation::Load);
        // This exchange fails, so it orders nothing.
        let _ = self.loads.compare_exchange(true, true, Relaxed, Relaxed);
        let value = self.cell.load(order);
        if order != SeqCst || self.may_return(value) {
            return value;
        }
        // The value is too old. An exchange that fails reads the newest one.
        match self.cell.compare_exchange(NEVER, NEVER, AcqRel, Acquire) {
            Ok(value) | Err(value) => value,
        }
    }
    #[track_caller]
    fn store(&self, value: u64, order: Ordering) {
        let order = ordered(order, Operation::Store);
        self.cell.store(value, order);
        self.wrote(value, order);
    }
    #[track_caller]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.modify(order, |cell, order| cell.swap(value, order), |_| value)
    }
    #[track_caller]
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        let failure = nth_ordered(failure, usize::from(success != Relaxed), Operation::Load);
        let success = ordered(success, Operation::Modification);
        let result = self.cell.compare_exchange(current, new, success, failure);
        if result.is_ok() {
            self.wrote(new, success);
        }
        result
    }
    #[track_caller]
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        let operation = |cell: &AtomicU64, order| cell.fetch_add(value, order);
        self.modify(order, operation, |held| held.wrapping_add(value))
    }
    #[track_caller]
    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        let operation = |cell: &AtomicU64, order| cell.fetch_or(value, order);
        self.modify(order, operation, |held| held | value)
    }
    #[track_caller]
    fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        let operation = |cell: &AtomicU64, order| cell.fetch_and(value, order);
        self.modify(order, operation, |held| held & value)
    }
    #[track_caller]
    fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        let operation = |cell: &AtomicU64, order| cell.fetch_max(value, order);
        self.modify(order, operation, |held| held.max(value))
    }
}
