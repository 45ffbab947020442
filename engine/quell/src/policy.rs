//! Policies: the mechanisms that are on.
//!
//! You can switch off every mechanism by itself, so each run has its own reference. With all of them off the engine
//! behaves like a simple kernel: one flush for each entry that reclaim removes, no tags, and this CPU flushes only
//! after it has waited for the remote ones. The contract holds under every policy; a policy changes only the cost.
//! `quell-conformance` reads and writes policies as text.

use core::fmt;

/// The five mechanisms, by their names in the README.
///
/// # Examples
///
/// ```
/// use quell::{Mechanism, Policy};
/// let policy = Policy::ALL.without(Mechanism::LazyUnmap);
/// let off = Mechanism::ALL.iter().find(|mechanism| !policy.has(**mechanism));
/// assert_eq!(off.unwrap().name(), "S3");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mechanism {
    /// S0: deferred, batched shootdown during reclaim and migration.
    Batch,
    /// S1: zeroing of whole extents.
    Extents,
    /// S2: tags keep TLB entries across context switches.
    Tags,
    /// S3: lazy unmap, which defers the flush until reuse.
    LazyUnmap,
    /// S4: concurrent and asynchronous remote flush.
    RemoteFlush,
}

impl Mechanism {
    /// All mechanisms, S0 first.
    pub const ALL: [Mechanism; 5] = [
        Mechanism::Batch,
        Mechanism::Extents,
        Mechanism::Tags,
        Mechanism::LazyUnmap,
        Mechanism::RemoteFlush,
    ];

    /// Returns the short name that policies use, from S0 to S4.
    pub const fn name(self) -> &'static str {
        match self {
            Mechanism::Batch => "S0",
            Mechanism::Extents => "S1",
            Mechanism::Tags => "S2",
            Mechanism::LazyUnmap => "S3",
            Mechanism::RemoteFlush => "S4",
        }
    }

    /// Returns the effect in one line.
    pub const fn title(self) -> &'static str {
        match self {
            Mechanism::Batch => "deferred, batched shootdown in reclaim and migration",
            Mechanism::Extents => "zeroing of whole extents instead of pages",
            Mechanism::Tags => "tags that keep TLB entries across context switches",
            Mechanism::LazyUnmap => {
                "lazy unmap: the flush of clean, read-only frames is deferred until they are reused"
            }
            Mechanism::RemoteFlush => "concurrent and asynchronous remote flush",
        }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The number of address spaces that a CPU keeps tagged (S2).
///
/// # Examples
///
/// ```
/// use quell::{Mechanism, Policy, TagPolicy};
/// // Each CPU keeps the entries of at most four spaces.
/// let policy = Policy { tags: TagPolicy::Slots(4), ..Policy::ALL };
/// assert!(policy.has(Mechanism::Tags));
/// let untagged = Policy { tags: TagPolicy::Off, ..Policy::ALL };
/// assert_eq!(untagged, Policy::ALL.without(Mechanism::Tags));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TagPolicy {
    /// No tags: every switch drops user entries.
    Off,
    /// At most this number, on machines with per-CPU tags. 0 is [`TagPolicy::Off`].
    ///
    /// Up to eight slots are taken over in turn; with more, the space's id selects the slot. On machines with
    /// system-wide tags any number except 0 means "on".
    Slots(u16),
    /// As many as the hardware has tags and [`PerCpu`](crate::PerCpu) has slots.
    All,
}

/// Selects which mechanisms are on.
///
/// # Examples
///
/// ```
/// use quell::{Mechanism, Policy};
/// let policy = Policy::ALL.without(Mechanism::LazyUnmap);
/// assert!(policy.batch && !policy.lazy_unmap);
/// assert_eq!(Policy::only(Mechanism::Batch).lacks(&policy), Some(Mechanism::Extents));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Policy {
    /// S0: flush a reclaim or migration batch once, at its end.
    ///
    /// If it's off, flush each time a lock is dropped ([`Batch::unlocked`](crate::Batch::unlocked)).
    pub batch: bool,
    /// S1: zero extents whole, up to a cap, instead of page by page. The memory manager passes it on to `quell-zero`.
    pub extents: bool,
    /// S1: the maximum number of bytes zeroed without a preemption point; `None` is no limit.
    ///
    /// The engine itself zeroes nothing. The embedder's zeroing reads this and [`extents`](Policy::extents).
    pub cap_bytes: Option<u64>,
    /// S2: the number of address spaces that keep their entries across switches.
    pub tags: TagPolicy,
    /// S3: defer the flush of clean, read-only frames until they are reused.
    pub lazy_unmap: bool,
    /// S4: flush here while the requests travel, then wait.
    pub concurrent: bool,
    /// S4: a target acknowledges a request when it has taken it, before it has flushed.
    ///
    /// Don't set it on a machine that requires break-before-make and invalidates by interrupts (Arm without
    /// broadcasts). There no TLB may hold the old translation any more when the next entry is written.
    pub asynchronous: bool,
    /// S4: the initiator writes the request into the line that the target reads, where it merges with others.
    pub inline_requests: bool,
}

/// The default of [`Policy::cap_bytes`]: the value that Linux merged for cooperative preemption.
const DEFAULT_CAP: u64 = 32 << 20;

impl Policy {
    /// Everything off, as in a simple kernel.
    pub const BASELINE: Policy = Policy {
        batch: false,
        extents: false,
        cap_bytes: Some(DEFAULT_CAP),
        tags: TagPolicy::Off,
        lazy_unmap: false,
        concurrent: false,
        asynchronous: false,
        inline_requests: false,
    };

    /// Everything on, six tag slots.
    pub const ALL: Policy = Policy {
        batch: true,
        extents: true,
        cap_bytes: Some(DEFAULT_CAP),
        tags: TagPolicy::Slots(6),
        lazy_unmap: true,
        concurrent: true,
        asynchronous: true,
        inline_requests: true,
    };

    /// Makes the baseline policy with one mechanism.
    pub const fn only(mechanism: Mechanism) -> Policy {
        Policy::BASELINE.with(mechanism)
    }

    /// Adds one mechanism.
    pub const fn with(mut self, mechanism: Mechanism) -> Policy {
        match mechanism {
            Mechanism::Batch => self.batch = true,
            Mechanism::Extents => self.extents = true,
            Mechanism::Tags => self.tags = Policy::ALL.tags,
            Mechanism::LazyUnmap => self.lazy_unmap = true,
            Mechanism::RemoteFlush => {
                self.concurrent = true;
                self.asynchronous = true;
                self.inline_requests = true;
            }
        }
        self
    }

    /// Removes one mechanism. `cap_bytes` stays, because it belongs to the kernel's preemption.
    pub const fn without(mut self, mechanism: Mechanism) -> Policy {
        match mechanism {
            Mechanism::Batch => self.batch = false,
            Mechanism::Extents => self.extents = false,
            Mechanism::Tags => self.tags = TagPolicy::Off,
            Mechanism::LazyUnmap => self.lazy_unmap = false,
            Mechanism::RemoteFlush => {
                self.concurrent = false;
                self.asynchronous = false;
                self.inline_requests = false;
            }
        }
        self
    }

    /// Returns the first mechanism that `other` has, at least in part, and this policy lacks.
    #[inline(always)]
    pub fn lacks(&self, other: &Policy) -> Option<Mechanism> {
        Mechanism::ALL
            .into_iter()
            .find(|mechanism| !self.has(*mechanism) && other.has(*mechanism))
    }

    /// Returns this policy without the mechanisms that `most` lacks entirely.
    #[inline(always)]
    pub(crate) const fn within(mut self, most: &Policy) -> Policy {
        let remote = most.has(Mechanism::RemoteFlush);
        self.batch = self.batch && most.batch;
        self.extents = self.extents && most.extents;
        if !most.has(Mechanism::Tags) {
            self.tags = TagPolicy::Off;
        }
        self.lazy_unmap = self.lazy_unmap && most.lazy_unmap;
        self.concurrent = self.concurrent && remote;
        self.asynchronous = self.asynchronous && remote;
        self.inline_requests = self.inline_requests && remote;
        self
    }

    /// Returns whether any part of a mechanism is on.
    pub const fn has(&self, mechanism: Mechanism) -> bool {
        match mechanism {
            Mechanism::Batch => self.batch,
            Mechanism::Extents => self.extents,
            Mechanism::Tags => !matches!(self.tags, TagPolicy::Off | TagPolicy::Slots(0)),
            Mechanism::LazyUnmap => self.lazy_unmap,
            Mechanism::RemoteFlush => self.concurrent || self.asynchronous || self.inline_requests,
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Policy::ALL
    }
}
