//! The ledger of lazy unmap: the flush clock and the deferred flushes.
//!
//! All words of the ledger are here; [`lazy`](crate::lazy) explains their use. A stamp, taken from the clock, names a
//! deferred flush. Its *ledger entry*, one of a ring that the embedder provides, lists the CPUs that may hold the
//! translations.
//!
//! | state | meaning | next state |
//! | --- | --- | --- |
//! | written(s) | the CPU that took stamp `s` has taken the entry and fills it in | deferred(s), by that CPU alone |
//! | deferred(s) | the deferred flush is published: of kernel mappings only, or of user spaces only | flushed(s), by any CPU that makes it |
//! | flushed(s) | no CPU holds the translations any more | written(s'), by a CPU with a later stamp |

use crate::cpu_set::{AtomicCpuSet, CpuSet};
use crate::hardware::Hardware;
use crate::word::Word;
use core::ops::RangeInclusive;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Names a deferred flush by its time on the flush clock.
///
/// The [flush clock](crate::lazy#the-flush-clock) ticks once for each flush that [lazy unmap](crate::lazy) defers.
/// [`DeferredFrames::stamp`](crate::DeferredFrames::stamp) returns the stamp of a batch.
/// [`DeferredFlush::defer`](crate::DeferredFlush::defer) and [`Engine::flush_until`](crate::Engine::flush_until) take
/// one. Later deferred flushes have greater stamps.
///
/// # Examples
///
/// ```
/// # quell::one_cpu!(machine, engine, space);
/// use quell::{Frame, Outcome, Page, PageRange, Purpose};
/// machine.access(Page(5));
/// let mut batch = engine.batch(Purpose::Lazy);
/// batch.unmapped(&space, PageRange::base(Page(5), 1), Frame(42));
/// let Outcome::Deferred(frames) = batch.finish_deferred() else { panic!() };
/// let stamp = frames.stamp();
/// # drop(frames);
/// engine.flush_until(stamp); // this deferred flush, and all earlier ones
/// assert!(!machine.caches(Page(5)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stamp(pub(crate) u64);

/// Records one deferred flush: the CPUs that may need it, and whether it was made.
///
/// The kernel lends a slice of these to [`Engine::new`](crate::Engine::new), for [lazy unmap](crate::lazy). Each lets
/// one [`Batch`](crate::Batch) defer its flush.
///
/// # Examples
///
/// ```
/// # use quell::example::OneCpu;
/// use quell::{Engine, EngineError, LedgerEntry, PerCpuData, Policy};
/// # let machine = OneCpu::default();
/// let (cpus, others) = ([PerCpuData::new()], [PerCpuData::new()]);
/// let ledger = [(); 64].map(|()| LedgerEntry::new()); // for 64 deferred flushes
/// let engine = Engine::new(&machine, &cpus, &ledger, Policy::ALL)?;
/// // No other engine may have it.
/// let second = Engine::new(&machine, &others, &ledger, Policy::ALL);
/// assert_eq!(second.err(), Some(EngineError::LedgerInUse));
/// # Ok::<(), EngineError>(())
/// ```
#[repr(align(64))]
pub struct LedgerEntry<H: Hardware> {
    /// A [`EntryState`].
    state: H::Word,
    cpus: AtomicCpuSet<H::Word>,
}

impl<H: Hardware> Default for LedgerEntry<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H: Hardware> LedgerEntry<H> {
    /// Makes a ledger entry that belongs to no engine and records no flush.
    ///
    /// The first engine that gets the entry keeps it for ever. No other engine accepts it, even after the first engine
    /// is dropped.
    pub fn new() -> Self {
        LedgerEntry { state: H::Word::new(EntryState::FRESH.0), cpus: AtomicCpuSet::new() }
    }
}

/// The stamp of a ledger entry, and its progress: written, deferred, flushed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct EntryState(u64);

impl EntryState {
    /// The entry belongs to no engine. No stamp is 0.
    const FRESH: EntryState = EntryState::written(0);

    const WRITTEN: u64 = 0;
    const DEFERRED: u64 = 1;
    const FLUSHED: u64 = 2;
    const DEFERRED_OF_KERNEL: u64 = 3;

    const fn written(stamp: u64) -> EntryState {
        EntryState(stamp << 2 | EntryState::WRITTEN)
    }
    const fn deferred(stamp: u64, kernel: bool) -> EntryState {
        let deferred = if kernel { EntryState::DEFERRED_OF_KERNEL } else { EntryState::DEFERRED };
        EntryState(stamp << 2 | deferred)
    }
    const fn flushed(stamp: u64) -> EntryState {
        EntryState(stamp << 2 | EntryState::FLUSHED)
    }
    const fn stamp(self) -> u64 {
        self.0 >> 2
    }
    const fn is_deferred(self) -> bool {
        // Both "deferred" states have the lowest bit.
        self.0 & EntryState::DEFERRED != 0
    }
    const fn is_of_kernel(self) -> bool {
        self.0 & 3 == EntryState::DEFERRED_OF_KERNEL
    }
    const fn is_flushed(self) -> bool {
        self.0 & 3 == EntryState::FLUSHED
    }
}

/// The deferred flush in a ledger entry.
pub(crate) struct Deferral {
    pub(crate) stamp: u64,
    /// The CPUs that may hold the translations.
    pub(crate) cpus: CpuSet,
    /// Set if it covers kernel mappings. If so, it covers no user space.
    pub(crate) kernel: bool,
}

#[repr(align(64))]
struct Line<W>(W);

/// The flush clock and the deferred flushes.
pub(crate) struct Ledger<'m, H: Hardware> {
    /// Ticks once for each deferred flush. CPUs that defer write it; CPUs that flush read it.
    clock: Line<H::Word>,
    /// Every deferred flush up to this stamp was made. So for most frames one load is enough. Later ones may have been
    /// made, too: their ledger entries record it.
    flushed_up_to: Line<H::Word>,
    entries: &'m [LedgerEntry<H>],
}

impl<'m, H: Hardware> Ledger<'m, H> {
    /// Makes a ledger of these entries. Returns `None` if another engine has one of them.
    ///
    /// That engine would make this one's deferred flushes, on its own CPUs.
    pub(crate) fn new(entries: &'m [LedgerEntry<H>]) -> Option<Self> {
        let (fresh, mine) = (EntryState::FRESH.0, EntryState::flushed(0).0);
        let is_taken = |entry: &LedgerEntry<H>| {
            // Relaxed: one of two engines takes the entry, and the word publishes nothing else.
            let taken = entry.state.compare_exchange(fresh, mine, Relaxed, Relaxed);
            taken.is_err()
        };
        if let Some(foreign) = entries.iter().position(is_taken) {
            // Relaxed, as above. If another engine found them taken meanwhile, it was refused, and may try again.
            let unused = entries[..foreign].iter();
            unused.for_each(|entry| entry.state.store(fresh, Relaxed));
            return None;
        }
        Some(Ledger {
            clock: Line(H::Word::new(0)),
            // Without entries we never defer, so every stamp counts as flushed and no entry is read.
            flushed_up_to: Line(H::Word::new(if entries.is_empty() { u64::MAX } else { 0 })),
            entries,
        })
    }

    /// Returns the time of the clock. Without lazy unmap no flush is ever deferred, and the clock doesn't tick.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        if !H::MECHANISMS.lazy_unmap {
            return 0;
        }
        // Acquire pairs with `tick`: the flush that follows walks the tables as they were when the clock ticked.
        // A weaker ordering fails the loom race "a deferred flush against a flush".
        self.clock.0.load(Acquire)
    }

    fn entry(&self, stamp: u64) -> &LedgerEntry<H> {
        &self.entries[(stamp % self.entries.len() as u64) as usize]
    }

    /// Returns whether every deferred flush up to `stamp` was made. If so, this CPU sees those flushes done.
    #[inline]
    pub(crate) fn is_flushed_up_to(&self, stamp: u64) -> bool {
        if !H::MECHANISMS.lazy_unmap {
            return true;
        }
        // Acquire pairs with `advance_flushed_up_to`: a CPU that finds the stamp covered sees the flushes done.
        // A weaker ordering fails the loom race "a refill against a reuse".
        stamp <= self.flushed_up_to.0.load(Acquire)
    }

    /// Returns whether the deferred flush of `stamp` was made. An older one may still be deferred.
    #[inline]
    pub(crate) fn is_flushed(&self, stamp: u64) -> bool {
        self.is_flushed_up_to(stamp) || self.is_flushed_alone(stamp)
    }

    #[inline]
    fn is_flushed_alone(&self, stamp: u64) -> bool {
        // Acquire pairs with `mark_flushed`: a CPU that finds the entry marked sees the flushes done. We give an entry
        // to a later stamp only after its last deferred flush was made.
        // A weaker ordering fails the loom race "a refill against a reuse".
        let state = EntryState(self.entry(stamp).state.load(Acquire));
        state.stamp() > stamp || state == EntryState::flushed(stamp)
    }

    /// Takes the ledger entry of a stamp from the clock. Returns `false` if a deferred flush still occupies it.
    ///
    /// In that case the stamp is void: no flush will ever be deferred as of this stamp.
    pub(crate) fn take_entry(&self, stamp: u64) -> bool {
        let word = &self.entry(stamp).state;
        // Relaxed: the exchange below compares the value again.
        let held = EntryState(word.load(Relaxed));
        held.is_flushed()
            && held.stamp() < stamp
            && word
                // Acquire pairs with `mark_flushed`: the deferred flush that was in the entry is done.
                // A weaker ordering fails the loom race "a reuse of what another CPU has flushed, in a ledger that is
                // used again".
                .compare_exchange(held.0, EntryState::written(stamp).0, Acquire, Relaxed)
                .is_ok()
    }

    /// Publishes a deferred flush: the CPUs that it concerns, and whether it covers the kernel.
    ///
    /// Its spaces have the stamp already. No other CPU writes the ledger entry, which belongs to this stamp until the
    /// deferred flush is made.
    pub(crate) fn record(&self, stamp: u64, count: usize, cpus: &CpuSet, kernel: bool) {
        let entry = self.entry(stamp);
        // Release pairs with the fence in `deferred_at`: a CPU that reads any CPU of the new set finds another stamp in
        // its second read of the state. Otherwise it could flush the wrong CPUs.
        // A weaker ordering fails the loom race "a reuse while the ledger is used again".
        H::Word::fence(Release);
        entry.cpus.assign(count, cpus, Relaxed);
        // Release pairs with the first load in `deferred_at`: a CPU that sees the deferred flush sees its CPUs, and its
        // spaces have the stamp already.
        // A weaker ordering fails the loom race "the background flushes while a flush is deferred".
        entry.state.store(EntryState::deferred(stamp, kernel).0, Release);
    }

    /// Returns whether the deferred flush as of `stamp` covers kernel mappings.
    ///
    /// This CPU has acquired the flush.
    pub(crate) fn is_of_kernel(&self, stamp: u64) -> bool {
        let state = EntryState(self.entry(stamp).state.load(Relaxed));
        state.stamp() == stamp && state.is_of_kernel()
    }

    /// Returns the published deferred flush in the ledger entry of `stamp`, if there is one.
    ///
    /// Its own stamp may differ.
    pub(crate) fn deferred_at(&self, stamp: u64, count: usize) -> Option<Deferral> {
        let entry = self.entry(stamp);
        loop {
            // Acquire pairs with `record`: we read the deferred flush's CPUs as they were published, and its spaces
            // have the stamp.
            // A weaker ordering fails the loom race "the background flushes while a flush is deferred".
            let state = EntryState(entry.state.load(Acquire));
            if !state.is_deferred() {
                return None;
            }
            let cpus = entry.cpus.snapshot(count, Relaxed);
            // Acquire pairs with the fence in `record`: if any of these CPUs belongs to a newer deferred flush, the
            // stamp read below differs.
            // A weaker ordering fails the loom race "a reuse while the ledger is used again".
            H::Word::fence(Acquire);
            if entry.state.load(Relaxed) == state.0 {
                return Some(Deferral { stamp: state.stamp(), cpus, kernel: state.is_of_kernel() });
            }
        }
    }

    /// Marks the deferred flush of `stamp` as made. `kernel` is set if it covers kernel mappings.
    pub(crate) fn mark_flushed(&self, stamp: u64, kernel: bool) {
        let word = &self.entry(stamp).state;
        // Release pairs with `is_flushed_alone` and `take_entry`: a CPU that finds the entry marked sees the flushes
        // done.
        // A weaker ordering fails the loom race "a refill against a reuse".
        let deferred = EntryState::deferred(stamp, kernel).0;
        let _ = word.compare_exchange(deferred, EntryState::flushed(stamp).0, Release, Relaxed);
    }

    /// Advances the stamp up to which every deferred flush was made.
    pub(crate) fn advance_flushed_up_to(&self) {
        let before = self.flushed_up_to.0.load(Relaxed);
        let now = self.clock.0.load(Relaxed);
        let mut flushed = before;
        while flushed < now && self.is_flushed_alone(flushed + 1) {
            flushed += 1;
        }
        if flushed > before {
            // Release pairs with `is_flushed_up_to` and `unflushed`: a CPU that finds a stamp covered sees the flushes
            // done. That includes flushes of other CPUs: this CPU has acquired them above, or those CPUs' updates of
            // this word come before this one.
            // A weaker ordering fails the loom race "a refill against a reuse".
            self.flushed_up_to.0.fetch_max(flushed, Release);
        }
    }

    /// Returns the number of flushes that can be deferred at once.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// Ticks the clock and returns its new time.
    pub(crate) fn tick(&self) -> u64 {
        // Release pairs with `now`: a CPU that reads this time or a later one flushes every entry cleared before the
        // tick.
        // A weaker ordering fails the loom race "a deferred flush against a flush".
        self.clock.0.fetch_add(1, Release) + 1
    }

    /// Returns the time of the clock that this CPU has seen.
    ///
    /// It's no older than any deferred flush that this CPU has acquired.
    #[inline]
    pub(crate) fn seen(&self) -> u64 {
        self.clock.0.load(Relaxed)
    }

    /// Returns the stamp that still occupies the ledger entry of `stamp`, if it is published.
    pub(crate) fn in_the_way_of(&self, stamp: u64, count: usize) -> Option<u64> {
        self.deferred_at(stamp, count).map(|deferral| deferral.stamp)
    }

    /// Returns the stamps whose flushes may still be deferred, the oldest first.
    ///
    /// If another CPU was faster, the ledger entry of such a stamp may hold a later deferred flush, but never an
    /// earlier one.
    pub(crate) fn unflushed(&self) -> RangeInclusive<u64> {
        // Acquire pairs with `advance_flushed_up_to`: a CPU that finds no deferred flush left relies on flushes that
        // other CPUs made.
        // A weaker ordering fails the loom race "a refill against a reuse".
        let flushed = self.flushed_up_to.0.load(Acquire);
        // Stamps beyond the ledger's capacity share their entries with earlier ones.
        let reach = flushed.saturating_add(self.entries.len() as u64);
        flushed + 1..=self.seen().min(reach)
    }
}
