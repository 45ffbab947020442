//! The ledger of lazy unmap (S3): the flush clock, and the flushes that are deferred since its ticks.
//!
//! All of its words are here; [`lazy`](crate::lazy) says what they are for. A deferred flush is a stamp, taken from
//! the clock. Its *ledger entry*, one of a ring that the embedder provides, remembers the CPUs that may hold the
//! translations.
//!
//! | ledger entry | meaning | next |
//! | --- | --- | --- |
//! | written(s) | the CPU that defers with stamp `s` has taken it and fills it in | deferred(s), by that CPU that defers alone |
//! | deferred(s) | the deferred flush is published; of the kernel's mappings, or of user spaces alone | paid(s), by any payer |
//! | paid(s) | no CPU holds what the deferred flush was about | written(s'), by the CPU that defers with a later stamp |

use crate::cpu_set::{AtomicCpuSet, CpuSet};
use crate::hardware::Hardware;
use crate::word::Word;
use core::ops::RangeInclusive;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A tick of the flush clock at which a flush began to be deferred.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stamp(pub(crate) u64);

/// The memory of one tick: which CPUs had an with a deferred flush space loaded, and whether the deferred flush is
/// made.
#[repr(align(64))]
pub struct LedgerEntry<H: Hardware> {
    /// A [`State`].
    state: H::Word,
    cpus: AtomicCpuSet<H::Word>,
}

impl<H: Hardware> Default for LedgerEntry<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H: Hardware> LedgerEntry<H> {
    /// A ledger entry that belongs to no engine and no stamp. The first engine that gets it keeps it for ever: no other
    /// engine accepts it, even when the first one is gone.
    pub fn new() -> Self {
        LedgerEntry {
            state: H::Word::new(State::FRESH.0),
            cpus: AtomicCpuSet::new(),
        }
    }
}

/// The stamp that a ledger entry belongs to, and how far its deferred flush has got: being written, deferred, paid.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State(u64);

impl State {
    /// No engine has it; no stamp is 0.
    const FRESH: State = State::written(0);

    const WRITTEN: u64 = 0;
    const OWED: u64 = 1;
    const PAID: u64 = 2;
    const DEFERRED_OF_KERNEL: u64 = 3;

    const fn written(stamp: u64) -> State {
        State(stamp << 2 | State::WRITTEN)
    }
    const fn deferred(stamp: u64, kernel: bool) -> State {
        let deferred = if kernel {
            State::DEFERRED_OF_KERNEL
        } else {
            State::OWED
        };
        State(stamp << 2 | deferred)
    }
    const fn paid(stamp: u64) -> State {
        State(stamp << 2 | State::PAID)
    }
    const fn stamp(self) -> u64 {
        self.0 >> 2
    }
    const fn is_deferred(self) -> bool {
        // Both have the lowest bit.
        self.0 & State::OWED != 0
    }
    const fn is_of_kernel(self) -> bool {
        self.0 & 3 == State::DEFERRED_OF_KERNEL
    }
    const fn is_flushed(self) -> bool {
        self.0 & 3 == State::PAID
    }
}

/// The deferred flush in a ledger entry.
pub(crate) struct Deferral {
    pub(crate) stamp: u64,
    /// The CPUs that could hold what it is about.
    pub(crate) cpus: CpuSet,
    /// Whether it is about mappings of the kernel; those of user spaces are not among it then.
    pub(crate) kernel: bool,
}

#[repr(align(64))]
struct Line<W>(W);

/// The flush clock and what it defers.
pub(crate) struct Ledger<'m, H: Hardware> {
    /// Ticks once for each deferred flush. Written by CPUs that defer, read by CPUs that flush.
    clock: Line<H::Word>,
    /// Every deferred flush up to this stamp is paid, so that one load answers for most frames. Deferred flushes
    /// beyond it may be paid, too: their ledger entries say so.
    flushed_up_to: Line<H::Word>,
    entries: &'m [LedgerEntry<H>],
}

impl<'m, H: Hardware> Ledger<'m, H> {
    /// `None` if another engine has one of the entries: it would pay this one's deferred flushes, on its own CPUs.
    pub(crate) fn new(entries: &'m [LedgerEntry<H>]) -> Option<Self> {
        let (fresh, mine) = (State::FRESH.0, State::paid(0).0);
        let is_taken = |entry: &LedgerEntry<H>| {
            // Relaxed: one of two engines takes it, and nothing else is said.
            let taken = entry.state.compare_exchange(fresh, mine, Relaxed, Relaxed);
            taken.is_err()
        };
        if let Some(foreign) = entries.iter().position(is_taken) {
            // Relaxed: as they were taken. Whoever met them meanwhile was refused, and may ask again.
            let unused = entries[..foreign].iter();
            unused.for_each(|entry| entry.state.store(fresh, Relaxed));
            return None;
        }
        Some(Ledger {
            clock: Line(H::Word::new(0)),
            // Where nothing is ever deferred, whatever is asked for is paid: no ledger entry is looked for.
            flushed_up_to: Line(H::Word::new(if entries.is_empty() { u64::MAX } else { 0 })),
            entries,
        })
    }

    /// The time that the clock shows. Where S3 is left out no flush is ever deferred, and the clock stands still.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        if !H::MECHANISMS.lazy_unmap {
            return 0;
        }
        // Acquire pairs with `tick`: the flush that follows walks the tables as they were when the clock
        // ticked.
        // Lost without it: a deferred flush against a flush.
        self.clock.0.load(Acquire)
    }

    fn entry(&self, stamp: u64) -> &LedgerEntry<H> {
        &self.entries[(stamp % self.entries.len() as u64) as usize]
    }

    /// Whether every deferred flush up to `stamp` is paid. A CPU that finds it so sees the flushes done.
    #[inline]
    pub(crate) fn is_flushed_up_to(&self, stamp: u64) -> bool {
        if !H::MECHANISMS.lazy_unmap {
            return true;
        }
        // Acquire pairs with `advance_flushed_up_to`: a CPU that finds the deferred flush paid sees the flushes done.
        // Lost without it: a refill against a reuse.
        stamp <= self.flushed_up_to.0.load(Acquire)
    }

    /// Whether the deferred flush of `stamp` is paid; an older one may still be deferred.
    #[inline]
    pub(crate) fn is_flushed(&self, stamp: u64) -> bool {
        self.is_flushed_up_to(stamp) || self.is_paid_alone(stamp)
    }

    #[inline]
    fn is_paid_alone(&self, stamp: u64) -> bool {
        // Acquire pairs with `pay_off`: a CPU that finds the deferred flush paid sees the flushes done. A ledger entry
        // is given to a later stamp only after its last deferred flush was made.
        // Lost without it: a refill against a reuse.
        let state = State(self.entry(stamp).state.load(Acquire));
        state.stamp() > stamp || state == State::paid(stamp)
    }

    /// Takes the ledger entry of a stamp that the clock has given out; `false` if a deferred flush is still in it, and
    /// then the stamp is void: nothing will ever be deferred as of it.
    pub(crate) fn take_entry(&self, stamp: u64) -> bool {
        let word = &self.entry(stamp).state;
        // Relaxed: what it says is compared again below.
        let held = State(word.load(Relaxed));
        held.is_flushed()
            && held.stamp() < stamp
            && word
                // Acquire pairs with `pay_off`: the flushes for the deferred flush that was in the ledger entry are
                // done. Lost without it: a reuse of what another CPU has paid, in a ledger that is used again.
                .compare_exchange(held.0, State::written(stamp).0, Acquire, Relaxed)
                .is_ok()
    }

    /// Publishes a deferred flush: remembers what it is about. The spaces know of it already.
    ///
    /// No other CPU writes the ledger entry, which is this stamp's until the deferred flush is made.
    pub(crate) fn record(&self, stamp: u64, count: usize, cpus: &CpuSet, kernel: bool) {
        let entry = self.entry(stamp);
        // Release pairs with the fence in `deferred_at`: a payer that reads any CPU of the new set finds another
        // stamp in its second look.
        // Lost without it: a reuse while the ledger is used again.
        H::Word::fence(Release);
        entry.cpus.assign(count, cpus, Relaxed);
        // Release pairs with the first look in `deferred_at`: a payer that sees the deferred flush sees its CPUs, and
        // the spaces that were told of it before.
        // Lost without it: the background pays while a deferred flush is taken.
        entry.state.store(State::deferred(stamp, kernel).0, Release);
    }

    /// Whether the deferred flush as of `stamp`, a deferred flush that this CPU has acquired, is of the kernel's
    /// mappings.
    pub(crate) fn is_of_kernel(&self, stamp: u64) -> bool {
        let state = State(self.entry(stamp).state.load(Relaxed));
        state.stamp() == stamp && state.is_of_kernel()
    }

    /// The deferred flush that is deferred in the ledger entry of this stamp, of whatever stamp it is itself, and the
    /// CPUs that it is about; `None` if there is none, or none that is published.
    pub(crate) fn deferred_at(&self, stamp: u64, count: usize) -> Option<Deferral> {
        let entry = self.entry(stamp);
        loop {
            // Acquire pairs with `record`: the deferred flush's CPUs are read as they were published, and the spaces
            // know of it.
            // Lost without it: the background pays while a deferred flush is taken.
            let state = State(entry.state.load(Acquire));
            if !state.is_deferred() {
                return None;
            }
            let cpus = entry.cpus.snapshot(count, Relaxed);
            // Acquire pairs with the fence in `record`: if any of these CPUs belongs to a newer deferred flush, the
            // stamp read below is another.
            // Lost without it: a reuse while the ledger is used again.
            H::Word::fence(Acquire);
            if entry.state.load(Relaxed) == state.0 {
                return Some(Deferral {
                    stamp: state.stamp(),
                    cpus,
                    kernel: state.is_of_kernel(),
                });
            }
        }
    }

    /// The deferred flush of `stamp`, of the `kernel`'s mappings or not, is paid.
    pub(crate) fn pay_off(&self, stamp: u64, kernel: bool) {
        let word = &self.entry(stamp).state;
        // Release pairs with `is_paid_alone` and `take_entry`: a CPU that finds the deferred flush paid sees the
        // flushes done.
        // Lost without it: a refill against a reuse.
        let deferred = State::deferred(stamp, kernel).0;
        let _ = word.compare_exchange(deferred, State::paid(stamp).0, Release, Relaxed);
    }

    /// Moves the stamp up to which every deferred flush is made forward, over those whose deferred flushes are made
    /// since.
    pub(crate) fn advance_flushed_up_to(&self) {
        let before = self.flushed_up_to.0.load(Relaxed);
        let now = self.clock.0.load(Relaxed);
        let mut paid = before;
        while paid < now && self.is_paid_alone(paid + 1) {
            paid += 1;
        }
        if paid > before {
            // Release pairs with `is_flushed_up_to` and `unpaid`: a CPU that finds a deferred flush paid sees the
            // flushes done, those that others have paid for too: they were acquired here, or their own
            // updates of this word come before this one.
            // Lost without it: a refill against a reuse.
            self.flushed_up_to.0.fetch_max(paid, Release);
        }
    }

    /// How many deferred flushes can be deferred at once.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// The clock's next tick.
    pub(crate) fn tick(&self) -> u64 {
        // Release pairs with `now`: a CPU that finds the clock so late flushes what was cleared before.
        // Lost without it: a deferred flush against a flush.
        self.clock.0.fetch_add(1, Release) + 1
    }

    /// The time of the clock that this CPU has seen: no older than a deferred flush that it has acquired.
    #[inline]
    pub(crate) fn seen(&self) -> u64 {
        self.clock.0.load(Relaxed)
    }

    /// The deferred flush that stands in the way of `stamp`, if it is published.
    pub(crate) fn in_the_way_of(&self, stamp: u64, count: usize) -> Option<u64> {
        self.deferred_at(stamp, count)
            .map(|deferral| deferral.stamp)
    }

    /// The stamps of which something may be deferred, the oldest first.
    ///
    /// Where another payer is ahead of this CPU, the ledger entry of such a stamp may hold a later deferred flush, but
    /// never an earlier one.
    pub(crate) fn unpaid(&self) -> RangeInclusive<u64> {
        // Acquire pairs with `advance_flushed_up_to`: a payer that finds nothing outstanding relies on the flushes of
        // earlier payers.
        // Lost without it: a refill against a reuse.
        let paid = self.flushed_up_to.0.load(Acquire);
        // Stamps that are out of the ledger's reach share their ledger entries with later ones.
        let reach = paid.saturating_add(self.entries.len() as u64);
        paid + 1..=self.seen().min(reach)
    }
}
