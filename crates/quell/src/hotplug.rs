//! CPUs that come and go.
//!
//! A CPU that is not online uses no translation and is asked for no flush: it leaves its root, closes its
//! inbox, and answers what was posted before ([`inbox`](crate::inbox)). The contents of its TLB are useless
//! without a root, and is flushed when it comes back.

use crate::cpu::Loaded;
use crate::engine::Engine;
use crate::hardware::{Hardware, Invalidate};
use crate::rules::Rules;
use crate::space::AddressSpace;

impl<H: Hardware, R: Rules> Engine<'_, H, R> {
    /// Takes this CPU into the protocol. Called on the CPU itself, before it loads its first space
    /// and with interrupts masked or nothing to interrupt.
    pub fn cpu_online(&self) {
        let cpu = &self.cpus[self.hw.this_cpu().index()];
        for slot in cpu.slots() {
            slot.forget();
        }
        // The TLB may hold anything: at boot, the firmware's entries; later, those left behind when the CPU
        // went offline.
        self.hw.invalidate(Invalidate::All);
        cpu.state.flushed(self.ledger.now());
        cpu.state.go_online();
        cpu.inbox.open();
        self.on_interrupt();
    }

    /// Takes this CPU out of the protocol: it leaves its space, answers what is in its inbox and is
    /// asked no more. Called on the CPU itself, which from here on touches no user memory until
    /// [`Engine::cpu_online`].
    ///
    /// `current` is what `from` is in [`Engine::switch_to`]: the space that this CPU had loaded last, lazily or not
    /// and even if it was evicted from it; `None` only if there was none or if it has been retired. A space that is
    /// left out goes on naming this CPU, and [`Engine::retire`] of it does not end once the CPU is back and runs
    /// another space.
    pub fn cpu_offline(&self, current: Option<&AddressSpace<H>>) {
        let were_on = self.hw.mask_interrupts();
        let me = self.hw.this_cpu();
        let cpu = &self.cpus[me.index()];
        cpu.state.go_offline(self.hw);
        if let Some(space) = current {
            space.leave(me);
        }
        if self.broadcasts.is_some() {
            cpu.running.forget();
        }
        cpu.inbox.close(&self.rules);
        self.hw.restore_interrupts(were_on);
    }

    /// Whether this CPU takes part in the protocol.
    pub fn is_online(&self) -> bool {
        self.cpus[self.hw.this_cpu().index()].state.loaded() != Loaded::Offline
    }
}
