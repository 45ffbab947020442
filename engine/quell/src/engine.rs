//! The engine of one machine: its memory, its policy and its counters.
//!
//! The protocol is in other modules: see the table on the crate's first page.

use crate::addr::Frame;
use crate::asid::{GlobalTags, RunningTag, RunningTags};
use crate::cpu::LoadedSpace;
use crate::cpu_set::{CpuId, MAX_CPUS};
use crate::features::{EngineError, Features, Tagging};
use crate::hardware::{Broadcast, Hardware};
use crate::inbox::RequestLimits;
use crate::ledger::{Ledger, LedgerEntry};
use crate::per_cpu::PerCpuData;
use crate::policy::{Mechanism, Policy, TagPolicy};
use crate::request::RANGES;
use crate::shared_inbox::{OwnSharedInbox, SharedInbox, cluster_of, group_of};
use crate::space::{AddressSpace, SpaceId};
use crate::stats::Stats;
use crate::word::Word;
use core::sync::atomic::Ordering::Relaxed;

/// Keeps the TLBs of one machine coherent. The engine borrows all its memory and allocates nothing.
///
/// You may call every method on any CPU at any time unless its documentation states otherwise. The calling thread must
/// not migrate during the call. A method that *may wait* waits until other CPUs have taken an interrupt: [`Hardware`]
/// describes the locks that you may hold meanwhile.
///
/// # Examples
///
/// ```
/// # use quell::example::OneCpu;
/// use quell::{Engine, Frame, LedgerEntry, PerCpuData, Policy};
/// let machine = OneCpu::default(); // the kernel's own type, which implements `Hardware`
/// let cpus = [PerCpuData::new()];
/// let ledger = [(); 4].map(|()| LedgerEntry::new());
/// let engine = Engine::new(&machine, &cpus, &ledger, Policy::ALL)?;
/// // Each CPU, before it loads its first space:
/// engine.cpu_online();
/// // SAFETY: this machine walks no tables.
/// let space = unsafe { engine.new_space(Frame(1)) };
/// engine.this_cpu().mask_interrupts().switch(None, &space);
/// engine.this_cpu().leave(&space);
/// engine.retire(&space); // its tables may be freed now
/// # Ok::<(), quell::EngineError>(())
/// ```
pub struct Engine<'m, H: Hardware> {
    pub(crate) hw: &'m H,
    /// See [`Engine::broadcasts`].
    broadcasts: Option<&'m H::Broadcasts>,
    pub(crate) features: Features,
    policy: Policy,
    /// The state of the CPUs, unless the machine keeps it ([`Hardware::per_cpu`]).
    given: &'m [PerCpuData<'m, H>],
    /// The number of CPUs.
    pub(crate) count: usize,
    pub(crate) ledger: Ledger<'m, H>,
    pub(crate) tags: GlobalTags<H::Word>,
    /// The number of tag slots that we use on each CPU.
    pub(crate) slots: usize,
    /// See [`Engine::keeps_tags`].
    tags_on: bool,
    /// Set if a switch only has to store the generation: there are no tags, no broadcasts and no deferred flushes.
    pub(crate) plain: bool,
    /// See [`Engine::flushes_at_once`].
    at_once: bool,
    next_space: H::Word,
    /// The number of flushes that were started and aren't known to be over.
    pub(crate) started: H::Word,
    /// A hash of the addresses of all CPUs' states when the engine was made.
    #[cfg(debug_assertions)]
    places: usize,
}

impl<'m, H: Hardware> Engine<'m, H> {
    /// Makes an engine for the CPUs `0..cpus.len()` of the machine. You lend it the state of each in `cpus`.
    ///
    /// `ledger` records the flushes that [lazy unmap](crate::lazy) defers: each entry has room for the flush of one
    /// [`Batch`](crate::Batch). 64 entries are plenty. If the slice is empty, no flush is ever deferred. Never waits.
    ///
    /// # Errors
    /// If the machine can't run an engine with these arguments: the variants of [`EngineError`] are the reasons. For
    /// example, there are more than [`MAX_CPUS`] CPUs, the machine leaves out a mechanism of the policy, or another
    /// engine has had the ledger.
    ///
    /// # Panics
    /// In debug builds, if two CPUs share a state, or if a CPU with one of these states is online in another engine.
    pub fn new(
        hw: &'m H,
        cpus: &'m [PerCpuData<'m, H>],
        ledger: &'m [LedgerEntry<H>],
        policy: Policy,
    ) -> Result<Self, EngineError> {
        Self::make(hw, cpus, cpus.len(), ledger, policy)
    }

    /// Makes an engine for the CPUs `0..cpus`, with their states in the kernel's per-CPU areas.
    ///
    /// The engine finds each state with [`Hardware::per_cpu`]. No other engine may use these states while this engine
    /// lives. Never waits.
    ///
    /// # Errors
    /// As [`Engine::new`], and if [`Hardware::per_cpu`] returns `None` for a CPU.
    ///
    /// # Panics
    /// In debug builds, if two CPUs share a state, or if a CPU with one of these states is online in another engine.
    pub fn with_own_state(
        hw: &'m H,
        cpus: usize,
        ledger: &'m [LedgerEntry<H>],
        policy: Policy,
    ) -> Result<Self, EngineError> {
        let known = |cpu: usize| hw.per_cpu(CpuId(cpu as u16)).is_some();
        match (0..cpus.min(MAX_CPUS)).find(|&cpu| !known(cpu)) {
            Some(cpu) => Err(EngineError::NoState { cpu }),
            None => Self::make(hw, &[], cpus, ledger, policy),
        }
    }

    fn make(
        hw: &'m H,
        given: &'m [PerCpuData<'m, H>],
        count: usize,
        ledger: &'m [LedgerEntry<H>],
        policy: Policy,
    ) -> Result<Self, EngineError> {
        const {
            assert!(
                H::RANGES >= 1 && H::RANGES <= RANGES,
                "Hardware::RANGES is a number from 1 to 11"
            );
        }
        let features = hw.features();
        features.check(count)?;
        if H::POLICY_IS_FIXED && policy == H::MECHANISMS {
            // The policy is the machine's only one.
        } else if let Some(mechanism) = H::MECHANISMS.lacks(&policy) {
            return Err(EngineError::LeftOut { mechanism });
        } else if H::POLICY_IS_FIXED {
            return Err(EngineError::OtherPolicy);
        }
        let broadcasts = hw.broadcasts().filter(|_| features.broadcast);
        if features.broadcast && broadcasts.is_none() {
            return Err(EngineError::NoBroadcasts);
        }
        debug_assert!(
            (0..count).all(|cpu| {
                let state = |cpu| state_of(hw, given, CpuId(cpu as u16));
                (0..cpu).all(|other| !core::ptr::eq(state(cpu), state(other)))
            }),
            "the states of two CPUs are in one place"
        );
        debug_assert!(
            (0..count).all(|cpu| {
                let state = state_of(hw, given, CpuId(cpu as u16));
                state.state.loaded() == LoadedSpace::Offline
            }),
            "the state of a CPU belongs to another engine, on which that CPU is online"
        );
        let slots_of = |cpu| (cpu, state_of(hw, given, CpuId(cpu as u16)).slot_count());
        let fewest = (0..count).map(slots_of).min_by_key(|&(_, slots)| slots);
        let (cpu, lent) = fewest.unwrap_or_default();
        if lent == 0 {
            return Err(EngineError::NoSlots { cpu });
        }
        let slots = match (features.tagging, policy.tags) {
            (Tagging::PerCpu { count }, TagPolicy::Slots(wanted)) => {
                lent.min(count.into()).min(wanted.into()).max(1)
            }
            (Tagging::PerCpu { count }, TagPolicy::All) => lent.min(count.into()),
            _ => 1,
        };
        let tags_on = policy.has(Mechanism::Tags) && features.tagging != Tagging::None;
        let at_once = policy.inline_requests && policy.concurrent && !features.broadcast;
        let plain = features.tagging == Tagging::None && !features.broadcast && !policy.lazy_unmap;
        for cpu in (0..count).map(|cpu| CpuId(cpu as u16)) {
            state_of(hw, given, cpu).belongs_to(cpu);
        }
        Ok(Engine {
            hw,
            broadcasts,
            features,
            policy,
            given,
            count,
            ledger: Ledger::new(ledger).ok_or(EngineError::LedgerInUse)?,
            tags: GlobalTags::new(features.highest_global_tag()),
            slots,
            tags_on,
            plain,
            at_once,
            next_space: H::Word::new(1),
            started: H::Word::new(0),
            #[cfg(debug_assertions)]
            places: places_of(hw, given, count),
        })
    }

    /// Returns the machine that was passed to [`Engine::new`]. Never waits.
    pub fn hw(&self) -> &'m H {
        self.hw
    }

    /// Returns the policy: the mechanisms that are on. Never waits.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the limits of a request on this machine.
    #[inline]
    pub(crate) fn most(&self) -> RequestLimits {
        RequestLimits { ranges: self.hw.ranges(), strides: self.features.full_above }
    }

    /// Returns the mechanisms that are on. The compiler knows which ones the machine leaves out.
    #[inline(always)]
    pub(crate) fn on(&self) -> Policy {
        match H::POLICY_IS_FIXED {
            true => H::MECHANISMS,
            false => self.policy.within(&H::MECHANISMS),
        }
    }

    /// Returns whether tags keep entries across switches.
    #[inline(always)]
    pub(crate) fn keeps_tags(&self) -> bool {
        H::MECHANISMS.has(Mechanism::Tags) && self.tags_on
    }

    /// Returns whether requests are inlined and this CPU flushes while the targets do.
    #[inline(always)]
    pub(crate) fn flushes_at_once(&self) -> bool {
        let always = H::POLICY_IS_FIXED && !H::Broadcasts::EXISTS;
        H::MECHANISMS.has(Mechanism::RemoteFlush) && (always || self.at_once)
    }

    /// Returns the machine's broadcasts, if it has them. If the machine's type excludes them, the code for them is
    /// compiled away.
    #[inline]
    pub(crate) fn broadcasts(&self) -> Option<&'m H::Broadcasts> {
        self.broadcasts.filter(|_| H::Broadcasts::EXISTS)
    }

    /// Returns the state of a CPU.
    ///
    /// # Panics
    /// If there is no such CPU.
    #[inline]
    pub(crate) fn cpu(&self, cpu: CpuId) -> &'m PerCpuData<'m, H> {
        state_of(self.hw, self.given, cpu)
    }

    /// Returns whether flushes with many targets use shared inboxes.
    #[inline(always)]
    pub(crate) fn shares_lines(&self) -> bool {
        self.hw.shares_lines_from() != usize::MAX && self.flushes_at_once()
    }

    /// Returns the shared inbox of a CPU's cluster.
    #[inline]
    pub(crate) fn shared_inbox(&self, cpu: CpuId) -> &'m SharedInbox<H::Word> {
        &self.cpu(cluster_of(cpu)).shared
    }

    /// Returns the inbox with the counter of this CPU's group. The CPU's state is `here`.
    pub(crate) fn shared_group(&self, here: &PerCpuData<'_, H>) -> &'m SharedInbox<H::Word> {
        &self.cpu(group_of::<H::Word>(here.id())).shared
    }

    /// Returns the shared inbox of this CPU, whose state is `here`.
    #[inline]
    pub(crate) fn own_shared_inbox<'e>(
        &'e self,
        here: &'e PerCpuData<'e, H>,
    ) -> OwnSharedInbox<'e, H::Word> {
        let cpu = here.id();
        OwnSharedInbox {
            inbox: self.shared_inbox(cpu),
            progress: here.state.shared_progress(),
            cpu,
        }
    }

    /// Returns the state of a CPU, or `None` if there's no such CPU.
    #[inline]
    pub(crate) fn known_cpu(&self, cpu: CpuId) -> Option<&'m PerCpuData<'m, H>> {
        match self.hw.per_cpu(cpu) {
            Some(place) => (cpu.index() < self.count).then(|| place.get()),
            None => self.given.get(cpu.index()),
        }
    }

    /// Returns the sum of all CPUs' counters. Never waits.
    pub fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        for cpu in 0..self.count {
            sum.add(&self.cpu(CpuId(cpu as u16)).stats.read());
        }
        sum
    }

    /// Returns the counters of one CPU. Never waits.
    ///
    /// # Panics
    /// If there is no such CPU.
    pub fn cpu_stats(&self, cpu: CpuId) -> Stats {
        let known = self.known_cpu(cpu);
        known.expect("there is no such CPU").stats.read()
    }

    /// Makes an address space for the root table in frame `root`. No CPU has it loaded yet. Never waits.
    ///
    /// # Safety
    /// The frame `root` holds a root table in the machine's format, which maps the kernel as every root does. It stays
    /// so until [`Engine::retire`] has returned for this space. Until then no other space has this root. Afterwards no
    /// CPU switches to the space.
    #[allow(unsafe_code)] // A declaration: there is nothing unsafe in here.
    pub unsafe fn new_space(&self, root: Frame) -> AddressSpace<H> {
        AddressSpace::new(SpaceId(self.next_space()), root)
    }

    /// Returns a number that no space has had before.
    pub(crate) fn next_space(&self) -> u64 {
        self.next_space.fetch_add(1, Relaxed)
    }

    /// Panics, in debug builds, if [`Hardware::per_cpu`] has changed since the engine was made.
    pub(crate) fn assert_places_last(&self) {
        #[cfg(debug_assertions)]
        assert!(
            places_of(self.hw, self.given, self.count) == self.places,
            "the place of a CPU's state has changed since the engine was made"
        );
    }

    /// Panics, in debug builds, if interrupts aren't masked.
    #[inline]
    #[track_caller]
    pub(crate) fn assert_masked(&self) {
        if cfg!(debug_assertions) {
            let were_on = self.hw.mask_interrupts();
            self.hw.restore_interrupts(were_on);
            assert!(!were_on, "what wants interrupts masked is called with interrupts on");
        }
    }

    /// Panics, in debug builds, if [`Hardware::may_wait`] returns `false`.
    #[inline]
    #[track_caller]
    pub(crate) fn assert_may_wait(&self) {
        debug_assert!(
            self.hw.may_wait(),
            "waits for other CPUs under a lock that they may spin for with interrupts off"
        );
    }
}

/// Returns a hash of the addresses of all CPUs' states.
#[cfg(debug_assertions)]
fn places_of<H: Hardware>(hw: &H, given: &[PerCpuData<'_, H>], count: usize) -> usize {
    let places = (0..count).map(|cpu| {
        let place = core::ptr::from_ref(state_of(hw, given, CpuId(cpu as u16)));
        place.addr().rotate_left(cpu as u32)
    });
    places.reduce(usize::wrapping_add).unwrap_or_default()
}

/// Returns the state of a CPU: the machine's own, or the one in the given slice.
#[inline]
fn state_of<'m, H: Hardware>(
    hw: &H,
    given: &'m [PerCpuData<'m, H>],
    cpu: CpuId,
) -> &'m PerCpuData<'m, H> {
    match hw.per_cpu(cpu) {
        Some(place) => place.get(),
        None => &given[cpu.index()],
    }
}

impl<H: Hardware> RunningTags<H::Word> for Engine<'_, H> {
    fn all<'t>(&'t self) -> impl Iterator<Item = &'t RunningTag<H::Word>>
    where
        H::Word: 't,
    {
        (0..self.count).map(|cpu| &self.cpu(CpuId(cpu as u16)).running)
    }
}
