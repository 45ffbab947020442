//! The context switch: a CPU loads a space, and flushes its stale entries before it uses that space.
//!
//! # The switch
//!
//! A space's *generation* counts its flushes. Its *stamp* names its latest deferred flush ([`lazy`](crate::lazy)). A
//! switch to a space races with flushes of that space. This CPU enters the space's set of CPUs and declares itself
//! running, *then* reads the generation and the stamp, loads the root, and only then leaves the old space's set. An
//! initiator changes the table, then increments the generation (or writes the stamp), then reads the set. So either the
//! initiator finds this CPU, or this CPU finds the change and flushes when it loads. There's no window in which a CPU
//! has decided not to flush but isn't yet in the set of the space. Linux had such a window
//! ([CVE-2025-37964](https://nvd.nist.gov/vuln/detail/CVE-2025-37964)).
//!
//! These accesses to the set, the generation and the CPU's activity are sequentially consistent. The stamp needs no
//! such ordering: the batch writes it before it updates the generation's word, and this CPU reads it after that word. A
//! batch that finds no other CPU in the set increments the generation only after it has read the set. Until then the
//! same word counts the batch as pending, and this CPU flushes ([`space`](crate::space)).
//!
//! During the switch this CPU is in the sets of both spaces. It serves no request before the switch ends, not even
//! while it spins for a system-wide tag. Every flush still completes (C7), because the spin waits for no flush. It
//! waits for the holder of the tags' lock, which waits only for CPUs that are loading a root. These wait for nobody.
//!
//! After the switch this CPU ignores requests for the old space: it uses no translation of that space any more. When it
//! loads that space again, it compares generations, or drops the space's translations. For a request for the new space
//! it compares generations at once.
//!
//! # Lazy CPUs
//!
//! A CPU that becomes idle or runs a kernel thread keeps its root and uses nothing of its user half. Flushes of user
//! spaces don't interrupt it, unless page-table pages are freed, which its walker may still read. Such an interrupt, or
//! the end of the space, makes it *leave* the root: it loads one without user mappings ([`Hardware::unload_root`]).
//! Flushes of kernel mappings interrupt it like any other CPU. When it resumes the space, it compares generation and
//! stamp as in a switch. A CPU that will be idle for long leaves the root itself ([`Cpu::leave`]); then no flush of the
//! space interrupts it.

use crate::cpu::{FlushReason, LoadedSpace};
use crate::engine::Engine;
use crate::features::Tagging;
use crate::flush_info::FlushInfo;
use crate::hardware::{Hardware, Scope, Tag};
use crate::per_cpu::INLINE_SLOTS;
use crate::request::Request;
use crate::space::AddressSpace;
use crate::stats::Counter;
use crate::tags::Slot;
use crate::tags::slot_tag;
use crate::this_cpu::{Cpu, MaskedCpu};

impl<H: Hardware> MaskedCpu<'_, H> {
    /// Loads the address space `to` on this CPU, to run a user thread.
    ///
    /// `from` is the space that this CPU loaded last, even if the CPU keeps it lazily ([`Cpu::enter_lazy`]) or a flush
    /// has made the CPU leave it. Pass `None` only if there was no such space, or if it has been retired. Otherwise
    /// flushes of that space interrupt this CPU in vain until the space is retired. `from` may be `to` itself. A kernel
    /// space counts as `None`.
    ///
    /// When it returns, user accesses use the current tables of `to` (clause C5 of [the contract](crate#the-contract)).
    /// Every flush of `to` that was complete when the call began has taken effect here. Never waits for another CPU to
    /// take an interrupt. With system-wide tags it spins while another CPU takes a tag, without serving requests.
    ///
    /// # Panics
    /// If this CPU isn't online, because no flush would reach it. If `to` is a kernel space, which has no tag and which
    /// every CPU has loaded already. In debug builds, if `to` was retired.
    #[inline]
    pub fn switch(&self, from: Option<&AddressSpace<H>>, to: &AddressSpace<H>) {
        let state = &self.here.state;
        assert!(
            state.loaded() != LoadedSpace::Offline,
            "a CPU loads an address space before it has come online"
        );
        assert!(
            !to.id().is_kernel(),
            "a CPU loads a space of the kernel's mappings as if it were a user's"
        );
        if state.has_loaded(to.id()) {
            self.come_back(to);
        } else if self.plain {
            self.exchange(from, to, true);
        } else {
            self.exchange_with_care(from, to);
        }
    }
}

impl<H: Hardware> Cpu<'_, H> {
    /// Switches to another space, on a machine that has tags or defers flushes.
    #[inline(never)]
    fn exchange_with_care(self, from: Option<&AddressSpace<H>>, to: &AddressSpace<H>) {
        self.exchange(from, to, false);
    }

    /// Switches to a space that this CPU hasn't loaded.
    ///
    /// It's compiled in two forms: the plain one, which is enough on some machines, takes a third of the instructions.
    #[inline(always)]
    fn exchange(self, from: Option<&AddressSpace<H>>, to: &AddressSpace<H>, plain: bool) {
        let state = &self.here.state;
        to.assert_not_retired();
        self.count(Counter::Switches, 1);
        let defers = H::MECHANISMS.lazy_unmap && !plain;
        state.begin_switch(defers);
        // Enter the set first, then read the missed changes: otherwise an initiator in between would miss this CPU.
        // [mutant SwitchPublishesLate: bug 8]
        to.enter(self.here.seat());
        state.declare_running();
        let flushed_at = match self.broadcasts() {
            _ if plain => self.load_afresh(to, true),
            Some(_) => self.load_global(to),
            None if self.keeps_tags() => self.load_per_cpu(to),
            None => self.load_afresh(to, false),
        };
        state.end_switch(to.id(), flushed_at, defers);
        if let Some(from) = from.filter(|&from| !core::ptr::eq(from, to)) {
            from.leave_if_user(self.here.seat());
        }
    }

    /// Loads the root under a per-CPU tag. Returns the time of the last flush of the whole tag.
    #[inline(never)]
    fn load_per_cpu(self, to: &AddressSpace<H>) -> u64 {
        let flushes = to.flushes();
        // Entries from before the space's latest stamp must be dropped, too. [mutant SwitchIgnoresDeferral]
        let deferred = to.deferred();
        let (index, held) = self.choose_slot(to);
        let slot = self.here.slot(index);
        // A batch that read the set of CPUs before we entered it posts nothing to us, and takes its generation later.
        // We can only see that it's pending. [mutants SwitchIgnoresBatch, SwitchIgnoresGeneration]
        let current = slot.generation() >= flushes.generation && flushes.pending == 0;
        let flushed = slot.flushed_at() >= deferred;
        let keep = held && current && flushed;
        if held {
            let counter = match (current, flushed) {
                (false, _) => Counter::SwitchBehind,
                (_, false) => Counter::FlushedBySwitch,
                _ => Counter::SwitchKept,
            };
            self.count(counter, 1);
        } else {
            self.count(Counter::SwitchTagTaken, 1);
        }
        if !keep {
            // The load flushes, so we read the clock before it.
            slot.take_over(to.id(), flushes.generation, self.ledger.now());
        }
        let tag = slot_tag(index);
        self.here.state.use_tag(tag, Some(index));
        // The load flushes a tag that belonged to another space. [mutant TagTakenUnflushed]
        to.load(self.hw, tag, keep);
        // Kept entries may be as old as the last flush of the tag.
        slot.flushed_at()
    }

    /// Loads the root and keeps no entries. So it compares nothing and any slot will do.
    #[inline]
    fn load_afresh(self, to: &AddressSpace<H>, plain: bool) -> u64 {
        // No code checks to which space this slot belongs.
        let slot = self.here.slot(0);
        // Read the generation before we load the root: entries walked afterwards may be older than a later request.
        // [mutant RootLoadedFirst]
        slot.caught_up_with(to.flushes().generation);
        // Without tags, every CPU uses this one from the start.
        let mut tag = Tag::KERNEL;
        let mut now = 0;
        if !plain {
            // The load flushes, so we read the clock before it.
            now = self.ledger.now();
            slot.flushed(now);
            if self.features.tagging != Tagging::None {
                tag = slot_tag(0);
                self.here.state.use_tag(tag, Some(0));
            }
        }
        to.load(self.hw, tag, false);
        now
    }

    /// Returns the slot of the space or the one to take over, and whether it holds the space.
    fn choose_slot(self, to: &AddressSpace<H>) -> (usize, bool) {
        let holds = |index: usize| self.here.slot(index).holds(to.id());
        if self.slots > INLINE_SLOTS {
            // We don't search thousands of slots: the id selects the slot.
            let index = (to.id().0 % self.slots as u64) as usize;
            return (index, holds(index));
        }
        if let Some(index) = (0..self.slots).find(|&index| holds(index)) {
            return (index, true);
        }
        (self.here.state.next_victim(self.slots), false)
    }

    /// Loads the root under a system-wide tag. Returns the time at which the whole tag is known to be flushed.
    ///
    /// That's now if every load drops the entries, and 0 if they stay. Broadcasts reach every CPU under every tag, so
    /// there's no generation to catch up with.
    #[inline(never)]
    fn load_global(self, to: &AddressSpace<H>) -> u64 {
        let flushed_at = if self.keeps_tags() { 0 } else { self.ledger.now() };
        let tag = if self.features.tagging == Tagging::None {
            Tag::KERNEL
        } else {
            let (tag, rolled_over) =
                self.tags.acquire(self.hw, &to.tag, &self.here.running, self.engine);
            self.count(Counter::Rollovers, u64::from(rolled_over));
            tag
        };
        self.here.state.use_tag(tag, None);
        self.count(Counter::SwitchKept, u64::from(self.keeps_tags()));
        to.load(self.hw, tag, self.keeps_tags());
        if self.features.tagging != Tagging::None {
            self.here.running.has_left();
        }
        flushed_at
    }

    /// Records that this CPU stops running user code: it idles or runs a kernel thread.
    ///
    /// The root stays loaded *lazily*, as Linux calls it: the CPU doesn't use its user half. Flushes of user spaces
    /// then don't interrupt this CPU, unless page tables are freed or the space is retired. Such an interrupt makes the
    /// CPU *leave* the root: it loads one without user mappings. Flushes of kernel mappings still interrupt it. Never
    /// waits.
    pub fn enter_lazy(self) {
        self.here.state.go_lazy();
    }

    /// Resumes `space`, whose root this CPU has kept lazily ([`Cpu::enter_lazy`]).
    ///
    /// Call it at the end of an idle period, or before a kernel thread accesses the space's user memory. It makes the
    /// flushes that this CPU has missed. Returns `false`, and does nothing, if the CPU has left that root meanwhile:
    /// then call [`MaskedCpu::switch`]. Never waits.
    #[must_use = "if this CPU has left the root, it must not access the space's user memory"]
    pub fn resume(self, space: &AddressSpace<H>) -> bool {
        let were_on = self.hw.mask_interrupts();
        let kept = self.here.state.has_loaded(space.id());
        if kept {
            self.come_back(space);
        }
        self.hw.restore_interrupts(were_on);
        kept
    }

    /// Leaves the root of `space` if it's loaded here, and loads no user root.
    ///
    /// Use it on a CPU that will be idle for long. Afterwards the space never interrupts this CPU, not even for freed
    /// tables or when it's retired. If a flush has already made the CPU leave the root, this call only removes the CPU
    /// from the space's set of CPUs. With tags the CPU's entries of the space stay, and [`MaskedCpu::switch`] uses them
    /// again if the space wasn't flushed meanwhile. Never waits.
    pub fn leave(self, space: &AddressSpace<H>) {
        let were_on = self.hw.mask_interrupts();
        let state = &self.here.state;
        if state.has_loaded(space.id()) {
            state.detach(self.hw);
        }
        if state.loaded() == LoadedSpace::Nothing {
            space.leave_if_user(self.here.seat());
        }
        self.hw.restore_interrupts(were_on);
    }

    /// Makes the CPU run the space again that it kept lazily. Interrupts are masked.
    #[inline(never)]
    fn come_back(self, space: &AddressSpace<H>) {
        let state = &self.here.state;
        if state.is_running() {
            return;
        }
        // Broadcasts reach lazy CPUs, too.
        let misses = self.broadcasts().is_none();
        // NMI handlers must not access user memory until this CPU has caught up. [mutant ResumeLetsNmisIn]
        state.wake(misses);
        if misses {
            // Initiators may have skipped this CPU, so it must catch up. [mutant LazyResumesUnchecked]
            self.catch_up_with(space);
            state.caught_up();
        }
    }

    /// Makes the flushes for which this CPU got no request while it was lazy.
    #[inline]
    fn catch_up_with(self, space: &AddressSpace<H>) {
        // Initiators increment the generation and then read this CPU's activity; this CPU uses the opposite order.
        let slot = self.here.slot(self.here.state.slot());
        // This CPU is in the set all the time, so no initiator has ended a batch alone.
        let generation = space.flushes().generation;
        if slot.generation() < generation {
            self.flush_missed(slot, Counter::SwitchBehind);
        } else if slot.flushed_at() < space.deferred() {
            self.flush_missed(slot, Counter::FlushedBySwitch);
        } else {
            return;
        }
        // Store the generation that we read before the flush: since then, entries may have been filled again, and
        // changed. [mutant NotesLaterGeneration]
        slot.caught_up_with(generation);
    }

    /// Flushes the loaded tag, and counts the reason.
    #[cold]
    fn flush_missed(self, slot: &Slot<H>, why: Counter) {
        self.count(why, 1);
        self.flush_tag(slot);
    }

    /// Returns whether this CPU has `space` loaded and isn't lazy ([`Cpu::enter_lazy`]).
    ///
    /// If so, the CPU runs that space, or is about to. Call it in the kernel, not between [`Cpu::enter_user`] and
    /// [`Cpu::enter_kernel`]. Never waits.
    pub fn runs(self, space: &AddressSpace<H>) -> bool {
        let state = &self.here.state;
        state.has_loaded(space.id()) && state.is_running()
    }

    /// Returns whether this CPU has no user root loaded. Never waits.
    pub fn is_detached(self) -> bool {
        let loaded = self.here.state.loaded();
        matches!(loaded, LoadedSpace::Nothing | LoadedSpace::Offline)
    }
}

impl<H: Hardware> Engine<'_, H> {
    /// Ends `space`: makes every CPU leave its root.
    ///
    /// Its user threads must never run again. Afterwards no CPU walks its tables, so you may free them, the root
    /// included (clause C6 of [the contract](crate#the-contract)). May wait for other CPUs. While a CPU still runs the
    /// space, the call interrupts it again and again, and reports it to [`Hardware::waits_long`].
    ///
    /// Keep the [`AddressSpace`] value as long as another CPU refers to it, as `from` of [`MaskedCpu::switch`] or as
    /// `current` of [`Engine::cpu_offline`]. That CPU may still have to remove itself from the space's set of CPUs.
    ///
    /// # Panics
    /// If the calling CPU runs the space. If `space` is a kernel space. In debug builds, if a device still uses the
    /// space ([`Hardware::secondary_is_attached`]).
    pub fn retire(&self, space: &AddressSpace<H>) {
        assert!(
            !space.id().is_kernel(),
            "the kernel's mappings are loaded on every CPU for ever: their space cannot be retired"
        );
        self.assert_may_wait();
        debug_assert!(
            !H::HAS_SECONDARY || !self.hw.secondary_is_attached(space.root()),
            "a space ends that a device still uses"
        );
        let me = self.this_cpu();
        // [mutant RetireSkipsEviction: bug 25]
        let generation = space.next_generation();
        let state = &me.here.state;
        let were_on = self.hw.mask_interrupts();
        if state.has_loaded(space.id()) {
            assert!(!state.is_running(), "a space cannot be retired by a CPU that runs it");
            state.detach(self.hw);
        }
        self.hw.restore_interrupts(were_on);
        let info = FlushInfo::of(space.id(), generation, Request::full(Scope::Tables));
        let mut turns = 0;
        loop {
            // A lazy CPU leaves when it's interrupted. A CPU in the middle of a switch leaves by itself.
            let mut shootdown = me.begin_shootdown();
            let loaded = space.loaded_on(self.count);
            me.post(&loaded, &info, FlushReason::Retirement, &mut shootdown);
            me.interrupt(&shootdown);
            me.let_interrupts_in(&shootdown);
            me.wait(&shootdown, Scope::Tables, false);
            let Some(first) = shootdown.targets.iter().next() else {
                break;
            };
            // A CPU that has left the space without passing it as `from` would stay in its set for ever, so remove it
            // here. A CPU that has yet to leave the root removes itself.
            for cpu in shootdown.targets.iter() {
                // [mutants RetireTrustsAnswer, RetireAsksAgain]
                if self.cpu(cpu).state.is_elsewhere(space.id()) {
                    space.leave_if_user(self.cpu(cpu).seat());
                }
            }
            me.tell_of_long_wait(|| first, &mut turns);
            self.hw.relax();
        }
        if self.broadcasts().is_some() {
            me.broadcast_retired(space);
        }
        space.assert_never_loaded_again();
    }
}
