//! The target's side of a flush: what a CPU does with a request, and what it may not do meanwhile.
//!
//! # Generations
//!
//! A request may be merged, late or doubled on its way, so [`Engine::flush_here`] compares its generations with the one
//! that this CPU has caught up with. If the request is the next step, the CPU flushes what it says; if it is behind,
//! the CPU ignores it; if there is a gap, the CPU flushes the whole tag.

use crate::addr::PageRange;
use crate::cpu::{Activity, Loaded};
use crate::cpu_set::CpuId;
use crate::engine::Engine;
use crate::flush_info::{FlushInfo, Lone, Taken};
use crate::hardware::{Hardware, Invalidate, Scope};
use crate::inbox::Seen;
use crate::per_cpu::PerCpu;
use crate::request::{Request, unpack};
use crate::space::AddressSpace;
use crate::stats::Counter;
use crate::tags::Slot;
use crate::word::Word;
use core::sync::atomic::Ordering::Relaxed;

impl<H: Hardware> Engine<'_, H> {
    /// Takes and flushes every request in this CPU's inbox: the handler of the shootdown interrupt.
    ///
    /// May be called at any time, from any context that is not inside the engine on the same CPU with interrupts
    /// masked; a spurious call costs three loads. Must not be called from an NMI. Never waits, and takes no lock.
    pub fn on_interrupt(&self) {
        let were_on = self.hw.mask_interrupts();
        self.serve_requests(self.here());
        self.hw.restore_interrupts(were_on);
    }

    /// [`Engine::on_interrupt`] where interrupts are masked already and the kernel knows the engine's state of the CPU
    /// that it runs on (`here`), as in most kernels' handlers: with three calls of the machine fewer. Never waits.
    ///
    /// # Safety
    /// Interrupts are masked on this CPU until it returns. If they are not, and another shootdown interrupt comes in
    /// the middle, this CPU may say that it has flushed what it has not. `here` is this engine's state of the CPU that
    /// executes the call.
    ///
    /// # Panics
    /// In debug builds, if `here` is another CPU's state. In debug builds, if interrupts are not masked.
    #[allow(unsafe_code)] // A declaration: there is nothing unsafe in here.
    #[inline]
    pub unsafe fn on_interrupt_masked(&self, here: &PerCpu<'_, H>) {
        self.assert_masked();
        self.assert_here(here);
        self.serve_requests(here);
    }

    #[inline]
    fn serve_requests(&self, cpu: &PerCpu<'_, H>) {
        let next = |lone: &Lone| self.flush_next(cpu, lone);
        let any = |seen: Seen| self.serve_any(cpu, seen);
        let times = cpu.inbox.serve(next, any);
        // For each of the others an interrupt was sent, too, which comes to an empty inbox.
        if times > 1 {
            cpu.stats.add(Counter::ServedEarly, times - 1);
        }
        self.tell_starters();
    }

    /// Flushes the pending request, whatever it is.
    #[cold]
    fn serve_any(&self, cpu: &PerCpu<'_, H>, seen: Seen) {
        let outbox = |initiator: usize| {
            let known = initiator < self.count;
            known.then(|| &self.cpu(CpuId(initiator as u16)).outbox)
        };
        let mut taken = Taken::new();
        let (info, marks) = cpu.inbox.read_any(seen, outbox, &mut taken);
        if marks.is_none() {
            self.flush_here(cpu, &info);
        } else {
            self.flush_marked(self.hw.this_cpu(), &info, marks);
        }
    }

    /// If a flush was started that its initiator does not wait for, the machine hears that this CPU has answered
    /// something: perhaps that.
    #[inline]
    fn tell_starters(&self) {
        // Relaxed: this CPU has seen the post. [mutant StarterNotTold]
        if self.started.load(Relaxed) != 0 {
            self.hw.flush_answered();
        }
    }

    /// For a loop that spins, with interrupts off, for a lock whose holder may be waiting in the engine: takes and
    /// flushes the requests for this CPU. Two loads if there are none. Never waits; not from an NMI.
    #[inline]
    pub fn poll(&self) {
        // [mutant PollSkipsInbox]
        if self.cpu(self.hw.this_cpu()).inbox.has_request() {
            self.on_interrupt();
        }
    }

    /// Flushes on this CPU a range of the space that runs here, or all of it, if the request is the next step, as most
    /// are; `false`, and nothing was done, if not. Interrupts are masked.
    #[inline(always)]
    pub(crate) fn flush_next(&self, cpu: &PerCpu<'_, H>, lone: &Lone) -> bool {
        let state = &cpu.state;
        if !state.has_loaded(lone.space) || !state.is_running() {
            return false;
        }
        let slot = cpu.slot(state.slot());
        let next = slot.generation() + 1;
        if lone.first > next || lone.last < next {
            return false;
        }
        if let Some(range) = lone.range {
            cpu.stats.add(Counter::FlushedRanges, 1);
            self.hw.invalidate(Invalidate::Range {
                tag: state.tag(),
                range: unpack(range),
                scope: lone.scope,
            });
        } else {
            self.flush_tag(cpu, slot);
        }
        slot.caught_up_with(lone.last);
        true
    }

    /// Flushes on this CPU what a request says of user spaces. Interrupts are masked.
    pub(crate) fn flush_here(&self, cpu: &PerCpu<'_, H>, info: &FlushInfo<'_>) {
        let is_loaded = match info.space {
            Some(space) => cpu.state.has_loaded(space),
            None => matches!(cpu.state.loaded(), Loaded::Space(_)),
        };
        if !is_loaded {
            return self.ignore_other_space(cpu);
        }
        if cpu.state.activity() == Activity::Lazy {
            return self.leave_lazy(cpu, info);
        }
        let slot = cpu.slot(cpu.state.slot());
        if info.space.is_none() {
            return self.flush_tag(cpu, slot);
        }
        let caught_up = slot.generation();
        if info.last <= caught_up {
            cpu.stats.add(Counter::IgnoredGeneration, 1);
            return;
        }
        // If a request was missed, only a flush of the whole tag closes the gap. [mutant GapNotEscalated]
        if info.first <= caught_up + 1 {
            self.invalidate_here(cpu, slot, info.request);
        } else {
            cpu.stats.add(Counter::EscalatedGap, 1);
            self.flush_tag(cpu, slot);
        }
        slot.caught_up_with(info.last);
    }

    /// Entries of a space that is not loaded, which linger under another tag, are compared when that tag is loaded
    /// again.
    #[cold]
    fn ignore_other_space(&self, cpu: &PerCpu<'_, H>) {
        assert!(
            cpu.state.loaded() != Loaded::Switching,
            "interrupts are masked during a switch"
        );
        cpu.stats.add(Counter::IgnoredOtherSpace, 1);
    }

    /// No program here needs the space that is flushed: the CPU leaves it, and is asked no more.
    #[cold]
    fn leave_lazy(&self, cpu: &PerCpu<'_, H>, info: &FlushInfo<'_>) {
        // In this order: an invalidation reaches the tag that is loaded, and no other. [mutant LeavesThenCatchesUp]
        self.catch_up_before_leaving(cpu, info);
        cpu.state.detach(self.hw);
        cpu.stats.add(Counter::Evicted, 1);
    }

    /// If a request names all that this CPU has missed of the space that it is about to leave, it flushes that now:
    /// then what it keeps under the tag is good when it comes back, unless more is flushed meanwhile. Interrupts are
    /// masked.
    fn catch_up_before_leaving(&self, cpu: &PerCpu<'_, H>, info: &FlushInfo<'_>) {
        let slot = cpu.slot(cpu.state.slot());
        let ranges = matches!(info.request, Request::Ranges(..));
        let missed = info.first..=info.last;
        // [mutant GapNotEscalated]
        if self.keeps_tags() && ranges && missed.contains(&(slot.generation() + 1)) {
            // With tags this CPU finds its entries again. [mutant LeavesCaughtUp]
            self.invalidate_here(cpu, slot, info.request);
            slot.caught_up_with(info.last);
        }
    }

    /// Invalidates on this CPU what a request for the loaded space says. Interrupts are masked.
    #[inline(always)]
    pub(crate) fn invalidate_here(&self, cpu: &PerCpu<'_, H>, slot: &Slot<H>, request: &Request) {
        match request {
            Request::Ranges(ranges, scope) => {
                let (tag, scope) = (cpu.state.tag(), *scope);
                cpu.stats.add(Counter::FlushedRanges, 1);
                for range in ranges.iter() {
                    self.hw.invalidate(Invalidate::Range { tag, range, scope });
                }
            }
            Request::Empty => {}
            Request::Full(_) => self.flush_tag(cpu, slot),
        }
    }

    /// Flushes the tag that is loaded, whole, and tells the flush clock's readers.
    pub(crate) fn flush_tag(&self, cpu: &PerCpu<'_, H>, slot: &Slot<H>) {
        let state = &cpu.state;
        cpu.stats.add(Counter::FlushedFull, 1);
        // The clock before the flush, which makes no deferred flush that is taken meanwhile. [mutant
        // ClockReadAfterFlush]
        let now = self.ledger.now();
        self.hw.invalidate(Invalidate::Tag(state.tag()));
        slot.flushed(now);
        state.flushed(now);
    }

    /// Makes this CPU, if it has `space` loaded or that is a kernel space, forget the translations of a range that has
    /// gained rights: after a fault, on machines whose TLBs may keep an entry that refused an access. Other CPUs notice
    /// by faults of their own. Not for changes that need a flush. Never waits.
    pub fn refresh(&self, space: &AddressSpace<H>, range: PageRange) {
        let were_on = self.hw.mask_interrupts();
        let state = &self.cpu(self.hw.this_cpu()).state;
        let scope = Scope::Leaf;
        if space.id().is_kernel() {
            self.hw.invalidate(Invalidate::Kernel { range, scope });
        } else if state.has_loaded(space.id()) {
            let tag = state.tag();
            self.hw.invalidate(Invalidate::Range { tag, range, scope });
        }
        self.hw.restore_interrupts(were_on);
    }

    /// Whether an NMI handler or a probe may access user memory right now.
    ///
    /// `false` while this CPU has acknowledged a flush that it has not done yet, while it is between two address spaces
    /// or comes back to one that it kept lazily, and as long as it keeps its root lazily, has none, is offline, or is
    /// between [`Engine::enter_user`] and [`Engine::enter_kernel`], which an NMI handler calls first; the caller then
    /// gives up, as for an access that faults. Other code need not ask: it never runs between
    /// two spaces or between receipt and flush, and it accesses no user memory unless a space runs. Never waits.
    pub fn user_access_allowed(&self) -> bool {
        let cpu = self.cpu(self.hw.this_cpu());
        // [mutant NmiGuardAlwaysAllows]
        matches!(cpu.state.loaded(), Loaded::Space(_))
            && cpu.state.is_running()
            && !cpu.inbox.defers_flush()
    }
}
