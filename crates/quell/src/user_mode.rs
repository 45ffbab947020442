//! CPUs that run programs and are not to be disturbed.
//!
//! A CPU that was given to one program alone (Linux's `nohz_full`) loses time by each interrupt. It must be interrupted for
//! flushes of the space that it runs. For the kernel's own mappings it need not: a program cannot use them, so the flush can
//! wait until the CPU comes back into the kernel. Such a CPU says [`Engine::enter_user`] as the last thing before it returns to
//! its program, and [`Engine::enter_kernel`] as the first thing after. What was left to it meanwhile it flushes
//! there, all of the kernel's mappings at once, however many flushes it was left out of.
//!
//! # The race
//!
//! An initiator changes the tables and then writes "owing" over "in user mode", in one step that fails if the CPU
//! is not there any more; it then asks by an interrupt, as ever. The CPU takes "in user mode" back in one step that fails if
//! an initiator has written "owing"; it then flushes. One of the two comes first, so a flush is neither
//! forgotten nor left to an entry that is over. Flushing begins after the CPU has left that state: an initiator that comes then interrupts it.
//!
//! # NMIs
//!
//! An NMI is an entry, too, and its handler calls [`Engine::enter_kernel`] before it uses a mapping of the kernel that may
//! change. It may come in the middle of another entry, between the step and the flush: it finds that said, and flushes for itself.
//!
//! # What this does not guarantee
//!
//! A CPU in user mode is interrupted for flushes of its space and for the space's end; when tables of the kernel's half are
//! freed, which its walker may read at any time; for [`Engine::synchronize_text`]; and when a claim or a refill
//! has to pay for what its space owes. Speculation in user mode may go through old entries of the kernel's half until the entry. What must
//! not be walked beside its successor (an entry that changes its size, a memory type, a frame that leaves the machine) needs
//! an interrupt of every CPU: it is reported with [`Scope::Tables`], also where [`flush_needed`](crate::flush_needed) says
//! that leaf entries are enough.

use crate::cpu::Entry;
use crate::cpu_set::{CpuId, CpuSet};
use crate::engine::Engine;
use crate::hardware::{Hardware, Invalidate, Scope};
use crate::rules::{EngineRules, Rules};
use crate::stats::Counter;

impl<H: Hardware, R: Rules> Engine<'_, H, R> {
    /// This CPU returns to its program and wants not to be interrupted for the kernel's mappings meanwhile. Without
    /// effect on a CPU that runs no user space. Called with interrupts masked. Never waits, never flushes: one store.
    ///
    /// # Safety
    /// From here on until [`Engine::enter_kernel`] this CPU uses no mapping that is ever reported to a batch of a
    /// [kernel space](Engine::new_kernel_space), to execute, to load or to store: what lies on its way out of the kernel and
    /// in again (text, stack, the engine and its words) is never unmapped or moved. Of the engine it calls
    /// nothing but [`Engine::on_interrupt`].
    #[allow(unsafe_code)] // A declaration: there is nothing unsafe in here.
    pub unsafe fn enter_user(&self) {
        self.cpu(self.hw.this_cpu()).state.enter_user();
    }

    /// This CPU has entered the kernel, from a program and by whatever way: flushes the kernel's mappings if that was left
    /// to it. Called with interrupts masked, or from an NMI handler, before a mapping of the kernel is used that may
    /// change. On a CPU that has not said [`Engine::enter_user`] since it costs one load. Never waits.
    ///
    /// After an NMI handler has called it the CPU is in the kernel as far as others know, until it says
    /// [`Engine::enter_user`] again: one that returns to its program says so.
    #[inline]
    pub fn enter_kernel(&self) {
        let me = self.hw.this_cpu();
        match self.cpu(me).state.enter_kernel() {
            Entry::Paid => {}
            entry => self.pay_at_entry(entry),
        }
    }

    /// Leaves a flush of the kernel's mappings to the entry of those CPUs that run a program; the others, which must be asked.
    #[cold]
    pub(crate) fn without_programs(&self, me: CpuId, cpus: &CpuSet, scope: Scope) -> CpuSet {
        let mut asked = *cpus;
        for cpu in cpus.iter() {
            if self.cpu(cpu).state.leave_to_entry(scope, &self.rules) {
                self.count(me, Counter::SkippedLazy, 1);
                asked.remove(cpu);
            }
        }
        asked
    }

    #[cold]
    fn pay_at_entry(&self, entry: Entry) {
        if entry == Entry::Nested {
            // What the entry has in hand is not touched, only the TLB.
            if self.rules.nested_entry_flushes(true) {
                self.hw.invalidate(Invalidate::Everything);
            }
            return;
        }
        let me = self.hw.this_cpu();
        if self.rules.entry_flushes(true) {
            self.flush_everything(me);
        }
        self.cpu(me).state.has_entered();
    }
}
