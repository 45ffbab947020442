//! What the engine keeps for each CPU, sorted by who writes it.
//!
//! A cache line that one CPU writes and another reads travels; so state is laid out by writer and
//! reader, one line each:
//!
//! | line | written by | read by |
//! | --- | --- | --- |
//! | [`Inbox`] | initiators | its CPU |
//! | [`Acks`] | its CPU | initiators that wait |
//! | [`Published`] | its CPU, rarely | initiators that choose targets |
//! | [`Private`] and the slots | its CPU | its CPU |
//! | the outbox | its CPU | its targets, when requests are not inlined |

use crate::hardware::{Hardware, Word};
use crate::stats::CpuStats;
use crate::tags::{RunningTag, Slot};

/// A request, spread over words. Seven of them, so that it shares a line with the inbox's state.
#[repr(C)]
pub(crate) struct Letter<W> {
    /// The id of the space, or [`ANY_SPACE`].
    pub(crate) space: W,
    /// The first and the last flush generation that the ranges cover.
    pub(crate) first: W,
    pub(crate) last: W,
    /// The number of ranges and the flags below.
    pub(crate) meta: W,
    pub(crate) ranges: [W; crate::request::RANGES],
}

/// Whatever is loaded must be flushed whole.
pub(crate) const ANY_SPACE: u64 = 0;
pub(crate) const META_COUNT: u64 = 0b11;
pub(crate) const META_FULL: u64 = 1 << 2;
pub(crate) const META_TABLES: u64 = 1 << 3;
/// The letter is not here: the initiator whose number stands above [`META_SENDER_SHIFT`] has it.
pub(crate) const META_ELSEWHERE: u64 = 1 << 4;
pub(crate) const META_SENDER_SHIFT: u32 = 16;

impl<W: Word> Letter<W> {
    fn new() -> Self {
        Letter {
            space: W::new(0),
            first: W::new(0),
            last: W::new(0),
            meta: W::new(0),
            ranges: core::array::from_fn(|_| W::new(0)),
        }
    }
}

/// Where initiators put requests for a CPU: one line, one pending request, into which later ones
/// merge.
#[repr(C, align(64))]
pub(crate) struct Inbox<W> {
    /// The number of requests posted so far, above the flags of [`crate::shootdown`].
    pub(crate) state: W,
    pub(crate) letter: Letter<W>,
}

/// How far a CPU has got with its inbox. Both only grow, and `done <= received <= posted`.
#[repr(align(64))]
pub(crate) struct Acks<W> {
    /// The CPU has taken every request up to this number; it will flush before it runs user code.
    pub(crate) received: W,
    /// The CPU has flushed every request up to this number.
    pub(crate) done: W,
}

/// What an initiator must know of a CPU to decide whether to interrupt it.
#[repr(align(64))]
pub(crate) struct Published<W> {
    /// One of the constants below.
    pub(crate) state: W,
    /// The flush clock as it was before the tag that is loaded was last flushed whole.
    pub(crate) flushed_at: W,
}

/// The CPU runs, or is about to run, user code of the space that it has loaded.
pub(crate) const RUNNING: u64 = 0;
/// The CPU is idle or runs a kernel thread; a root is loaded, its user half is not used.
pub(crate) const LAZY: u64 = 1;
/// The CPU has no user root loaded.
pub(crate) const LEFT: u64 = 2;

/// The CPU comes back to the space that it had left alone. To others that is [`RUNNING`]; NMI handlers may
/// not access user memory yet, because what the TLB holds may have been flushed everywhere else.
pub(crate) const WAKING: u64 = 3;

/// What only the CPU itself looks at.
#[repr(align(64))]
pub(crate) struct Private<W> {
    /// The id of the space that is loaded; [`NOTHING`] or [`SWITCHING`].
    pub(crate) space: W,
    /// The tag that it is loaded under.
    pub(crate) tag: W,
    /// The index of its slot.
    pub(crate) slot: W,
    /// The slot to take over next.
    pub(crate) victim: W,
}

/// No user space is loaded.
pub(crate) const NOTHING: u64 = 0;
/// Between two spaces: neither may be accessed.
pub(crate) const SWITCHING: u64 = u64::MAX;

/// How many slots a CPU has without being given memory for more: Linux's six, and two to spare.
pub const INLINE_SLOTS: usize = 8;

enum Slots<'m, H: Hardware> {
    Inline([Slot<H>; INLINE_SLOTS]),
    Given(&'m [Slot<H>]),
}

/// The engine's state for one CPU. The embedder provides one for each, for as long as the engine
/// lives, and touches nothing in it.
pub struct PerCpu<'m, H: Hardware> {
    pub(crate) inbox: Inbox<H::Word>,
    pub(crate) acks: Acks<H::Word>,
    pub(crate) published: Published<H::Word>,
    pub(crate) private: Private<H::Word>,
    pub(crate) outbox: Inbox<H::Word>,
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

    /// State for a CPU with one tag for each of `slots`: for [`TagPolicy::All`](crate::TagPolicy).
    pub fn with_slots(slots: &'m [Slot<H>]) -> Self {
        Self::with(Slots::Given(slots))
    }

    fn with(slots: Slots<'m, H>) -> Self {
        let word = H::Word::new;
        PerCpu {
            inbox: Inbox {
                state: word(0),
                letter: Letter::new(),
            },
            acks: Acks {
                received: word(0),
                done: word(0),
            },
            published: Published {
                state: word(LEFT),
                flushed_at: word(0),
            },
            private: Private {
                space: word(NOTHING),
                tag: word(0),
                slot: word(0),
                victim: word(0),
            },
            outbox: Inbox {
                state: word(0),
                letter: Letter::new(),
            },
            running: RunningTag::new(),
            stats: CpuStats::new(),
            slots,
        }
    }

    /// The name of the word at this address, if it is one of this CPU's: for whoever shows people
    /// what the engine does, word by word.
    #[doc(hidden)]
    pub fn word_name(&self, address: usize) -> Option<&'static str> {
        let names: [(&H::Word, &'static str); 24] = [
            (&self.inbox.state, "inbox.state"),
            (&self.inbox.letter.space, "inbox.space"),
            (&self.inbox.letter.first, "inbox.first"),
            (&self.inbox.letter.last, "inbox.last"),
            (&self.inbox.letter.meta, "inbox.meta"),
            (&self.inbox.letter.ranges[0], "inbox.range0"),
            (&self.inbox.letter.ranges[1], "inbox.range1"),
            (&self.inbox.letter.ranges[2], "inbox.range2"),
            (&self.acks.received, "received"),
            (&self.acks.done, "done"),
            (&self.published.state, "state"),
            (&self.published.flushed_at, "flushed_at"),
            (&self.private.space, "space"),
            (&self.private.tag, "tag"),
            (&self.private.slot, "slot"),
            (&self.private.victim, "victim"),
            (&self.outbox.letter.space, "outbox.space"),
            (&self.outbox.letter.first, "outbox.first"),
            (&self.outbox.letter.last, "outbox.last"),
            (&self.outbox.letter.meta, "outbox.meta"),
            (&self.outbox.letter.ranges[0], "outbox.range0"),
            (&self.running.active, "running.active"),
            (&self.running.reserved, "running.reserved"),
            (&self.running.flush_pending, "running.flush_pending"),
        ];
        let named = names
            .into_iter()
            .find(|(word, _)| core::ptr::from_ref(*word) as usize == address);
        let slots = || {
            let slot = |slot: &&Slot<H>| {
                [&slot.space, &slot.generation, &slot.flushed_at]
                    .map(|word| core::ptr::from_ref(word) as usize)
                    .contains(&address)
            };
            self.slots().iter().find(slot).map(|_| "slots[..]")
        };
        named.map(|(_, name)| name).or_else(slots)
    }

    pub(crate) fn slots(&self) -> &[Slot<H>] {
        match &self.slots {
            Slots::Inline(slots) => slots,
            Slots::Given(slots) => slots,
        }
    }
}
