//! The target's side of a flush: a CPU carries out requests.
//!
//! # Generations
//!
//! A request may be merged, late or doubled on its way. So [`Cpu::flush_here`] compares its generations with the one
//! that this CPU has caught up with. If the request is the next step, the CPU flushes its ranges. If it's behind, the
//! CPU ignores it. If there's a gap, the CPU flushes the whole tag.

use crate::addr::PageRange;
use crate::cpu::{Activity, LoadedSpace};
use crate::cpu_set::CpuId;
use crate::flush_info::{FlushInfo, SimpleRequest, TakenRequest};
use crate::hardware::{Hardware, Invalidation, Scope};
use crate::inbox::{InboxState, WaitGoal};
use crate::request::{Request, unpack};
use crate::space::AddressSpace;
use crate::stats::Counter;
use crate::tags::Slot;
use crate::this_cpu::{Cpu, MaskedCpu};
use crate::word::Word;
use core::sync::atomic::Ordering::Relaxed;

impl<H: Hardware> MaskedCpu<'_, H> {
    /// Handles the shootdown interrupt: makes every flush that other CPUs have requested of this CPU.
    ///
    /// Call it in the handler of the interrupt that [`Hardware::interrupt`] sends. Other calls are harmless, except
    /// from an NMI handler, or from code that the engine calls on this CPU with interrupts masked. A spurious call
    /// costs three loads. Never waits, and takes no lock.
    #[inline]
    pub fn on_interrupt(&self) {
        self.serve_requests();
    }
}

impl<H: Hardware> Cpu<'_, H> {
    /// Carries out every request in this CPU's inbox.
    pub(crate) fn serve(self) {
        self.mask_interrupts().on_interrupt();
    }

    #[inline]
    fn serve_requests(self) {
        let next = |lone: &SimpleRequest| self.flush_next(lone);
        let any = |seen: InboxState| self.serve_any(seen);
        let times = self.here.inbox.serve(next, any);
        // Each of the others has an interrupt, too, which will find an empty inbox.
        if times > 1 {
            self.count(Counter::ServedEarly, times - 1);
        }
        if self.shares_lines() {
            self.serve_shared();
        }
        self.tell_starters();
    }

    /// Carries out a pending request of any kind.
    #[cold]
    fn serve_any(self, seen: InboxState) {
        let outbox = |initiator: usize| {
            let known = initiator < self.count;
            known.then(|| &self.cpu(CpuId(initiator as u16)).outbox)
        };
        let mut taken = TakenRequest::new();
        let (info, marks) = self.here.inbox.read_any(seen, outbox, &mut taken);
        if marks.is_none() {
            self.flush_here(&info);
        } else {
            self.flush_marked(&info, marks);
        }
    }

    /// Carries out the request in this CPU's shared inbox, if any.
    fn serve_shared(self) {
        let inbox = self.own_shared_inbox(self.here);
        let Some(pending) = inbox.pending() else {
            return;
        };
        let group = self.shared_group(self.here);
        let request = &pending.request;
        let receipt = self.until(request.scope, false) == WaitGoal::Received;
        if receipt {
            // Record it first: an NMI handler that comes in between must find that this CPU defers a flush. [mutant
            // SharedDefersLate]
            inbox.progress.defer_flush();
            inbox.answer(&pending, group);
        }
        // [mutants HandlerSkipsFlush, AckBeforeFlush]
        if !self.flush_next(request) {
            self.flush_anyhow(request.space, request.last, request.range, request.scope);
        }
        inbox.progress.finish();
        if !receipt {
            inbox.answer(&pending, group);
        }
    }

    /// Returns whether a request for this CPU is pending.
    #[inline(always)]
    pub(crate) fn has_request(self) -> bool {
        // [mutant SharedInboxForgotten]
        self.here.inbox.has_request()
            || self.shares_lines() && self.own_shared_inbox(self.here).has_request()
    }

    /// Reports an answer to the machine if a started flush may be waiting for it.
    #[inline]
    fn tell_starters(self) {
        // Relaxed: this CPU has seen the post, and so the count. [mutant StarterNotTold]
        if self.started.load(Relaxed) != 0 {
            self.hw.flush_answered();
        }
    }

    /// Makes the flushes that other CPUs have requested of this CPU, if any.
    ///
    /// Call it in each loop that spins with interrupts off for a lock whose holder may be waiting in the engine.
    /// Otherwise the two CPUs wait for each other for ever. Don't call it from an NMI handler. It takes two loads if
    /// there's no request. Never waits.
    #[inline]
    pub fn poll(self) {
        // [mutant PollSkipsInbox]
        if self.has_request() {
            self.serve();
        }
    }

    /// Carries out a request for the running space if it's the next generation.
    ///
    /// That's the common case. Otherwise returns `false` and does nothing. Interrupts are masked.
    #[inline(always)]
    pub(crate) fn flush_next(self, lone: &SimpleRequest) -> bool {
        let state = &self.here.state;
        if !state.has_loaded(lone.space) || !state.is_running() {
            return false;
        }
        let slot = self.here.slot(state.slot());
        let next = slot.generation() + 1;
        if lone.first > next || lone.last < next {
            return false;
        }
        if let Some(range) = lone.range {
            self.count(Counter::FlushedRanges, 1);
            self.hw.invalidate(Invalidation::Range {
                tag: state.tag(),
                range: unpack(range),
                scope: lone.scope,
            });
        } else {
            self.flush_tag(slot);
        }
        slot.caught_up_with(lone.last);
        true
    }

    /// Carries out a request for user spaces on this CPU. Interrupts are masked.
    pub(crate) fn flush_here(self, info: &FlushInfo<'_>) {
        let is_loaded = match info.space {
            Some(space) => self.here.state.has_loaded(space),
            None => matches!(self.here.state.loaded(), LoadedSpace::Space(_)),
        };
        if !is_loaded {
            return self.ignore_other_space();
        }
        if self.here.state.activity() == Activity::Lazy {
            return self.leave_lazy(info);
        }
        let slot = self.here.slot(self.here.state.slot());
        if info.space.is_none() {
            return self.flush_tag(slot);
        }
        let caught_up = slot.generation();
        if info.last <= caught_up {
            self.count(Counter::IgnoredGeneration, 1);
            return;
        }
        // If this CPU missed a request, only a flush of the whole tag closes the gap. [mutant GapNotEscalated]
        if info.first <= caught_up + 1 {
            self.invalidate_here(slot, info.request);
        } else {
            self.count(Counter::EscalatedGap, 1);
            self.flush_tag(slot);
        }
        slot.caught_up_with(info.last);
    }

    /// Ignores a request for a space that isn't loaded. The CPU checks entries under its tag when it loads that tag
    /// again.
    #[cold]
    fn ignore_other_space(self) {
        assert!(
            self.here.state.loaded() != LoadedSpace::Switching,
            "interrupts are masked during a switch"
        );
        self.count(Counter::IgnoredOtherSpace, 1);
    }

    /// Makes a lazy CPU leave the space, so it gets no more requests for it.
    #[cold]
    fn leave_lazy(self, info: &FlushInfo<'_>) {
        // Invalidate, then leave: an invalidation reaches only the loaded tag. [mutant LeavesThenCatchesUp]
        self.catch_up_before_leaving(info);
        self.here.state.detach(self.hw);
        self.count(Counter::Evicted, 1);
    }

    /// Flushes before leaving the space if the request covers everything that this CPU has missed.
    ///
    /// Then its entries under the tag are valid when it comes back, unless more is flushed meanwhile. Interrupts are
    /// masked.
    fn catch_up_before_leaving(self, info: &FlushInfo<'_>) {
        let slot = self.here.slot(self.here.state.slot());
        let ranges = matches!(info.request, Request::Ranges(..));
        let missed = info.first..=info.last;
        // [mutant GapNotEscalated]
        if self.keeps_tags() && ranges && missed.contains(&(slot.generation() + 1)) {
            // With tags this CPU will use its entries again. [mutant LeavesCaughtUp]
            self.invalidate_here(slot, info.request);
            slot.caught_up_with(info.last);
        }
    }

    /// Invalidates the request's entries of the loaded space on this CPU. Interrupts are masked.
    #[inline(always)]
    pub(crate) fn invalidate_here(self, slot: &Slot<H>, request: &Request) {
        match request {
            Request::Ranges(ranges, scope) => {
                let (tag, scope) = (self.here.state.tag(), *scope);
                self.count(Counter::FlushedRanges, 1);
                for range in ranges.iter() {
                    self.hw.invalidate(Invalidation::Range { tag, range, scope });
                }
            }
            Request::Empty => {}
            Request::Full(_) => self.flush_tag(slot),
        }
    }

    /// Flushes the whole loaded tag, and publishes the time of the flush clock.
    pub(crate) fn flush_tag(self, slot: &Slot<H>) {
        let state = &self.here.state;
        self.count(Counter::FlushedFull, 1);
        // We read the clock before the flush, which doesn't cover flushes that are deferred meanwhile. [mutant
        // ClockReadAfterFlush]
        let now = self.ledger.now();
        self.hw.invalidate(Invalidation::Tag(state.tag()));
        slot.flushed(now);
        state.flushed(now);
    }

    /// Drops this CPU's translations of a range that has gained rights.
    ///
    /// Call it after a fault, on machines whose TLBs may keep an entry that refused an access
    /// ([`TlbRules::keeps_refused`](crate::TlbRules)). It does nothing if `space` is a user space that this CPU hasn't
    /// loaded. Another CPU that holds the old entry faults, too, and calls this itself. So use it only for a change for
    /// which [`flush_needed`](crate::flush_needed) returns [`Need::Local`](crate::Need). Never waits.
    pub fn refresh(self, space: &AddressSpace<H>, range: PageRange) {
        let were_on = self.hw.mask_interrupts();
        let state = &self.here.state;
        let scope = Scope::Leaf;
        if space.id().is_kernel() {
            self.hw.invalidate(Invalidation::Kernel { range, scope });
        } else if state.has_loaded(space.id()) {
            let tag = state.tag();
            self.hw.invalidate(Invalidation::Range { tag, range, scope });
        }
        self.hw.restore_interrupts(were_on);
    }

    /// Returns whether an NMI handler or a kernel probe may access user memory right now.
    ///
    /// If it returns `false`, treat the access as one that faults. It returns `false` while this CPU
    ///
    /// * has acknowledged a flush request and hasn't flushed yet,
    /// * is switching between two address spaces, or resuming one ([`Cpu::resume`]),
    /// * keeps its root lazily ([`Cpu::enter_lazy`]), has no user root, or is offline,
    /// * is between [`Cpu::enter_user`] and [`Cpu::enter_kernel`], which an NMI handler calls first.
    ///
    /// Other code needn't call it, because interrupts are masked in the first two states. In the others, that code
    /// doesn't access user memory anyway. Never waits.
    pub fn user_access_allowed(self) -> bool {
        // [mutants NmiGuardAlwaysAllows, NmiGuardForgetsShared]
        matches!(self.here.state.loaded(), LoadedSpace::Space(_))
            && self.here.state.is_running()
            && !self.here.inbox.defers_flush()
            && !(self.shares_lines() && self.here.state.shared_progress().defers_flush())
    }
}
