//! The context switch: which space a CPU has loaded, and what it flushes before it uses that space.
//!
//! # The switch
//!
//! Loading a space races with flushes of it. The order is: enter the space's set of CPUs, declare
//! this CPU running, *then* read the generation and the deferred flush, load the root, and only then leave
//! the old space's set. An initiator does the opposite: table, generation (or deferred flush), set. All are
//! sequentially consistent, so either the initiator finds this CPU, or this CPU finds the change
//! and flushes as it loads. There is no window in which a CPU has decided that it need not flush, but is
//! not yet in the set of the space; such a window was a CVE of Linux (CVE-2025-37964).
//!
//! During the switch this CPU is in the sets of both spaces. It handles requests only after the switch. Then it ignores
//! a request for the old space, whose id it compares, and compares the generation of a request for the new one.
//!
//! # Lazy CPUs
//!
//! A CPU that goes idle or runs a kernel thread keeps its root and uses nothing of its user half. Flushes do not
//! interrupt it, unless page-table pages are freed, which its walker may still read. When it is interrupted, it leaves
//! the root. When it comes back, it compares generation and deferred flush as if it had been away. A CPU that will be
//! idle for long leaves the root by itself ([`Engine::leave`]); then no flush of the space interrupts it.

use crate::cpu::{Concern, Loaded};
use crate::engine::Engine;
use crate::features::Tagging;
use crate::flush_info::FlushInfo;
use crate::hardware::{Hardware, Scope, Tag};
use crate::per_cpu::{INLINE_SLOTS, PerCpu};
use crate::request::Request;
use crate::space::AddressSpace;
use crate::stats::Counter;
use crate::tags::Slot;
use crate::tags::slot_tag;

impl<H: Hardware> Engine<'_, H> {
    /// Context switch to a user thread of `to`. `from` is the space that this CPU loaded last, even if it keeps that
    /// lazily or was evicted from it; `None` only if there was none or if it has been retired. It may be `to` itself; a
    /// space of the kernel's mappings counts as `None`. A space that is left out goes on naming this CPU: until it is
    /// retired, its flushes interrupt this CPU in vain.
    ///
    /// When it returns, user accesses go through the current tables of `to` (C5), and every flush
    /// of `to` that was complete when the call began has taken effect here. Waits for no CPU's answer; with
    /// system-wide tags it spins while another CPU takes one.
    ///
    /// # Panics
    /// If this CPU is not online: no initiator would ask it to flush. If `to` is a space of the kernel's mappings: it
    /// has no tag, and every CPU has it loaded already. In debug builds, if `to` was retired.
    pub fn switch_to(&self, from: Option<&AddressSpace<H>>, to: &AddressSpace<H>) {
        let were_on = self.hw.mask_interrupts();
        let me = self.hw.this_cpu();
        let cpu = self.cpu(me);
        Self::assert_may_load(cpu, to);
        self.switch(cpu, from.filter(|from| !from.id().is_kernel()), to);
        self.hw.restore_interrupts(were_on);
    }

    /// [`Engine::switch_to`] where interrupts are masked already and the kernel knows the engine's state of the CPU
    /// that it runs on (`here`), as in most schedulers' switches: with three calls of the machine fewer, and without a
    /// look for misuse. Waits as that does.
    ///
    /// # Safety
    /// Interrupts are masked on this CPU until the call returns: a shootdown interrupt in the middle of the switch may
    /// make the engine panic, or miss a flush. `here` is this engine's state of the CPU that executes the call. The CPU
    /// is online: if it is not, no initiator asks it to flush. Neither `from` nor `to` is a space of the kernel's
    /// mappings, and `to` was not retired.
    ///
    /// # Panics
    /// In debug builds, if `here` is another CPU's state. In debug builds, if this CPU is not online. In debug builds,
    /// if a space is one of the kernel's mappings. In debug builds, if `to` was retired. In debug builds, if interrupts
    /// are not masked.
    #[allow(unsafe_code)] // A declaration: there is nothing unsafe in here.
    #[inline]
    pub unsafe fn switch_masked(
        &self,
        here: &PerCpu<'_, H>,
        from: Option<&AddressSpace<H>>,
        to: &AddressSpace<H>,
    ) {
        self.assert_masked();
        self.assert_here(here);
        if cfg!(debug_assertions) {
            Self::assert_may_load(here, to);
            assert!(
                !from.is_some_and(|from| from.id().is_kernel()),
                "a CPU leaves a space of the kernel's mappings"
            );
        }
        self.switch(here, from, to);
    }

    /// Fails if this CPU must not load this space.
    #[inline]
    fn assert_may_load(cpu: &PerCpu<'_, H>, to: &AddressSpace<H>) {
        assert!(
            cpu.state.loaded() != Loaded::Offline,
            "a CPU loads an address space before it has called cpu_online"
        );
        assert!(
            !to.id().is_kernel(),
            "a CPU loads a space of the kernel's mappings as if it were a user's"
        );
    }

    /// As [`Engine::switch_to`] where that does not panic; `false`, and nothing was done, on a CPU that is not online
    /// or that the engine has no state for, and for a space of the kernel's mappings. Waits as little.
    ///
    /// # Panics
    /// In debug builds, if `to` was retired.
    #[must_use = "if it is false, this CPU has not switched"]
    pub fn try_switch_to(&self, from: Option<&AddressSpace<H>>, to: &AddressSpace<H>) -> bool {
        let were_on = self.hw.mask_interrupts();
        let me = self.hw.this_cpu();
        let online = |cpu: &&PerCpu<'_, H>| cpu.state.loaded() != Loaded::Offline;
        let cpu = self.known_cpu(me).filter(online);
        let switches = cpu.filter(|_| !to.id().is_kernel());
        if let Some(cpu) = switches {
            self.switch(cpu, from.filter(|from| !from.id().is_kernel()), to);
        }
        self.hw.restore_interrupts(were_on);
        switches.is_some()
    }

    /// The switch, on a CPU that is online, between spaces that are not the kernel's. Interrupts are masked.
    #[inline]
    fn switch(&self, cpu: &PerCpu<'_, H>, from: Option<&AddressSpace<H>>, to: &AddressSpace<H>) {
        if cpu.state.has_loaded(to.id()) {
            self.come_back(cpu, to);
        } else if self.plain {
            self.exchange(cpu, from, to, true);
        } else {
            self.exchange_with_care(cpu, from, to);
        }
    }

    /// The switch to a space that this CPU has not loaded, on a machine that has tags, or defers.
    #[inline(never)]
    fn exchange_with_care(
        &self,
        cpu: &PerCpu<'_, H>,
        from: Option<&AddressSpace<H>>,
        to: &AddressSpace<H>,
    ) {
        self.exchange(cpu, from, to, false);
    }

    /// The switch to a space that this CPU has not loaded. Both of its forms are compiled: the plain one, which
    /// [`Engine`] knows to be enough on its machine, is a third of the other.
    #[inline(always)]
    fn exchange(
        &self,
        cpu: &PerCpu<'_, H>,
        from: Option<&AddressSpace<H>>,
        to: &AddressSpace<H>,
        plain: bool,
    ) {
        let state = &cpu.state;
        to.assert_not_retired();
        cpu.stats.add(Counter::Switches, 1);
        let defers = H::MECHANISMS.lazy_unmap && !plain;
        state.begin_switch(defers);
        // Be seen first, then look at what was missed: an initiator in between would miss this CPU.
        // [mutant SwitchPublishesLate: bug 8]
        to.enter(cpu.seat());
        state.declare_running();
        let flushed_at = match self.broadcasts() {
            _ if plain => self.load_afresh(cpu, to, true),
            Some(_) => self.load_global(cpu, to),
            None if self.keeps_tags() => self.load_per_cpu(cpu, to),
            None => self.load_afresh(cpu, to, false),
        };
        state.end_switch(to.id(), flushed_at, defers);
        if let Some(from) = from.filter(|&from| !core::ptr::eq(from, to)) {
            from.leave(cpu.seat());
        }
    }

    /// Loads the root under a per-CPU tag; returns when the tag was last flushed whole.
    #[inline(never)]
    fn load_per_cpu(&self, cpu: &PerCpu<'_, H>, to: &AddressSpace<H>) -> u64 {
        let flushes = to.flushes();
        // Entries from before the latest flush that the space defers go, too. [mutant SwitchIgnoresDeferral]
        let deferred = to.deferred();
        let (index, held) = self.choose_slot(cpu, to);
        let slot = cpu.slot(index);
        // A batch that read the set of CPUs before we entered it posts nothing to us, and takes its
        // generation later: that it is outstanding is all that we can know of it.
        // [mutants SwitchIgnoresBatch, SwitchIgnoresGeneration]
        let current = slot.generation() >= flushes.generation && flushes.pending == 0;
        let paid = slot.flushed_at() >= deferred;
        let keep = held && current && paid;
        if held {
            let counter = match (current, paid) {
                (false, _) => Counter::SwitchBehind,
                (_, false) => Counter::FlushedBySwitch,
                _ => Counter::SwitchKept,
            };
            cpu.stats.add(counter, 1);
        } else {
            cpu.stats.add(Counter::SwitchTagTaken, 1);
        }
        if !keep {
            // The flush comes with the load; the clock is read before it.
            slot.take_over(to.id(), flushes.generation, self.ledger.now());
        }
        let tag = slot_tag(index);
        cpu.state.use_tag(tag, Some(index));
        // A tag that was another space's is flushed as it is loaded. [mutant TagTakenUnflushed]
        to.load(self.hw, tag, keep);
        slot.flushed_at()
    }

    /// Loads the root without anything that was kept: nothing is to be compared, and one slot is as good as another.
    #[inline]
    fn load_afresh(&self, cpu: &PerCpu<'_, H>, to: &AddressSpace<H>, plain: bool) -> u64 {
        // Nobody looks whose slot it is.
        let slot = cpu.slot(0);
        slot.caught_up_with(to.flushes().generation);
        // Where there are no tags, every CPU is at this one from the start.
        let mut tag = Tag::KERNEL;
        let mut now = 0;
        if !plain {
            // The flush comes with the load; the clock is read before it.
            now = self.ledger.now();
            slot.flushed(now);
            if self.features.tagging != Tagging::None {
                tag = slot_tag(0);
                cpu.state.use_tag(tag, Some(0));
            }
        }
        to.load(self.hw, tag, false);
        now
    }

    /// The slot that holds the space, or the one to take over for it.
    fn choose_slot(&self, cpu: &PerCpu<'_, H>, to: &AddressSpace<H>) -> (usize, bool) {
        let holds = |index: usize| cpu.slot(index).holds(to.id());
        if self.slots > INLINE_SLOTS {
            // Thousands of slots are not searched: each id has its place.
            let index = (to.id().0 % self.slots as u64) as usize;
            return (index, holds(index));
        }
        if let Some(index) = (0..self.slots).find(|&index| holds(index)) {
            return (index, true);
        }
        (cpu.state.next_victim(self.slots), false)
    }

    /// Loads the root under a system-wide tag; returns when it was last known to be flushed whole, as
    /// [`Engine::load_per_cpu`] does: now if entries go with every load, and never if they stay.
    /// Broadcasts reach every CPU under every tag, so there is no generation to catch up with.
    #[inline(never)]
    fn load_global(&self, cpu: &PerCpu<'_, H>, to: &AddressSpace<H>) -> u64 {
        let flushed_at = if self.keeps_tags() {
            0
        } else {
            self.ledger.now()
        };
        let tag = if self.features.tagging == Tagging::None {
            Tag::KERNEL
        } else {
            let (tag, rolled_over) = self.tags.acquire(self.hw, &to.tag, &cpu.running, self);
            cpu.stats.add(Counter::Rollovers, u64::from(rolled_over));
            tag
        };
        cpu.state.use_tag(tag, None);
        cpu.stats
            .add(Counter::SwitchKept, u64::from(self.keeps_tags()));
        to.load(self.hw, tag, self.keeps_tags());
        if self.features.tagging != Tagging::None {
            cpu.running.has_left();
        }
        flushed_at
    }

    /// The CPU stops running user code: it goes idle or runs a kernel thread. The root stays
    /// loaded, lazily. Never waits.
    pub fn enter_lazy(&self) {
        self.cpu(self.hw.this_cpu()).state.go_lazy();
    }

    /// [`Engine::enter_lazy`] where the kernel knows the engine's state of the CPU that it runs on (`here`), as in most
    /// schedulers' switches. Never waits.
    ///
    /// # Safety
    /// `here` is this engine's state of the CPU that executes the call, which stays on it until it returns.
    ///
    /// # Panics
    /// In debug builds, if `here` is another CPU's state.
    #[allow(unsafe_code)] // A declaration: there is nothing unsafe in here.
    #[inline]
    pub unsafe fn enter_lazy_here(&self, here: &PerCpu<'_, H>) {
        self.assert_here(here);
        here.state.go_lazy();
    }

    /// The CPU comes back to `space`, whose root it has kept lazily: at the end of an idle period, or before a kernel
    /// thread accesses the space's user memory. `false`, and nothing was done, if it has left that root meanwhile: then
    /// call [`Engine::switch_to`]. [`Engine::enter_lazy`] ends it. Never waits.
    #[must_use = "if this CPU has left the root, user memory is another space's, or there is none"]
    pub fn resume(&self, space: &AddressSpace<H>) -> bool {
        let were_on = self.hw.mask_interrupts();
        let cpu = self.cpu(self.hw.this_cpu());
        let kept = cpu.state.has_loaded(space.id());
        if kept {
            self.come_back(cpu, space);
        }
        self.hw.restore_interrupts(were_on);
        kept
    }

    /// The CPU leaves the root of `space`, if it has that loaded, and has no user root then: for a CPU that will be
    /// idle for long. From here on nothing of the space interrupts it, neither freed tables nor the space's end, also
    /// if it was evicted from the space before. With tags its entries stay, and [`Engine::switch_to`] uses them again
    /// if the space was not flushed meanwhile. Never waits.
    pub fn leave(&self, space: &AddressSpace<H>) {
        let were_on = self.hw.mask_interrupts();
        let cpu = self.cpu(self.hw.this_cpu());
        let state = &cpu.state;
        if state.has_loaded(space.id()) {
            state.detach(self.hw);
        }
        if state.loaded() == Loaded::Nothing {
            space.leave_if_user(cpu.seat());
        }
        self.hw.restore_interrupts(were_on);
    }

    /// The CPU uses the root again that it kept lazily. Interrupts are masked.
    #[inline(never)]
    fn come_back(&self, cpu: &PerCpu<'_, H>, space: &AddressSpace<H>) {
        let state = &cpu.state;
        if state.is_running() {
            return;
        }
        // Broadcasts have reached it all the time.
        let misses = self.broadcasts().is_none();
        // NMI handlers stay away from user memory until it has caught up. [mutant ResumeLetsNmisIn]
        state.wake(misses);
        if misses {
            // Initiators have left it out. [mutant LazyResumesUnchecked]
            self.catch_up_with(cpu, space);
            state.caught_up();
        }
    }

    /// Flushes what a lazy CPU was not told of.
    #[inline]
    fn catch_up_with(&self, cpu: &PerCpu<'_, H>, space: &AddressSpace<H>) {
        // Initiators count the generation up and then look at this CPU's activity; it does the opposite.
        let slot = cpu.slot(cpu.state.slot());
        // An initiator that finds this CPU in the set, where it is all the time, does not end a batch alone.
        let generation = space.flushes().generation;
        if slot.generation() < generation {
            self.flush_missed(cpu, slot, Counter::SwitchBehind);
        } else if slot.flushed_at() < space.deferred() {
            self.flush_missed(cpu, slot, Counter::FlushedBySwitch);
        } else {
            return;
        }
        // The generation that was read before: what was flushed may have been filled again, and changed, since.
        // [mutant NotesLaterGeneration]
        slot.caught_up_with(generation);
    }

    /// Flushes all of the space that is loaded, for the reason that is counted.
    #[cold]
    fn flush_missed(&self, cpu: &PerCpu<'_, H>, slot: &Slot<H>, why: Counter) {
        cpu.stats.add(why, 1);
        self.flush_tag(cpu, slot);
    }

    /// No user thread of `space` will ever run again: makes every CPU leave its root. Afterwards
    /// nothing walks its tables, and they, the root included, may be freed (C6). May wait for other CPUs: one that
    /// runs the space all the same is interrupted again and again until it has left it
    /// ([`Hardware::waits_long`] hears of that).
    ///
    /// The [`AddressSpace`] itself may still be in use when this returns: a CPU that was evicted from it, and is
    /// switching away or going offline just now, still takes itself out of the space's set of CPUs. The reference that
    /// it passes as `from` or `current` keeps that memory alive.
    ///
    /// # Panics
    /// If the space is running on the calling CPU. If the space is one of the kernel's mappings. In debug builds, if a
    /// device still uses the space ([`Hardware::secondary_is_attached`]).
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
        let me = self.hw.this_cpu();
        // [mutant RetireSkipsEviction: bug 25]
        let generation = space.next_generation();
        let state = &self.cpu(me).state;
        let were_on = self.hw.mask_interrupts();
        if state.has_loaded(space.id()) {
            assert!(
                !state.is_running(),
                "a space cannot be retired by a CPU that runs it"
            );
            state.detach(self.hw);
        }
        self.hw.restore_interrupts(were_on);
        let info = FlushInfo::of(space.id(), generation, Request::full(Scope::Tables));
        let mut turns = 0;
        loop {
            // A lazy CPU leaves when it is asked; one in the middle of a switch leaves by itself.
            let mut shootdown = self.begin_shootdown(me);
            let loaded = space.loaded_on(self.count);
            self.post(me, &loaded, &info, Concern::Retirement, &mut shootdown);
            self.interrupt(self.cpu(me), &shootdown);
            self.let_interrupts_in(&shootdown);
            self.wait(me, self.cpu(me), &shootdown, Scope::Tables, false);
            let Some(first) = shootdown.targets.iter().next() else {
                break;
            };
            // A CPU that has left the space without naming it would stay in its set for ever. A CPU that has yet to
            // leave its root takes itself out.
            for cpu in shootdown.targets.iter() {
                // [mutants RetireTrustsAnswer, RetireAsksAgain]
                if self.cpu(cpu).state.is_elsewhere(space.id()) {
                    space.leave_if_user(self.cpu(cpu).seat());
                }
            }
            self.tell_of_long_wait(first, &mut turns);
            self.hw.relax();
        }
        if self.broadcasts().is_some() {
            self.broadcast_retired(me, space);
        }
        space.assert_never_loaded_again();
    }

    /// Whether this CPU has `space` loaded, and not lazily: it runs that space, or is about to. `false` between
    /// [`Engine::enter_user`] and [`Engine::enter_kernel`]. Never waits.
    pub fn runs(&self, space: &AddressSpace<H>) -> bool {
        let state = &self.cpu(self.hw.this_cpu()).state;
        state.has_loaded(space.id()) && state.is_running()
    }

    /// Whether this CPU has no user root loaded. Never waits.
    pub fn is_detached(&self) -> bool {
        let loaded = self.cpu(self.hw.this_cpu()).state.loaded();
        matches!(loaded, Loaded::Nothing | Loaded::Offline)
    }
}
