//! Changes that no batch counts: the batch has no place left for the space, or too many batches of the space are
//! outstanding.
//!
//! They are reported under a lock like any other, so the report must not wait. It records as little as possible. The
//! space takes a generation at once, so a CPU that loads it later flushes. The space also stores that generation
//! ([`AddressSpace::overflow_pending`]), so a later observer flushes all of the space before it relies on a cleared
//! entry. The batch keeps no reference to the space. It records which CPUs may have had it loaded, in 64 groups. At its
//! end these CPUs flush everything that they have loaded. It reads the set of CPUs after it has taken the generation.
//! So a CPU that loads the space in between, and is not among them, sees the generation. A CPU that has switched to
//! another space since compares generations when it comes back.
//!
//! At its end the batch no longer knows the space, so it leaves the change pending there: the next later observer
//! flushes the space once more, perhaps in vain (as Linux's `flush_tlb_batched_pending` does after every batch). A
//! later observer clears only changes that were reported before it flushed: no generation is taken twice.
//!
//! On machines that broadcast, the invalidations are sent at once and the batch's end waits for them. If it ends on a
//! CPU that did not send them, it sends one for everything instead.

use crate::cpu_set::{CpuId, CpuSet};
use crate::hardware::{Hardware, Scope};
use crate::request::Request;
use crate::secondary::Mark;
use crate::space::AddressSpace;
use crate::stats::Counter;
use crate::this_cpu::Cpu;

/// The outstanding flushes of spaces for which a batch has no place.
pub(crate) struct Overflow {
    /// A bit for each group of CPUs: set if one of them may have such a space loaded.
    groups: u64,
    /// The greatest scope of the changes.
    pub(crate) scope: Scope,
    /// Set if mappings of the kernel are among them.
    pub(crate) kernel: bool,
    /// The CPU that sent the broadcasts; `None` if several did.
    sender: Option<CpuId>,
    /// The last invalidation of such spaces that was sent to devices.
    pub(crate) told: Mark,
}

impl<H: Hardware> Cpu<'_, H> {
    /// Returns the number of CPUs in a group.
    fn group(self) -> usize {
        self.count.div_ceil(64)
    }

    /// Records a change for which a batch has no place. Called under the lock of the table, after it was written. Never
    /// waits for a CPU.
    pub(crate) fn report_overflow(
        self,
        space: &AddressSpace<H>,
        request: &Request,
        overflow: &mut Option<Overflow>,
    ) {
        let me = self.id();
        self.count(Counter::EscalatedBatch, 1);
        let overflow = overflow.get_or_insert(Overflow {
            groups: 0,
            scope: Scope::Leaf,
            kernel: false,
            sender: Some(self.id()),
            told: Mark::default(),
        });
        // [mutant OverflowTablesAreLeaves]
        let scope = request.scope();
        overflow.scope = overflow.scope.max(scope);
        // [mutant OverflowForgetsKernel]
        overflow.kernel |= space.id().is_kernel();
        overflow.sender = overflow.sender.filter(|&sender| sender == me);
        // The generation first: a CPU that loads the space after the look below compares generations.
        // [mutant OverflowLooksFirst]
        let generation = self.take_generation(space);
        // Later observers read it there. [mutant OverflowNotPending]
        space.overflow_pending(generation);
        let loaded = (self.broadcasts().is_none()).then(|| space.loaded_on(self.count));
        // Now, because the batch no longer knows the space at its end.
        overflow.told = self.start_secondary([(space, request)].into_iter());
        let Some(mut loaded) = loaded else {
            return self.broadcast_early(space, request);
        };
        if space.id().is_kernel() {
            loaded = self.without_programs(&loaded, scope);
        }
        let group = self.group();
        let groups = loaded.iter().map(|cpu| 1u64 << (cpu.index() / group));
        overflow.groups = groups.fold(overflow.groups, |all, one| all | one);
    }

    /// Returns the CPUs that may have had such a space loaded, and others of their groups.
    pub(crate) fn cpus_of(self, overflow: &Overflow) -> CpuSet {
        let group = self.group();
        let all = (0..self.count).filter(|cpu| overflow.groups & 1 << (cpu / group) != 0);
        all.map(|cpu| CpuId(cpu as u16)).collect()
    }

    /// Flushes all changes for which a batch had no place, on every CPU that may hold them, and waits.
    #[cold]
    pub(crate) fn flush_overflow(self, overflow: &Overflow) {
        // [mutant OverflowUnflushed]
        if self.broadcasts().is_some() {
            // A barrier completes only its own CPU's broadcasts.
            if overflow.sender == Some(self.id()) {
                self.complete();
            } else {
                self.broadcast_everything(overflow.kernel);
            }
            return;
        }
        self.count(Counter::Requested, 1);
        let cpus = self.cpus_of(overflow);
        self.flush_whole(&cpus, overflow.scope, overflow.kernel);
    }
}
