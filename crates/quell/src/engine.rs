//! The engine: everything tied together, and the context switch.
//!
//! # The switch
//!
//! Loading a space races with flushes of it. The order is: enter the space's set of CPUs, declare
//! this CPU running, *then* read the generation and the debt, load the root, and only then leave
//! the old space's set. An initiator does the opposite: table, generation (or debt), set. All are
//! sequentially consistent, so either the initiator finds this CPU, or this CPU finds the change
//! and flushes as it loads. The window in which a CPU has decided that no flush is needed but is
//! not yet known to run the space, which cost Linux a CVE in 2025, does not exist.
//!
//! Between the two spaces this CPU belongs to both. A request for the old one is then ignored by
//! the comparison of ids, since it is handled only after the switch; a request for the new one is
//! compared by generation.
//!
//! # Lazy CPUs
//!
//! A CPU that goes idle or runs a kernel thread keeps the root it has, uses nothing of its user
//! half and is not interrupted, except when page-table pages are freed, since its walker may still
//! roam there. Interrupted, it leaves the root for good. Coming back it compares as if it had been
//! away.

use crate::CpuSet;
use crate::addr::{Frame, PageRange};
use crate::features::{Features, Tagging, Unsupported};
use crate::hardware::{CpuId, Hardware, Invalidate, Scope, Tag, Word};
use crate::lazy::{Epoch, Ledger};
use crate::mutant::Mutant;
use crate::per_cpu::{LAZY, LEFT, NOTHING, PerCpu, RUNNING, SWITCHING, WAKING};
use crate::policy::{Policy, TagPolicy};
use crate::request::Request;
use crate::shootdown::Message;
use crate::space::{AddressSpace, SpaceId};
use crate::stats::{Counter, Stats};
use crate::tags::{GlobalTags, slot_tag};
use core::sync::atomic::Ordering::{self, Acquire, Relaxed, Release, SeqCst};

/// The engine of one machine. It borrows all its memory and allocates nothing.
///
/// Every method may be called on any CPU at any time unless it says otherwise; the caller does not
/// migrate during the call.
pub struct Engine<'m, H: Hardware> {
    pub(crate) hw: &'m H,
    pub(crate) features: Features,
    pub(crate) policy: Policy,
    pub(crate) cpus: &'m [PerCpu<'m, H>],
    pub(crate) ledger: Ledger<'m, H>,
    pub(crate) tags: GlobalTags<H::Word>,
    pub(crate) highest_tag: u16,
    slots: usize,
    next_space: H::Word,
}

impl<'m, H: Hardware> Engine<'m, H> {
    /// An engine for the CPUs `0..cpus.len()` of the machine.
    ///
    /// `epochs` is the memory of the flush clock (S3): as many batches can be owed at once as there
    /// are epochs; 64 is plenty, none switches S3 off.
    ///
    /// # Errors
    /// If the machine's features contradict each other, if there are too few tags for its CPUs, or if a
    /// CPU was given no slot.
    pub fn new(
        hw: &'m H,
        cpus: &'m [PerCpu<'m, H>],
        epochs: &'m [Epoch<H>],
        policy: Policy,
    ) -> Result<Self, Unsupported> {
        let features = hw.features();
        features.check(cpus.len())?;
        let fewest = cpus.iter().map(|cpu| cpu.slots().len()).enumerate();
        let (cpu, given) = fewest.min_by_key(|&(_, slots)| slots).unwrap_or_default();
        if given == 0 {
            return Err(Unsupported::NoSlots { cpu });
        }
        let slots = match (features.tagging, policy.tags) {
            (Tagging::PerCpu { count }, TagPolicy::Slots(wanted)) => {
                given.min(count.into()).min(wanted.into()).max(1)
            }
            (Tagging::PerCpu { count }, TagPolicy::All) => given.min(count.into()),
            _ => 1,
        };
        Ok(Engine {
            hw,
            features,
            policy,
            cpus,
            ledger: Ledger::new(epochs),
            tags: GlobalTags::new(),
            highest_tag: features.highest_global_tag(),
            slots,
            next_space: H::Word::new(1),
        })
    }

    /// The machine.
    pub fn hw(&self) -> &'m H {
        self.hw
    }

    /// Which mechanisms are on.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The counters of all CPUs together.
    pub fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        for cpu in self.cpus {
            sum.add(&cpu.stats.read());
        }
        sum
    }

    /// The counters of one CPU.
    pub fn cpu_stats(&self, cpu: CpuId) -> Stats {
        self.cpus[cpu.index()].stats.read()
    }

    #[inline]
    pub(crate) fn count(&self, me: CpuId, counter: Counter, amount: u64) {
        if amount != 0 {
            self.cpus[me.index()].stats.add(counter, amount);
        }
    }

    /// `order`, or `Relaxed` where the mutant weakens it.
    #[inline]
    pub(crate) fn weakened(&self, mutant: Mutant, order: Ordering) -> Ordering {
        if self.hw.mutant(mutant) {
            Relaxed
        } else {
            order
        }
    }

    /// A new address space with the given root table, loaded nowhere.
    pub fn new_space(&self, root: Frame) -> AddressSpace<H> {
        AddressSpace::new(SpaceId(self.next_space.fetch_add(1, Relaxed)), root)
    }

    pub(crate) fn loaded_tag(&self, me: CpuId) -> Tag {
        Tag(self.cpus[me.index()].private.tag.load(Relaxed) as u16)
    }

    /// Whether tags keep entries across switches.
    fn tags_on(&self) -> bool {
        self.policy.tags != TagPolicy::Off && self.features.tagging != Tagging::None
    }

    /// Context switch to a user thread of `to`. `from` is the space that this CPU had loaded last,
    /// lazily or not and even if it was evicted from it; `None` only if there was none or if it
    /// has been retired. It may be `to` itself.
    ///
    /// When it returns, user accesses go through the current tables of `to` (C5), and every flush
    /// of `to` that was complete when the call began has taken effect here.
    pub fn switch_to(&self, from: Option<&AddressSpace<H>>, to: &AddressSpace<H>) {
        let were_on = self.hw.mask_interrupts();
        let me = self.hw.this_cpu();
        let cpu = &self.cpus[me.index()];
        if cpu.private.space.load(Relaxed) == to.id().0 {
            self.resume(me, to);
            self.hw.restore_interrupts(were_on);
            return;
        }
        self.count(me, Counter::Switches, 1);
        cpu.private.space.store(SWITCHING, Relaxed);
        // Whoever finds us in the set must not find the old tag's newer flush time.
        cpu.published.flushed_at.store(0, Relaxed);
        let publish = || {
            to.loaded.insert(me, SeqCst);
            // Nobody else writes the state, and whoever finds us in the set sees what it was.
            if cpu.published.state.load(Relaxed) != RUNNING {
                cpu.published.state.store(RUNNING, SeqCst);
            }
        };
        if !self.hw.mutant(Mutant::SwitchPublishesLate) {
            publish();
        }
        let flushed_at = if self.features.broadcast {
            self.load_global(me, to)
        } else {
            self.load_per_cpu(me, to)
        };
        if self.hw.mutant(Mutant::SwitchPublishesLate) {
            publish();
        }
        cpu.private.space.store(to.id().0, Relaxed);
        cpu.published.flushed_at.store(flushed_at, Release);
        if let Some(from) = from.filter(|from| from.id() != to.id()) {
            from.loaded.remove(me, Release);
        }
        self.hw.restore_interrupts(were_on);
    }

    /// Loads the root under a per-CPU tag; returns when the tag was last flushed whole.
    fn load_per_cpu(&self, me: CpuId, to: &AddressSpace<H>) -> u64 {
        let cpu = &self.cpus[me.index()];
        let flushes = to.flushes();
        let generation = flushes.generation;
        let owed = if self.hw.mutant(Mutant::SwitchIgnoresDebt) {
            0
        } else {
            to.owed()
        };
        let (index, held) = self.choose_slot(me, to);
        let slot = &cpu.slots()[index];
        // A batch that read the set of CPUs before we entered it posts nothing to us, and takes its
        // generation later: that it is outstanding is all that we can know of it.
        let settled = flushes.deferred == 0 || self.hw.mutant(Mutant::SwitchIgnoresBatch);
        let current = slot.generation.load(Relaxed) >= generation && settled
            || self.hw.mutant(Mutant::SwitchIgnoresGeneration);
        let paid = slot.flushed_at.load(Relaxed) >= owed;
        let keep = self.tags_on() && held && current && paid;
        if held {
            let counter = match (current, paid) {
                (false, _) => Counter::SwitchBehind,
                (_, false) => Counter::PaidBySwitch,
                _ => Counter::SwitchKept,
            };
            self.count(me, counter, u64::from(self.tags_on()));
        } else {
            self.count(me, Counter::SwitchTagTaken, u64::from(self.tags_on()));
        }
        if !keep {
            slot.space.store(to.id().0, Relaxed);
            // The flush comes with the load; the clock is read before it.
            slot.flushed_at.store(self.ledger.now(), Relaxed);
            slot.generation.store(generation, Relaxed);
        }
        let tag = if self.features.tagging == Tagging::None {
            Tag::KERNEL
        } else {
            slot_tag(index)
        };
        cpu.private.slot.store(index as u64, Relaxed);
        cpu.private.tag.store(tag.0.into(), Relaxed);
        let keep = keep || (!held && self.tags_on() && self.hw.mutant(Mutant::TagTakenUnflushed));
        self.hw.load_root(to.root(), tag, keep);
        slot.flushed_at.load(Relaxed)
    }

    /// The slot that holds the space, or the one to take over for it.
    fn choose_slot(&self, me: CpuId, to: &AddressSpace<H>) -> (usize, bool) {
        let cpu = &self.cpus[me.index()];
        let id = to.id().0;
        let holds = |index: usize| cpu.slots()[index].space.load(Relaxed) == id;
        if self.slots > crate::per_cpu::INLINE_SLOTS {
            // Thousands of slots are not searched: each id has its place.
            let index = (id % self.slots as u64) as usize;
            return (index, holds(index));
        }
        if let Some(index) = (0..self.slots).find(|&index| holds(index)) {
            return (index, true);
        }
        let victim = cpu.private.victim.load(Relaxed) as usize;
        cpu.private
            .victim
            .store(((victim + 1) % self.slots) as u64, Relaxed);
        (victim, false)
    }

    /// Loads the root under a system-wide tag; returns when it was last known to be flushed whole, as
    /// [`Engine::load_per_cpu`] does: now if entries go with every load, and never if they stay.
    /// Broadcasts reach every CPU under every tag, so there is no generation to catch up with.
    fn load_global(&self, me: CpuId, to: &AddressSpace<H>) -> u64 {
        let flushed_at = if self.tags_on() { 0 } else { self.ledger.now() };
        let tag = if self.features.tagging == Tagging::None {
            Tag::KERNEL
        } else {
            self.acquire_global_tag(me, to)
        };
        self.cpus[me.index()]
            .private
            .tag
            .store(tag.0.into(), Relaxed);
        self.count(me, Counter::SwitchKept, u64::from(self.tags_on()));
        self.hw.load_root(to.root(), tag, self.tags_on());
        flushed_at
    }

    /// The CPU stops running user code: it goes idle or runs a kernel thread. The root stays
    /// loaded, lazily.
    pub fn enter_lazy(&self) {
        let cpu = &self.cpus[self.hw.this_cpu().index()];
        if cpu.published.state.load(Relaxed) == RUNNING {
            cpu.published.state.store(LAZY, Release);
        }
    }

    /// The root that was loaded lazily is to be used again. Interrupts are masked.
    fn resume(&self, me: CpuId, space: &AddressSpace<H>) {
        let cpu = &self.cpus[me.index()];
        if cpu.published.state.load(Relaxed) == RUNNING {
            return;
        }
        let misses = !self.features.broadcast;
        let waking = if misses && !self.hw.mutant(Mutant::ResumeLetsNmisIn) {
            WAKING
        } else {
            RUNNING
        };
        cpu.published
            .state
            .store(waking, self.weakened(Mutant::RelaxedLeaveLazy, SeqCst));
        if misses && !self.hw.mutant(Mutant::LazyResumesUnchecked) {
            self.catch_up_with(me, space);
        }
        if waking == WAKING {
            // Initiators make no difference between the two.
            cpu.published.state.store(RUNNING, Relaxed);
        }
    }

    /// Flushes what a lazy CPU was not told of.
    fn catch_up_with(&self, me: CpuId, space: &AddressSpace<H>) {
        let cpu = &self.cpus[me.index()];
        // Initiators count the generation up and then look at our state; we do the opposite.
        let slot = &cpu.slots()[cpu.private.slot.load(Relaxed) as usize];
        // Who finds us in the set, where we are all the time, does not end a batch alone.
        let generation = space.flushes().generation;
        let behind = slot.generation.load(Relaxed) < generation;
        if behind || slot.flushed_at.load(Relaxed) < space.owed() {
            self.count(
                me,
                if behind {
                    Counter::SwitchBehind
                } else {
                    Counter::PaidBySwitch
                },
                1,
            );
            self.flush_tag(me, slot);
            slot.generation.store(generation, Relaxed);
        }
    }

    /// Makes this CPU, if it runs `space`, forget the translations of a range that has gained rights:
    /// after a fault, on machines whose TLBs may keep an entry that refused an access. Others find
    /// out by faults of their own. Not for changes that need a flush.
    pub fn refresh(&self, space: &AddressSpace<H>, range: PageRange) {
        let were_on = self.hw.mask_interrupts();
        let me = self.hw.this_cpu();
        if self.cpus[me.index()].private.space.load(Relaxed) == space.id().0 {
            let (tag, scope) = (self.loaded_tag(me), Scope::Leaf);
            self.hw.invalidate(Invalidate::Range { tag, range, scope });
        }
        self.hw.restore_interrupts(were_on);
    }

    /// No user thread of `space` will ever run again: makes every CPU leave its root. Afterwards
    /// nothing walks its tables, and they, the root included, may be freed (C6).
    ///
    /// # Panics
    /// If the space is running on the calling CPU.
    pub fn retire(&self, space: &AddressSpace<H>) {
        let me = self.hw.this_cpu();
        if self.hw.mutant(Mutant::RetireSkipsEviction) {
            return;
        }
        let generation = space.next_generation();
        let were_on = self.hw.mask_interrupts();
        if self.cpus[me.index()].private.space.load(Relaxed) == space.id().0 {
            assert!(
                self.cpus[me.index()].published.state.load(Relaxed) != RUNNING,
                "a space cannot be retired by a CPU that runs it"
            );
            self.leave_root(me);
        }
        self.hw.restore_interrupts(were_on);
        let message = Message::for_retired(space.id(), generation);
        loop {
            let loaded = space.loaded.snapshot(self.cpus.len(), Acquire);
            let holds_on = |cpu: &CpuId| {
                *cpu != me && self.cpus[cpu.index()].published.state.load(Acquire) != LEFT
            };
            let left: CpuSet = loaded.iter().filter(holds_on).collect();
            if left.is_empty() {
                break;
            }
            // Lazy ones leave when they are asked; one in the middle of a switch leaves by itself.
            let mut posting = self.begin_posting(me);
            self.post_to(me, &left, &message, &mut posting);
            self.send(me, &posting);
            self.wait(me, posting, Scope::Tables);
            self.hw.relax();
        }
        if self.features.broadcast
            && let Some(tag) = {
                self.fence_before_tag();
                self.broadcast_tag(space)
            }
            && self.broadcast_request(me, tag, Request::Full(Scope::Tables))
        {
            self.complete(me);
        }
    }

    /// Whether this CPU has no user root loaded.
    pub fn is_detached(&self) -> bool {
        self.cpus[self.hw.this_cpu().index()]
            .private
            .space
            .load(Relaxed)
            == NOTHING
    }
}
