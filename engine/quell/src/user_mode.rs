//! CPUs that run programs undisturbed.
//!
//! A CPU that runs a single program (Linux's `nohz_full`) loses time with each interrupt. Flushes of its program's
//! space must interrupt it. Flushes of the kernel's own mappings needn't: a program can't use these, so the flush can
//! wait until the CPU enters the kernel. Such a CPU calls [`Cpu::enter_user`] as its last step before it returns to its
//! program, and [`Cpu::enter_kernel`] first when it's back. If initiators have left it one or more flushes meanwhile,
//! it flushes everything once there.
//!
//! # The race
//!
//! An initiator changes the tables and then replaces "in user mode" by "deferring", in one step. If the step fails, the
//! CPU is in the kernel, and the initiator interrupts it as usual. The CPU replaces "in user mode" by "running", in one
//! step. If that fails, an initiator has written "deferring", and the CPU flushes. One of the two comes first, so no
//! flush is lost or left to an entry that is over. The CPU changes the state before it flushes, so a later initiator
//! interrupts it. Initiators that find "deferring" write it again, and the CPU reads it when it leaves the state. So
//! its flush covers the changes of the last initiator.
//!
//! # NMIs
//!
//! An NMI is a kernel entry, too: its handler calls [`Cpu::enter_kernel`] before it uses a kernel mapping that may
//! change. If it comes in the middle of another entry, between that step and the flush, the CPU's state shows this, and
//! the handler flushes itself.
//!
//! # What we don't guarantee
//!
//! These still interrupt a CPU in user mode:
//!
//! * flushes of its space, and the end of that space ([`Engine::retire`](crate::Engine::retire));
//! * freed tables of the kernel's half, which its walker may read at any time;
//! * [`Cpu::synchronize_text`];
//! * a reuse or a refill that makes a deferred flush of its space.
//!
//! Speculation in user mode may use old entries of the kernel's half until the CPU enters the kernel. So report a
//! change with [`Scope::Tables`], which interrupts every CPU, if an entry changes its size, the memory type of a frame
//! changes, or the frame leaves the machine. Do so even if [`flush_needed`](crate::flush_needed) returns that leaf
//! entries are enough.

use crate::cpu::Entry;
use crate::cpu_set::CpuSet;
use crate::hardware::{Hardware, Invalidate, Scope};
use crate::stats::Counter;
use crate::this_cpu::Cpu;

impl<H: Hardware> Cpu<'_, H> {
    /// Notes that this CPU returns to its program, which should run undisturbed.
    ///
    /// Until [`Cpu::enter_kernel`], changes of kernel mappings don't interrupt it. Without effect on a CPU that runs no
    /// user space. Call it with interrupts masked. It takes one store. Never waits and never flushes.
    ///
    /// # Safety
    /// Until [`Cpu::enter_kernel`] this CPU executes, loads and stores through no mapping that is ever reported to a
    /// batch of a [kernel space](crate::Engine::new_kernel_space). For example, the text and the stack on its way out
    /// of the kernel and in again, the engine and its words are never unmapped or moved. The CPU calls no function of
    /// the engine except [`Masked::on_interrupt`](crate::Masked::on_interrupt).
    #[allow(unsafe_code)] // A declaration: there is nothing unsafe in here.
    pub unsafe fn enter_user(self) {
        self.here.state.enter_user();
    }

    /// Flushes kernel mappings if an initiator has left that to this CPU's kernel entry.
    ///
    /// Every entry calls it (interrupt, exception, system call, NMI), with interrupts masked or in an NMI handler,
    /// before it uses a kernel mapping that may change. It takes one load on a CPU that hasn't called
    /// [`Cpu::enter_user`] since. Never waits.
    ///
    /// After an NMI handler has called it, other CPUs assume that this one is in the kernel. So a handler that returns
    /// to the program calls [`Cpu::enter_user`] again.
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
            self.hw.invalidate(Invalidate::Everything);
            return;
        }
        // [mutant EntrySkipsFlush]
        self.flush_everything();
        self.here.state.has_entered();
    }
}
