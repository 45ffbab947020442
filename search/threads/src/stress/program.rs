//! One CPU's program: its state, its locks and its memory accesses.

use crate::tables::Table;
use crate::world::{
    CacheSlot, Content, EntryWord, FILE_PAGES, FreeFrame, Layout, Machine, Space, World, lock,
};
use quell::{AddressSpace, Batch, CpuId, Engine, Frame, FrameArray, Hardware, Purpose};
use quell_vm::contract::{Clause, Violation};
use rand::RngExt;
use rand_pcg::Pcg64;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};

pub struct Program<'a> {
    pub world: &'a World,
    pub engine: &'a Engine<'a, Machine>,
    pub hw: &'a Machine,
    pub me: CpuId,
    pub dice: Pcg64,
    pub current: Option<usize>,
    pub lazy: bool,
    /// Whether it uses and changes the kernel's half.
    pub in_kernel: bool,
    pub accesses: u64,
}

pub type StressBatch<'a> = Batch<'a, &'a AddressSpace<Machine>, FrameArray<usize>>;

impl<'a> Program<'a> {
    pub fn roll(&mut self, below: usize) -> usize {
        self.dice.random_range(0..below)
    }

    pub fn space(&self) -> Option<&'a AddressSpace<Machine>> {
        self.current.map(|index| &self.world.spaces[index].engine)
    }

    pub fn poll(&self) {
        if self.hw.interrupt_pending() {
            self.engine.this_cpu().mask_interrupts().on_interrupt();
        }
    }

    /// Runs a turn of a waiting loop, and takes interrupts.
    fn wait(&self) {
        self.poll();
        self.hw.relax();
    }

    /// Waits for a random number of turns below `turns`.
    pub fn pause(&mut self, turns: usize) {
        (0..self.roll(turns)).for_each(|_| self.wait());
    }

    /// Takes a lock. Serves interrupts while it waits.
    pub fn lock<T>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        lock(mutex, || self.wait())
    }

    pub fn lock_space(&self, space: &'a Space) -> MutexGuard<'a, Layout> {
        self.lock(&space.layout)
    }

    pub fn lock_slot(&self, page: usize) -> MutexGuard<'a, CacheSlot> {
        self.lock(&self.world.slots[page])
    }

    /// Reports an access through an entry for `frame` that breaks a clause. `at` names the page.
    pub fn report(&self, frame: usize, at: &str, (clause, account): (Clause, String)) {
        let violation = Violation::new(clause, format!("{account} ({at})")).by(self.me);
        self.world.report(violation.in_frame(Frame(frame as u64)));
    }

    pub fn table(&self, space: &Space) -> &'a Table {
        self.hw.table(space.table)
    }

    pub fn gather(&self, purpose: Purpose) -> StressBatch<'a> {
        self.engine.batch(purpose)
    }

    /// Performs one access and judges it. Returns whether there was a translation.
    pub fn access(&mut self, space: &'a Space, page: usize, write: bool) -> bool {
        // Interrupts may be late. If one always came before the next access, it would hide an initiator that doesn't
        // wait.
        if self.roll(4) == 0 {
            self.poll();
        }
        self.accesses += 1;
        let world = self.world;
        // Acquire is needed because the kernel changes a file page in place, without a flush that orders the change.
        let written: [u64; FILE_PAGES] =
            std::array::from_fn(|page| world.written[page].load(Ordering::Acquire));
        let completed = space.completed[page].load(Ordering::Relaxed);
        let judged = self.hw.access(page as u32, |cached| {
            let entry = EntryWord(cached.entry);
            let frame = entry.frame();
            let content = world.content(frame);
            let broken = if cached.root != space.table as u64 {
                Some((Clause::C5, format!("walked from root {}", cached.root)))
            } else {
                entry.breaks(content, completed).or_else(|| {
                    let (old, new) = (content.value(), written[content.file_page()?]);
                    let account = || (Clause::C4, format!("reads {old} after {new} was written"));
                    (old < new).then(account)
                })
            };
            if let Some(broken) = broken {
                self.report(frame, &format!("space {}, page {page}", space.table), broken);
            }
            if write && entry.writable() {
                let value = content.value().wrapping_add(1);
                let new = Content::new(entry.owner(), FILE_PAGES, value);
                world.frames[frame].content.store(new.0, Ordering::Relaxed);
            }
        });
        judged.is_some()
    }

    /// Takes a frame out of the free list. If its flush was deferred, makes the flush first.
    pub fn allocate(&self) -> Option<usize> {
        loop {
            let first = lock(&self.world.free, || self.hw.relax()).pop_front()?;
            match first {
                FreeFrame::Clear(frame) => return Some(frame),
                FreeFrame::Deferred(frame, file_page) => {
                    let mut slot = self.lock_slot(file_page);
                    // Otherwise the page has the frame again, or the frame was reused when the slot was refilled.
                    if *slot == CacheSlot::Emptied(frame)
                        && self
                            .engine
                            .flush_before_reuse(&self.world.frames[frame].deferred_flush)
                            .is_some()
                    {
                        *slot = CacheSlot::Empty;
                        return Some(frame);
                    }
                }
            }
        }
    }

    pub fn free(&self, frame: usize) {
        lock(&self.world.free, || self.hw.relax()).push_back(FreeFrame::Clear(frame));
    }

    /// Gives a frame to a new owner, with `value` as its content. Returns the owner.
    pub fn own(&self, frame: usize, file_page: usize, value: u64) -> u64 {
        let owner = self.world.content(frame).owner() + 1;
        let content = Content::new(owner, file_page, value);
        self.world.frames[frame].content.store(content.0, Ordering::Relaxed);
        owner
    }

    pub fn write_entry(&self, space: &'a Space, page: usize, entry: EntryWord) {
        self.table(space)[page].store(entry.0, Ordering::Release);
    }

    pub fn entry(&self, space: &'a Space, page: usize) -> EntryWord {
        EntryWord(self.table(space)[page].load(Ordering::Relaxed))
    }

    /// Records that calls with these changes have returned to the program.
    pub fn complete(space: &Space, changes: &[(usize, u64)]) {
        for &(page, version) in changes {
            space.completed[page].fetch_max(version, Ordering::Release);
        }
    }

    /// Finishes a batch and frees its frames.
    pub fn finish(&self, mut gather: StressBatch<'a>) {
        for frame in gather.finish() {
            self.free(frame);
        }
    }
}
