//! Which mechanisms are on.
//!
//! Every mechanism can be switched off alone, so that each run has its own reference; with all of
//! them off the engine behaves as a simple kernel does: one flush for each entry that reclaim
//! takes away, tags unused, remote CPUs flushed first and waited for, then this one.
//! The contract holds under every policy; a policy changes cost alone.
//!
//! How policies are written and read is in [`language`](crate::language).

/// The five mechanisms, by the names the README's table uses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mechanism {
    /// S0: deferred, batched shootdown during reclaim and migration.
    Batch,
    /// S1: zeroing of whole extents.
    Extents,
    /// S2: tags keep TLB entries across context switches.
    Tags,
    /// S3: lazy unmap, the flush is deferred until reuse.
    LazyUnmap,
    /// S4: concurrent and asynchronous remote flush.
    RemoteFlush,
}

impl Mechanism {
    /// All of them, S0 first.
    pub const ALL: [Mechanism; 5] = [
        Mechanism::Batch,
        Mechanism::Extents,
        Mechanism::Tags,
        Mechanism::LazyUnmap,
        Mechanism::RemoteFlush,
    ];

    /// Its short name, S0 to S4: what policies are written with.
    pub const fn name(self) -> &'static str {
        match self {
            Mechanism::Batch => "S0",
            Mechanism::Extents => "S1",
            Mechanism::Tags => "S2",
            Mechanism::LazyUnmap => "S3",
            Mechanism::RemoteFlush => "S4",
        }
    }

    /// Its effect, in a line.
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

/// How many address spaces a CPU keeps tagged (S2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TagPolicy {
    /// None: every switch drops the user's entries.
    Off,
    /// Up to so many, on machines whose tags have a meaning of their own on each CPU: up to eight are lent in turn,
    /// more by the space's id. On machines with system-wide tags any number means "on". 0 is [`TagPolicy::Off`].
    Slots(u16),
    /// As many as the hardware has and [`PerCpu`](crate::PerCpu) was given slots for.
    All,
}

/// Which mechanisms are on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Policy {
    /// S0: a reclaim or migration batch is flushed once, at its end; without, each time that a lock is dropped
    /// ([`Batch::unlocked`](crate::Batch::unlocked)).
    pub batch: bool,
    /// S1: extents are zeroed whole, up to a cap, not page by page. The memory manager passes it on to `quell-zero`.
    pub extents: bool,
    /// S1: no run of zeroing without a preemption point is longer than this many bytes; `None` is no cap. The
    /// engine zeroes nothing by itself: the embedder's zeroing reads this and [`extents`](Policy::extents) here.
    pub cap_bytes: Option<u64>,
    /// S2: how many address spaces keep their entries across switches.
    pub tags: TagPolicy,
    /// S3: the flush of clean, read-only frames is deferred until they are reused.
    pub lazy_unmap: bool,
    /// S4: flush here while the requests travel, then wait.
    pub concurrent: bool,
    /// S4: a target acknowledges when it has taken the request, before it has flushed.
    ///
    /// Not for a machine that asks for break before make and is interrupted to invalidate (Arm without broadcasts):
    /// there the target's TLB may not hold the old translation any more when the next entry is written.
    pub asynchronous: bool,
    /// S4: the request lies in the line that the target reads, and merges with others there.
    pub inline_requests: bool,
}

/// The cap unless a policy says otherwise: what Linux merged for cooperative preemption.
const DEFAULT_CAP: u64 = 32 << 20;

impl Policy {
    /// Everything off: what a simple kernel does.
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

    /// The baseline with one mechanism.
    pub const fn only(mechanism: Mechanism) -> Policy {
        Policy::BASELINE.with(mechanism)
    }

    /// This policy with one mechanism more.
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

    /// This policy with one mechanism less. The cap stays: it belongs to the kernel's preemption.
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

    /// The first mechanism that `other` has, at least a part of, and this policy has not.
    #[inline(always)]
    pub fn lacks(&self, other: &Policy) -> Option<Mechanism> {
        Mechanism::ALL
            .into_iter()
            .find(|mechanism| !self.has(*mechanism) && other.has(*mechanism))
    }

    /// This policy, without the mechanisms that `most` has no part of.
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

    /// Whether any part of a mechanism is on.
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
