//! The engine's state of each CPU, sorted by its writer.
//!
//! A cache line that one CPU writes and another reads travels; so state is laid out by writer and
//! reader, one line each:
//!
//! | line | written by | read by |
//! | --- | --- | --- |
//! | [`Inbox`], requests | initiators | its CPU |
//! | [`Inbox`], acknowledgements | its CPU | initiators that wait |
//! | [`CpuState`], published | its CPU, rarely; an initiator that leaves a flush to its entry into the kernel | initiators that choose targets |
//! | [`CpuState`], private, and the slots | its CPU | its CPU |
//! | [`Outbox`] | its CPU | its targets, when requests are not inlined |
//! | [`RunningTag`] | its CPU, and a CPU that finds tags to have run out | the same |

use crate::asid::RunningTag;
use crate::cpu::CpuState;
use crate::hardware::{Hardware, PlaceOf};
use crate::inbox::{Inbox, Outbox};
use crate::stats::CpuStats;
use crate::tags::Slot;

/// How many slots a CPU has in [`PerCpu::new`]: Linux's six, and two to spare.
pub const INLINE_SLOTS: usize = 8;

enum Slots<'m, H: Hardware> {
    Inline([Slot<H>; INLINE_SLOTS]),
    Given(&'m [Slot<H>]),
}

/// The engine's state for one CPU. The embedder provides one for each CPU, for as long as the engine
/// lives, touches nothing in it, and gives it to no other engine: each engine numbers its spaces from the start.
pub struct PerCpu<'m, H: Hardware> {
    pub(crate) inbox: Inbox<H::Word>,
    pub(crate) state: CpuState<H::Word>,
    pub(crate) outbox: Outbox<H::Word>,
    pub(crate) running: RunningTag<H::Word>,
    pub(crate) stats: CpuStats,
    slots: Slots<'m, H>,
}

impl<H: Hardware> Default for PerCpu<'_, H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'m, H: Hardware> PerCpu<'m, H> {
    /// State for a CPU with room for [`INLINE_SLOTS`] tags.
    pub fn new() -> Self {
        Self::with(Slots::Inline(core::array::from_fn(|_| Slot::new())))
    }

    /// State for a CPU with one tag for each of `slots`: for [`TagPolicy::All`](crate::TagPolicy). Where CPUs have
    /// different numbers, the engine uses as many as the CPU with the fewest; without any it refuses to be made.
    pub fn with_slots(slots: &'m [Slot<H>]) -> Self {
        Self::with(Slots::Given(slots))
    }

    fn with(slots: Slots<'m, H>) -> Self {
        PerCpu {
            inbox: Inbox::new(),
            state: CpuState::new(),
            outbox: Outbox::new(),
            running: RunningTag::new(),
            stats: CpuStats::new(),
            slots,
        }
    }

    /// The name of the word at this address, if it is one of this CPU's: for tools that show what the engine
    /// does, word by word.
    #[doc(hidden)]
    pub fn word_name(&self, address: usize) -> Option<&'static str> {
        let slots = || {
            let slot = self.slots().iter().find(|slot| slot.has_word(address));
            slot.map(|_| "slots[..]")
        };
        self.inbox
            .word_name(address)
            .or_else(|| self.state.word_name(address))
            .or_else(|| self.outbox.word_name(address))
            .or_else(|| self.running.word_name(address))
            .or_else(slots)
    }

    pub(crate) fn slots(&self) -> &[Slot<H>] {
        match &self.slots {
            Slots::Inline(slots) => slots,
            Slots::Given(slots) => slots,
        }
    }
}

impl<H: Hardware> PerCpu<'static, H> {
    /// Where it is: what [`Hardware::per_cpu`] answers.
    pub fn place(&'static self) -> PlaceOf<H> {
        PlaceOf::new(core::ptr::NonNull::from(self).cast())
    }
}

impl<H: Hardware> PlaceOf<H> {
    /// The state that is there.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn get<'m>(self) -> &'m PerCpu<'m, H>
    where
        H: 'm,
    {
        // SAFETY: `PerCpu::place` alone makes such a value, of a reference to this type that lives for ever.
        unsafe { self.address().cast::<PerCpu<'m, H>>().as_ref() }
    }
}
