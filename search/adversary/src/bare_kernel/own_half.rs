//! The kernel's own half: mappings that every CPU has under any root, and their changes.

use super::{BareKernel, ENTRY_ORDER, Space, take};
use crate::action::{AccessKind, Op};
use crate::context;
use crate::tables;
use crate::word::AdversaryWord;
use quell::{
    Batch, Frame, Hardware, Outcome, Page, PageRange, PageSize, Purpose, Scope, Stamp, Word,
};
use quell_vm::machine::{Event, Machine};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The root of the kernel's half.
pub(super) const OWN_ROOT: Frame = Frame(0);
/// The leaf table of the kernel's half.
const OWN_TABLE: Frame = Frame(9);
/// The first page of the kernel's half. Its entries are global up to [`OWN_TAGGED`].
pub const OWN: u64 = 1536;
/// The first page of the kernel's half whose entries aren't global.
pub const OWN_TAGGED: u64 = OWN + 256;

impl BareKernel<'_> {
    /// Makes the kernel's half available. One CPU calls this before the run.
    pub fn use_own_half(&self) -> &Self {
        let pointer = OWN_TABLE.0 << 12 | tables::PRESENT | tables::TABLE | tables::WRITABLE;
        self.hw.table(OWN_ROOT)[(OWN / 512) as usize].store(pointer, Release);
        self.has_own_half.set(true);
        context::with(|core| core.use_kernel(OWN_ROOT.0 as u32, OWN));
        self
    }

    pub(super) fn has_own_half(&self) -> bool {
        self.has_own_half.get()
    }

    /// Returns the space of a page of the kernel's half.
    pub(super) fn own_space(&self, page: u64) -> &Space {
        &self.own[usize::from(page >= OWN_TAGGED)]
    }

    fn own_entry(&self, page: u64) -> &AdversaryWord {
        &self.hw.table(OWN_TABLE)[page as usize % 512]
    }

    pub(super) fn lock_own(&self) {
        while self.own_lock.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            // We poll because the lock's holder may wait for this CPU's flush, and interrupts may be off here.
            self.engine.this_cpu().poll();
            self.hw.relax();
        }
    }

    pub(super) fn unlock_own(&self) {
        self.own_lock.store(0, Release);
    }

    /// Maps a page of the kernel's half, which wasn't mapped.
    pub fn map_own(&self, page: u64, frame: Frame) -> &Self {
        let global = if page < OWN_TAGGED { tables::GLOBAL } else { 0 };
        let word = frame.0 << 12
            | tables::PRESENT
            | tables::WRITABLE
            | tables::EXECUTABLE
            | tables::DIRTY
            | global;
        self.own_entry(page).store(word, Release);
        self
    }

    /// Clears the entry of a page, whose lock the caller holds. Returns the frame that it mapped.
    pub(super) fn take_own(&self, page: u64) -> Option<Frame> {
        take(self.own_entry(page))
    }

    /// Clears the entry of a page, reports it to a new batch, and calls `end` with the batch. Lazy batches end under
    /// the lock, others after it.
    fn clear_own<'k>(
        &'k self,
        page: u64,
        purpose: Purpose,
        end: impl FnOnce(&mut Batch<'_, &'k Space>),
    ) {
        self.lock_own();
        let old = self.take_own(page);
        let mut batch = self.engine.batch(purpose);
        if let Some(frame) = old {
            let range = PageRange::base(Page(page), 1);
            batch.unmapped(self.own_space(page), range, frame);
        }
        if purpose == Purpose::Lazy {
            end(&mut batch);
            return self.unlock_own();
        }
        self.unlock_own();
        end(&mut batch);
    }

    /// Unmaps a page of the kernel's half and gives its frame to a new owner.
    pub fn free_own(&self, page: u64) -> &Self {
        self.give_away(self.unmap_own_for(Purpose::Call, page))
    }

    /// Unmaps a page of the kernel's half for a given purpose. Returns its frame.
    pub fn unmap_own_for(&self, purpose: Purpose, page: u64) -> Option<Frame> {
        self.hw.say(|| format!("unmap kernel page {page:#x}"));
        let mut frame = None;
        self.clear_own(page, purpose, |batch| frame = batch.finish().next());
        self.returned_unmap_own(page);
        frame
    }

    fn returned_unmap_own(&self, page: u64) {
        let range = PageRange::base(Page(page), 1);
        self.hw.note(Event::ReturnedUnmap { root: OWN_ROOT, range });
    }

    /// Unmaps a page of the kernel's half that no CPU uses any more.
    ///
    /// The flush is deferred if the policy allows it. Returns the frame, and the [`Stamp`] that identifies the deferred
    /// flush. That flush must be made before the address is reused.
    pub fn unmap_own_lazily(&self, page: u64) -> (Option<Frame>, Option<Stamp>) {
        self.hw.say(|| format!("unmap kernel page {page:#x} lazily"));
        let mut taken = (None, None);
        self.clear_own(page, Purpose::Lazy, |batch| {
            let outcome = batch.finish_deferred();
            let (frames, stamp): (Vec<Frame>, _) = match outcome {
                Outcome::Deferred(deferred) => {
                    let stamp = deferred.stamp();
                    (deferred.collect(), Some(stamp))
                }
                Outcome::Flushed(frames) => (frames.collect(), None),
            };
            taken = (frames.first().copied(), stamp);
            for &frame in &frames {
                self.hw.note(Event::FrameFreed { frame, frames: 1 });
                self.deferred_flush(frame).begin();
                self.set_deferred(frame, stamp);
            }
        });
        taken
    }

    /// Sets the stamp of a frame's deferred flush, or records that the flush was made.
    fn set_deferred(&self, frame: Frame, stamp: Option<Stamp>) {
        match stamp {
            Some(stamp) => self.deferred_flush(frame).defer(stamp),
            None => self.deferred_flush(frame).clear(),
        }
    }

    /// Unmaps a program's clean page and a page of the kernel's half in one batch.
    ///
    /// No CPU uses the page of the kernel's half any more. The flush is deferred if engine and policy allow it. Returns
    /// the frames, which may have a deferred flush.
    pub fn reclaim_with_own_lazily(&self, space: usize, page: u64, own: u64) -> Vec<Frame> {
        self.hw
            .say(|| format!("reclaim page {page:#x} of {space} and kernel page {own:#x} lazily"));
        self.lock(space);
        self.lock_own();
        let mut batch = self.engine.batch(Purpose::Lazy);
        let theirs = self.clear(space, page);
        let range = PageRange::base(Page(page), 1);
        batch.changed(&self.spaces[space], range, Scope::Leaf);
        let mine = self.take_own(own);
        let range = PageRange::base(Page(own), 1);
        batch.changed(self.own_space(own), range, Scope::Leaf);
        let taken: Vec<Frame> = [theirs, mine].into_iter().flatten().collect();
        for &frame in &taken {
            self.deferred_flush(frame).begin();
            batch.hold(frame);
        }
        let stamp = match batch.finish_deferred() {
            Outcome::Deferred(deferred) => Some(deferred.stamp()),
            Outcome::Flushed(_) => None,
        };
        for &frame in &taken {
            self.hw.note(Event::FrameFreed { frame, frames: 1 });
            self.set_deferred(frame, stamp);
        }
        self.unlock_own();
        self.unlock(space);
        taken
    }

    /// Maps another frame at an address of the kernel's half that was unmapped lazily.
    pub fn reuse_own(&self, page: u64, stamp: Option<Stamp>, frame: Frame, value: u64) -> &Self {
        self.hw.say(|| format!("reuses kernel page {page:#x}"));
        if let Some(stamp) = stamp {
            self.engine.flush_until(stamp);
        }
        self.fill(frame, value);
        self.map_own(page, frame);
        context::point(Op::Note);
        context::with(|core| {
            core.oracle.must_read(OWN_ROOT.0 as u32, page, Some(value));
        });
        self
    }

    /// Unlinks the leaf table of the kernel's half and frees it.
    pub fn free_own_table(&self) {
        self.hw.say(|| "frees the kernel's leaf table".into());
        self.lock_own();
        let mut batch = self.engine.batch(Purpose::Call);
        self.hw.table(OWN_ROOT)[(OWN / 512) as usize].swap(0, ENTRY_ORDER);
        if self.own_entry(OWN_TAGGED).load(Relaxed) & tables::PRESENT != 0 {
            let range = PageRange::base(Page(OWN_TAGGED), 1);
            batch.changed(self.own_space(OWN_TAGGED), range, Scope::Leaf);
        }
        let range = PageRange::one(Page(OWN), PageSize::Large);
        batch.table_unlinked(self.own_space(OWN), range, OWN_TABLE);
        self.unlock_own();
        for table in batch.finish() {
            self.hw.note(Event::TableFreed { frame: table });
        }
    }

    /// Replaces the kernel's text at this page, and synchronizes every CPU.
    pub fn replace_text(&self, page: u64, value: u64) {
        self.hw.say(|| format!("replaces the text of page {page:#x}"));
        let frame = Frame(self.own_entry(page).load(Relaxed) >> 12);
        context::point(Op::Note);
        context::with(|core| core.change_text(page, false));
        self.hw.write_frame(frame, 0, &value.to_le_bytes());
        self.hw.fence();
        self.engine.this_cpu().synchronize_text();
        context::point(Op::Note);
        context::with(|core| core.change_text(page, true));
    }

    /// Unmaps a page of the kernel's half, and replaces text during the flush. Other CPUs may receive both requests as
    /// one.
    pub fn unmap_own_and_replace_text(&self, page: u64, text: u64, value: u64) {
        self.hw.say(|| format!("starts to unmap kernel page {page:#x}"));
        self.clear_own(page, Purpose::Call, |batch| {
            let flight = batch.start();
            self.replace_text(text, value);
            flight.finish().for_each(drop);
        });
        self.returned_unmap_own(page);
    }

    /// Loads from the kernel's half.
    pub fn read_own(&self, page: u64) -> &Self {
        self.access_own(page, AccessKind::Load)
    }

    /// Executes an instruction of the kernel's half.
    pub fn execute_own(&self, page: u64) -> &Self {
        self.access_own(page, AccessKind::Fetch)
    }

    fn access_own(&self, page: u64, kind: AccessKind) -> &Self {
        context::point(Op::Access(kind));
        let me = self.hw.this_cpu().index();
        context::with(|core| core.access_kernel(me, page, (kind, 0)));
        self
    }
}
