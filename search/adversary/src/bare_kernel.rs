//! Implements the smallest kernel that can use the engine, and the steps of the engine's own scenarios.
//!
//! The kernel has a few address spaces, each with a root and two leaf tables. It follows the engine's documented rules
//! literally and does nothing else. So a failure in such a scenario is a failure of the engine.

mod blocks;
mod crowded;
pub mod own_half;
mod perform;
mod reclaim;

use crate::action::{AccessKind, MAX_CPUS, Op};
use crate::coverage::MachineEvent;
use crate::hardware::Adversary;
use crate::machine::AccessOutcome;
use crate::word::AdversaryWord;
use crate::{context, tables};
use quell::{
    AddressSpace, Batch, DeferredFlush, Engine, Extent, Frame, Hardware, Page, PageRange, PageSize,
    Purpose, Scope, Word,
};
use quell_vm::machine::{Event, Machine};
use quell_zero::{PhysicalMemory, Strategy};
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

/// The machine's frames. Page-table pages come first.
pub(crate) const FRAMES: usize = 64;
/// The frames that may be page-table pages: two for the kernel's half, and a root and two leaf tables for each space.
pub(crate) const TABLES: usize = 2 + 3 * SPACES;
/// The number of address spaces.
pub const SPACES: usize = 8;
/// The number of flushes that can be deferred at once, unless a program sets another.
pub const LEDGER_ENTRIES: usize = 2;
/// The largest number that a program sets.
const MOST_LEDGER_ENTRIES: usize = 4;

/// A program over the engine: the work of each CPU before and during the run.
#[derive(Clone, Copy, Debug)]
pub struct BareProgram {
    /// CPU 0's first work before the run, while no other CPU runs.
    pub first: fn(&BareKernel<'_>),
    /// The work of each CPU in turn, after `first` and still before the run.
    pub each: fn(&BareKernel<'_>, usize),
    /// CPU 1's work after `each`, still before the run.
    pub second: fn(&BareKernel<'_>),
    /// The work that every CPU does during the run. Its argument is the CPU's number.
    pub all: fn(&BareKernel<'_>, usize),
    /// The work of each CPU after `all`.
    pub cpus: [fn(&BareKernel<'_>); MAX_CPUS],
    /// The number of flushes that can be deferred at once, at most four.
    pub ledger: usize,
    /// The CPUs that a hypervisor has descheduled whenever they must flush, as bits.
    pub unscheduled: u8,
    /// The code that preempts CPU 0, if [`Scenario::preemptions`](crate::scenario::Scenario) allows preemption.
    pub preempts: fn(&BareKernel<'_>),
}

impl BareProgram {
    /// A program that does nothing; all CPUs run space 0.
    pub const NONE: Self = BareProgram {
        first: |_| {},
        each: |k, _| _ = k.switch(0),
        second: |_| {},
        all: |_, _| {},
        cpus: [|_| {}; MAX_CPUS],
        ledger: LEDGER_ENTRIES,
        unscheduled: 0,
        preempts: |_| {},
    };
}

type Space = AddressSpace<Adversary>;

/// The smallest kernel: address spaces under the engine, and flags for signals between CPUs.
///
/// Each method is a step of a scenario, which the calling CPU performs. Most return the kernel for the CPU's next step.
/// `space` is the number of an address space, and
/// pages are numbers of 4 KB pages. The *judge* is the [oracle](crate::oracle) that checks every access. The *kernel's
/// half* consists of mappings that every CPU has under any root.
pub struct BareKernel<'m> {
    /// The machine.
    pub hw: &'m Adversary,
    /// The engine.
    pub engine: Engine<'m, Adversary>,
    spaces: ManuallyDrop<[Space; SPACES]>,
    /// The kernel's own mappings: one space for global entries and one for others.
    own: ManuallyDrop<[Space; 2]>,
    own_lock: ManuallyDrop<AdversaryWord>,
    has_own_half: Cell<bool>,
    locks: ManuallyDrop<[AdversaryWord; SPACES]>,
    /// The deferred flush of each data frame, by its distance from [`FIRST`].
    deferred_flushes: ManuallyDrop<[DeferredFlush<Adversary>; 8]>,
    /// Flags by which the CPUs of a program signal each other.
    flags: ManuallyDrop<[AdversaryWord; 4]>,
    /// The batch that a CPU lends to another.
    lent: Cell<*mut ()>,
    current: [Cell<Option<usize>>; MAX_CPUS],
    preempts: fn(&BareKernel<'_>),
}

/// The first data frame.
pub const FIRST: u64 = 32;

/// Returns the data frame of this number.
pub const fn frame(index: u64) -> Frame {
    Frame(FIRST + index)
}

/// The first page of an address space's second leaf table.
pub const SECOND: u64 = 512;

/// The page to which [`BareKernel::move_table`] moves the range from [`SECOND`].
pub const THIRD: u64 = 1024;

fn root_of(space: usize) -> Frame {
    Frame(1 + space as u64)
}

/// Clears an entry. Returns the frame that it mapped.
fn take(entry: &AdversaryWord) -> Option<Frame> {
    let old = entry.swap(0, ENTRY_ORDER);
    (old & tables::PRESENT != 0).then_some(Frame(old >> 12))
}

/// Returns an entry that maps a frame.
fn leaf_word(frame: Frame, writable: bool) -> u64 {
    let writable = if writable { tables::WRITABLE } else { 0 };
    frame.0 << 12 | tables::PRESENT | tables::USER | tables::DIRTY | writable
}

const fn leaf_of(space: usize, page: u64) -> Frame {
    let first = if page < SECOND { 10 } else { 18 };
    Frame(first + space as u64)
}

const _: () = assert!(leaf_of(SPACES - 1, SECOND).0 + 1 == TABLES as u64);

impl BareKernel<'_> {
    /// Returns the address space of this number.
    pub fn space(&self, space: usize) -> &Space {
        &self.spaces[space]
    }

    fn entry(&self, space: usize, page: u64) -> &AdversaryWord {
        &self.hw.table(leaf_of(space, page))[page as usize % 512]
    }

    /// Returns the root table's entry of a page.
    fn upper_entry(&self, space: usize, page: u64) -> &AdversaryWord {
        &self.hw.table(root_of(space))[(page / 512) as usize]
    }

    /// Returns the deferred flush of a frame.
    pub fn deferred_flush(&self, frame: Frame) -> &DeferredFlush<Adversary> {
        &self.deferred_flushes[(frame.0 - FIRST) as usize]
    }

    /// Takes the lock of a space's tables.
    pub fn lock(&self, space: usize) {
        while self.locks[space].compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            self.hw.relax();
        }
    }

    /// Drops the lock of a space's tables.
    pub fn unlock(&self, space: usize) {
        self.locks[space].store(0, Release);
    }

    /// Writes an entry, which was empty.
    pub fn map(&self, space: usize, page: u64, frame: Frame, writable: bool) -> &Self {
        // The ordering is the one that the manager uses for its entries. [mutant VmMapsBeforeContent]
        self.entry(space, page).store(leaf_word(frame, writable), Release);
        self
    }

    /// Maps pages of space 0 from page 0 on, to the frames from number 0 on.
    pub fn map_first(&self, pages: u64, writable: bool) -> &Self {
        (0..pages).for_each(|page| _ = self.map(0, page, frame(page), writable));
        self
    }

    /// Maps page 0 of this many spaces, each to its own frame.
    pub fn map_spaces(&self, spaces: usize) -> &Self {
        (0..spaces).for_each(|space| _ = self.map(space, 0, frame(space as u64), true));
        self
    }

    /// Writes the entry of a large page, which was empty. Only the first few base pages of it have frames here.
    pub fn map_large(&self, space: usize, page: u64, frame: Frame, writable: bool) -> &Self {
        self.upper_entry(space, page).store(leaf_word(frame, writable), Release);
        self
    }

    /// Clears the entry of a large page. Returns the frame that it mapped.
    pub fn clear_large(&self, space: usize, page: u64) -> Option<Frame> {
        take(self.upper_entry(space, page))
    }

    /// Links a leaf table. Its entries may already be set.
    pub fn link(&self, space: usize, page: u64) -> &Self {
        let rights = tables::PRESENT | tables::TABLE | tables::WRITABLE | tables::USER;
        self.upper_entry(space, page).store(leaf_of(space, page).0 << 12 | rights, Release);
        self
    }

    /// Clears an entry. Returns the frame that it mapped.
    pub fn clear(&self, space: usize, page: u64) -> Option<Frame> {
        take(self.entry(space, page))
    }

    /// Makes this CPU run user code of a space.
    pub fn switch(&self, space: usize) -> &Self {
        let me = self.hw.this_cpu().index();
        let from = self.current[me].get().map(|from| &self.spaces[from]);
        self.hw.say(|| format!("switch to space {space}"));
        self.engine.this_cpu().mask_interrupts().switch(from, &self.spaces[space]);
        self.current[me].set(Some(space));
        self
    }

    /// Switches to one space after the other.
    pub fn switch_through(&self, spaces: &[usize]) -> &Self {
        spaces.iter().for_each(|&space| _ = self.switch(space));
        self
    }

    /// Switches to one space after the other, and reads page 0 of each.
    pub fn visit(&self, spaces: &[usize]) -> &Self {
        spaces.iter().for_each(|&space| _ = self.switch(space).read(0));
        self
    }

    /// Makes this CPU idle.
    pub fn idle(&self) -> &Self {
        self.hw.say(|| "goes idle".into());
        self.engine.this_cpu().enter_lazy();
        self
    }

    /// Clears the entry of a page under the tables' lock, and reports it. If another call has cleared it, makes the
    /// pending flushes.
    fn report_unmapped<'k>(&'k self, space: usize, page: u64, batch: &mut Batch<'k, &'k Space>) {
        self.lock(space);
        if let Some(frame) = self.clear(space, page) {
            batch.unmapped(&self.spaces[space], PageRange::base(Page(page), 1), frame);
        } else {
            self.engine.flush_pending(&self.spaces[space]);
        }
        self.unlock(space);
    }

    /// Unmaps a page for the program in a batch, which `end` ends. Returns the frame.
    fn unmap_by<'k>(
        &'k self,
        space: usize,
        page: u64,
        end: impl FnOnce(&mut Batch<'k, &'k Space>) -> Option<Frame>,
    ) -> Option<Frame> {
        let mut batch = self.engine.batch(Purpose::Call);
        self.report_unmapped(space, page, &mut batch);
        let frame = end(&mut batch);
        self.returned_unmap(space, PageRange::base(Page(page), 1));
        frame
    }

    /// Unmaps a page for the program and takes its frame.
    pub fn take(&self, space: usize, page: u64) -> Option<Frame> {
        self.hw.say(|| format!("unmap({space}, {page:#x})"));
        self.unmap_by(space, page, |batch| batch.finish().next())
    }

    /// Unmaps a page for the program.
    pub fn unmap(&self, space: usize, page: u64) -> &Self {
        self.take(space, page);
        self
    }

    /// Unmaps a page for the program and gives its frame to a new owner.
    pub fn free(&self, space: usize, page: u64) -> &Self {
        self.give_away(self.take(space, page))
    }

    /// Unmaps `pages` pages from `page`, each in its own batch.
    ///
    /// All batches are outstanding before the first is finished.
    pub fn nested(&self, space: usize, page: u64, pages: u64) -> &Self {
        if pages == 0 {
            return self;
        }
        self.hw.say(|| format!("starts to unmap({space}, {page:#x})"));
        self.give_away(self.unmap_by(space, page, |batch| {
            self.nested(space, page + 1, pages - 1);
            batch.finish().next()
        }))
    }

    /// Unmaps a page for the program, but doesn't wait in the engine. Returns the frame.
    ///
    /// It starts the flush, and polls it whenever a target has answered.
    pub fn unmap_started(&self, space: usize, page: u64) -> Option<Frame> {
        self.hw.say(|| format!("starts to unmap({space}, {page:#x})"));
        self.unmap_by(space, page, |batch| {
            let mut flight = batch.start();
            loop {
                let rung = self.hw.bell().load(Acquire);
                if flight.is_done() {
                    break;
                }
                while self.hw.bell().load(Acquire) == rung {
                    self.hw.relax();
                }
            }
            flight.finish().next()
        })
    }

    /// Unmaps a page for the program, but flushes before it drops the lock. Returns the frame.
    pub fn unmap_locked(&self, space: usize, page: u64) -> Option<Frame> {
        self.hw.say(|| format!("unmap({space}, {page:#x}), locked"));
        let range = PageRange::base(Page(page), 1);
        self.lock(space);
        let mut batch = self.engine.batch(Purpose::Call);
        if let Some(frame) = self.clear(space, page) {
            batch.unmapped(&self.spaces[space], range, frame);
        }
        let frame = batch.finish().next();
        self.unlock(space);
        self.returned_unmap(space, range);
        frame
    }

    /// Unmaps a page for the program without a batch: calls `flush` after dropping the lock. Returns the frame.
    fn unmap_then(&self, space: usize, page: u64, flush: impl FnOnce(PageRange)) -> Option<Frame> {
        let range = PageRange::base(Page(page), 1);
        self.lock(space);
        let frame = self.clear(space, page);
        self.unlock(space);
        flush(range);
        self.returned_unmap(space, range);
        frame
    }

    /// Unmaps a page for the program, and flushes it without a batch. Returns the frame.
    pub fn unmap_at_once(&self, space: usize, page: u64) -> Option<Frame> {
        self.hw.say(|| format!("unmap({space}, {page:#x}), without a batch"));
        self.unmap_then(space, page, |range| {
            self.engine.this_cpu().flush(&self.spaces[space], Some(range), Scope::Leaf);
        })
    }

    /// Unmaps a page for the program, and flushes the whole space. Returns the frame.
    ///
    /// Several CPUs that do so at the same time share one flush (a coalesced flush).
    pub fn unmap_coalesced(&self, space: usize, page: u64) -> Option<Frame> {
        self.hw.say(|| format!("unmap({space}, {page:#x}), with a coalesced flush"));
        self.unmap_then(space, page, |_| {
            self.engine.this_cpu().flush_coalesced(&self.spaces[space]);
        })
    }

    /// Flushes a space, or shares a flush of it.
    pub fn flush_coalesced(&self, space: usize) {
        self.hw.say(|| format!("flush({space}), coalesced"));
        self.engine.this_cpu().flush_coalesced(&self.spaces[space]);
    }

    /// Takes the lock of a space's tables with interrupts off, and drops it. Another CPU may hold it while it flushes.
    pub fn pass_lock_masked(&self, space: usize) -> &Self {
        let were_on = self.hw.mask_interrupts();
        while self.locks[space].compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            self.engine.this_cpu().poll();
            self.hw.relax();
        }
        self.unlock(space);
        self.hw.restore_interrupts(were_on);
        self
    }

    /// Unmaps a page for the program, but reports changed tables, so lazy CPUs are interrupted too. Returns the frame.
    pub fn unmap_for_all(&self, space: usize, page: u64) -> Option<Frame> {
        self.hw.say(|| format!("unmap({space}, {page:#x}), and interrupt lazy CPUs"));
        let range = PageRange::base(Page(page), 1);
        self.lock(space);
        let mut batch = self.engine.batch(Purpose::Call);
        if let Some(frame) = self.clear(space, page) {
            batch.hold(frame);
            batch.changed(&self.spaces[space], range, Scope::Tables);
        }
        self.unlock(space);
        let frame = batch.finish().next();
        self.returned_unmap(space, range);
        frame
    }

    /// Withdraws a frame that a batch has returned, so that not even speculative loads reach it.
    ///
    /// That's necessary if its memory type changes, a guest gets exclusive use of it, or it leaves the machine. It waits
    /// until all CPUs have flushed.
    pub fn withdraw(&self, frame: Option<Frame>) {
        let Some(frame) = frame else { return };
        self.engine.this_cpu().quiesce();
        context::point(Op::Note);
        self.hw.say(|| format!("withdraws frame {:#x}", frame.0));
        let me = self.hw.this_cpu().index();
        context::with(|core| core.check_withdrawn(me, frame, |_| true));
    }

    /// Reports to the judge the return of a call that unmapped a range.
    pub fn returned_unmap(&self, space: usize, range: PageRange) {
        self.hw.note(Event::ReturnedUnmap { root: root_of(space), range });
    }

    /// Lets programs execute a page. That adds a right, so it needs no flush.
    pub fn allow_execution(&self, space: usize, page: u64) {
        self.entry(space, page).fetch_or(tables::EXECUTABLE, ENTRY_ORDER);
    }

    /// Removes the right to write to a page.
    pub fn protect(&self, space: usize, page: u64) -> &Self {
        self.hw.say(|| format!("protect({space}, {page:#x})"));
        self.take_right(space, page, tables::WRITABLE)
    }

    /// Removes the right to execute a page.
    pub fn forbid_execution(&self, space: usize, page: u64) -> &Self {
        self.hw.say(|| format!("forbid execution({space}, {page:#x})"));
        self.take_right(space, page, tables::EXECUTABLE)
    }

    fn take_right(&self, space: usize, page: u64, right: u64) -> &Self {
        self.lock(space);
        let range = PageRange::base(Page(page), 1);
        let mut batch = self.engine.batch::<_, Frame>(Purpose::Call);
        let old = self.entry(space, page).fetch_and(!right, ENTRY_ORDER);
        if old & tables::PRESENT != 0 && old & right != 0 {
            batch.changed(&self.spaces[space], range, Scope::Leaf);
        } else {
            // Another CPU has cleared the entry or removed the right, and is about to flush.
            self.engine.flush_pending(&self.spaces[space]);
        }
        self.unlock(space);
        batch.finish().for_each(drop);
        self.hw.note(Event::ReturnedProtect {
            root: root_of(space),
            range,
            readable: true,
            writable: right != tables::WRITABLE,
            executable: right != tables::EXECUTABLE,
        });
        self
    }

    /// Frees a frame and gives it to a new owner, which writes its secret.
    pub fn give_away(&self, frame: Option<Frame>) -> &Self {
        if let Some(frame) = frame {
            self.hw.note(Event::FrameFreed { frame, frames: 1 });
            self.own(frame);
        }
        self
    }

    /// Gives a free frame to a new owner, which writes its secret.
    fn own(&self, frame: Frame) {
        self.hw.note(Event::FrameAllocated { frame, frames: 1 });
        self.fill(frame, 0x5ec2e7);
    }

    /// Maps a page of zeroes, as a fault does.
    pub fn map_zeroes(&self, space: usize, page: u64, frame: Frame) -> &Self {
        self.hw.say(|| format!("maps zeroed frame {:#x} at {page:#x}", frame.0));
        self.hw.note(Event::FrameFreed { frame, frames: 1 });
        self.hw.note(Event::FrameAllocated { frame, frames: 1 });
        let extent = Extent { first: frame, frames: 1 };
        // SAFETY: the frame was free, so nobody else uses it.
        unsafe { self.hw.zero(extent, Strategy::Stores) };
        self.hw.note(Event::FrameZeroed { frame, frames: 1 });
        self.map(space, page, frame, true)
    }

    /// Flushes a whole space, as after a call that changed a large part of it.
    pub fn flush_all(&self, space: usize) -> &Self {
        self.hw.say(|| format!("flush all of {space}"));
        let mut batch = self.engine.batch::<_, Frame>(Purpose::Call);
        batch.changed_all(&self.spaces[space], Scope::Leaf);
        drop(batch.finish());
        self
    }

    /// Unmaps a range and gives its frames to new owners.
    ///
    /// With `each`, it reports each page before it clears the next one, and otherwise all of them at the end.
    pub fn unmap_range(&self, space: usize, page: u64, pages: u64, each: bool) -> &Self {
        self.hw.say(|| format!("unmap({space}, {page:#x}..)"));
        let range = PageRange::base(Page(page), pages);
        self.lock(space);
        let mut batch = self.engine.batch(Purpose::Call);
        let mut any = false;
        for page in page..page + pages {
            match self.clear(space, page) {
                Some(frame) if each => {
                    batch.unmapped(&self.spaces[space], PageRange::base(Page(page), 1), frame);
                }
                Some(frame) => {
                    any = true;
                    batch.hold(frame);
                }
                None => {}
            }
        }
        if any {
            batch.changed(&self.spaces[space], range, Scope::Leaf);
        }
        self.unlock(space);
        let frames = batch.finish();
        self.returned_unmap(space, range);
        for frame in frames.take(2) {
            self.give_away(Some(frame));
        }
        self
    }

    /// Unmaps two base pages and a large page with one flush.
    pub fn unmap_mixed(&self, space: usize, page: u64, large: u64) -> &Self {
        self.hw.say(|| format!("unmap({space}, {page:#x}.. and large {large:#x})"));
        let base = PageRange::base(Page(page), 2);
        let large = PageRange::one(Page(large), PageSize::Large);
        self.lock(space);
        let mut batch = self.engine.batch::<_, Frame>(Purpose::Call);
        for page in page..page + base.pages {
            self.clear(space, page);
        }
        batch.changed(&self.spaces[space], base, Scope::Leaf);
        self.clear_large(space, large.start.0);
        batch.changed(&self.spaces[space], large, Scope::Leaf);
        self.unlock(space);
        drop(batch.finish());
        self.returned_unmap(space, base);
        self.returned_unmap(space, large);
        self
    }

    /// Reports to the judge that a frame's content is captured, as if for its device.
    pub fn capture(&self, frame: Frame) {
        self.hw.note(Event::Captured { frame, frames: 1 });
    }

    /// Writes this value to a frame.
    pub fn fill(&self, frame: Frame, value: u64) -> &Self {
        self.hw.write_frame(frame, 0, &value.to_le_bytes());
        self
    }

    /// Loads from a page as a program. Returns the value, or `None` for a fault.
    pub fn load(&self, page: u64) -> Option<u64> {
        self.access(page, AccessKind::Load, 0)
    }

    /// Loads from a page as a program.
    pub fn read(&self, page: u64) -> &Self {
        self.load(page);
        self
    }

    /// Fetches an instruction from a page as a program.
    pub fn fetch(&self, page: u64) -> &Self {
        self.access(page, AccessKind::Fetch, 0);
        self
    }

    /// Stores to a page as a program.
    pub fn write(&self, page: u64, value: u64) -> &Self {
        self.access(page, AccessKind::Store, value);
        self
    }

    fn access(&self, page: u64, kind: AccessKind, value: u64) -> Option<u64> {
        context::point(Op::Access(kind));
        let me = self.hw.this_cpu().index();
        match context::with(|core| core.access(me, page, 0, (kind, value))) {
            AccessOutcome::Value { held, .. } => Some(held),
            AccessOutcome::Fault => None,
        }
    }

    /// Requires that loads of the page return `value` from now on. `None` ends the requirement.
    pub fn must_read(&self, space: usize, page: u64, value: Option<u64>) -> &Self {
        context::point(Op::Note);
        self.hw.say(|| format!("page {page:#x} of {space} must now contain {value:?}"));
        context::with(|core| core.oracle.must_read(root_of(space).0 as u32, page, value));
        self
    }

    /// Unlinks a leaf table under the tables' lock. Returns its range and the table.
    fn unlink(&self, space: usize, page: u64) -> (PageRange, Frame) {
        self.upper_entry(space, page).swap(0, ENTRY_ORDER);
        let range = PageRange::one(Page(page & !511), PageSize::Large);
        (range, leaf_of(space, page))
    }

    /// Unlinks a leaf table and frees it.
    pub fn free_table(&self, space: usize, page: u64) -> &Self {
        self.hw.say(|| format!("frees the leaf table of {page:#x}"));
        self.lock(space);
        let mut batch = self.engine.batch(Purpose::Call);
        let (range, table) = self.unlink(space, page);
        batch.table_unlinked(&self.spaces[space], range, table);
        self.unlock(space);
        for table in batch.finish() {
            self.hw.note(Event::TableFreed { frame: table });
        }
        self
    }

    /// Moves the leaf table of [`SECOND`], whose first `pages` pages are mapped, to [`THIRD`].
    pub fn move_table(&self, space: usize, pages: u64) -> &Self {
        self.hw.say(|| format!("moves the leaf table of {SECOND:#x} to {THIRD:#x}"));
        let range = PageRange::base(Page(SECOND), pages);
        self.lock(space);
        let mut batch = self.engine.batch::<_, Frame>(Purpose::Call);
        let pointer = self.upper_entry(space, SECOND).swap(0, ENTRY_ORDER);
        self.upper_entry(space, THIRD).store(pointer, Release);
        batch.changed(&self.spaces[space], range, Scope::Tables);
        self.unlock(space);
        drop(batch.finish());
        self.returned_unmap(space, PageRange::base(Page(SECOND), 512));
        self
    }

    /// Retires a space, and reports its root as freed.
    pub fn retire(&self, space: usize) {
        self.hw.say(|| format!("retires space {space}"));
        self.engine.retire(&self.spaces[space]);
        self.hw.note(Event::SpaceRetired { root: root_of(space) });
    }

    /// Sets a flag for which another CPU waits.
    pub fn tell(&self, flag: usize) -> &Self {
        self.flags[flag].store(1, Release);
        self
    }

    /// Waits until another CPU sets a flag.
    pub fn wait_for(&self, flag: usize) -> &Self {
        while self.flags[flag].load(Acquire) == 0 {
            self.hw.relax();
        }
        self
    }

    /// Makes this CPU run a space again that it has kept loaded lazily. If it has left the space, loads it.
    pub fn resume(&self, space: usize) -> &Self {
        self.hw.say(|| format!("returns to space {space}"));
        if !self.engine.this_cpu().resume(&self.spaces[space]) {
            self.switch(space);
        }
        self
    }

    /// Leaves the loaded root, as for a long idle time.
    pub fn leave(&self) -> &Self {
        self.hw.say(|| "leaves its root".into());
        let me = self.hw.this_cpu().index();
        if let Some(space) = self.current[me].get() {
            self.engine.this_cpu().leave(&self.spaces[space]);
        }
        self
    }

    /// Makes this CPU return to its program. From now on, changes of kernel mappings don't interrupt the CPU.
    pub fn enter_user(&self) -> &Self {
        if self.hw.kind().breaks_by_interrupt() {
            return self;
        }
        self.hw.say(|| "returns to its program".into());
        let were_on = self.hw.mask_interrupts();
        // SAFETY: this kernel uses no page of its half while it enters and leaves, and NMI handlers enter the kernel
        // first.
        unsafe { self.engine.this_cpu().enter_user() };
        self.hw.restore_interrupts(were_on);
        self
    }

    /// Makes this CPU enter the kernel, and flush the kernel mappings that have changed meanwhile.
    pub fn enter_kernel(&self) -> &Self {
        self.hw.say(|| "enters the kernel".into());
        let were_on = self.hw.mask_interrupts();
        self.engine.this_cpu().enter_kernel();
        self.hw.restore_interrupts(were_on);
        self
    }

    /// Takes this CPU offline.
    pub fn offline(&self) -> &Self {
        let me = self.hw.this_cpu().index();
        let current = self.current[me].take().map(|space| &self.spaces[space]);
        self.go_offline(current)
    }

    /// Takes this CPU offline without naming the space that it loaded last.
    ///
    /// A kernel may do that if the CPU was evicted from the space.
    pub fn offline_unnamed(&self) -> &Self {
        self.current[self.hw.this_cpu().index()].set(None);
        self.go_offline(None)
    }

    fn go_offline(&self, current: Option<&Space>) -> &Self {
        self.hw.say(|| "goes offline".into());
        self.hw.happen(MachineEvent::Offline);
        self.hw.mask_interrupts();
        self.engine.cpu_offline(current);
        self.hw.offline();
        self
    }

    /// Brings this CPU online.
    pub fn online(&self) -> &Self {
        self.hw.say(|| "comes online".into());
        self.hw.online();
        self.engine.cpu_online();
        self.hw.restore_interrupts(true);
        self
    }
}

/// The ordering of entry changes. Like real kernels, we change entries atomically, with at least release ordering.
const ENTRY_ORDER: Ordering = Ordering::AcqRel;
