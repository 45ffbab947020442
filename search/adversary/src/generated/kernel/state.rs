//! The kernel's state, and its lowest layer: locks, frames with owners, the entries of tables.

use super::own_half::OwnHalf;
use crate::action::MAX_CPUS;
use crate::generated::program::{
    BATCHES, CpuProgram, EngineOp, FILE_PAGES, FILES, FLAGS, Flags, PAGES, PLACES, Right, SPACES,
    Shape, WINDOW,
};
use crate::hardware::Adversary;
use crate::word::AdversaryWord;
use crate::{context, tables};
use quell::{
    AddressSpace, Batch, Break, DeferredFlush, Engine, Extent, Frame, FrameArray, Hardware,
    Purpose, Scope, Word,
};
use quell_vm::machine::{Event, Level, Machine};
use quell_zero::PhysicalMemory;
use std::cell::Cell;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// How many times a space number can be used.
pub(super) const LIVES: usize = 2;
/// The bit that marks an entry that was emptied lazily. The entry also names the frame that it mapped.
pub(super) const MARKER: u64 = 1 << 9;
/// The content of a freed frame.
pub(super) const SECRET: u64 = 0x5ec2e7;

pub(super) type Space = AddressSpace<Adversary>;

/// A frame, by its use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OwnedFrame {
    Single(Frame),
    Block(Frame),
    Table(Frame),
}

/// A frame that is freed when this is dropped.
pub(super) struct FrameGuard<'k, 'm> {
    pub(super) kernel: &'k Kernel<'m>,
    pub(super) what: OwnedFrame,
}

impl Drop for FrameGuard<'_, '_> {
    fn drop(&mut self) {
        self.kernel.release(self.what);
    }
}

pub(super) struct Kernel<'m> {
    pub(super) hw: &'m Adversary,
    pub(super) engine: Engine<'m, Adversary>,
    pub(super) shape: Shape,
    pub(super) layout: Layout,
    pub(super) spaces: [[Space; LIVES]; SPACES],
    /// For each space number, the number of CPUs that run it, its current life, and whether it is alive.
    pub(super) lives: [AdversaryWord; SPACES],
    pub(super) locks: [AdversaryWord; SPACES],
    /// The number of outstanding coalesced flushes of each space. It changes under the space's lock, except at the end
    /// of a flush.
    pub(super) sharing: [AdversaryWord; SPACES],
    pub(super) file_locks: [AdversaryWord; FILES],
    /// The frame with a file's page; 0 if the page isn't in memory. Protected by the file's lock.
    pub(super) slots: [AdversaryWord; FILES],
    /// A file's content while its page isn't in memory. Protected by the file's lock.
    pub(super) disks: [AdversaryWord; FILES],
    /// The frame that was lazily taken from the file; 0 if none. Protected by the file's lock.
    pub(super) shadows: [AdversaryWord; FILES],
    /// The file from which each frame was lazily taken. Only the frame's owner may read this.
    pub(super) deferrers: [AdversaryWord; SINGLES as usize],
    pub(super) deferred_flushes: [DeferredFlush<Adversary>; SINGLES as usize],
    /// The free frames, as sets.
    pub(super) free_singles: AdversaryWord,
    pub(super) free_blocks: AdversaryWord,
    pub(super) free_tables: AdversaryWord,
    pub(super) told: [AdversaryWord; FLAGS],
    /// Whether a CPU is using each batch.
    pub(super) busy: [AdversaryWord; BATCHES],
    /// A digest of each batch's history, for searches that distinguish states.
    pub(super) traces: [AdversaryWord; BATCHES],
    pub(super) current: [Cell<CpuState>; MAX_CPUS],
    pub(super) flags: Flags,
    pub(super) own: OwnHalf,
}

/// The relation of a CPU to the kernel's own mappings.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Mode {
    /// The CPU uses them.
    #[default]
    Kernel,
    /// The CPU is entering or leaving a program.
    Crossing,
    /// The CPU runs an undisturbed program.
    Undisturbed,
}

/// The state of a CPU. No other CPU's code reads it, only judges do.
#[derive(Clone, Copy, Default)]
pub(super) struct CpuState {
    /// The space that it loaded last, with its life.
    pub(super) loaded: Option<(u8, u8)>,
    /// Whether it runs user code there.
    pub(super) runs: bool,
    pub(super) offline: bool,
    pub(super) masked: bool,
    /// Whether its present code mustn't be preempted.
    pub(super) pinned: bool,
    /// Whether the running code has preempted a thread. It waits for no lock, because that thread may hold it.
    pub(super) preempts: bool,
    /// Its relation to the kernel's own half.
    pub(super) mode: Mode,
    /// The last flag that it has set or waited for.
    pub(super) flag: u8,
    /// The number of stores that its programs have made.
    pub(super) stores: u8,
}

pub(super) fn peek(word: &AdversaryWord) -> u64 {
    word.peek()
}

/// Sets a word that a lock protects.
pub(super) fn set(word: &AdversaryWord, value: u64) {
    context::quiet_store(word, value);
}

pub(super) const ALIVE: u64 = 1;
pub(super) const ONE_USER: u64 = 2;
pub(super) const USERS: u64 = 0xfe;
pub(super) const LIFE_SHIFT: u32 = 8;
/// Marks a space that has ended and whose tables may be used again.
pub(super) const GONE: u64 = 1 << 63;

/// Returns the bit of an entry that grants a right.
pub(super) fn bit(right: Right) -> u64 {
    match right {
        Right::Write => tables::WRITABLE,
        Right::Execute => tables::EXECUTABLE,
    }
}

/// Returns whether an entry points to a table.
pub(super) fn is_table(word: u64) -> bool {
    let table = tables::PRESENT | tables::TABLE;
    word & table == table
}

/// Returns whether an entry above the leaf tables maps a large page.
pub(super) fn is_large(word: u64) -> bool {
    word & (tables::PRESENT | tables::TABLE) == tables::PRESENT
}

/// Returns the pages of programs that a leaf table maps.
pub(super) fn pages_of(window: u64) -> impl Iterator<Item = u64> {
    PAGES.into_iter().filter(move |page| page / WINDOW == window)
}

pub(super) fn life_of(word: u64) -> usize {
    (word >> LIFE_SHIFT) as usize & 0xff
}

/// A batch with room for [`PLACES`] spaces.
pub(super) type SmallBatch<'k, F> = Batch<'k, &'k Space, FrameArray<F>, PLACES>;

impl<'m> Kernel<'m> {
    pub(super) fn batch<F>(&self, purpose: Purpose) -> SmallBatch<'_, F> {
        self.engine.batch_of_spaces(purpose, FrameArray::new())
    }

    pub(super) fn me(&self) -> usize {
        context::this_cpu()
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut CpuState)) {
        let cell = &self.current[self.me()];
        let mut current = cell.get();
        change(&mut current);
        cell.set(current);
    }

    pub(super) fn here(&self) -> CpuState {
        self.current[self.me()].get()
    }

    pub(super) fn lock_word(&self, word: &AdversaryWord) {
        while word.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            // The CPU that holds the lock may wait for this one to flush.
            if self.here().masked {
                self.engine.this_cpu().poll();
            }
            self.hw.relax();
        }
    }

    /// Takes the lock of a living space, and makes the shared flushes that are outstanding. Returns the space, or
    /// `None` without the lock.
    pub(super) fn lock(&self, slot: usize) -> Option<&Space> {
        let space = self.lock_to_share(slot)?;
        self.flush_pending_shared(slot, space);
        Some(space)
    }

    /// Takes the lock of a living space without those flushes.
    pub(super) fn lock_to_share(&self, slot: usize) -> Option<&Space> {
        if slot >= usize::from(self.shape.spaces) {
            return None;
        }
        if self.here().preempts {
            let lock = &self.locks[slot];
            if lock.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
                return None;
            }
        } else {
            self.lock_word(&self.locks[slot]);
        }
        let life = self.lives[slot].load(Acquire);
        if life & ALIVE == 0 {
            self.unlock(slot);
            return None;
        }
        Some(&self.spaces[slot][life_of(life)])
    }

    /// Returns the space that has this number, or had it last.
    pub(super) fn space(&self, slot: usize) -> &Space {
        &self.spaces[slot][life_of(peek(&self.lives[slot]))]
    }

    pub(super) fn unlock(&self, slot: usize) {
        self.locks[slot].store(0, Release);
    }

    // Frames.

    pub(super) fn take_bit(&self, word: &AdversaryWord) -> Option<u64> {
        loop {
            let held = word.load(Relaxed);
            if held == 0 {
                return None;
            }
            let bit = held.trailing_zeros();
            if word.fetch_and(!(1 << bit), AcqRel) & 1 << bit != 0 {
                return Some(bit.into());
            }
        }
    }

    pub(super) fn take_single(&self) -> Option<Frame> {
        let index = self.take_bit(&self.free_singles)?;
        Some(self.layout.single(index))
    }

    pub(super) fn take_table(&self) -> Option<Frame> {
        let index = self.take_bit(&self.free_tables)?;
        let frame = Frame(self.layout.first_leaf() + index);
        let level = Level::LEAF;
        self.hw.note(Event::TableAllocated { frame, level });
        let extent = Extent { first: frame, frames: 1 };
        let strategy = quell_zero::Strategy::Stores;
        // SAFETY: the frame was free, so nobody else uses it.
        unsafe { self.hw.zero(extent, strategy) };
        Some(frame)
    }

    /// Records that a frame has lost its user. The kernel owns it now.
    pub(super) fn release(&self, what: OwnedFrame) {
        match what {
            OwnedFrame::Single(frame) => {
                self.own(frame, 1);
                let index = frame.0 - self.layout.single(0).0;
                self.free_singles.fetch_or(1 << index, Release);
            }
            OwnedFrame::Block(frame) => {
                self.own(frame, WINDOW);
                let index = (frame.0 - self.layout.block(0).0) / WINDOW;
                self.free_blocks.fetch_or(1 << index, Release);
            }
            OwnedFrame::Table(frame) => {
                self.hw.note(Event::TableFreed { frame });
                let index = frame.0 - self.layout.first_leaf();
                self.free_tables.fetch_or(1 << index, Release);
            }
        }
    }

    fn own(&self, frame: Frame, frames: u64) {
        self.hw.note(Event::FrameFreed { frame, frames });
        self.hw.note(Event::FrameAllocated { frame, frames });
        self.judge_own();
        self.fill(frame, SECRET);
    }

    pub(super) fn fill(&self, frame: Frame, value: u64) {
        self.hw.write_frame(frame, 0, &value.to_le_bytes());
    }

    pub(super) fn deferred_flush(&self, frame: Frame) -> &DeferredFlush<Adversary> {
        &self.deferred_flushes[(frame.0 - self.layout.single(0).0) as usize]
    }

    pub(super) fn deferrer(&self, frame: Frame) -> &AdversaryWord {
        &self.deferrers[(frame.0 - self.layout.single(0).0) as usize]
    }

    // Tables. The lock of the space protects them.

    pub(super) fn window_entry(&self, slot: usize, window: u64) -> &AdversaryWord {
        &self.hw.table(self.layout.middle(slot))[window as usize]
    }

    pub(super) fn huge_entry(&self, slot: usize) -> &AdversaryWord {
        &self.hw.table(self.layout.root(slot))[1]
    }

    /// Returns the entry of a base page, if there is a table for it.
    pub(super) fn entry(&self, slot: usize, page: u64) -> Option<&AdversaryWord> {
        if page >= 2 * WINDOW {
            return None;
        }
        let word = self.window_entry(slot, page / WINDOW).load(Relaxed);
        is_table(word).then(|| &self.hw.table(Frame(word >> 12))[(page % WINDOW) as usize])
    }

    /// Returns the entry of a base page. Adds a table if nothing is there.
    pub(super) fn entry_made(&self, slot: usize, page: u64) -> Option<&AdversaryWord> {
        if page >= 2 * WINDOW {
            return None;
        }
        let window = self.window_entry(slot, page / WINDOW);
        if window.load(Relaxed) & tables::PRESENT == 0 {
            let table = self.take_table()?;
            // Another table or a large page may have been unlinked there, and its flush be outstanding.
            if self.hw.tlb_rules().break_before_make != Break::Never {
                self.engine.flush_pending_tables(self.space(slot));
            }
            self.link(window, table);
        }
        self.entry(slot, page)
    }

    /// Returns the entry of a base page that is mapped.
    pub(super) fn mapped(&self, slot: usize, page: u64) -> Option<&AdversaryWord> {
        self.entry(slot, page).filter(|entry| entry.load(Relaxed) & tables::PRESENT != 0)
    }

    pub(super) fn link(&self, window: &AdversaryWord, table: Frame) {
        let rights = tables::PRESENT | tables::TABLE | tables::WRITABLE | tables::USER;
        window.store(table.0 << 12 | rights, Release);
    }

    pub(super) fn leaf_word(frame: Frame, write: bool) -> u64 {
        let rights = tables::PRESENT | tables::USER | tables::DIRTY;
        frame.0 << 12 | rights | if write { tables::WRITABLE } else { 0 }
    }

    /// Returns the scope of a flush after which an entry of another page size may follow.
    pub(super) fn resizing(&self) -> Scope {
        match self.hw.tlb_rules().break_before_make {
            Break::Never => Scope::Leaf,
            Break::Size | Break::Translation => Scope::Tables,
        }
    }

    /// Makes the outstanding flushes of an empty entry's earlier content, before the entry is written.
    pub(super) fn make_ready(&self, space: &Space, held: u64) {
        if held & MARKER != 0 {
            self.engine.flush_before_refill(self.deferred_flush(Frame(held >> 12)), space);
        }
        self.engine.flush_pending_batches(space);
    }

    pub(super) fn file_at(page: u64) -> Option<usize> {
        FILE_PAGES.iter().position(|&at| at == page)
    }
}

/// The number of data frames of one page.
pub(super) const SINGLES: u64 = 24;
/// The number of frame ranges for a large page, or for the used part of a huge one.
pub(super) const BLOCKS: u64 = 2;

/// The layout of physical memory: tables first, then data.
#[derive(Clone, Copy, Debug)]
pub(in crate::generated) struct Layout {
    spaces: u64,
    pub(super) blocks: u64,
    /// Whether the kernel has its own half.
    pub(super) own: bool,
    /// Whether CPUs go offline during the program.
    pub(super) leaves: bool,
}

impl Layout {
    pub(in crate::generated) fn of(shape: &Shape, cpu: &[CpuProgram<EngineOp>]) -> Self {
        let large = |op: &EngineOp| {
            matches!(
                op,
                EngineOp::MapLarge { .. } | EngineOp::MapHuge { .. } | EngineOp::Collapse { .. }
            )
        };
        let ops = || cpu.iter().flat_map(CpuProgram::all);
        Layout {
            spaces: shape.spaces.into(),
            blocks: if ops().any(large) { BLOCKS } else { 0 },
            own: ops().any(|op| op.is_of_own_half()),
            leaves: ops().any(|op| matches!(op, EngineOp::Offline)),
        }
    }

    pub(super) fn root(self, slot: usize) -> Frame {
        Frame(1 + slot as u64)
    }

    pub(super) fn middle(self, slot: usize) -> Frame {
        Frame(1 + self.spaces + slot as u64)
    }

    pub(super) fn first_leaf(self) -> u64 {
        1 + 2 * self.spaces
    }

    /// Returns the number of frames that may be leaf tables.
    pub(super) fn leaves(self) -> u64 {
        2 * self.spaces + 4
    }

    /// Returns the tables of the kernel's own half below its root: the middle table and the first leaf table.
    pub(super) fn own_tables(self) -> [Frame; 2] {
        let first = self.first_leaf() + self.leaves();
        [Frame(first), Frame(first + 1)]
    }

    /// Returns the number of frames that may be tables.
    pub(in crate::generated) fn tables(self) -> usize {
        let own = if self.own { 2 } else { 0 };
        (self.first_leaf() + self.leaves() + own) as usize
    }

    pub(super) fn single(self, index: u64) -> Frame {
        Frame(self.tables() as u64 + index)
    }

    pub(super) fn block(self, index: u64) -> Frame {
        Frame(self.tables() as u64 + SINGLES + index * WINDOW)
    }

    pub(in crate::generated) fn frames(self) -> usize {
        self.block(self.blocks).0 as usize
    }
}
