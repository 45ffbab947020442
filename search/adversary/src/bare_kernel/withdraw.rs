//! Withdraws frames so that not even speculative loads reach them.
//!
//! That's necessary if their memory type changes, a guest gets exclusive use of them, or they leave the machine.

use super::BareKernel;
use crate::context;
use crate::op::Op;
use quell::{Frame, Hardware, Page, PageRange, Purpose, Scope};

impl BareKernel<'_> {
    /// Withdraws a frame that a batch has returned.
    ///
    /// It waits until all CPUs have flushed. Then none may load from the frame, even speculatively.
    pub fn withdraw(&self, frame: Frame) {
        self.engine.this_cpu().quiesce();
        context::point(Op::Note);
        self.hw.say(|| format!("withdraws frame {:#x}", frame.0));
        let me = self.hw.this_cpu().index();
        context::with(|core| core.check_withdrawn(me, frame, |_| true));
    }

    /// Unmaps a page like [`BareKernel::unmap`], but reports changed tables, so lazy CPUs are interrupted too.
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
}
