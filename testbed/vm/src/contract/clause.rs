//! The clauses of the contract, by their numbers in `docs/contract.md`.

use core::fmt;

/// A clause of the contract.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Clause {
    /// Reuse: an access through an old translation after the frame has a new owner.
    C1,
    /// No lost write: a store through a stale translation after the content was captured.
    C2,
    /// Synchronous change: use of the old translation after the change has returned.
    C3,
    /// Fresh reads: a read through a translation left behind returns different bytes.
    C4,
    /// Isolation: use of another space's translation.
    C5,
    /// Tables: a walk through a freed table page.
    C6,
    /// Progress: CPUs wait for ever.
    C7,
    /// Zero: memory handed out as zeroed is not.
    C8,
    /// No clause: the engine or its embedder used the machine in a forbidden way.
    Misuse,
}

impl fmt::Display for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
