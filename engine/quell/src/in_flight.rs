//! Completion without blocking: batches whose flush we start but don't wait for.
//!
//! [`Batch::start`] takes the generations, posts the requests, sends the interrupts and flushes this CPU's own entries,
//! as [`Batch::finish`] does before it waits. [`FlushInFlight`] describes the rest.
//!
//! [`Batch::start`] also starts the flush of devices that share the tables. Once every CPU has answered,
//! [`FlushInFlight::is_done`] checks the devices, too ([`Hardware::secondary_is_done`]). A kernel that doesn't want to
//! poll devices uses their own interrupts.
//!
//! # What we don't guarantee
//!
//! The flush doesn't end without a call of [`FlushInFlight::is_done`]. Until then the spaces count the batch as
//! pending, and every later observer flushes.

use crate::addr::Frame;
use crate::batch::{Batch, BatchChanges, SpaceRef};
use crate::cpu_set::CpuSet;
use crate::engine::Engine;
use crate::flush::SPACES;
use crate::flush_info::FlushInfo;
use crate::flushed::FlushedFrames;
use crate::frames::{FrameArray, FrameList};
use crate::hardware::Hardware;
use crate::inbox::WaitGoal;
use crate::overflow::Overflow;
use crate::request::Request;
use crate::secondary::SecondaryMark;
use crate::space::AddressSpace;
use crate::stack::InlineQueue;
use crate::this_cpu::Cpu;
use crate::word::Word;
use core::mem::MaybeUninit;
use core::ops::Deref;
use core::sync::atomic::Ordering::Relaxed;

/// A flush under way: filled in its place by [`Cpu::start_flush`], checked by [`FlushInFlight::is_done`].
#[derive(Default)]
struct StartedFlush {
    /// The targets that have not answered yet.
    targets: CpuSet,
    until: WaitGoal,
    /// The number of requests that the first of `targets` must reach. Set when it's first checked.
    first: Option<u64>,
    /// Set until a barrier has completed the broadcasts.
    barrier: bool,
    /// Covers all invalidations that were sent to devices.
    told: SecondaryMark,
}

impl<H: Hardware> Cpu<'_, H> {
    /// Begins a flush like [`Cpu::shoot_down`], but waits for no target.
    fn start_flush<'s>(
        self,
        requests: impl ExactSizeIterator<Item = (&'s AddressSpace<H>, &'s Request)> + Clone,
        overflow: Option<&Overflow>,
        started: &mut StartedFlush,
    ) where
        H: 's,
    {
        // Relaxed: a target that sees a post of this flush also sees this count.
        self.started.fetch_add(1, Relaxed);
        if let (1, None) = (requests.len(), overflow)
            && let Some((space, request)) = requests.clone().next()
            && self.start_one(space, request, &mut started.targets)
        {
            started.until = self.until(request.scope(), false);
            return;
        }
        let mut mine = InlineQueue::<FlushInfo<'s>, SPACES>::new();
        // No outbox: when the targets have flushed, the initiator may be on another CPU.
        let mut shootdown = self.begin_without_outbox();
        let (mut scope, mut kernel) = self.post_all(requests, &mut mine, &mut shootdown);
        let overflow = overflow.map(|overflow| (self.cpus_of(overflow), overflow));
        if let Some((cpus, more)) = &overflow {
            self.post_whole(cpus, more.scope, more.kernel, &mut shootdown);
            (scope, kernel) = (scope.max(more.scope), kernel || more.kernel);
        }
        self.interrupt(&shootdown);
        self.flush_own(mine.as_slice());
        if let Some((cpus, more)) = &overflow {
            self.flush_whole_here(cpus, more.scope, more.kernel);
        }
        self.let_interrupts_in(&shootdown);
        started.targets.become_same(&shootdown.targets);
        started.until = self.until(scope, kernel);
    }
}

impl<H: Hardware> Engine<'_, H> {
    /// Returns whether every target of a started flush has answered. Never waits.
    ///
    /// It checks one target after the other. Each must have answered the posts that it had when it was first checked,
    /// so later posts don't delay the end.
    #[inline]
    fn has_answers(&self, awaited: &mut StartedFlush) -> bool {
        let StartedFlush { targets, until, first, .. } = awaited;
        // [mutant SkipWait]
        targets.remove_while(|target| {
            let inbox = &self.cpu(target).inbox;
            let number = first.take().or_else(|| inbox.awaited());
            *first = number.filter(|&number| !inbox.has_reached(number, *until));
            first.is_none()
        })
    }
}

impl<H: Hardware, S, const N: usize> BatchChanges<'_, S, N>
where
    S: Deref<Target = AddressSpace<H>>,
{
    /// Starts to flush all outstanding changes. Returns `false` if the flush is over already.
    fn start(&mut self, started: &mut StartedFlush) -> bool {
        let engine = self.engine;
        let me = engine.this_cpu();
        if let [only] = self.pending.as_slice()
            && only.fresh
            && self.overflow.is_none()
            // `flush_alone` would wait for devices.
            && !H::HAS_SECONDARY
            && me.flush_alone(&only.space, &only.request)
        {
            self.pending.clear();
        }
        if self.is_empty() {
            return false;
        }
        // This mark also covers invalidations that changes without a place may have sent to devices.
        started.told = me.start_secondary(self.requests());
        if engine.broadcasts().is_none() {
            me.start_flush(self.requests(), self.overflow.as_ref(), started);
            return true;
        }
        let carried = me.id() != self.cpu;
        let pending = self.pending.as_slice();
        for entry in pending.iter().filter(|entry| carried || !entry.sent) {
            me.broadcast_early(&entry.space, &entry.request);
        }
        self.cpu = me.id();
        (self.pending.as_mut_slice().iter_mut()).for_each(|entry| entry.sent = true);
        started.barrier = true;
        true
    }

    /// Returns whether the started flush is over. If so, ends the batch as pending.
    ///
    /// Never waits for another CPU's answer, or for a device.
    fn is_over(&mut self, awaited: &mut StartedFlush) -> bool {
        let engine = self.engine;
        if awaited.barrier {
            self.execute_barrier();
            awaited.barrier = false;
        } else if !engine.has_answers(awaited) {
            return false;
        }
        if !engine.secondary_is_done(awaited.told) {
            return false;
        }
        if engine.broadcasts().is_none() {
            engine.started.fetch_add(u64::MAX, Relaxed);
        }
        self.overflow = None;
        self.end_all_pending();
        true
    }

    /// Completes the broadcasts of a started flush.
    #[cold]
    fn execute_barrier(&mut self) {
        // The CPU that sent the broadcasts completes them. Any other CPU sends them again.
        let me = self.engine.this_cpu();
        self.complete_broadcasts(me);
        if let Some(overflow) = &self.overflow {
            me.flush_overflow(overflow);
        }
    }
}

/// Represents a batch whose flush is under way. Made by [`Batch::start`].
///
/// The flush ends in a call of [`FlushInFlight::is_done`] that returns `true`, or in [`FlushInFlight::finish`]. If the
/// value is dropped, the drop waits for the end. Until then the frames stay in the batch, which takes no further
/// changes. Its spaces count it as pending, so each call of [`Engine::flush_pending`] for one of them flushes.
///
/// To learn when to call [`FlushInFlight::is_done`], define [`Hardware::flush_answered`], which every target calls
/// after it has answered.
///
/// Don't pass the value to [`core::mem::forget`]. The batch would keep its frames, and flush again when it's finished
/// or dropped. And the engine would call [`Hardware::flush_answered`] for ever, as if the forgotten flush were still
/// under way.
///
/// # Examples
///
/// ```
/// # quell::one_cpu!(machine, engine, space);
/// use quell::{Frame, Page, PageRange, Purpose};
/// let mut batch = engine.batch(Purpose::Call);
/// batch.unmapped(&space, PageRange::base(Page(5), 1), Frame(42));
/// let mut flush = batch.start();
/// // Do other work. `Hardware::flush_answered` tells when to look again.
/// assert!(flush.is_done()); // there is no other CPU
/// assert!(flush.finish().eq([Frame(42)]));
/// ```
#[must_use = "the frames come out of `finish`; dropped, it waits for the flush"]
pub struct FlushInFlight<'b, 'e, S, L = FrameArray<Frame>, const N: usize = SPACES>
where
    S: SpaceRef,
    L: FrameList,
{
    /// `None` after [`FlushInFlight::finish`] has taken the batch.
    batch: Option<&'b mut Batch<'e, S, L, N>>,
    /// `None` once the flush is over.
    awaited: Option<StartedFlush>,
}

impl<'e, S: SpaceRef, L: FrameList, const N: usize> Batch<'e, S, L, N> {
    /// Starts to flush the changes, like [`Batch::finish`], but doesn't wait for the end.
    ///
    /// It flushes this CPU's own entries and interrupts the other CPUs, or broadcasts invalidations. Never waits for a
    /// CPU or a device.
    pub fn start(&mut self) -> FlushInFlight<'_, 'e, S, L, N> {
        let mut flight = FlushInFlight { batch: None, awaited: Some(StartedFlush::default()) };
        flight.begin(self);
        flight
    }

    /// Starts a flush like [`Batch::start`], and makes it in `place`: a move would copy a set of CPUs.
    ///
    /// Returns whether another CPU must answer, which then calls [`Hardware::flush_answered`].
    #[inline]
    pub fn start_in<'b>(
        &'b mut self,
        place: &mut MaybeUninit<FlushInFlight<'b, 'e, S, L, N>>,
    ) -> bool {
        let flight = FlushInFlight { batch: None, awaited: Some(StartedFlush::default()) };
        place.write(flight).begin(self)
    }
}

impl<'b, 'e, S: SpaceRef, L: FrameList, const N: usize> FlushInFlight<'b, 'e, S, L, N> {
    /// Returns whether another CPU must answer.
    #[inline]
    fn begin(&mut self, batch: &'b mut Batch<'e, S, L, N>) -> bool {
        batch.lose_borrowed();
        let started = self.awaited.as_mut().is_some_and(|awaited| batch.unflushed.start(awaited));
        if !started {
            self.awaited = None;
        }
        self.batch = Some(batch);
        self.awaited.as_ref().is_some_and(|awaited| !awaited.targets.is_empty())
    }

    /// Returns whether the flush is over. If so, [`FlushInFlight::finish`] doesn't wait.
    ///
    /// You may call it on any CPU, any number of times. It checks the targets in turn, up to the first one that hasn't
    /// answered. Never waits for a CPU. It never waits for a device, unless [`Hardware::secondary_is_done`] does.
    ///
    /// On machines that broadcast invalidations, the first call executes the barrier that completes them, and returns
    /// `true` unless a device has yet to flush. On a CPU other than the one that called [`Batch::start`], it sends the
    /// invalidations again first.
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

    /// Waits until the flush is over, and returns the frames, like [`Batch::finish`].
    ///
    /// Doesn't wait if [`FlushInFlight::is_done`] has returned `true`.
    #[expect(
        clippy::missing_panics_doc,
        reason = "the batch is taken here, and there is no second call"
    )]
    pub fn finish(mut self) -> FlushedFrames<'b, L> {
        self.wait();
        let batch = self.batch.take().expect("taken here alone");
        FlushedFrames::new(&mut batch.frames)
    }

    fn wait(&mut self) {
        if self.is_done() {
            return;
        }
        if let Some(batch) = &self.batch {
            let engine = batch.unflushed.engine;
            engine.assert_may_wait();
            let (me, mut turns) = (engine.this_cpu(), 0);
            while !self.is_done() {
                let awaited = self.awaited.as_ref();
                match awaited.and_then(|awaited| awaited.targets.iter().next()) {
                    Some(target) => me.wait_a_turn_for(target, &mut turns),
                    None => me.wait_a_turn(),
                }
            }
        }
    }
}

impl<S: SpaceRef, L: FrameList, const N: usize> Drop for FlushInFlight<'_, '_, S, L, N> {
    /// Waits for the end of the flush. Afterwards the batch may be filled again.
    fn drop(&mut self) {
        self.wait();
    }
}
