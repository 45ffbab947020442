//! CPUs that come online and go offline.
//!
//! A CPU that is going offline leaves its root, closes its inbox, and answers the requests that were posted before
//! ([`inbox`](crate::inbox)). Afterwards it uses no translation of a user space, and no initiator sends it requests.
//! User entries that stay in its TLB are harmless without a root. The CPU flushes them when it comes back.
//!
//! Every CPU has the kernel's mappings loaded all the time, and its walker may read them at any moment. So a CPU that
//! comes online first opens its inbox and then flushes. Until it has flushed it uses no kernel mapping that may change.
//!
//! # What we don't guarantee
//!
//! No flush reaches the page-table walker of a CPU that is offline or starting. While a CPU is in that state, the
//! kernel frees tables of its own half only if the CPU is powered off, or on a root that doesn't lead to them.

use crate::cpu::LoadedSpace;
use crate::engine::Engine;
use crate::hardware::{Hardware, Invalidation};
use crate::space::AddressSpace;
use crate::this_cpu::Cpu;

impl<H: Hardware> Engine<'_, H> {
    /// Makes flushes reach this CPU from now on.
    ///
    /// Call it on the CPU itself, before the CPU loads its first space and before it uses a kernel mapping that may
    /// change. Interrupts are masked or not set up yet. The call flushes this CPU's whole TLB. Never waits.
    ///
    /// [`Cpu::synchronize_text`] doesn't reach an offline CPU. So after this call, and before the CPU executes kernel
    /// text that may have changed meanwhile, make it drop the instructions that it has fetched, as
    /// [`Hardware::synchronize_text`] does.
    ///
    /// # Panics
    /// If the engine was made for fewer CPUs, because no flush would reach this one. If this CPU is online already,
    /// because it would ignore flushes of the space that it has loaded. In debug builds, if [`Hardware::features`] or
    /// [`Hardware::per_cpu`] has changed since the engine was made.
    pub fn cpu_online(&self) {
        let me = self.hw.this_cpu();
        assert!(
            me.index() < self.count,
            "CPU {} comes online in an engine that was made for {}",
            me.0,
            self.count
        );
        self.assert_places_last();
        let cpu = self.cpu(me);
        assert!(
            cpu.state.loaded() == LoadedSpace::Offline,
            "CPU {} comes online, and is online already",
            me.0
        );
        debug_assert!(
            self.hw.features() == self.features,
            "the machine's features have changed since the engine was made"
        );
        for slot in cpu.slots() {
            slot.forget();
        }
        cpu.state.go_online();
        if self.shares_lines() {
            self.own_shared_inbox(cpu).open();
        }
        // Accept requests first, then flush: otherwise a request in between would be lost. [mutant
        // KernelFlushedBeforeOnline]
        cpu.inbox.open();
        // We read the clock before the flush, which doesn't cover flushes that are deferred meanwhile. [mutant
        // ClockReadAfterFlush]
        let now = self.ledger.now();
        // An initiator that found this CPU offline has changed the kernel's tables before that. This invalidation is
        // also a full barrier, so later walks see that change. The TLB may hold anything: at boot, entries of the
        // firmware; later, entries from before the CPU was offline.
        self.hw.invalidate(Invalidation::Everything);
        cpu.state.flushed(now);
        cpu.state.flushed_everything(now);
        self.this_cpu().serve();
    }

    /// Takes this CPU offline: it leaves its address space and gets no more flush requests.
    ///
    /// Call it on the CPU itself. The call answers the requests that this CPU has already got. Never waits.
    ///
    /// Until [`Engine::cpu_online`], the CPU must use no user memory and no kernel mapping that may change. Nor may its
    /// page-table walker reach freed tables of the kernel's half: power the CPU off, or leave it on a root without such
    /// tables.
    ///
    /// `current` is the space that this CPU loaded last, as for `from` in
    /// [`MaskedCpu::switch`](crate::MaskedCpu::switch). Pass `None` only if there was no such space, or if it has been
    /// retired. Otherwise flushes of that space interrupt this CPU in vain once it's back, until the space is retired.
    pub fn cpu_offline(&self, current: Option<&AddressSpace<H>>) {
        let were_on = self.hw.mask_interrupts();
        let me = self.hw.this_cpu();
        let cpu = self.cpu(me);
        cpu.state.go_offline(self.hw);
        if let Some(space) = current {
            space.leave_if_user(cpu.seat());
        }
        if self.broadcasts().is_some() {
            cpu.running.forget();
        }
        cpu.inbox.close();
        if self.shares_lines() {
            self.own_shared_inbox(cpu).close(self.shared_group(cpu));
        }
        // This CPU hasn't read the posted requests, so it can't know whether a started flush is among them. [mutant
        // StarterNotTold]
        self.hw.flush_answered();
        self.hw.restore_interrupts(were_on);
    }
}

impl<H: Hardware> Cpu<'_, H> {
    /// Returns whether this CPU is online: see [`Engine::cpu_online`]. Never waits.
    pub fn is_online(self) -> bool {
        self.here.state.loaded() != LoadedSpace::Offline
    }
}
