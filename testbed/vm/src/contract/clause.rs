//! Names the clauses of the contract by their numbers in `docs/contract.md`.

use core::fmt;

/// A clause of the contract. Each variant describes how it's broken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Clause {
    /// Reuse: a CPU accessed a frame through an old translation after the frame had a new owner.
    C1,
    /// No lost write: a CPU stored through a stale translation after the content was captured.
    C2,
    /// Synchronous change: a CPU used the old translation after the changing call had returned.
    C3,
    /// Fresh reads: a read through a translation that lazy unmap left behind returned old bytes.
    C4,
    /// Isolation: a CPU used another space's translation.
    C5,
    /// Tables: a walker read a freed page-table page.
    C6,
    /// Progress: a CPU waits for ever.
    C7,
    /// Zero: memory that was handed out as zeroed contains other bytes.
    C8,
    /// No clause: the engine or the kernel used the machine in a forbidden way.
    Misuse,
}

impl fmt::Display for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
