//! Open batches, wherever they were opened, and the effects of their end.

use super::state::{
    FrameGuard, Kernel, OwnedFrame, SmallBatch, bit, is_large, is_table, pages_of, peek, set,
};
use crate::context;
use crate::generated::program::{
    BATCHES, BatchPurpose, CpuProgram, EngineOp, HUGE, ReportMode, Right, WINDOW,
};
use crate::oracle::Moment;
use crate::tables;
use quell::{Frame, Hardware, Outcome, Page, PageRange, PageSize, Purpose, Scope, Stamp, Word};
use rustc_hash::FxBuildHasher;
use std::cell::{Cell, RefCell};
use std::hash::BuildHasher;
use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Returns the purpose of a batch, for the engine.
pub(super) fn purpose_of(batch: BatchPurpose) -> Purpose {
    match batch {
        BatchPurpose::Call => Purpose::Call,
        BatchPurpose::Reclaim => Purpose::Reclaim,
        BatchPurpose::Migration => Purpose::Migration,
    }
}

#[derive(Clone, Copy, Debug)]
struct ChangedRange {
    slot: usize,
    range: PageRange,
    /// The right that was removed; `None` for all rights.
    right: Option<Right>,
}

/// The change that a protection makes.
#[derive(Clone, Copy, Debug)]
pub(super) struct RightRemoval {
    pub(super) right: Right,
    /// Whether the page's content is captured afterwards.
    pub(super) capture: bool,
}

/// A page whose content is to be captured.
#[derive(Clone, Copy, Debug)]
struct Capture {
    slot: usize,
    page: u64,
    frame: Frame,
}

/// The maximum number of ranges and of captures that a batch remembers.
const KEPT: usize = 8;

/// Ends a batch whose flush may be deferred. Returns the stamp if it was. The caller handles the frames.
pub(super) fn defer(batch: &mut SmallBatch<'_, Frame>) -> Option<Stamp> {
    match batch.finish_deferred() {
        Outcome::Deferred(deferred) => {
            let stamp = deferred.stamp();
            deferred.for_each(drop);
            Some(stamp)
        }
        Outcome::Flushed(frames) => {
            frames.for_each(drop);
            None
        }
    }
}

/// An open batch, and the effects that its end will have.
pub(super) struct OpenBatch<'k, 'm> {
    batch: SmallBatch<'k, FrameGuard<'k, 'm>>,
    purpose: Purpose,
    /// When the first call that it serves began.
    began: Moment,
    changed: [Option<ChangedRange>; KEPT],
    captures: [Option<Capture>; KEPT],
    /// The spaces in which it found entries that another CPU had changed, as bits.
    unflushed: u16,
}

impl OpenBatch<'_, '_> {
    fn has_room(&self) -> bool {
        self.changed[KEPT - 1].is_none() && self.captures[KEPT - 1].is_none()
    }

    fn remember(&mut self, changed: ChangedRange) {
        if self.purpose == Purpose::Call
            && let Some(place) = self.changed.iter_mut().find(|place| place.is_none())
        {
            *place = Some(changed);
        }
    }

    pub(super) fn begin(&mut self) {
        if self.changed[0].is_none() {
            self.began = context::with(|core| core.now);
        }
    }
}

/// The kernel's threads and the batches that they have open.
pub(super) struct BatchTable<'k, 'm> {
    pub(super) kernel: &'k Kernel<'m>,
    pub(super) lanes: &'k [CpuProgram<EngineOp>],
    /// Only the CPU that has marked a batch busy uses it. We forget the batches of a run that was cut short instead of
    /// dropping them, because no CPU is left to flush.
    pub(super) open: ManuallyDrop<[RefCell<Option<OpenBatch<'k, 'm>>>; BATCHES]>,
    /// Whether the run has begun. Before, there is no other CPU for which to wait.
    pub(super) begun: Cell<bool>,
}

impl<'k, 'm> BatchTable<'k, 'm> {
    pub(super) fn new(kernel: &'k Kernel<'m>, lanes: &'k [CpuProgram<EngineOp>]) -> Self {
        BatchTable {
            kernel,
            lanes,
            open: ManuallyDrop::new(Default::default()),
            begun: Cell::new(false),
        }
    }

    /// Runs `body` on a batch, unless another CPU uses it. `key` identifies the operation.
    pub(super) fn with(
        &self,
        batch: u8,
        key: u64,
        body: impl FnOnce(&mut Option<OpenBatch<'k, 'm>>),
    ) {
        let kernel = self.kernel;
        let busy = &kernel.busy[usize::from(batch)];
        if busy.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            return;
        }
        let mut place = self.open[usize::from(batch)].borrow_mut();
        body(&mut place);
        let trace = &kernel.traces[usize::from(batch)];
        match &*place {
            None => set(trace, 0),
            Some(open) if open.batch.is_empty() && open.changed[0].is_none() => {
                set(trace, 1 + open.purpose as u64);
            }
            // The moment of the report is part of the state, because returned calls are compared with it.
            Some(_) => {
                let now = context::with(|core| core.now);
                let mixed = FxBuildHasher.hash_one((peek(trace), key, now));
                set(trace, mixed | 1 << 63);
            }
        }
        drop(place);
        busy.store(0, Release);
    }

    pub(super) fn with_open(&self, batch: u8, key: u64, body: impl FnOnce(&mut OpenBatch<'k, 'm>)) {
        self.with(batch, key, |place| {
            if let Some(open) = place {
                body(open);
            }
        });
    }

    pub(super) fn open(&self, batch: u8, purpose: BatchPurpose) {
        self.with(batch, purpose as u64, |place| {
            if place.as_ref().is_some_and(|open| !open.batch.is_empty()) {
                return;
            }
            let purpose = purpose_of(purpose);
            *place = Some(OpenBatch {
                batch: self.kernel.batch(purpose),
                purpose,
                began: 0,
                changed: [None; KEPT],
                captures: [None; KEPT],
                unflushed: 0,
            });
        });
    }

    pub(super) fn unmap(
        &self,
        open: &mut OpenBatch<'k, 'm>,
        slot: usize,
        page: u64,
        pages: u64,
        report: ReportMode,
    ) {
        let kernel = self.kernel;
        if !open.has_room() || open.batch.is_full() {
            return;
        }
        open.begin();
        let Some(space) = kernel.lock(slot) else { return };
        let end = page.saturating_add(pages);
        let held = |what: OwnedFrame| FrameGuard { kernel, what };
        let mut any = false;
        let mut found_empty = false;
        for window in (0..2).filter(|w| w * WINDOW < end && page < (w + 1) * WINDOW) {
            let upper = kernel.window_entry(slot, window);
            let word = upper.load(Relaxed);
            if is_large(word) {
                let block = Frame(upper.swap(0, AcqRel) >> 12);
                let range = PageRange::one(Page(window * WINDOW), PageSize::Large);
                open.batch.changed(space, range, kernel.resizing());
                open.batch.hold(held(OwnedFrame::Block(block)));
                continue;
            }
            for at in pages_of(window).filter(|at| (page..end).contains(at)) {
                let block = kernel.block_at(slot, at);
                let whole = block.filter(|block| page <= block.start.0 && block.end().0 <= end);
                if whole.is_none() {
                    kernel.break_block(slot, at);
                }
                let Some(entry) = kernel.mapped(slot, at) else {
                    found_empty = true;
                    continue;
                };
                let frame = Frame(entry.swap(0, AcqRel) >> 12);
                any = true;
                if Kernel::file_at(at).is_none() {
                    open.batch.hold(held(OwnedFrame::Single(frame)));
                }
                let gone = match whole {
                    // The block is reported with its last entry.
                    Some(block) if at + 1 < block.end().0 => None,
                    Some(block) => Some(block),
                    None => Some(PageRange::base(Page(at), 1)),
                };
                // We report the whole block, for the reason in `BareKernel::unmap_block`. [mutant BlockReportedAsPage]
                if let (ReportMode::Each, Some(range)) = (report, gone) {
                    open.batch.changed(space, range, Scope::Leaf);
                }
            }
        }
        if end > HUGE {
            let old = kernel.huge_entry(slot).swap(0, AcqRel);
            if old & tables::PRESENT != 0 {
                let range = PageRange::one(Page(HUGE), PageSize::Huge);
                let what = OwnedFrame::Block(Frame(old >> 12));
                open.batch.unmapped(space, range, held(what));
            }
        }
        let range = PageRange::base(Page(page), pages);
        match report {
            ReportMode::Range if any => open.batch.changed(space, range, Scope::Leaf),
            ReportMode::All if any => open.batch.changed_all(space, Scope::Leaf),
            _ => {}
        }
        // The CPU that cleared an entry may not have flushed yet. We don't check each entry of the huge mapping, so it
        // always counts.
        if found_empty || end > HUGE || !any {
            open.unflushed |= 1 << slot;
        }
        open.remember(ChangedRange { slot, range, right: None });
        kernel.unlock(slot);
    }

    pub(super) fn protect(
        &self,
        open: &mut OpenBatch<'k, 'm>,
        slot: usize,
        range: PageRange,
        takes: RightRemoval,
    ) {
        let kernel = self.kernel;
        if !open.has_room() {
            return;
        }
        open.begin();
        let Some(space) = kernel.lock(slot) else { return };
        let right = bit(takes.right);
        let captures = takes.capture && takes.right == Right::Write;
        let (page, end) = (range.start.0, range.end().0);
        let mut flushes_pending = end > 2 * WINDOW;
        for window in (0..2).filter(|w| w * WINDOW < end && page < (w + 1) * WINDOW) {
            let upper = kernel.window_entry(slot, window);
            let word = upper.load(Relaxed);
            if is_large(word) {
                if upper.fetch_and(!right, AcqRel) & right != 0 {
                    let range = PageRange::one(Page(window * WINDOW), PageSize::Large);
                    open.batch.changed(space, range, Scope::Leaf);
                } else {
                    flushes_pending = true;
                }
                continue;
            }
            for at in pages_of(window).filter(|at| (page..end).contains(at)) {
                kernel.break_block(slot, at);
                let granted = tables::PRESENT | right;
                let entry = kernel.entry(slot, at);
                let entry = entry.filter(|entry| entry.load(Relaxed) & granted == granted);
                let Some(entry) = entry else {
                    flushes_pending = true;
                    continue;
                };
                let old = entry.fetch_and(!right, AcqRel);
                let range = PageRange::base(Page(at), 1);
                open.batch.changed(space, range, Scope::Leaf);
                if captures
                    && Kernel::file_at(at).is_none()
                    && let Some(place) = open.captures.iter_mut().find(|place| place.is_none())
                {
                    let frame = Frame(old >> 12);
                    let page = at;
                    *place = Some(Capture { slot, page, frame });
                }
            }
        }
        if end > HUGE {
            let entry = kernel.huge_entry(slot);
            if entry.fetch_and(!right, AcqRel) & right != 0 {
                let range = PageRange::one(Page(HUGE), PageSize::Huge);
                open.batch.changed(space, range, Scope::Leaf);
            }
        }
        if flushes_pending {
            open.unflushed |= 1 << slot;
        }
        open.remember(ChangedRange { slot, range, right: Some(takes.right) });
        kernel.unlock(slot);
    }

    pub(super) fn unlink(&self, open: &mut OpenBatch<'k, 'm>, slot: usize, window: u64) {
        let (page, kernel) = (window * WINDOW, self.kernel);
        self.unmap(open, slot, page, WINDOW, ReportMode::Each);
        let Some(space) = kernel.lock(slot) else { return };
        let upper = kernel.window_entry(slot, window);
        let word = upper.load(Relaxed);
        // Another CPU may have mapped something meanwhile, and a marker means a flush that is still to be made.
        let idle = |at: u64| {
            let entry = kernel.entry(slot, at);
            entry.is_none_or(|entry| entry.load(Relaxed) == 0)
        };
        let mut pages = pages_of(window);
        if is_table(word) && pages.all(idle) && !open.batch.is_full() {
            upper.swap(0, AcqRel);
            let what = OwnedFrame::Table(Frame(word >> 12));
            let range = PageRange::one(Page(page), PageSize::Large);
            let table = FrameGuard { kernel, what };
            open.batch.table_unlinked(space, range, table);
        }
        kernel.unlock(slot);
    }

    /// Applies the effects of a batch's end, after its flush.
    fn ended(&self, open: &mut OpenBatch<'k, 'm>) {
        let kernel = self.kernel;
        if open.purpose == Purpose::Call {
            kernel.flush_all_pending(std::mem::take(&mut open.unflushed));
        }
        for Capture { slot, page, frame } in
            std::mem::take(&mut open.captures).into_iter().flatten()
        {
            let Some(space) = kernel.lock(slot) else { continue };
            let protected = kernel.entry(slot, page).is_some_and(|entry| {
                let held = entry.load(Relaxed);
                let rights = tables::PRESENT | tables::WRITABLE;
                held & rights == tables::PRESENT && held >> 12 == frame.0
            });
            if protected {
                // The page may have got the right back and lost it again.
                kernel.engine.flush_pending_batches(space);
                kernel.capture(frame, 1);
            }
            kernel.unlock(slot);
        }
        for changed in std::mem::take(&mut open.changed).into_iter().flatten() {
            let ChangedRange { slot, range, right } = changed;
            kernel.returned(slot, range, open.began, right);
        }
    }

    pub(super) fn finish(&self, batch: u8) {
        self.with_open(batch, 1, |open| {
            drop(open.batch.finish());
            self.ended(open);
        });
    }

    /// Starts a flush, and polls it whenever another CPU has answered a flush. With interrupts off, and in code that
    /// has preempted another thread, it waits instead.
    pub(super) fn start(&self, batch: u8) {
        let here = self.kernel.here();
        if here.masked || here.preempts || !self.begun.get() {
            return self.finish(batch);
        }
        let hw = self.kernel.hw;
        self.with_open(batch, 3, |open| {
            let mut flight = open.batch.start();
            loop {
                let rung = hw.bell().load(Acquire);
                if flight.is_done() {
                    break;
                }
                while hw.bell().load(Acquire) == rung {
                    hw.relax();
                }
            }
            drop(flight.finish());
            self.ended(open);
        });
    }

    pub(super) fn forget(&self, batch: u8) {
        self.with(batch, 2, |place| {
            if let Some(mut open) = place.take() {
                drop(std::mem::replace(&mut open.batch, self.kernel.batch(open.purpose)));
                self.ended(&mut open);
            }
        });
    }

    pub(super) fn sweep(&self, batch: u8, page: u64) {
        self.with_open(batch, page << 8, |open| {
            for slot in 0..usize::from(self.kernel.shape.spaces) {
                self.unmap(open, slot, page, 1, ReportMode::Each);
            }
        });
    }
}
