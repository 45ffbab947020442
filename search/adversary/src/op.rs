//! The next operation of a CPU: the points at which it stops and others may intervene.

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
    /// Read or write something shared that is no word. A write comes after the CPU's stores.
    Touch {
        /// Its address.
        place: usize,
        /// Whether it is changed.
        writes: bool,
    },
    /// A full barrier of memory.
    Fence,
    /// A full barrier that also makes table writes visible to walkers.
    Barrier,
    /// The same, and the own broadcasts complete.
    Complete,
    /// A turn of a waiting loop.
    Relax,
    /// Sleep until an interrupt or the clock.
    Halt,
    /// The program is over: take interrupts.
    Park,
    /// Mask interrupts: one that is pending may still be taken before.
    Mask,
    /// Invalidate own translations.
    Invalidate,
    /// Load or leave a root.
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
        /// Whether it is changed.
        store: bool,
    },
}
