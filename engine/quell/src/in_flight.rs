//! Completion without blocking: a batch whose flush was started and is not waited for.
//!
//! [`Batch::start`] does what [`Batch::finish`] does before it waits: it takes the generations, posts the requests,
//! sends the interrupts and flushes this CPU's own entries. [`InFlight::is_done`] then says, without waiting, whether
//! every target has answered; it may be called on any CPU and any number of times. To be told when to ask, a kernel
//! defines [`Hardware::flush_answered`], which every target calls after it has answered, and lets it wake the thread,
//! or queue the work, that asks.
//!
//! The frames stay in the batch, and the spaces' deferred flushes stand, until the flush is over: later observers
//! flush what is pending as for any other batch. Meanwhile the batch is borrowed and takes nothing more.
//!
//! On machines that broadcast, a barrier of the CPU that has sent the broadcasts completes the flush: the first
//! [`InFlight::is_done`] executes it and says yes. On another CPU it sends everything again first.
//!
//! Devices that share the tables are told in [`Batch::start`]; when every CPU has answered, a look asks whether they
//! are done, too ([`Hardware::secondary_is_done`]), and says no if they are not. A kernel that is to be told of that is
//! told by the device's own interrupt.
//!
//! # What this does not guarantee
//!
//! Progress without a look: until the kernel calls [`InFlight::is_done`], the deferred flushes of the flush stand, and
//! second actors pay for each. If an [`InFlight`] is forgotten ([`core::mem::forget`]), the batch still holds its
//! frames and deferred flushes: finished or dropped, it flushes again. The engine then takes a started flush to be
//! under way for good, and every CPU that flushes for others tells the machine so ([`Hardware::flush_answered`]).

use crate::batch::{Batch, Unflushed};
use crate::cpu_set::{CpuId, CpuSet};
use crate::engine::Engine;
use crate::flush::SPACES;
use crate::flush_info::FlushInfo;
use crate::flushed::Flushed;
use crate::frames::{FrameList, InPlace};
use crate::hardware::Hardware;
use crate::inbox::Until;
use crate::overflow::Overflow;
use crate::request::Request;
use crate::secondary::Mark;
use crate::space::AddressSpace;
use crate::stack::Stack;
use crate::word::Word;
use core::ops::Deref;
use core::sync::atomic::Ordering::Relaxed;

/// A flush that goes on by itself: made by [`Engine::start_flush`], looked at by [`InFlight::is_done`].
struct Awaited {
    /// Those that have not answered yet.
    targets: CpuSet,
    until: Until,
    /// The number of requests that the first of them must reach, once the code has looked at it.
    first: Option<u64>,
    /// Whether a barrier has yet to complete broadcasts.
    barrier: bool,
    /// The last invalidation that devices were told of.
    told: Mark,
}

impl<H: Hardware> Engine<'_, H> {
    /// Begins to flush what [`Engine::flush`] flushes, and waits for no target: the flush goes on by itself.
    fn start_flush<'s>(
        &self,
        me: CpuId,
        requests: impl ExactSizeIterator<Item = (&'s AddressSpace<H>, &'s Request)> + Clone,
        overflow: Option<&Overflow>,
        told: Mark,
    ) -> Awaited
    where
        H: 's,
    {
        let mut mine = Stack::<FlushInfo<'s>, SPACES>::new();
        // Its initiator may be elsewhere when the targets have flushed: no outbox is kept for it.
        let mut shootdown = self.begin_without_outbox();
        // Relaxed: a target that sees a post of this flush sees it started.
        self.started.fetch_add(1, Relaxed);
        let (mut scope, mut kernel) = self.post_all(me, requests, &mut mine, &mut shootdown);
        let overflow = overflow.map(|overflow| (self.cpus_of(overflow), overflow));
        if let Some((cpus, more)) = &overflow {
            self.post_whole(me, cpus, more.scope, more.kernel, &mut shootdown);
            (scope, kernel) = (scope.max(more.scope), kernel || more.kernel);
        }
        let cpu = self.cpu(me);
        self.interrupt(cpu, &shootdown);
        self.flush_own(me, cpu, mine.as_slice());
        if let Some((cpus, more)) = &overflow {
            self.flush_whole_here(me, cpus, more.scope, more.kernel);
        }
        self.let_interrupts_in(&shootdown);
        Awaited {
            targets: shootdown.targets,
            until: self.until(scope, kernel),
            first: None,
            barrier: false,
            told,
        }
    }

    /// Whether every target of a flush that was started has answered. Never waits.
    ///
    /// It looks at one target after the other. Each must have answered the posts that it had when it was first looked
    /// at: so initiators that post meanwhile do not delay the end.
    fn has_answers(&self, awaited: &mut Awaited) -> bool {
        loop {
            // [mutant SkipWait]
            let next = awaited.targets.iter().next();
            let Some(target) = next else {
                return true;
            };
            let inbox = &self.cpu(target).inbox;
            let number = match awaited.first {
                Some(number) => Some(number),
                None => inbox.awaited(),
            };
            if let Some(number) = number
                && !inbox.has_reached(number, awaited.until)
            {
                awaited.first = Some(number);
                return false;
            }
            awaited.first = None;
            awaited.targets.remove(target);
        }
    }

    /// Counts a flush that was started as over: targets tell the machine of their answers as long as there is one.
    fn end_started(&self) {
        self.started.fetch_add(u64::MAX, Relaxed);
    }
}

impl<H: Hardware, S, const N: usize> Unflushed<'_, '_, H, S, N>
where
    S: Deref<Target = AddressSpace<H>>,
{
    /// Begins to flush what is outstanding and waits for no target; `None` if that is all.
    fn start(&mut self) -> Option<Awaited> {
        let engine = self.engine;
        let me = engine.hw.this_cpu();
        if let [only] = self.pending.as_slice()
            && only.fresh
            && self.overflow.is_none()
            // That would wait for devices.
            && !H::HAS_SECONDARY
            && engine.flush_alone(me, &only.space, &only.request)
        {
            self.pending.clear();
        }
        if self.is_empty() {
            return None;
        }
        // After those that it may have told of what has no place.
        let told = engine.start_secondary(self.requests());
        if engine.broadcasts().is_none() {
            return Some(engine.start_flush(me, self.requests(), self.overflow.as_ref(), told));
        }
        let carried = me != self.cpu;
        let pending = self.pending.as_slice();
        for entry in pending.iter().filter(|entry| carried || !entry.sent) {
            engine.broadcast_early(me, &entry.space, &entry.request);
        }
        self.cpu = me;
        (self.pending.as_mut_slice().iter_mut()).for_each(|entry| entry.sent = true);
        Some(Awaited {
            targets: CpuSet::none(),
            until: Until::Done,
            first: None,
            barrier: true,
            told,
        })
    }

    /// Whether what was started is over; then the deferred flushes of the batch end. Never waits for another CPU's
    /// answer, or for a device.
    fn is_over(&mut self, awaited: &mut Awaited) -> bool {
        let engine = self.engine;
        if awaited.barrier {
            // That of the CPU that has sent them; any other sends them again.
            let me = engine.hw.this_cpu();
            self.complete_broadcasts(me);
            if let Some(overflow) = &self.overflow {
                engine.flush_overflow(me, overflow);
            }
            awaited.barrier = false;
        } else if !engine.has_answers(awaited) {
            return false;
        }
        if !engine.secondary_is_done(awaited.told) {
            return false;
        }
        if engine.broadcasts().is_none() {
            engine.end_started();
        }
        self.overflow = None;
        self.end_all_pending();
        true
    }
}

/// A batch whose flush goes on by itself. Made by [`Batch::start`]. Dropped, it waits for the end.
#[must_use = "the frames come out of `finish`; dropped, it waits for the flush"]
pub struct InFlight<'b, 'e, 'm, H, S, F, L = InPlace<F>, const N: usize = SPACES>
where
    H: Hardware,
    S: Deref<Target = AddressSpace<H>>,
    L: FrameList<F>,
{
    /// `None` after [`InFlight::finish`] has taken it.
    batch: Option<&'b mut Batch<'e, 'm, H, S, F, L, N>>,
    /// `None` once the flush is over.
    awaited: Option<Awaited>,
}

impl<'e, 'm, H: Hardware, S, F, L: FrameList<F>, const N: usize> Batch<'e, 'm, H, S, F, L, N>
where
    S: Deref<Target = AddressSpace<H>>,
{
    /// Begins to flush, and waits for no target: what [`Batch::finish`] does without the wait. Never waits, for a CPU
    /// or a device.
    pub fn start(&mut self) -> InFlight<'_, 'e, 'm, H, S, F, L, N> {
        self.lose_borrowed();
        let awaited = self.unflushed.start();
        InFlight {
            batch: Some(self),
            awaited,
        }
    }
}

impl<'b, H: Hardware, S, F, L: FrameList<F>, const N: usize> InFlight<'b, '_, '_, H, S, F, L, N>
where
    S: Deref<Target = AddressSpace<H>>,
{
    /// Whether the flush is over, so that [`InFlight::finish`] would not wait. Never waits, for a CPU or a device. Each
    /// call looks at as many targets as have answered, and at one that has not.
    pub fn is_done(&mut self) -> bool {
        let (Some(batch), Some(awaited)) = (&mut self.batch, &mut self.awaited) else {
            return true;
        };
        let over = batch.unflushed.is_over(awaited);
        if over {
            self.awaited = None;
        }
        over
    }

    /// The next target that has not answered, if any.
    fn first_target(&self) -> Option<CpuId> {
        self.awaited.as_ref()?.targets.iter().next()
    }

    /// Yields the frames, as [`Batch::finish`]. Waits for other CPUs unless [`InFlight::is_done`] has said yes.
    #[expect(
        clippy::missing_panics_doc,
        reason = "the batch is taken here, and there is no second call"
    )]
    pub fn finish(mut self) -> Flushed<'b, F, L> {
        self.wait();
        let batch = self.batch.take().expect("taken here alone");
        Flushed::new(&mut batch.frames)
    }

    fn wait(&mut self) {
        if self.is_done() {
            return;
        }
        if let Some(batch) = &self.batch {
            let engine = batch.unflushed.engine;
            engine.assert_may_wait();
            let (me, mut turns) = (engine.hw.this_cpu(), 0);
            let cpu = engine.cpu(me);
            while !self.is_done() {
                match self.first_target() {
                    Some(target) => engine.wait_a_turn_for(me, cpu, target, &mut turns),
                    None => engine.wait_a_turn(me, cpu),
                }
            }
        }
    }
}

impl<H, S, F, L, const N: usize> Drop for InFlight<'_, '_, '_, H, S, F, L, N>
where
    H: Hardware,
    S: Deref<Target = AddressSpace<H>>,
    L: FrameList<F>,
{
    /// Waits for the end: the batch may be filled again then.
    fn drop(&mut self) {
        self.wait();
    }
}
