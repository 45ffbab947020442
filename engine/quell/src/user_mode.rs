//! Keeps flushes of kernel mappings from interrupting CPUs in user mode.
//!
//! A CPU that runs a single program (Linux's `nohz_full`) loses time with each interrupt. Flushes of its program's
//! space must interrupt it. Flushes of the kernel's own mappings needn't: a program can't use these, so the flush can
//! wait until the CPU enters the kernel. Such a CPU calls [`Cpu::enter_user`] as its last step before it returns to its
//! program, and [`Cpu::enter_kernel`] as its first step in the kernel. If other CPUs have left it any flushes
//! meanwhile, it makes one flush of everything there.
//!
//! # The race
//!
//! A word holds the CPU's state. The *initiator*, a CPU that makes a flush, changes the tables and then replaces "in
//! user mode" by "deferring", with a compare-and-exchange. If that fails, the CPU is in the kernel, and the initiator
//! interrupts it as usual. When the CPU enters the kernel, it replaces "in user mode" by "running", also with a
//! compare-and-exchange. If that fails, an initiator has written "deferring", and the CPU flushes. One of the two comes
//! first, so no flush is lost, and none is left to a kernel entry that has already happened. The CPU changes the state
//! before it flushes, so a later initiator interrupts it. An initiator that finds "deferring" writes it again. The CPU
//! reads that value when it replaces it, so its flush covers the changes of the last initiator.
//!
//! # NMIs
//!
//! An NMI is a kernel entry, too: its handler calls [`Cpu::enter_kernel`] before it uses a kernel mapping that may
//! change. The NMI may interrupt another kernel entry after that entry has changed the state and before it has flushed.
//! The state shows this, and the NMI handler makes the flush itself.
//!
//! # What we don't guarantee
//!
//! These still interrupt a CPU in user mode:
//!
//! * flushes of its space, and the end of that space ([`Engine::retire`](crate::Engine::retire));
//! * freed tables of the kernel's half, which its walker may read at any time;
//! * [`Cpu::synchronize_text`];
//! * a reuse or a refill that makes a deferred flush of its space ([`lazy`](crate::lazy)).
//!
//! Speculation in user mode may use old entries of the kernel's half until the CPU enters the kernel. Some changes must
//! reach that speculation: an entry changes its size, a frame changes its memory type, or a frame leaves the machine.
//! Report such a change with [`Scope::Tables`], which interrupts every CPU, even if
//! [`flush_needed`](crate::flush_needed) returns [`Scope::Leaf`].

use crate::cpu::Entry;
use crate::cpu_set::CpuSet;
use crate::hardware::{Hardware, Invalidation, Scope};
use crate::stats::Counter;
use crate::this_cpu::Cpu;

impl<H: Hardware> Cpu<'_, H> {
    /// Records that this CPU returns to a program that should run undisturbed.
    ///
    /// Until [`Cpu::enter_kernel`], changes of kernel mappings don't interrupt it, unless page tables are freed: see
    /// [the module](crate::user_mode). On a CPU that runs no user space the call has no effect. Call it with interrupts
    /// masked. It takes one store. Never waits and never flushes.
    ///
    /// # Safety
    /// Until [`Cpu::enter_kernel`], this CPU executes, loads and stores through no mapping that is ever reported with a
    /// [kernel space](crate::Engine::new_kernel_space). For example, the kernel never unmaps or moves the engine, its
    /// words, or the text and the stack of kernel entry and exit. Meanwhile the CPU calls no function of the engine
    /// except [`MaskedCpu::on_interrupt`](crate::MaskedCpu::on_interrupt).
    #[allow(unsafe_code)] // A declaration: there is nothing unsafe in here.
    pub unsafe fn enter_user(self) {
        self.here.state.enter_user();
    }

    /// Makes the flushes of kernel mappings that other CPUs have left to this kernel entry.
    ///
    /// Call it at every kernel entry (interrupt, exception, system call, NMI), before the code there uses a kernel
    /// mapping that may change. Interrupts are masked. It takes one load if the CPU hasn't called [`Cpu::enter_user`]
    /// since the last entry. Never waits.
    ///
    /// After an NMI handler has called it, other CPUs assume that this one is in the kernel. So an NMI handler that
    /// returns to the program calls [`Cpu::enter_user`] again.
    #[inline]
    pub fn enter_kernel(self) {
        match self.here.state.enter_kernel() {
            Entry::Flushed => {}
            entry => self.flush_at_entry(entry),
        }
    }

    /// Leaves a flush of kernel mappings to those of `cpus` that run a program undisturbed.
    ///
    /// Returns the others, which need a request.
    #[cold]
    pub(crate) fn without_programs(self, cpus: &CpuSet, scope: Scope) -> CpuSet {
        let mut asked = *cpus;
        if !H::HAS_KERNEL_SPACES {
            return asked;
        }
        for cpu in cpus.iter() {
            if self.cpu(cpu).state.leave_to_entry(scope) {
                self.count(Counter::SkippedLazy, 1);
                asked.remove(cpu);
            }
        }
        asked
    }

    #[cold]
    fn flush_at_entry(self, entry: Entry) {
        if entry == Entry::Nested {
            // The NMI handler only invalidates the TLB, and so doesn't disturb the entry that it interrupted. [mutant
            // NestedEntryUnflushed]
            self.hw.invalidate(Invalidation::Everything);
            return;
        }
        // [mutant EntrySkipsFlush]
        self.flush_everything();
        self.here.state.has_entered();
    }
}
