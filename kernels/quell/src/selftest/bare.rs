//! Spaces of one page without a manager, for the tests.

use crate::machine::{self, Kernel};
use crate::{cpu, memory, tables, watchdog};
use alloc::string::String;
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use quell::{Entry, Frame, Hardware, Page};

/// The address at which the tests map their page. We avoid those at which the kernel's own pages would replace it in a
/// direct-mapped TLB of an emulator.
pub const ADDRESS: u64 = 0x10_0012_3000;

pub type Outcome = Result<String, String>;

/// A barrier at which all CPUs wait for each other.
pub struct Barrier {
    arrived: AtomicUsize,
}

impl Barrier {
    /// Creates a barrier for all CPUs.
    pub const fn new() -> Self {
        Barrier { arrived: AtomicUsize::new(0) }
    }
    /// Waits until every CPU has called this as often as this one.
    pub fn wait(&self) {
        let round = self.arrived.fetch_add(1, SeqCst) / cpu::count();
        while self.arrived.load(SeqCst) < (round + 1) * cpu::count() {
            watchdog::relax();
        }
        watchdog::progress();
    }
}

/// Creates an address space with one page mapped, read-only or writable.
pub fn space(frame: Frame, writable: bool) -> Frame {
    space_of(leaf(frame, writable))
}

pub fn space_of(leaf: Entry) -> Frame {
    let root = machine::new_root();
    tables::set(root, Page::containing(ADDRESS), Some(leaf));
    Kernel.fence();
    root
}

pub fn leaf(frame: Frame, writable: bool) -> Entry {
    Entry {
        present: true,
        frame,
        writable,
        user: true,
        accessed: true,
        dirty: writable,
        ..Entry::ABSENT
    }
}

/// Returns a frame whose first word is `value`.
pub fn marked(value: u64) -> Frame {
    let frame = memory::take_frame();
    set_mark(frame, value);
    frame
}

pub fn set_mark(frame: Frame, value: u64) {
    memory::words(frame)[0].store(value, SeqCst);
}

pub fn check(condition: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if condition { Ok(()) } else { Err(what()) }
}
