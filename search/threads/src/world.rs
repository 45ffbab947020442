//! Holds the memory of the threads' programs, and the oracle that checks it.
//!
//! Each space has one table of [`PAGES`] entries. Anonymous pages are below [`FIRST_FILE_PAGE`], pages of one shared
//! file above. A frame holds a single word, its *content*: its owner (a number that grows with each new owner), its
//! file page, and a value. An entry word contains the frame, the rights, the owner for whom the frame was mapped, and
//! the *version* of the page. So each access can be checked on its own, without a lock that would order the tested
//! code:
//!
//! * the content's owner isn't the entry's: the frame has a new owner, or another has written it (C1);
//! * the content changed while the page was write-protected and captured (C2);
//! * the entry's version is older than the last change that had returned before the access (C3);
//! * a file page's value is older than the last write before the access (C4);
//! * the entry was walked from another space's table (C5).
//!
//! The kernel's half is checked in the same way (C1, C3) on every CPU. Some of its pages have global entries, others
//! don't. Kernel addresses that were unmapped lazily are used again.
//!
//! Some values define what was "before the access". They're read with relaxed ordering where the contract needs no
//! order from them. For example, a thread reads a value that was published after its own flush. By program order alone,
//! it has flushed.

use crate::machine::Threads;
use crate::tables::{FIRST_KERNEL_PAGE, GLOBAL, KERNEL_PAGES, PAGES, PRESENT};
use quell::{
    AddressSpace, DeferredFlush, Engine, Frame, KernelEntries, LedgerEntry, Page, PageRange,
    PerCpuData, Policy, Stamp,
};
use quell_vm::contract::{Clause, Violation};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

pub type Machine = Threads<true>;

/// The number of pages of the file. Each space maps all of them.
pub const FILE_PAGES: usize = 6;
/// The first page of a space that maps the file.
pub const FIRST_FILE_PAGE: usize = PAGES - FILE_PAGES;

const WRITABLE: u64 = 1 << 1;
const MARKER: u64 = 1 << 2;
const FRAME_SHIFT: u32 = 3;
const FRAME_BITS: u32 = 9;
const VERSION_SHIFT: u32 = FRAME_SHIFT + FRAME_BITS;
const COUNTER_BITS: u32 = 26;
const OWNER_SHIFT: u32 = VERSION_SHIFT + COUNTER_BITS;
const COUNTER: u64 = (1 << COUNTER_BITS) - 1;

/// An entry word. A word without any right is empty, or a marker: it names a frame that was unmapped lazily.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryWord(pub u64);

impl EntryWord {
    /// Returns the clause that an access through this entry breaks, given the frame's content.
    ///
    /// `completed` is the oldest version that an access may use now.
    pub fn breaks(self, content: Content, completed: u64) -> Option<(Clause, String)> {
        let (is, was) = (content.owner(), self.owner());
        if is != was {
            let account = format!("mapped for owner {was}, belongs to {is}");
            return Some((Clause::C1, account));
        }
        let version = self.version();
        (version < completed).then(|| {
            let account = format!("version {version} after {completed}");
            (Clause::C3, account)
        })
    }

    pub fn new(frame: usize, owner: u64, version: u64, writable: bool) -> Self {
        EntryWord(
            PRESENT
                | if writable { WRITABLE } else { 0 }
                | (frame as u64) << FRAME_SHIFT
                | (version & COUNTER) << VERSION_SHIFT
                | owner << OWNER_SHIFT,
        )
    }
    /// Marks the entry as valid for all tags. Only the kernel's half has such entries, and it has no markers.
    #[must_use]
    pub fn global(self) -> Self {
        EntryWord(self.0 | GLOBAL)
    }
    /// Creates the marker to leave where an entry for `frame` is cleared lazily.
    pub fn marker(frame: usize) -> Self {
        EntryWord(MARKER | (frame as u64) << FRAME_SHIFT)
    }
    /// Returns whether the hardware may use the entry.
    pub fn present(self) -> bool {
        self.0 & PRESENT != 0
    }
    /// Returns whether a store may use the entry.
    pub fn writable(self) -> bool {
        self.0 & WRITABLE != 0
    }
    pub fn is_marker(self) -> bool {
        self.0 & MARKER != 0
    }
    /// Returns the frame that the entry or marker names.
    pub fn frame(self) -> usize {
        (self.0 >> FRAME_SHIFT) as usize & ((1 << FRAME_BITS) - 1)
    }
    pub fn version(self) -> u64 {
        self.0 >> VERSION_SHIFT & COUNTER
    }
    /// Returns the owner of the frame for which the entry was written.
    pub fn owner(self) -> u64 {
        self.0 >> OWNER_SHIFT
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Content(pub u64);

impl Content {
    /// Creates the content of a frame of `owner`.
    ///
    /// `file_page` is [`FILE_PAGES`] for anonymous memory.
    pub fn new(owner: u64, file_page: usize, value: u64) -> Self {
        Content((owner & COUNTER) << 38 | (file_page as u64) << 32 | (value & 0xffff_ffff))
    }
    pub fn owner(self) -> u64 {
        self.0 >> 38
    }
    /// Returns the page of the file that the frame holds, if any.
    pub fn file_page(self) -> Option<usize> {
        let page = (self.0 >> 32) as usize & 0x3f;
        (page < FILE_PAGES).then_some(page)
    }
    pub fn value(self) -> u64 {
        self.0 & 0xffff_ffff
    }
}

pub struct FrameState {
    pub content: AtomicU64,
    pub deferred_flush: DeferredFlush<Machine>,
}

/// The embedder's state of a space, which a lock protects.
pub struct Layout {
    pub versions: [u64; PAGES],
    /// The pages of the file that the pages from [`FIRST_FILE_PAGE`] on map.
    pub maps: [usize; FILE_PAGES],
}

pub struct Space {
    pub engine: AddressSpace<Machine>,
    /// The index of the space's table.
    pub table: usize,
    /// The lock of the table, with the state that it protects.
    pub layout: Mutex<Layout>,
    /// For each page, the lowest version that a later access may use.
    pub completed: [AtomicU64; PAGES],
}

pub struct KernelPage {
    /// The lock of the address, with the state that it protects.
    pub state: Mutex<KernelAddress>,
    /// The lowest version that a later access may use.
    pub completed: AtomicU64,
}

/// The kernel's state of an address, which a lock protects.
#[derive(Default)]
pub struct KernelAddress {
    pub version: u64,
    /// The stamp of the address's deferred flush, if there is one.
    pub deferred: Option<Stamp>,
}

/// The kernel's own mappings. The first half of its pages have global entries.
pub struct KernelHalf {
    /// The engine's space for global entries, and its space for other entries.
    pub spaces: [AddressSpace<Machine>; 2],
    pub pages: Vec<KernelPage>,
    /// The frames with deferred flushes, which wait to be reused.
    pub deferred: Mutex<VecDeque<usize>>,
}

/// The number of pages with global entries, and of pages with others.
pub const KERNEL_PAGES_EACH: usize = KERNEL_PAGES / 2;

impl KernelHalf {
    fn new(engine: &Engine<'_, Machine>) -> Self {
        let space = |entries| {
            // SAFETY: the root is a number, the machine supports the features it reports, and entries are global as
            // declared.
            unsafe { engine.new_kernel_space(Frame(0), entries) }
        };
        KernelHalf {
            spaces: [KernelEntries::Global, KernelEntries::Tagged].map(space),
            pages: (0..KERNEL_PAGES)
                .map(|_| KernelPage { state: Mutex::default(), completed: AtomicU64::new(0) })
                .collect(),
            deferred: Mutex::default(),
        }
    }

    /// Returns the engine's space to which a page of the kernel's half belongs.
    pub fn space(&self, page: usize) -> &AddressSpace<Machine> {
        &self.spaces[page / KERNEL_PAGES_EACH]
    }

    pub fn range(first: usize, pages: usize) -> PageRange {
        PageRange::base(Page(u64::from(FIRST_KERNEL_PAGE) + first as u64), pages as u64)
    }
}

/// A slot of the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheSlot {
    Empty,
    Filled(usize),
    /// The slot was emptied lazily and still names this frame.
    Emptied(usize),
}

/// A frame in the free list.
#[derive(Clone, Copy, Debug)]
pub enum FreeFrame {
    Clear(usize),
    /// A frame with a deferred flush, and the page of the file from which it came.
    Deferred(usize, usize),
}

/// The state that all programs share.
pub struct World {
    pub spaces: Vec<Space>,
    pub kernel: KernelHalf,
    pub frames: Vec<FrameState>,
    pub slots: Vec<Mutex<CacheSlot>>,
    /// The value last written to each page of the file.
    pub written: Vec<AtomicU64>,
    pub free: Mutex<VecDeque<FreeFrame>>,
    violation: Mutex<Option<Violation>>,
    stopped: AtomicBool,
}

/// The memory that an engine borrows.
pub struct EngineMemory {
    pub cpus: Vec<PerCpuData<'static, Machine>>,
    pub ledger: Vec<LedgerEntry<Machine>>,
}

impl EngineMemory {
    pub fn new(cpus: usize, ledger: usize) -> Self {
        EngineMemory {
            cpus: (0..cpus).map(|_| PerCpuData::new()).collect(),
            ledger: (0..ledger).map(|_| LedgerEntry::new()).collect(),
        }
    }
    pub fn engine<'m>(&'m self, hw: &'m Machine, policy: Policy) -> Engine<'m, Machine> {
        Engine::new(hw, &self.cpus, &self.ledger, policy).expect("the threads are such a machine")
    }
}

impl World {
    /// Creates a world with `spaces` empty spaces and `frames` free frames.
    ///
    /// # Panics
    /// If an entry word can't name that many frames.
    pub fn new(engine: &Engine<'_, Machine>, spaces: usize, frames: usize) -> Self {
        assert!(frames <= 1 << FRAME_BITS, "at most {} frames", 1 << FRAME_BITS);
        let space = |table: usize| Space {
            // SAFETY: here a root is just a number, and every number is valid.
            engine: unsafe { engine.new_space(Frame(table as u64)) },
            table,
            layout: Mutex::new(Layout {
                versions: [1; PAGES],
                maps: std::array::from_fn(|page| page),
            }),
            completed: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        let frame = || FrameState {
            content: AtomicU64::new(Content::new(0, FILE_PAGES, 0).0),
            deferred_flush: DeferredFlush::new(),
        };
        World {
            spaces: (0..spaces).map(space).collect(),
            kernel: KernelHalf::new(engine),
            frames: (0..frames).map(|_| frame()).collect(),
            slots: (0..FILE_PAGES).map(|_| Mutex::new(CacheSlot::Empty)).collect(),
            written: (0..FILE_PAGES).map(|_| AtomicU64::new(0)).collect(),
            free: Mutex::new((0..frames).map(FreeFrame::Clear).collect()),
            violation: Mutex::new(None),
            stopped: AtomicBool::new(false),
        }
    }

    /// Records the first violation and stops all CPUs.
    pub fn report(&self, violation: Violation) {
        let mut first = self.violation.lock().unwrap_or_else(|held| held.into_inner());
        first.get_or_insert(violation);
        self.stop();
    }

    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    pub fn verdict(&self) -> Option<Violation> {
        self.violation.lock().unwrap_or_else(|held| held.into_inner()).clone()
    }

    pub fn content(&self, frame: usize) -> Content {
        Content(self.frames[frame].content.load(Ordering::Relaxed))
    }

    pub fn range(page: usize) -> PageRange {
        PageRange::base(Page(page as u64), 1)
    }
}

/// Takes a lock, and calls `meanwhile` between attempts.
///
/// For example, a thread that spins for a lock takes interrupts meanwhile.
pub fn lock<T>(mutex: &Mutex<T>, mut meanwhile: impl FnMut()) -> MutexGuard<'_, T> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(held)) => return held.into_inner(),
            Err(TryLockError::WouldBlock) => meanwhile(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_what_is_put_into_them() {
        let entry = EntryWord::new(511, COUNTER, COUNTER - 1, true);
        assert!(entry.present() && entry.writable() && !entry.is_marker());
        assert_eq!((entry.frame(), entry.owner(), entry.version()), (511, COUNTER, COUNTER - 1));
        let marker = EntryWord::marker(300);
        assert!(!marker.present() && marker.is_marker() && marker.frame() == 300);
        let content = Content::new(COUNTER, 5, 0xffff_ffff);
        assert_eq!(
            (content.owner(), content.file_page(), content.value()),
            (COUNTER, Some(5), 0xffff_ffff)
        );
        assert_eq!(Content::new(1, FILE_PAGES, 0).file_page(), None);
    }
}
