//! The kernel's own half: mappings that every CPU has under any root. We make all changes under one lock.
//!
//! The first half of its pages have global entries, the others don't. A lazily unmapped page may be mapped again after
//! its stamp is flushed, and its frame gets a new owner when it is reused.

use super::batches::defer;
use super::state::{FrameGuard, Kernel, Mode, OwnedFrame, SECRET, SmallBatch, Space};
use crate::action::{AccessKind, Op};
use crate::coverage::MachineEvent;
use crate::generated::program::{HUGE, OWN_PAGES};
use crate::hardware::Adversary;
use crate::word::AdversaryWord;
use crate::{context, tables};
use quell::{AddressSpace, Frame, Hardware, Page, PageRange, PageSize, Purpose, Stamp, Word};
use quell_vm::machine::{Event, Machine};
use rustc_hash::FxBuildHasher;
use std::cell::Cell;
use std::hash::BuildHasher;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// The root of the kernel's half.
pub(super) const ROOT: Frame = Frame(0);
/// The first page of the kernel's half. Its root entry comes after those that programs use.
const FIRST: u64 = 3 * HUGE;

fn link_own(word: &AdversaryWord, table: Frame) {
    let pointer = table.0 << 12 | tables::PRESENT | tables::TABLE | tables::WRITABLE;
    word.store(pointer, Release);
}

fn page_of(own: usize) -> u64 {
    FIRST + own as u64
}

impl Kernel<'_> {
    /// Links the tables of the kernel's half. Called before any CPU is online.
    pub(super) fn link_own_half(&self) {
        if !self.layout.own {
            return;
        }
        let [middle, leaf] = self.layout.own_tables();
        link_own(&self.hw.table(ROOT)[(FIRST / HUGE) as usize], middle);
        link_own(self.own_link(), leaf);
        context::with(|core| core.use_kernel(ROOT.0 as u32, FIRST));
    }

    /// Returns the entry that points to the leaf table.
    fn own_link(&self) -> &AdversaryWord {
        &self.hw.table(self.layout.own_tables()[0])[0]
    }

    /// Returns the entry of a page, if there is a table for it.
    fn own_entry(&self, own: usize) -> Option<&AdversaryWord> {
        let link = self.own_link().load(Relaxed);
        (link & tables::PRESENT != 0).then(|| &self.hw.table(Frame(link >> 12))[own])
    }

    /// Returns the entry of a page. Adds a new table if there is none.
    fn own_entry_made(&self, own: usize) -> Option<&AdversaryWord> {
        if self.own_link().load(Relaxed) & tables::PRESENT == 0 {
            let table = self.take_table()?;
            link_own(self.own_link(), table);
        }
        self.own_entry(own)
    }

    /// Returns the entry of a page; 0 if there is no table.
    fn own_word(&self, own: usize) -> u64 {
        self.own_entry(own).map_or(0, |entry| entry.load(Relaxed))
    }

    fn is_global(own: usize) -> bool {
        own < OWN_PAGES / 2
    }

    /// Runs `body` under the lock. Does nothing if this thread has preempted one that may hold the lock, and the lock
    /// is taken.
    fn with_own(&self, body: impl FnOnce()) {
        if self.here().preempts {
            if self.own.lock.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
                return;
            }
        } else {
            self.lock_word(&self.own.lock);
        }
        body();
        self.own.lock.store(0, Release);
    }

    pub(super) fn map_own(&self, own: usize) {
        self.with_own(|| {
            if self.own_word(own) & tables::PRESENT != 0 {
                return;
            }
            let Some(entry) = self.own_entry_made(own) else { return };
            let Some(frame) = self.take_single() else { return };
            if let Some(stamp) = self.own.taken[own].get().and_then(|taken| taken.stamp) {
                self.engine.flush_until(stamp);
            }
            self.fill(frame, own as u64 + 1);
            let global = if Self::is_global(own) { tables::GLOBAL } else { 0 };
            let rights = tables::PRESENT | tables::WRITABLE | tables::EXECUTABLE | tables::DIRTY;
            entry.store(frame.0 << 12 | rights | global, Release);
        });
    }

    /// Clears the entry of a page. Returns the frame that it mapped.
    fn clear_own(&self, own: usize) -> Option<Frame> {
        let old = self.own_entry(own)?.swap(0, AcqRel);
        (old & tables::PRESENT != 0).then_some(Frame(old >> 12))
    }

    fn own_space(&self, own: usize) -> &Space {
        &self.own.spaces[usize::from(!Self::is_global(own))]
    }

    /// Unmaps a page. It holds the lock to the end, so that no CPU maps anything there before the flush.
    pub(super) fn unmap_own(&self, own: usize, purpose: Purpose) {
        self.with_own(|| {
            let began = context::with(|core| core.now);
            let range = PageRange::base(Page(page_of(own)), 1);
            let mut batch = self.batch(purpose);
            let Some(frame) = self.clear_own(own) else { return };
            let what = OwnedFrame::Single(frame);
            batch.unmapped(self.own_space(own), range, FrameGuard { kernel: self, what });
            drop(batch.finish());
            let me = self.me();
            context::with(|core| core.set_call_began(me, began));
            self.hw.note(Event::ReturnedUnmap { root: ROOT, range });
            self.judge_own();
        });
    }

    /// Unmaps all pages and frees their table, with one flush.
    ///
    /// It does nothing in programs whose CPUs go offline: the walker of such a CPU may be anywhere in the kernel's
    /// half, and no flush reaches it.
    pub(super) fn unlink_own(&self) {
        if self.layout.leaves {
            return;
        }
        self.with_own(|| {
            let began = context::with(|core| core.now);
            let link = self.own_link().load(Relaxed);
            if link & tables::PRESENT == 0 {
                return;
            }
            let mut batch = self.batch(Purpose::Call);
            let mut unmapped = [None; OWN_PAGES];
            for (own, unmapped) in unmapped.iter_mut().enumerate() {
                if let Some(frame) = self.clear_own(own) {
                    let what = OwnedFrame::Single(frame);
                    let range = PageRange::base(Page(page_of(own)), 1);
                    batch.unmapped(self.own_space(own), range, FrameGuard { kernel: self, what });
                    *unmapped = Some(range);
                }
            }
            self.own_link().swap(0, AcqRel);
            let range = PageRange::one(Page(FIRST), PageSize::Large);
            let what = OwnedFrame::Table(Frame(link >> 12));
            batch.table_unlinked(&self.own.spaces[0], range, FrameGuard { kernel: self, what });
            drop(batch.finish());
            let me = self.me();
            context::with(|core| core.set_call_began(me, began));
            // Pages that were unmapped earlier may have deferred flushes, so we don't report these.
            for range in unmapped.into_iter().flatten() {
                self.hw.note(Event::ReturnedUnmap { root: ROOT, range });
            }
            self.judge_own();
        });
    }

    pub(super) fn unmap_own_lazily(&self, own: usize) {
        self.with_own(|| {
            if self.own_word(own) & tables::PRESENT == 0 {
                return;
            }
            self.give_away_own(own);
            let mut batch = self.batch(Purpose::Lazy);
            if let Some(frame) = self.take_own_lazily(own, &mut batch) {
                let stamp = defer(&mut batch);
                self.has_taken_own(own, frame, stamp);
            }
        });
    }

    /// Unmaps pages of files and a page of the kernel's half lazily, in one batch.
    pub(super) fn reclaim_with_own(&self, files: u8, own: usize) {
        self.with_own(|| {
            self.give_away_own(own);
            self.reclaim_lazily(files, Some(own));
        });
    }

    /// Unmaps a page for a batch that may defer its flush. The caller holds the lock of the kernel's half.
    pub(super) fn take_own_lazily<'k>(
        &'k self,
        own: usize,
        batch: &mut SmallBatch<'k, Frame>,
    ) -> Option<Frame> {
        if self.own_word(own) & tables::PRESENT == 0 {
            return None;
        }
        let frame = self.clear_own(own)?;
        self.deferred_flush(frame).begin();
        let range = PageRange::base(Page(page_of(own)), 1);
        batch.unmapped(self.own_space(own), range, frame);
        Some(frame)
    }

    /// Records the end of a lazy unmap: the flush is deferred with that stamp, or was made.
    pub(super) fn has_taken_own(&self, own: usize, frame: Frame, stamp: Option<Stamp>) {
        match stamp {
            Some(stamp) => {
                self.hw.note(Event::FrameFreed { frame, frames: 1 });
                self.deferred_flush(frame).defer(stamp);
                let stamp = Some(stamp);
                self.own.taken[own].set(Some(LazyUnmap { frame, stamp }));
            }
            None => {
                self.deferred_flush(frame).clear();
                self.release(OwnedFrame::Single(frame));
            }
        }
    }

    /// Gives the frame of a lazily unmapped page to a new owner.
    pub(super) fn reuse_own(&self, own: usize) {
        self.with_own(|| self.give_away_own(own));
    }

    fn give_away_own(&self, own: usize) {
        let Some(LazyUnmap { frame, .. }) = self.own.taken[own].take() else { return };
        if self.engine.flush_before_reuse(self.deferred_flush(frame)).is_none() {
            return;
        }
        self.hw.happen(MachineEvent::Reusable);
        self.hw.note(Event::FrameAllocated { frame, frames: 1 });
        self.judge_own();
        self.fill(frame, SECRET);
        let index = frame.0 - self.layout.single(0).0;
        self.free_singles.fetch_or(1 << index, Release);
    }

    /// Writes the text of a page, and makes every CPU fetch it again.
    pub(super) fn patch(&self, own: usize) {
        self.with_own(|| {
            let held = self.own_word(own);
            if held & tables::PRESENT == 0 {
                return;
            }
            context::point(Op::Note);
            context::with(|core| core.change_text(page_of(own), false));
            self.fill(Frame(held >> 12), held);
            self.hw.fence();
            self.engine.this_cpu().synchronize_text();
            context::point(Op::Note);
            context::with(|core| core.change_text(page_of(own), true));
        });
    }

    /// Judges the kernel's possible accesses to its half on each CPU that may enter the kernel or take an NMI.
    pub(super) fn judge_own(&self) {
        if !self.layout.own {
            return;
        }
        context::with(|core| {
            for cpu in 0..core.count {
                let there = self.current[cpu].get();
                let uses = core.in_program(cpu) || core.may_take_nmi(cpu);
                let uses = uses && there.mode == Mode::Kernel;
                if uses && !there.offline && !there.pinned {
                    core.judge_kernel(cpu);
                }
            }
        });
    }

    /// Accesses a page of the kernel's own half.
    pub(super) fn access_own(&self, own: usize, kind: AccessKind) {
        context::point(Op::Access(kind));
        let me = self.me();
        context::with(|core| core.access_kernel(me, page_of(own), (kind, 0)));
    }
}

/// A lazily unmapped page whose frame has no new owner yet.
#[derive(Clone, Copy)]
pub(super) struct LazyUnmap {
    pub(super) frame: Frame,
    /// The stamp of its deferred flush, or `None` if it was flushed after all.
    pub(super) stamp: Option<Stamp>,
}

/// The kernel's state of its own half.
pub(super) struct OwnHalf {
    /// The space of the pages with global entries, and that of the others.
    pub(super) spaces: [AddressSpace<Adversary>; 2],
    pub(super) lock: AdversaryWord,
    /// The lazily unmapped pages. Protected by the lock.
    pub(super) taken: [Cell<Option<LazyUnmap>>; OWN_PAGES],
}

impl OwnHalf {
    pub(super) fn new(spaces: [AddressSpace<Adversary>; 2]) -> Self {
        OwnHalf { spaces, lock: AdversaryWord::new(0), taken: Default::default() }
    }

    /// Returns a digest of the state that is in no word.
    pub(super) fn kept(&self) -> u64 {
        let taken = |taken: &Cell<Option<LazyUnmap>>| {
            let taken = taken.get();
            taken.map(|taken| (taken.frame.0, taken.stamp))
        };
        FxBuildHasher.hash_one(self.taken.each_ref().map(taken))
    }
}
