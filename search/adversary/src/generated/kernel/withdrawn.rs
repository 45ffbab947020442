//! Withdraws frames so that not even speculative loads reach them, and then uses them again.
//!
//! A kernel does that if, for example, a frame's memory type changes, a guest gets exclusive use of it, or it leaves
//! the machine.
//!
//! The change is reported as one of leaf entries. So neither this change nor the earlier ones that unmapped the frame
//! interrupt a CPU that has the space loaded lazily. Therefore the judge examines only CPUs that run a space, and not
//! those that are just resuming one.

use super::state::{Kernel, OwnedFrame};
use crate::context;
use crate::op::Op;
use crate::tables;
use quell::{Frame, Page, PageRange, Purpose, Scope, Word};
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

impl Kernel<'_> {
    pub(super) fn withdraw(&self, slot: usize, page: u64) {
        if Self::file_at(page).is_some() {
            return;
        }
        let began = context::with(|core| core.now);
        let range = PageRange::base(Page(page), 1);
        let Some(space) = self.lock(slot) else { return };
        self.break_block(slot, page);
        let mut batch = self.batch::<Frame>(Purpose::Call);
        if let Some(entry) = self.entry(slot, page)
            && entry.load(Relaxed) & tables::PRESENT != 0
        {
            batch.hold(Frame(entry.swap(0, AcqRel) >> 12));
            batch.changed(space, range, Scope::Leaf);
        }
        self.unlock(slot);
        if let Some(frame) = batch.finish().next() {
            self.returned(slot, range, began, None);
            self.engine.this_cpu().quiesce();
            context::point(Op::Note);
            let me = self.me();
            let runs = |cpu: usize| {
                let there = self.current[cpu].get();
                there.runs && !there.pinned
            };
            context::with(|core| core.check_withdrawn(me, frame, runs));
            self.release(OwnedFrame::Single(frame));
        }
    }
}
