//! The engine's state of each CPU, sorted by its writer.
//!
//! A cache line that one CPU writes and another reads travels between them. So we sort the state by writer and reader,
//! one line each:
//!
//! | line | written by | read by |
//! | --- | --- | --- |
//! | [`Inbox`], requests | initiators | its CPU |
//! | [`Inbox`], acknowledgements | its CPU | initiators that wait |
//! | [`CpuState`], published | its CPU, rarely; initiators that leave it a flush | initiators that choose targets |
//! | [`CpuState`], private, and the slots | its CPU | its CPU |
//! | [`Outbox`] | its CPU | the targets of its CPU, for requests that are not in their own inboxes |
//! | [`SharedInbox`], requests | initiators; the last target | the CPUs of a cluster; initiators that wait |
//! | [`SharedInbox`], counts | the CPUs of a group | the same |
//! | [`RunningTag`] | its CPU, and a CPU that takes a new tag | the same |
//! | the CPU's place in sets | the code that makes the engine | its CPU, and a CPU that retires a space |

use crate::asid::RunningTag;
use crate::cpu::CpuState;
use crate::cpu_set::{CpuBit, CpuId};
use crate::hardware::{Hardware, PerCpuAddress};
use crate::inbox::{Inbox, Outbox};
use crate::shared_inbox::SharedInbox;
use crate::stats::CpuStats;
use crate::tags::Slot;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The number of tag slots that [`PerCpuData::new`] gives a CPU: Linux uses six, and we add two.
pub const INLINE_SLOTS: usize = 8;

/// Holds the engine's state of one CPU, in memory that the kernel provides.
///
/// Keep it as long as the engine lives, and don't give it to a second engine: both would use the same numbers for
/// different spaces.
///
/// # Examples
///
/// ```
/// # use quell::example::OneCpu;
/// use quell::{PerCpuData, Slot};
/// // One for each CPU, in an array or in the kernel's per-CPU area.
/// let cpu = PerCpuData::<OneCpu>::new();
/// // With room for 64 tags:
/// let slots = [(); 64].map(|()| Slot::new());
/// let cpu = PerCpuData::<OneCpu>::with_slots(&slots);
/// ```
pub struct PerCpuData<'m, H: Hardware> {
    pub(crate) inbox: Inbox<H::Word>,
    pub(crate) state: CpuState<H::Word>,
    pub(crate) outbox: Outbox<H::Word>,
    /// The shared inbox of this CPU's cluster, if it's the first CPU of the cluster.
    pub(crate) shared: SharedInbox<H::Word>,
    pub(crate) running: RunningTag<H::Word>,
    pub(crate) stats: CpuStats,
    /// The first slots, even if the embedder lends others. So the first slot, the only one used without tags, is always
    /// here.
    own: [Slot<H>; INLINE_SLOTS],
    rest: PerCpuConfig<'m, H>,
}

/// The fields that no CPU writes once the engine is made.
#[repr(align(64))]
struct PerCpuConfig<'m, H: Hardware> {
    /// The CPU's place in sets, as a [`CpuBit`].
    seat: (AtomicUsize, AtomicU64),
    /// The number of slots.
    slots: usize,
    /// The lent slots. The first [`INLINE_SLOTS`] of them aren't used: the state has its own.
    lent: &'m [Slot<H>],
}

impl<H: Hardware> Default for PerCpuData<'_, H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'m, H: Hardware> PerCpuData<'m, H> {
    /// Makes the state of a CPU with room for eight tags.
    pub fn new() -> Self {
        Self::with(INLINE_SLOTS, &[])
    }

    /// Makes the state of a CPU with room for one tag per element of `slots`.
    ///
    /// Use it for more than eight tags, with [`TagPolicy::All`](crate::TagPolicy). The number of elements is the number
    /// of tags. But the first eight elements aren't used: the state itself has eight slots. If CPUs have different
    /// numbers of slots, the engine uses the smallest number on all of them. If `slots` is empty, the engine can't be
    /// made ([`EngineError::NoSlots`](crate::EngineError)).
    pub fn with_slots(slots: &'m [Slot<H>]) -> Self {
        Self::with(slots.len(), slots)
    }

    fn with(slots: usize, lent: &'m [Slot<H>]) -> Self {
        PerCpuData {
            inbox: Inbox::new(),
            state: CpuState::new(),
            outbox: Outbox::new(),
            shared: SharedInbox::new(),
            running: RunningTag::new(),
            stats: CpuStats::new(),
            own: core::array::from_fn(|_| Slot::new()),
            rest: PerCpuConfig { seat: (AtomicUsize::new(0), AtomicU64::new(0)), slots, lent },
        }
    }

    /// Makes this the state of `cpu`. Called before that CPU is online.
    pub(crate) fn belongs_to(&self, cpu: CpuId) {
        let seat = CpuBit::of(cpu);
        self.rest.seat.0.store(seat.word, Relaxed);
        self.rest.seat.1.store(seat.bit, Relaxed);
    }

    /// Returns the number of its CPU.
    #[inline]
    pub(crate) fn id(&self) -> CpuId {
        self.seat().cpu()
    }

    /// Returns the place of its CPU in sets.
    #[inline]
    pub(crate) fn seat(&self) -> CpuBit {
        CpuBit { word: self.rest.seat.0.load(Relaxed), bit: self.rest.seat.1.load(Relaxed) }
    }

    /// Returns the name of this CPU's word at an address, for debugging tools.
    #[doc(hidden)]
    pub fn word_name(&self, address: usize) -> Option<&'static str> {
        let slots = || {
            let slot = self.slots().find(|slot| slot.has_word(address));
            slot.map(|_| "slots[..]")
        };
        self.inbox
            .word_name(address)
            .or_else(|| self.state.word_name(address))
            .or_else(|| self.outbox.word_name(address))
            .or_else(|| self.shared.word_name(address))
            .or_else(|| self.running.word_name(address))
            .or_else(slots)
    }

    /// Returns the number of slots.
    pub(crate) fn slot_count(&self) -> usize {
        self.rest.slots
    }

    /// Returns the slot with this index.
    ///
    /// # Panics
    /// If there is no such slot.
    #[inline]
    pub(crate) fn slot(&self, index: usize) -> &Slot<H> {
        self.own.get(index).unwrap_or_else(|| &self.rest.lent[index])
    }

    /// Returns all slots.
    pub(crate) fn slots(&self) -> impl Iterator<Item = &Slot<H>> {
        (0..self.slot_count()).map(|index| self.slot(index))
    }
}

impl<H: Hardware> PerCpuData<'static, H> {
    /// Returns the address of this state, for the kernel's [`Hardware::per_cpu`].
    pub fn address(&'static self) -> PerCpuAddress<H> {
        PerCpuAddress::new(core::ptr::NonNull::from(self).cast())
    }
}

impl<H: Hardware> PerCpuAddress<H> {
    /// Returns the state at this address.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn get<'m>(self) -> &'m PerCpuData<'m, H>
    where
        H: 'm,
    {
        // SAFETY: only `PerCpuData::address` makes such a value, from a reference to this type that lives for ever.
        unsafe { self.address().cast::<PerCpuData<'m, H>>().as_ref() }
    }
}
