//! Changes that no batch counts: of a space for which a batch has no place left, and of one of which so many batches
//! are outstanding that one more is not counted.
//!
//! They are reported under a lock like any other, so nothing is waited for: as little as that would need is kept of
//! them. The space takes a generation at once, so a CPU that loads it later flushes; and it remembers that generation
//! ([`AddressSpace::overflow_pending`]), so a later observer flushes all of the space before it relies on a cleared
//! entry. The batch keeps no reference to the space. It keeps which CPUs may have had it loaded, in 64 groups, and at
//! its end these drop whatever they have loaded. It looks for them after it has taken the generation: a CPU that loads
//! the space in between, and is not among them, sees that, and one that has loaded another since compares as it comes
//! back.
//!
//! The batch does not know the space any more at its end, so it leaves the deferred flush: the next later observer
//! flushes the space once more, perhaps for nothing (as Linux's `flush_tlb_batched_pending` does after every batch). A
//! later observer calls those changes paid that were reported before it flushed: generations do not come twice.
//!
//! Where invalidations are broadcast they are sent at once, and the batch's end waits for them, or, on another CPU than
//! the one that has sent them, sends one for everything.

use crate::cpu_set::{CpuId, CpuSet};
use crate::engine::Engine;
use crate::hardware::{Hardware, Scope};
use crate::request::Request;
use crate::secondary::Mark;
use crate::space::AddressSpace;
use crate::stats::Counter;

/// The flushes that a batch defers for spaces that it has no place for.
pub(crate) struct Overflow {
    /// A bit for each group of CPUs, one of which may have such a space loaded.
    groups: u64,
    /// How much of them has changed.
    pub(crate) scope: Scope,
    /// Whether mappings of the kernel are among it.
    pub(crate) kernel: bool,
    /// The CPU that has sent the broadcasts; `None` if several have.
    sender: Option<CpuId>,
    /// The last invalidation of such spaces that devices were told of.
    pub(crate) told: Mark,
}

impl<H: Hardware> Engine<'_, H> {
    /// How many CPUs are in a group.
    fn group(&self) -> usize {
        self.count.div_ceil(64)
    }

    /// Notes a change for which a batch has no place. Called under the lock of the table, after it was written. Waits
    /// for no CPU.
    pub(crate) fn report_overflow(
        &self,
        space: &AddressSpace<H>,
        request: &Request,
        overflow: &mut Option<Overflow>,
    ) {
        let me = self.hw.this_cpu();
        self.count(me, Counter::EscalatedBatch, 1);
        let overflow = overflow.get_or_insert(Overflow {
            groups: 0,
            scope: Scope::Leaf,
            kernel: false,
            sender: Some(me),
            told: Mark::default(),
        });
        // [mutant OverflowTablesAreLeaves]
        let scope = request.scope();
        overflow.scope = overflow.scope.max(scope);
        overflow.kernel |= space.id().is_kernel();
        overflow.sender = overflow.sender.filter(|&sender| sender == me);
        // The generation first: a CPU that loads the space after the look below compares generations.
        // [mutant OverflowLooksFirst]
        let generation = self.take_generation(space);
        // Later observers look there. [mutant OverflowNotPending]
        space.overflow_pending(generation);
        let loaded = (self.broadcasts().is_none()).then(|| space.loaded_on(self.count));
        // The space is not known any more when the batch ends.
        overflow.told = self.start_secondary([(space, request)].into_iter());
        let Some(mut loaded) = loaded else {
            return self.broadcast_early(me, space, request);
        };
        if space.id().is_kernel() {
            loaded = self.without_programs(me, &loaded, scope);
        }
        let group = self.group();
        let groups = loaded.iter().map(|cpu| 1u64 << (cpu.index() / group));
        overflow.groups = groups.fold(overflow.groups, |all, one| all | one);
    }

    /// The CPUs that may have had such a space loaded, and others.
    pub(crate) fn cpus_of(&self, overflow: &Overflow) -> CpuSet {
        let group = self.group();
        let all = (0..self.count).filter(|cpu| overflow.groups & 1 << (cpu / group) != 0);
        all.map(|cpu| CpuId(cpu as u16)).collect()
    }

    /// Flushes all that a batch had no place for, on every CPU that may hold it, and waits.
    #[cold]
    pub(crate) fn flush_overflow(&self, me: CpuId, overflow: &Overflow) {
        // [mutant OverflowUnflushed]
        if self.broadcasts().is_some() {
            if overflow.sender == Some(me) {
                self.complete(me);
            } else {
                self.broadcast_everything(me, overflow.kernel);
            }
            return;
        }
        self.count(me, Counter::Requested, 1);
        let cpus = self.cpus_of(overflow);
        self.flush_whole(me, &cpus, overflow.scope, overflow.kernel);
    }
}
