//! Describes the next operation of a CPU: a point at which the CPU stops and other CPUs may act.

use crate::cell::AdversaryWord;
use std::fmt;
use std::sync::atomic::Ordering;

/// The kind of a program's access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AccessKind {
    /// A load.
    Load,
    /// A store.
    Store,
    /// An instruction fetch.
    Fetch,
}

impl fmt::Display for AccessKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AccessKind::Load => "load",
            AccessKind::Store => "store",
            AccessKind::Fetch => "fetch",
        })
    }
}

/// The next operation of a CPU.
#[derive(Clone, Copy, PartialEq, Hash, Debug)]
pub(crate) enum Op {
    /// Begin its program.
    Start,
    /// Load a word.
    Load(*const AdversaryWord, Ordering),
    /// Store to a word.
    Store(*const AdversaryWord, Ordering),
    /// Modify a word atomically.
    Modify(*const AdversaryWord, Ordering),
    /// Read or write shared state that isn't a word. A write waits until the CPU's stores are visible.
    Touch {
        /// Its address.
        place: usize,
        /// Whether it is a write.
        writes: bool,
    },
    /// A full memory barrier.
    Fence,
    /// A full barrier that also makes table writes visible to walkers.
    Barrier,
    /// The same barrier, which also completes the CPU's own broadcasts.
    Complete,
    /// An iteration of a waiting loop.
    Relax,
    /// Sleep until an interrupt or the clock wakes the CPU.
    Halt,
    /// Wait for interrupts after the end of the program.
    Park,
    /// Mask interrupts. A pending one may still be taken first.
    Mask,
    /// Invalidate translations of this CPU.
    Invalidate,
    /// Load or unload a root.
    Root,
    /// Send an invalidation to every CPU.
    Broadcast,
    /// Report to the oracle.
    Note,
    /// Send interrupts to a set of CPUs.
    Send(u8),
    /// Access user memory.
    Access(AccessKind),
    /// Access the content of a frame through the kernel's own mapping.
    Content {
        /// The frame.
        frame: u32,
        /// Whether it is a write.
        store: bool,
    },
}
