//! Policies: the mechanisms that are on.
//!
//! With all of them off, the engine behaves like a simple kernel. Reclaim makes one flush for each entry that it
//! removes, and there are no tags. The initiator flushes its own TLB only after the targets have flushed theirs.
//! `quell-conformance` reads and writes policies as text.

use core::fmt;

/// Names one of quell's five mechanisms, each of which a [`Policy`] can switch off.
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
    /// S0: reclaim and migration flush once for a batch of pages.
    Batch,
    /// S1: a fault zeroes runs of adjacent frames at once, not page by page.
    Extents,
    /// S2: hardware tags (PCIDs, ASIDs) keep TLB entries across context switches.
    Tags,
    /// S3: [lazy unmap](crate::lazy) defers the flush of clean, read-only frames until they're reused.
    LazyUnmap,
    /// S4: the initiator of a flush flushes while the other CPUs do, and they may acknowledge before they flush.
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

    /// Describes the mechanism in one line.
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

/// Limits the number of address spaces whose TLB entries a CPU keeps across switches.
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
    /// At most this number of spaces on each CPU, on machines with per-CPU tags. 0 is the same as [`TagPolicy::Off`].
    ///
    /// Each space needs a tag *slot*. With up to eight slots on a CPU, new spaces take them over in turn. With more, a
    /// space's id selects its slot. On machines with system-wide tags any number except 0 means "on".
    Slots(u16),
    /// Each CPU keeps the tags of as many spaces as the hardware allows, at most one for each slot of
    /// [`PerCpuData`](crate::PerCpuData).
    All,
}

/// Selects which of the five [mechanisms](Mechanism) are on.
///
/// [The contract](crate#the-contract) holds under every policy, with one restriction: some machines must not set
/// [`Policy::asynchronous`]. Apart from that, a policy only changes the cost. So you can switch off each mechanism by
/// itself and compare.
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
    /// S0: flush a batch of reclaim or migration once, at its end.
    ///
    /// If it's off, reclaim and migration flush each time the kernel drops the lock of a table
    /// ([`Batch::unlocked`](crate::Batch::unlocked)): reclaim, for example, after each entry.
    pub batch: bool,
    /// S1: zero an extent (a run of adjacent frames) whole, instead of page by page. The engine ignores this. The
    /// kernel's memory manager passes it on to `quell-zero`.
    pub extents: bool,
    /// S1: the maximum number of bytes zeroed without a preemption point. `None` means no limit.
    ///
    /// The engine ignores this, too.
    pub cap_bytes: Option<u64>,
    /// S2: the number of address spaces whose TLB entries each CPU keeps across switches.
    pub tags: TagPolicy,
    /// S3: defer the flush of clean, read-only frames until they're reused ([lazy unmap](crate::lazy)).
    pub lazy_unmap: bool,
    /// S4: the *initiator*, the CPU that makes a flush, flushes its own TLB while the other CPUs flush theirs. If it's
    /// off, the initiator first waits for them.
    pub concurrent: bool,
    /// S4: the initiator waits only until each target has acknowledged its request, not until it has flushed.
    ///
    /// The target flushes before it returns to code that could access user memory. Freed page tables and kernel
    /// mappings are excepted: for these the initiator always waits for the flush. The setting takes effect only with
    /// [`inline_requests`](Policy::inline_requests).
    ///
    /// Don't set it on a machine that requires break-before-make and invalidates by interrupts (Arm without
    /// broadcasts). There, no TLB may still hold the old translation when the kernel writes the new entry in its place.
    /// A receipt doesn't ensure that.
    pub asynchronous: bool,
    /// S4: the initiator writes the request into a cache line of the target, where it merges with requests of others,
    /// or into one of the target's group of CPUs ([`Hardware::shares_lines_from`](crate::Hardware::shares_lines_from)).
    /// If it's off, targets read the request from a line of the initiator.
    pub inline_requests: bool,
}

/// The default of [`Policy::cap_bytes`]: the value that Linux merged for cooperative preemption.
const DEFAULT_CAP: u64 = 32 << 20;

impl Policy {
    /// All mechanisms off, as in a simple kernel.
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

    /// All mechanisms on, with six tag slots.
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

    /// Makes [`Policy::BASELINE`] with one mechanism on.
    pub const fn only(mechanism: Mechanism) -> Policy {
        Policy::BASELINE.with(mechanism)
    }

    /// Switches one mechanism on.
    pub const fn with(self, mechanism: Mechanism) -> Policy {
        self.set(mechanism, true)
    }

    /// Switches one mechanism off. `cap_bytes` stays, because it depends on the kernel's preemption.
    pub const fn without(self, mechanism: Mechanism) -> Policy {
        self.set(mechanism, false)
    }

    const fn set(mut self, mechanism: Mechanism, on: bool) -> Policy {
        match mechanism {
            Mechanism::Batch => self.batch = on,
            Mechanism::Extents => self.extents = on,
            Mechanism::Tags if on => self.tags = Policy::ALL.tags,
            Mechanism::Tags => self.tags = TagPolicy::Off,
            Mechanism::LazyUnmap => self.lazy_unmap = on,
            Mechanism::RemoteFlush => {
                self.concurrent = on;
                self.asynchronous = on;
                self.inline_requests = on;
            }
        }
        self
    }

    /// Returns the first mechanism that is on in `other` and off in this policy.
    ///
    /// A mechanism counts as on if any part of it is.
    #[inline(always)]
    pub fn lacks(&self, other: &Policy) -> Option<Mechanism> {
        Mechanism::ALL.into_iter().find(|mechanism| !self.has(*mechanism) && other.has(*mechanism))
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
