//! Taking pages away, with a flush and without one, and giving their frames to others.

use super::BareKernel;
use crate::coverage::Happening;
use crate::tables;
use quell::{Frame, Outcome, Page, PageRange, Purpose, Scope, Word};
use quell_vm::machine::{Event, Machine};
use std::sync::atomic::Ordering::Relaxed;

impl BareKernel<'_> {
    /// Takes a page away as reclaim does, from several spaces, and waits for the flush.
    pub fn reclaim(&self, spaces: &[usize], page: u64) -> Option<Frame> {
        self.hw
            .say(|| format!("reclaim page {page:#x} of {spaces:?}"));
        let mut batch = self.engine.batch(Purpose::Reclaim);
        let mut taken = None;
        for &space in spaces {
            self.lock(space);
            if let Some(frame) = self.clear(space, page) {
                taken = Some(frame);
                batch.changed(
                    &self.spaces[space],
                    PageRange::base(Page(page), 1),
                    Scope::Leaf,
                );
            }
            self.unlock(space);
            batch.unlocked();
        }
        if let Some(frame) = taken {
            batch.hold(frame);
        }
        batch.finish().next()
    }

    /// Takes a clean page away without a flush, where the policy allows it; the frame is then
    /// behind its residue.
    pub fn reclaim_lazily(&self, space: usize, page: u64) -> Option<Frame> {
        self.reclaim_lazily_from(&[space], page)
    }

    /// The same with a page that several spaces map.
    pub fn reclaim_lazily_from(&self, spaces: &[usize], page: u64) -> Option<Frame> {
        self.hw
            .say(|| format!("reclaim page {page:#x} of {spaces:?} lazily"));
        for &space in spaces {
            self.lock(space);
        }
        let mut batch = self.engine.batch(Purpose::Lazy);
        let mut taken = None;
        for &space in spaces {
            let old = self.entry(space, page).load(Relaxed);
            if old & tables::PRESENT == 0 {
                continue;
            }
            if taken.is_none() {
                taken = Some(Frame(old >> 12));
                self.residue(Frame(old >> 12)).begin();
            }
            self.clear(space, page);
            let range = PageRange::base(Page(page), 1);
            batch.changed(&self.spaces[space], range, Scope::Leaf);
        }
        if let Some(frame) = taken {
            batch.hold(frame);
            self.free_owed(frame, batch.finish_owed());
        }
        for &space in spaces {
            self.unlock(space);
        }
        taken
    }

    /// Frees a frame whose flush may be owed.
    pub(super) fn free_owed(&self, frame: Frame, outcome: Outcome<'_, Frame>) {
        // Once the residue says "owed" any CPU may claim the frame.
        self.hw.note(Event::FrameFreed { frame, frames: 1 });
        match outcome {
            Outcome::Owed(owed) => self.residue(frame).owe(owed.stamp()),
            Outcome::Flushed(_) => self.residue(frame).clear(),
        }
    }

    /// Takes a page away for good that was rescued in one space alone: where it was not mapped again it still counts as
    /// mapped, because its residue says nothing any more.
    pub fn reclaim_rescued(&self, mapped: usize, left: usize, page: u64) -> Option<Frame> {
        self.hw
            .say(|| format!("reclaim page {page:#x} of {mapped}, and what is left in {left}"));
        let mut batch = self.engine.batch(Purpose::Reclaim);
        let range = PageRange::base(Page(page), 1);
        self.lock(mapped);
        let frame = self.clear(mapped, page);
        if let Some(frame) = frame {
            batch.unmapped(&self.spaces[mapped], range, frame);
            // [mutant VmIgnoresMarker]
            batch.changed(&self.spaces[left], range, Scope::Leaf);
        }
        self.unlock(mapped);
        batch.finish().next()
    }

    /// Gives a frame that owes a flush to a new owner; whether it was to be had.
    pub fn claim(&self, frame: Frame) -> bool {
        self.hw.say(|| format!("claim frame {:#x}", frame.0));
        let claimed = self.engine.claim(self.residue(frame)).is_some();
        if claimed {
            self.hw.happen(Happening::Claimed);
            self.hw.note(Event::FrameAllocated { frame, frames: 1 });
            self.hw.write_frame(frame, 0, &0x5ec2e7u64.to_le_bytes());
        }
        claimed
    }

    /// Takes a frame back for the page that it belonged to, if no CPU has claimed it.
    pub fn rescue(&self, space: usize, page: u64, frame: Frame) {
        self.hw.say(|| format!("rescue frame {:#x}", frame.0));
        self.lock(space);
        if self.residue(frame).rescue(&self.engine) {
            self.hw.note(Event::FrameRescued { frame });
            self.map(space, page, frame, false);
        }
        self.unlock(space);
    }

    /// Writes an entry that `old` was behind anew, if it is empty; whether it was.
    pub fn refill(&self, space: usize, page: u64, old: Frame, new: Frame) -> bool {
        self.hw.say(|| format!("refill({space}, {page:#x})"));
        self.lock(space);
        let empty = self.entry(space, page).load(Relaxed) == 0;
        if empty {
            self.engine
                .settle_residue(self.residue(old), &self.spaces[space]);
            self.map(space, page, new, false);
        }
        self.unlock(space);
        empty
    }
}
