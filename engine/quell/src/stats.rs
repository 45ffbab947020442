//! Counters of each CPU: the number of times that the engine did something, by reason.
//!
//! Statistics aren't part of the protocol. Only its own CPU writes a counter, with plain loads and stores, and any CPU
//! may read it at any time. So a sum doesn't show a single moment. Counters bypass
//! [`Hardware::Word`](crate::Hardware::Word): the machine in software neither charges for them nor reorders them.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident = $label:literal,)*) => {
        /// Names an event that the engine counts on each CPU.
        ///
        /// [`Stats::get`] returns its count. The [`meaning`](Counter::meaning) of a counter is its documentation below.
        ///
        /// # Examples
        ///
        /// ```
        /// use quell::Counter;
        /// let named = |name: &str| Counter::ALL.iter().find(|counter| counter.label() == name);
        /// assert_eq!(named("sent"), Some(&Counter::Sent));
        /// ```
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(usize)]
        pub enum Counter { $($(#[doc = $doc])+ $name,)* }

        impl Counter {
            /// Every counter.
            pub const ALL: &'static [Counter] = &[$(Counter::$name,)*];
            /// Returns the name of the counter in reports.
            pub const fn label(self) -> &'static str {
                match self { $(Counter::$name => $label,)* }
            }
            /// Describes the event in a sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(Counter::$name => concat!($($doc,)+),)* }
            }
        }
    };
}

counters! {
    /// Flushes requested because entries changed.
    Requested = "requested",
    /// Shootdowns that interrupted at least one CPU.
    Shootdowns = "shootdowns",
    /// Interrupts sent.
    Sent = "sent",
    /// Requests posted to a CPU for which an interrupt was already under way.
    Merged = "merged",
    /// Targets skipped because they are lazy, or will flush when they enter the kernel.
    SkippedLazy = "skipped_lazy",
    /// Targets skipped because they have left the space.
    SkippedLeft = "skipped_left",
    /// Targets skipped because they are offline.
    SkippedOffline = "skipped_offline",
    /// Flushes that had no target besides the initiator.
    SkippedNoTarget = "skipped_no_target",
    /// Requests taken for a space that the CPU no longer runs.
    IgnoredOtherSpace = "ignored_other_space",
    /// Requests taken although an earlier flush had already covered them.
    IgnoredGeneration = "ignored_generation",
    /// Lazy CPUs that left their space because of a request.
    Evicted = "evicted",
    /// Requests whose ranges were invalidated stride by stride.
    FlushedRanges = "flushed_ranges",
    /// Flushes of a whole tag.
    FlushedFull = "flushed_full",
    /// Requests that became a flush of a whole tag because their ranges had too many strides.
    EscalatedLength = "escalated_length",
    /// Requests that became a flush of a whole tag because two initiators met at a target.
    EscalatedContention = "escalated_contention",
    /// Requests that became a flush of a whole tag because the target had missed an earlier request.
    EscalatedGap = "escalated_gap",
    /// Changes that fit into no batch: it had too many spaces, or the space too many batches.
    EscalatedBatch = "escalated_batch",
    /// Waits for a target's acknowledgement.
    Waited = "waited",
    /// Waits for a receipt only. They are also counted as `waited`.
    WaitedReceipt = "waited_receipt",
    /// Requests served before their interrupt arrived: in a wait, or by an earlier interrupt.
    ServedEarly = "served_early",
    /// Broadcast invalidations sent.
    Broadcasts = "broadcasts",
    /// Waits for the completion of broadcasts.
    Barriers = "barriers",
    /// Context switches.
    Switches = "switches",
    /// Switches that kept the space's TLB entries.
    SwitchKept = "switch_kept",
    /// Switches and returns from lazy mode that had to flush because the space had changed.
    SwitchBehind = "switch_behind",
    /// Switches that took a tag over from another space.
    SwitchTagTaken = "switch_tag_taken",
    /// System-wide tag rollovers.
    Rollovers = "rollovers",
    /// Batches whose flush was deferred until reuse.
    FlushesDeferred = "flushes_deferred",
    /// Batches whose flush could not be deferred because the ledger was full.
    DeferralsRefused = "deferrals_refused",
    /// Reused frames whose deferred flush had already been made by other flushes.
    ReusedFree = "reused_free",
    /// Deferred flushes made before a frame was reused.
    FlushedForReuse = "flushed_for_reuse",
    /// Deferred flushes made before an entry or a slot was filled again.
    FlushedForRefill = "flushed_for_refill",
    /// Flushes made for a later observer that found a cleared entry.
    FlushedPending = "flushed_pending",
    /// Deferred flushes made by a CPU that switched to the space or left lazy mode.
    FlushedBySwitch = "flushed_by_switch",
    /// Deferred flushes made in the background.
    FlushedInBackground = "flushed_in_background",
    /// CPUs that had already flushed when a deferred flush was made.
    FoundFlushed = "found_flushed",
    /// Flushes by which a CPU caught up with the flush clock before an initiator sent it a request.
    CaughtUp = "caught_up",
    /// Frames reinstated for the page that they belonged to.
    Reinstated = "reinstated",
    /// Targets skipped because they are virtual CPUs that are not running.
    SkippedNotRunning = "skipped_not_running",
    /// Full flushes that a task shared instead of making its own.
    Coalesced = "coalesced",
}

const COUNTERS: usize = Counter::ALL.len();

/// Holds the counters of one CPU, or their sums over several CPUs.
///
/// Returned by [`Engine::stats`](crate::Engine::stats) and [`Engine::cpu_stats`](crate::Engine::cpu_stats). The numbers
/// are statistics: an interrupt may lose a count, and CPUs go on counting while a sum is made.
///
/// # Examples
///
/// ```
/// # quell::one_cpu!(machine, engine, space);
/// use quell::{Counter, Page, PageRange, Scope};
/// let before = engine.stats();
/// engine.this_cpu().flush(&space, Some(PageRange::base(Page(5), 1)), Scope::Leaf);
/// let made = engine.stats().since(&before);
/// assert_eq!(made.get(Counter::Requested), 1);
/// assert_eq!(made.get(Counter::Sent), 0); // there is no CPU to interrupt
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    counts: [u64; COUNTERS],
}

impl Default for Stats {
    fn default() -> Self {
        Stats { counts: [0; COUNTERS] }
    }
}

/// Prints the counters that aren't zero, by name.
impl fmt::Debug for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = self.iter().filter(|&(_, count)| count != 0);
        f.debug_map().entries(counted).finish()
    }
}

impl Stats {
    /// Returns the value of one counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counts[counter as usize]
    }
    /// Iterates over all counters with their values.
    pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> + '_ {
        Counter::ALL.iter().map(|&counter| (counter, self.get(counter)))
    }
    /// Adds the counters of another CPU. Numbers wrap around.
    pub fn add(&mut self, other: &Stats) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.wrapping_add(*theirs);
        }
    }
    /// Returns the counts since `earlier`, an older value of the same counters.
    pub fn since(&self, earlier: &Stats) -> Stats {
        let mut delta = *self;
        for (now, then) in delta.counts.iter_mut().zip(&earlier.counts) {
            *now = now.wrapping_sub(*then);
        }
        delta
    }
}

/// The counters that one CPU writes.
#[repr(align(64))]
pub(crate) struct CpuStats {
    counts: [AtomicU64; COUNTERS],
}

impl CpuStats {
    pub(crate) fn new() -> Self {
        CpuStats { counts: [const { AtomicU64::new(0) }; COUNTERS] }
    }

    /// Adds `amount` to a counter. Only the owning CPU calls this.
    ///
    /// An interrupt between load and store may lose a count. We accept that for a counter that costs two plain moves.
    #[inline]
    pub(crate) fn add(&self, counter: Counter, amount: u64) {
        let count = &self.counts[counter as usize];
        count.store(count.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Stats {
        let mut stats = Stats::default();
        for (value, count) in stats.counts.iter_mut().zip(&self.counts) {
            *value = count.load(Ordering::Relaxed);
        }
        stats
    }
}
