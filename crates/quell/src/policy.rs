//! Which mechanisms are on.
//!
//! Every mechanism can be switched off alone, so that each run has its own reference; with all of
//! them off the engine behaves as a simple kernel does: one flush for each entry that reclaim
//! takes away, tags unused, remote CPUs flushed first and waited for, then this one.
//! The contract holds under every policy; a policy changes cost alone.

/// The five mechanisms, by the names the README's table uses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mechanism {
    /// S0: deferred, batched shootdown during reclaim and migration.
    Batch,
    /// S1: zeroing of whole extents.
    Extents,
    /// S2: tags keep TLB entries across context switches.
    Tags,
    /// S3: lazy unmap, the flush is owed until reuse.
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
}

/// How many address spaces a CPU keeps tagged (S2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TagPolicy {
    /// None: every switch drops the user's entries.
    Off,
    /// The most recent few, on machines whose tags have a meaning of their own on each CPU.
    /// On machines with system-wide tags any number means "on".
    Slots(u16),
    /// As many as the hardware has and [`PerCpu`](crate::PerCpu) was given slots for.
    All,
}

/// Which mechanisms are on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Policy {
    /// S0: a reclaim or migration batch is flushed once, at its end.
    pub batch: bool,
    /// S1: extents are zeroed whole, up to a cap, not page by page. The memory manager passes it on to `quell-zero`.
    pub extents: bool,
    /// S2: how many address spaces keep their entries across switches.
    pub tags: TagPolicy,
    /// S3: the flush of clean, read-only frames is owed until they are reused.
    pub lazy_unmap: bool,
    /// S4: flush here while the requests travel, then wait.
    pub concurrent: bool,
    /// S4: a target acknowledges when it has taken the request, before it has flushed.
    pub asynchronous: bool,
    /// S4: the request lies in the line that the target reads, and merges with others there.
    pub inline_requests: bool,
}

impl Policy {
    /// Everything off: what a simple kernel does.
    pub const BASELINE: Policy = Policy {
        batch: false,
        extents: false,
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
}

impl Default for Policy {
    fn default() -> Self {
        Policy::ALL
    }
}
