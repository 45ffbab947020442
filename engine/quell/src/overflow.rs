//! Changes that no batch counts, because the batch has no place left for the space or the space has too many
//! outstanding batches.
//!
//! They're reported under a lock like any other change, so the report must not wait. It records as little as possible.
//! The space takes a generation at once, so a CPU that loads it later flushes. The space also stores that generation
//! ([`AddressSpace::overflow_pending`]), so a later observer flushes all of the space before it relies on a cleared
//! entry. The batch keeps no reference to the space. It only records in a 64-bit mask which CPUs may have had it
//! loaded, in groups of equal size. At its end these CPUs flush everything that they have loaded. We read the set of
//! CPUs after we have taken the generation. So a CPU that loads the space in between, and isn't in the set, sees the
//! generation. A CPU that has since switched to another space compares generations when it comes back.
//!
//! At its end the batch no longer knows the space, so it leaves the change pending there. The next later observer
//! flushes the space once more, perhaps in vain (as Linux's `flush_tlb_batched_pending` does after every batch). A
//! later observer clears only changes that were reported before it flushed: no generation is taken twice.
//!
//! On machines that broadcast, we send the invalidations at once and wait at the batch's end. If it ends on a CPU that
//! didn't send them, that CPU broadcasts an invalidation of everything instead.

use crate::cpu_set::{CpuId, CpuSet};
use crate::hardware::{Hardware, Scope};
use crate::request::Request;
use crate::secondary::SecondaryMark;
use crate::space::AddressSpace;
use crate::stats::Counter;
use crate::this_cpu::Cpu;

/// The outstanding flushes of spaces for which a batch has no place.
pub(crate) struct Overflow {
    /// A bit for each group of CPUs: set if one of them may have such a space loaded.
    groups: u64,
    /// The greatest scope of the changes.
    pub(crate) scope: Scope,
    /// Set if kernel mappings are among the changes.
    pub(crate) kernel: bool,
    /// The CPU that sent the broadcasts; `None` if several did.
    sender: Option<CpuId>,
    /// Covers the invalidations of such spaces that were sent to devices.
    pub(crate) told: SecondaryMark,
}

impl<H: Hardware> Cpu<'_, H> {
    /// Returns the number of CPUs in a group.
    fn group(self) -> usize {
        self.count.div_ceil(64)
    }

    /// Records a change for which a batch has no place.
    ///
    /// Called under the lock of the table, after the table was written. Never waits for a CPU.
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
            told: SecondaryMark::default(),
        });
        // [mutant OverflowTablesAreLeaves]
        let scope = request.scope();
        overflow.scope = overflow.scope.max(scope);
        // [mutant OverflowForgetsKernel]
        overflow.kernel |= space.id().is_kernel();
        // [mutant OverflowSenderKept]
        overflow.sender = overflow.sender.filter(|&sender| sender == me);
        // Take the generation, then read the set: a CPU that loads the space after that read compares generations.
        // [mutant OverflowLooksFirst]
        let generation = self.take_generation(space);
        // Later observers read the generation in the space. [mutant OverflowNotPending]
        space.overflow_pending(generation);
        let loaded = (self.broadcasts().is_none()).then(|| space.loaded_on(self.count));
        // Start this now, because the batch no longer knows the space at its end.
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

    /// Returns the CPUs that may have had such a space loaded, with their groups.
    pub(crate) fn cpus_of(self, overflow: &Overflow) -> CpuSet {
        let group = self.group();
        let all = (0..self.count).filter(|cpu| overflow.groups & 1 << (cpu / group) != 0);
        all.map(|cpu| CpuId(cpu as u16)).collect()
    }

    /// Flushes all changes without a place in a batch on every CPU, and waits.
    ///
    /// CPUs that can't hold their translations are left out.
    #[cold]
    pub(crate) fn flush_overflow(self, overflow: &Overflow) {
        // [mutant OverflowUnflushed]
        if self.broadcasts().is_some() {
            // A barrier completes only its own CPU's broadcasts. [mutant OverflowSenderTrusted]
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
