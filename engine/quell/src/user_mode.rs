//! CPUs that run programs and are not to be disturbed.
//!
//! A CPU that runs one program alone (Linux's `nohz_full`) loses time by each interrupt. Flushes of its program's space
//! must interrupt it. Flushes of the kernel's own mappings need not: a program cannot use these, so the flush can wait
//! until the CPU enters the kernel. Such a CPU calls [`Engine::enter_user`] as the last thing before it returns to its
//! program, and [`Engine::enter_kernel`] as the first thing after. If initiators have left flushes to it meanwhile, it
//! flushes there, once, everything, however many they were.
//!
//! # The race
//!
//! An initiator changes the tables and then replaces "in user mode" by "deferring", in one step. If the step fails,
//! the CPU is in the kernel, and the initiator interrupts it as usual. The CPU replaces "in user mode" by "running",
//! in one step; if that fails, an initiator has written "deferring", and the CPU flushes. One of the two comes first,
//! so no flush is forgotten, nor left to an entry that is over. The CPU leaves the state before it flushes: an
//! initiator that comes then interrupts it. Initiators that find "deferring" write it again, and the CPU reads as it
//! leaves the state: so it flushes after the changes of the last of them.
//!
//! # NMIs
//!
//! An NMI is an entry, too: its handler calls [`Engine::enter_kernel`] before it uses a mapping of the kernel that may
//! change. If it comes in the middle of another entry, between that step and the flush, it sees so in the CPU's state,
//! and flushes for itself.
//!
//! # What this does not guarantee
//!
//! These still interrupt a CPU in user mode: flushes of its space, and the space's end; freed tables of the kernel's
//! half, which its walker may read at any time; [`Engine::synchronize_text`]; and a reuse or a refill that makes a
//! deferred flush of its space. Speculation in user mode may use old entries of the kernel's half until the CPU enters
//! the kernel: if an entry changes its size, the memory type of a frame changes, or the frame leaves the machine,
//! report the change with [`Scope::Tables`], which interrupts every CPU, also where
//! [`flush_needed`](crate::flush_needed) says that leaf entries are enough.

use crate::cpu::Entry;
use crate::cpu_set::{CpuId, CpuSet};
use crate::engine::Engine;
use crate::hardware::{Hardware, Invalidate, Scope};
use crate::stats::Counter;

impl<H: Hardware> Engine<'_, H> {
    /// This CPU returns to its program; until [`Engine::enter_kernel`], changes of the kernel's mappings do not
    /// interrupt it. Without effect on a CPU that runs no user space. Called with interrupts masked. Never waits, never
    /// flushes: one store.
    ///
    /// # Safety
    /// Until [`Engine::enter_kernel`] this CPU executes, loads and stores through no mapping that is ever reported to a
    /// batch of a [kernel space](Engine::new_kernel_space): the text and the stack on its way out of the kernel and in
    /// again, the engine and its words are never unmapped or moved. Of the engine it calls nothing but
    /// [`Engine::on_interrupt`].
    #[allow(unsafe_code)] // A declaration: there is nothing unsafe in here.
    pub unsafe fn enter_user(&self) {
        self.cpu(self.hw.this_cpu()).state.enter_user();
    }

    /// This CPU has entered the kernel from a program: flushes the kernel's mappings if an initiator has left that to
    /// it. Every entry calls it (interrupt, exception, system call, NMI), with interrupts masked or in an NMI handler,
    /// before it uses a mapping of the kernel that may change. On a CPU that has not called [`Engine::enter_user`]
    /// since it costs one load. Never waits.
    ///
    /// After an NMI handler has called it, other CPUs take this one to be in the kernel, until it calls
    /// [`Engine::enter_user`] again: a handler that returns to the program calls that.
    #[inline]
    pub fn enter_kernel(&self) {
        let me = self.hw.this_cpu();
        match self.cpu(me).state.enter_kernel() {
            Entry::Paid => {}
            entry => self.pay_at_entry(entry),
        }
    }

    /// Leaves a flush of the kernel's mappings to the CPUs that run a program, for their entry; returns the others,
    /// which must be asked.
    #[cold]
    pub(crate) fn without_programs(&self, me: CpuId, cpus: &CpuSet, scope: Scope) -> CpuSet {
        let mut asked = *cpus;
        for cpu in cpus.iter() {
            if self.cpu(cpu).state.leave_to_entry(scope) {
                self.count(me, Counter::SkippedLazy, 1);
                asked.remove(cpu);
            }
        }
        asked
    }

    #[cold]
    fn pay_at_entry(&self, entry: Entry) {
        if entry == Entry::Nested {
            // The NMI changes nothing that the entry has in hand: it invalidates the TLB alone.
            // [mutant NestedEntryUnflushed]
            self.hw.invalidate(Invalidate::Everything);
            return;
        }
        let me = self.hw.this_cpu();
        // [mutant EntrySkipsFlush]
        self.flush_everything(me);
        self.cpu(me).state.has_entered();
    }
}
