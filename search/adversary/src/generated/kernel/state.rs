//! What the kernel keeps, and what lies at its bottom: locks, frames with owners, the entries of tables.

use super::layout::{Layout, SINGLES};
use super::own_state::OwnHalf;
use crate::action::MAX_CPUS;
use crate::cell::AdversaryWord;
use crate::context;
use crate::generated::program::{
    BATCHES, FILE_PAGES, FILES, FLAGS, Flags, PLACES, Right, SPACES, Shape, WINDOW,
};
use crate::stage::Hw;
use crate::tables;
use quell::{
    AddressSpace, Batch, Break, CoalescedFlushes, DeferredFlush, Engine, Extent, Frame, Hardware,
    InPlace, Purpose, Scope, Word,
};
use quell_vm::machine::{Event, Level, Machine};
use quell_zero::Clear;
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// How often a space number can be used.
pub(super) const LIVES: usize = 2;
/// An entry that was emptied lazily names the frame that it mapped, so that this bit is set.
pub(super) const MARKER: u64 = 1 << 9;
/// What a freed frame holds.
pub(super) const SECRET: u64 = 0x5ec2e7;

pub(super) type Space = AddressSpace<Hw>;

/// A frame, by what it is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    Single(Frame),
    Block(Frame),
    Table(Frame),
}

/// A frame that is freed when this is dropped.
pub(super) struct Held<'k, 'm> {
    pub(super) kernel: &'k Kernel<'m>,
    pub(super) what: What,
}

impl Drop for Held<'_, '_> {
    fn drop(&mut self) {
        self.kernel.release(self.what);
    }
}

/// The kernel.
pub(super) struct Kernel<'m> {
    pub(super) hw: &'m Hw,
    pub(super) engine: Engine<'m, Hw>,
    pub(super) shape: Shape,
    pub(super) layout: Layout,
    pub(super) spaces: [[Space; LIVES]; SPACES],
    /// Of each space number: how many CPUs run it, which of its lives it is in, and whether it lives.
    pub(super) lives: [AdversaryWord; SPACES],
    pub(super) locks: [AdversaryWord; SPACES],
    /// What tasks that share flushes of a space ask, of each of its lives.
    pub(super) coalesced: ManuallyDrop<[[CoalescedFlushes<Hw>; LIVES]; SPACES]>,
    /// How many of these are outstanding. Under the space's lock, but for the end of one.
    pub(super) sharing: [AdversaryWord; SPACES],
    pub(super) file_locks: [AdversaryWord; FILES],
    /// The frame that holds a file's page; 0 if it is not in memory. Under the file's lock.
    pub(super) slots: [AdversaryWord; FILES],
    /// What a file holds while it is not in memory. Under the file's lock.
    pub(super) disks: [AdversaryWord; FILES],
    /// The frame that was taken from the file lazily; 0 if none. Under the file's lock.
    pub(super) shadows: [AdversaryWord; FILES],
    /// The file that a lazily taken frame was taken from. Whose the frame is alone may look.
    pub(super) deferrers: [AdversaryWord; SINGLES as usize],
    pub(super) deferred_flushes: [DeferredFlush<Hw>; SINGLES as usize],
    /// Which frames are free, as sets.
    pub(super) free_singles: AdversaryWord,
    pub(super) free_blocks: AdversaryWord,
    pub(super) free_tables: AdversaryWord,
    pub(super) told: [AdversaryWord; FLAGS],
    /// Which batches some CPU is busy with.
    pub(super) busy: [AdversaryWord; BATCHES],
    /// What has become of each batch so far, as a number: for searches that tell states apart.
    pub(super) traces: [AdversaryWord; BATCHES],
    pub(super) current: [Cell<Current>; MAX_CPUS],
    pub(super) flags: Flags,
    pub(super) own: OwnHalf,
}

/// Where a CPU is, as far as the kernel's own mappings go.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Mode {
    /// It uses them.
    #[default]
    Kernel,
    /// It is on its way to a program, or from there.
    Crossing,
    /// It runs a program that is not to be disturbed.
    Undisturbed,
}

/// What a CPU does; only it looks.
#[derive(Clone, Copy, Default)]
pub(super) struct Current {
    /// The space that it has loaded last, with its life.
    pub(super) loaded: Option<(u8, u8)>,
    /// It runs user code there.
    pub(super) runs: bool,
    pub(super) offline: bool,
    pub(super) masked: bool,
    /// Nothing may preempt what it does now.
    pub(super) pinned: bool,
    /// The running code has preempted a thread, and waits for no lock: the preempted thread may hold it.
    pub(super) preempts: bool,
    /// Where it is, as far as the kernel's own half goes.
    pub(super) mode: Mode,
    /// The flag that it has come by last.
    pub(super) flag: u8,
    /// How many stores its programs have made.
    pub(super) stores: u8,
}

pub(super) fn peek(word: &AdversaryWord) -> u64 {
    word.peek()
}

/// Sets what a lock protects.
pub(super) fn set(word: &AdversaryWord, value: u64) {
    context::quiet_store(word, value);
}

pub(super) const ALIVE: u64 = 1;
pub(super) const ONE_USER: u64 = 2;
pub(super) const USERS: u64 = 0xfe;
pub(super) const LIFE_SHIFT: u32 = 8;
/// The space has ended, and its tables may be used again.
pub(super) const GONE: u64 = 1 << 63;

/// The bit of an entry that grants a right.
pub(super) fn bit(right: Right) -> u64 {
    match right {
        Right::Write => tables::WRITABLE,
        Right::Execute => tables::EXECUTABLE,
    }
}

pub(super) fn life_of(word: u64) -> usize {
    (word >> LIFE_SHIFT) as usize & 0xff
}

/// A batch with room for [`PLACES`] spaces.
pub(super) type SmallBatch<'k, F> = Batch<'k, &'k Space, InPlace<F>, PLACES>;

impl<'m> Kernel<'m> {
    pub(super) fn batch<F>(&self, purpose: Purpose) -> SmallBatch<'_, F> {
        self.engine.batch_of_spaces(purpose, InPlace::new())
    }

    pub(super) fn me(&self) -> usize {
        context::this_cpu()
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut Current)) {
        let cell = &self.current[self.me()];
        let mut current = cell.get();
        change(&mut current);
        cell.set(current);
    }

    pub(super) fn here(&self) -> Current {
        self.current[self.me()].get()
    }

    pub(super) fn lock_word(&self, word: &AdversaryWord) {
        while word.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            // The CPU that holds it may wait for this one to flush.
            if self.here().masked {
                self.engine.this_cpu().poll();
            }
            self.hw.relax();
        }
    }

    /// Takes the lock of a space that lives, and makes the flushes that others share and have not seen done; the space,
    /// or `None`, and the lock is not taken.
    pub(super) fn lock(&self, slot: usize) -> Option<&Space> {
        let space = self.lock_to_share(slot)?;
        self.flush_pending_shared(slot, space);
        Some(space)
    }

    /// The same without those flushes.
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

    /// The space that has, or had last, this number.
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
        let extent = Extent {
            first: frame,
            frames: 1,
        };
        let strategy = quell_zero::Strategy::Stores;
        // SAFETY: nobody else has the frame: it was free.
        unsafe { self.hw.zero(extent, strategy) };
        Some(frame)
    }

    /// The frame has lost its user; the kernel owns it.
    pub(super) fn release(&self, what: What) {
        match what {
            What::Single(frame) => {
                self.own(frame, 1);
                let index = frame.0 - self.layout.single(0).0;
                self.free_singles.fetch_or(1 << index, Release);
            }
            What::Block(frame) => {
                self.own(frame, WINDOW);
                let index = (frame.0 - self.layout.block(0).0) / WINDOW;
                self.free_blocks.fetch_or(1 << index, Release);
            }
            What::Table(frame) => {
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

    pub(super) fn deferred_flush(&self, frame: Frame) -> &DeferredFlush<Hw> {
        &self.deferred_flushes[(frame.0 - self.layout.single(0).0) as usize]
    }

    pub(super) fn deferrer(&self, frame: Frame) -> &AdversaryWord {
        &self.deferrers[(frame.0 - self.layout.single(0).0) as usize]
    }

    // Tables. All under the lock of the space.

    pub(super) fn window_entry(&self, slot: usize, window: u64) -> &AdversaryWord {
        &self.hw.table(self.layout.middle(slot))[window as usize]
    }

    pub(super) fn huge_entry(&self, slot: usize) -> &AdversaryWord {
        &self.hw.table(self.layout.root(slot))[1]
    }

    /// The entry of a base page, if there is a table for it.
    pub(super) fn entry(&self, slot: usize, page: u64) -> Option<&AdversaryWord> {
        if page >= 2 * WINDOW {
            return None;
        }
        let word = self.window_entry(slot, page / WINDOW).load(Relaxed);
        let table = word & tables::PRESENT != 0 && word & tables::TABLE != 0;
        table.then(|| &self.hw.table(Frame(word >> 12))[(page % WINDOW) as usize])
    }

    /// The same, with a table made if nothing is there.
    pub(super) fn entry_made(&self, slot: usize, page: u64) -> Option<&AdversaryWord> {
        if page >= 2 * WINDOW {
            return None;
        }
        let window = self.window_entry(slot, page / WINDOW);
        if window.load(Relaxed) & tables::PRESENT == 0 {
            let table = self.take_table()?;
            // Another table, or a large page, may have gone from there, and its flush be outstanding.
            if self.hw.tlb_rules().break_before_make != Break::Never {
                self.engine.flush_pending_tables(self.space(slot));
            }
            self.link(window, table);
        }
        self.entry(slot, page)
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

    /// Before an empty entry is written: everything that went from there has been flushed.
    pub(super) fn make_ready(&self, space: &Space, held: u64) {
        if held & MARKER != 0 {
            self.engine
                .flush_before_refill(self.deferred_flush(Frame(held >> 12)), space);
        }
        self.engine.flush_pending_batches(space);
    }

    pub(super) fn file_at(page: u64) -> Option<usize> {
        FILE_PAGES.iter().position(|&at| at == page)
    }
}
