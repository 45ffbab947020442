//! Defines the manager's system calls.
//!
//! [`Call`] contains all calls. [`Call::to_words`] and [`Call::from_words`] convert them to and from register values,
//! in the same format on every machine.

mod registers;

pub use registers::Words;
use registers::{Operand, calls};

use quell::PageSize;

/// The number of a process, which [`Call::Spawn`] and [`Call::Fork`] return.
pub type ProcessId = u32;
/// The number of a file, which [`Call::Create`] returns.
pub type FileId = u32;

/// A program's rights to a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Protection {
    /// Loads are allowed.
    pub read: bool,
    /// Stores are allowed. Implies loads.
    pub write: bool,
    /// Execution is allowed. Implies loads.
    pub execute: bool,
}

impl Protection {
    /// No access at all.
    pub const NONE: Protection = Protection { read: false, write: false, execute: false };
    /// Loads alone.
    pub const READ: Protection = Protection { read: true, write: false, execute: false };
    /// Loads and stores.
    pub const READ_WRITE: Protection = Protection { read: true, write: true, execute: false };
    /// Loads and execution.
    pub const READ_EXECUTE: Protection = Protection { read: true, write: false, execute: true };

    /// Returns whether programs may load. Rights to store or to execute imply it.
    pub(crate) const fn readable(self) -> bool {
        self.read || self.write || self.execute
    }
    pub(crate) const fn to_word(self) -> u64 {
        self.read as u64 | (self.write as u64) << 1 | (self.execute as u64) << 2
    }
    pub(crate) const fn from_word(word: u64) -> Self {
        Protection { read: word & 1 != 0, write: word & 2 != 0, execute: word & 4 != 0 }
    }
}

/// The memory that a mapping shows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Backing {
    /// Zeroed private memory, copied on write after a fork.
    ///
    /// A fault takes a page of up to this size, if the area covers an aligned one and such a block is free.
    Anonymous {
        /// The largest page that a fault may take.
        page: PageSize,
    },
    /// The pages of a file. Stores reach the file.
    Shared {
        /// The file.
        file: FileId,
        /// The mapping's start in the file, in bytes, a multiple of 4096.
        offset: u64,
    },
    /// The pages of a file. A store gives the process its own copy of the page.
    Private {
        /// The file.
        file: FileId,
        /// The mapping's start in the file, in bytes, a multiple of 4096.
        offset: u64,
    },
}

calls! {
    /// A system call.
    ///
    /// Addresses and lengths are in bytes. Addresses must be multiples of 4096; lengths are rounded up to one. A call
    /// returns 0 on success, unless its description states another value. To add a call, add its row here, with the
    /// next number, and its arm to `Vm::call`.
    pub enum Call {
        /// Maps memory and returns its address.
        ///
        /// With an address, it replaces any mapping there (`MAP_FIXED`). Without one, the manager chooses a free place,
        /// aligned to the page size.
        1 "map" => Map {
            /// The address, or `None` for any.
            address: Option<u64>,
            /// The length, at least one byte.
            bytes: u64,
            /// The program's rights.
            protection: Protection,
            /// The memory that the mapping shows.
            backing: Backing,
        },
        /// Unmaps a range. Parts that aren't mapped are no error.
        ///
        /// 2 MB and 1 GB pages that the range cuts are split.
        2 "unmap" => Unmap {
            /// The first address.
            address: u64,
            /// The length in bytes.
            bytes: u64,
        },
        /// Changes the program's rights to a range, all of which must be mapped.
        3 "protect" => Protect {
            /// The first address.
            address: u64,
            /// The length in bytes.
            bytes: u64,
            /// The program's rights from now on.
            protection: Protection,
        },
        /// Drops the pages of a range (`MADV_DONTNEED`).
        ///
        /// Anonymous memory then reads as zeros, and a private copy as the file again. Shared pages stay in the file.
        4 "discard" => Discard {
            /// The first address.
            address: u64,
            /// The length in bytes.
            bytes: u64,
        },
        /// Reclaims the pages of a range (`MADV_PAGEOUT`), and returns the number of reclaimed pages.
        ///
        /// Anonymous pages are swapped out. File pages are written and dropped.
        5 "page out" => PageOut {
            /// The first address.
            address: u64,
            /// The length in bytes.
            bytes: u64,
        },
        /// Moves the pages of a mapped range to another address without copying them (`mremap`).
        ///
        /// Returns the new address. With an address, it replaces any mapping there. If memory for page tables is
        /// lacking, the pages stay at the old place, and the mapping at the new place is lost, as with `mremap`.
        6 "remap" => Remap {
            /// The first address of the old place.
            address: u64,
            /// The length in bytes.
            bytes: u64,
            /// The new address, or `None` for any. Must not overlap the old place.
            to: Option<u64>,
        },
        /// Replaces 512 private anonymous base pages by one 2 MB page (`MADV_COLLAPSE`).
        ///
        /// The range is the 2 MB around the address. Returns 1 on success, and 0 if the range isn't eligible.
        7 "collapse" => Collapse {
            /// An address in the range.
            address: u64,
        },
        /// Makes a process without any mapping and returns its [`ProcessId`].
        8 "spawn" => Spawn,
        /// Copies this process, with its pages copied on write, and returns the copy's [`ProcessId`].
        ///
        /// The copy runs only when a CPU enters it.
        9 "fork" => Fork,
        /// Makes this CPU continue in that process, with the same program and the same registers.
        10 "enter" => Enter {
            /// The process.
            process: ProcessId,
        },
        /// Ends a process that no CPU runs, and frees everything that it mapped.
        11 "exit" => Exit {
            /// The process.
            process: ProcessId,
        },
        /// Makes a file of `bytes` zeros, not yet in memory, and returns its [`FileId`].
        12 "create" => Create {
            /// The length in bytes.
            bytes: u64,
        },
        /// Writes eight bytes to a file, through the page cache.
        ///
        /// Extends the file if necessary.
        13 "write" => Write {
            /// The file.
            file: FileId,
            /// The offset, a multiple of 8.
            offset: u64,
            /// The value.
            value: u64,
        },
        /// Reads eight bytes of a file, through the page cache, and returns them.
        14 "read" => Read {
            /// The file.
            file: FileId,
            /// The offset, a multiple of 8.
            offset: u64,
        },
        /// Cuts or extends a file to `bytes` bytes.
        15 "truncate" => Truncate {
            /// The file.
            file: FileId,
            /// The new length.
            bytes: u64,
        },
        /// Writes every dirty page of a file to its device (`fdatasync`), and returns their number.
        16 "sync" => Sync {
            /// The file.
            file: FileId,
        },
        /// Moves the pages of a range to a memory node, and returns the number of moved pages.
        17 "migrate" => Migrate {
            /// The first address.
            address: u64,
            /// The length in bytes.
            bytes: u64,
            /// An index into the machine's memory nodes.
            node: u32,
        },
        /// Moves up to `pages` cold pages from fast nodes to a slow one, and returns the number of moved pages.
        18 "demote" => Demote {
            /// The number of base pages.
            pages: u64,
        },
        /// Reclaims up to `pages` cold base pages, and returns their number.
        19 "reclaim" => Reclaim {
            /// The number of base pages.
            pages: u64,
        },
        /// Halts the CPU until it has taken an interrupt or the clock has reached `until`.
        ///
        /// The address space stays loaded lazily.
        20 "idle" => Idle {
            /// A time as [`User::now`](crate::User::now) returns it, in nanoseconds.
            until: u64,
        },
        /// Only enters and leaves the kernel.
        0 "nothing" => Nothing,
    }
}

/// The reason why a call was refused.
///
/// A refused call changed nothing, unless its description documents a change.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[repr(u8)]
pub enum Error {
    /// An address or an offset isn't aligned as required.
    #[error("an address or offset is not aligned")]
    Unaligned = 1,
    /// A length is zero, or a range exceeds the part of the address space that programs may map.
    #[error("a range is empty or outside the user address space")]
    BadRange,
    /// Part of a range isn't mapped, but must be.
    #[error("part of the range is not mapped")]
    NotMapped,
    /// The old and the new place of a remap overlap.
    #[error("the ranges overlap")]
    Overlap,
    /// No memory is left, and none could be reclaimed. The call may have been done in part.
    #[error("out of memory")]
    OutOfMemory,
    /// No free range of addresses is large enough, or the limit of files is reached.
    #[error(
        "no room: no free range of addresses is large enough, or there are as many files as there can be"
    )]
    NoSpace,
    /// There is no such process, or it has ended.
    #[error("no such process")]
    NoProcess,
    /// The process runs on a CPU, or the limit of processes is reached.
    #[error("the process is running, or there are too many")]
    Busy,
    /// There is no such file.
    #[error("no such file")]
    NoFile,
    /// A read at or after the end of a file.
    #[error("beyond the end of the file")]
    BeyondEnd,
    /// There is no such memory node.
    #[error("no such memory node")]
    NoNode,
    /// The words don't encode a call.
    #[error("not a system call")]
    BadCall,
}

impl Error {
    pub(crate) const ALL: [Error; 12] = [
        Error::Unaligned,
        Error::BadRange,
        Error::NotMapped,
        Error::Overlap,
        Error::OutOfMemory,
        Error::NoSpace,
        Error::NoProcess,
        Error::Busy,
        Error::NoFile,
        Error::BeyondEnd,
        Error::NoNode,
        Error::BadCall,
    ];
    /// Returns the register value of the error, 1 to 255.
    pub const fn to_word(self) -> u64 {
        self as u64
    }
    /// Returns the error with this register value, or [`Error::BadCall`] for other values.
    pub fn from_word(word: u64) -> Self {
        Self::ALL.into_iter().find(|error| error.to_word() == word).unwrap_or(Error::BadCall)
    }
}
