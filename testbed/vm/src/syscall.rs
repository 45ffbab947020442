//! The system-call interface: what a program may ask of the manager.
//!
//! [`Call`] is all of it; [`Call::to_words`] and [`Call::from_words`] are its register format, the same
//! on every machine.

mod registers;

pub use registers::Words;
use registers::{Operand, calls};

use quell::PageSize;

/// A process, as [`Call::Spawn`] and [`Call::Fork`] return it.
pub type ProcessId = u32;
/// A file, as [`Call::Create`] returns it.
pub type FileId = u32;

/// What a program may do with a mapping.
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
    pub const NONE: Protection = Protection {
        read: false,
        write: false,
        execute: false,
    };
    /// Loads alone.
    pub const READ: Protection = Protection {
        read: true,
        write: false,
        execute: false,
    };
    /// Loads and stores.
    pub const READ_WRITE: Protection = Protection {
        read: true,
        write: true,
        execute: false,
    };
    /// Loads and execution.
    pub const READ_EXECUTE: Protection = Protection {
        read: true,
        write: false,
        execute: true,
    };

    pub(crate) const fn to_word(self) -> u64 {
        self.read as u64 | (self.write as u64) << 1 | (self.execute as u64) << 2
    }
    pub(crate) const fn from_word(word: u64) -> Self {
        Protection {
            read: word & 1 != 0,
            write: word & 2 != 0,
            execute: word & 4 != 0,
        }
    }
}

/// What lies behind a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Backing {
    /// Zeroed memory of the process alone, copied on write after a fork, in pages of up to this
    /// size: where the area covers an aligned page of the size and one is free, a fault takes it.
    Anonymous {
        /// The largest page that a fault may take.
        page: PageSize,
    },
    /// The pages of a file; stores reach the file.
    Shared {
        /// The file.
        file: FileId,
        /// Where in the file the mapping begins, in bytes, a multiple of 4096.
        offset: u64,
    },
    /// The pages of a file; a store gives the process its own copy of the page.
    Private {
        /// The file.
        file: FileId,
        /// Where in the file the mapping begins, in bytes, a multiple of 4096.
        offset: u64,
    },
}

calls! {
    /// A system call. Addresses and lengths are in bytes; addresses must be multiples of 4096, lengths
    /// are rounded up to one. Each says what `call` returns on success; 0 if it says nothing.
    /// To add one, add its row here, with the next number, and its arm to `Vm::call`.
    pub enum Call {
        /// Maps memory and returns its address. With an address, what was mapped there before is
        /// replaced (`MAP_FIXED`); without, the manager chooses a free place, aligned to the page size.
        1 "map" => Map {
            /// Where, or anywhere.
            address: Option<u64>,
            /// How many bytes, at least one.
            bytes: u64,
            /// What the program may do there.
            protection: Protection,
            /// What lies behind it.
            backing: Backing,
        },
        /// Unmaps a range; parts that were not mapped are no error. 2 MB and 1 GB pages that the range
        /// cuts are split.
        2 "unmap" => Unmap {
            /// The first address.
            address: u64,
            /// How many bytes.
            bytes: u64,
        },
        /// Changes what the program may do with a range, all of which must be mapped.
        3 "protect" => Protect {
            /// The first address.
            address: u64,
            /// How many bytes.
            bytes: u64,
            /// What the program may do from now on.
            protection: Protection,
        },
        /// Drops the pages of a range (`MADV_DONTNEED`): anonymous memory and private copies read as
        /// zero or as the file again; shared pages stay in the file.
        4 "discard" => Discard {
            /// The first address.
            address: u64,
            /// How many bytes.
            bytes: u64,
        },
        /// Reclaims the pages of a range (`MADV_PAGEOUT`): anonymous pages go to compressed swap, file
        /// pages are written and dropped. Returns how many pages went.
        5 "page out" => PageOut {
            /// The first address.
            address: u64,
            /// How many bytes.
            bytes: u64,
        },
        /// Moves the pages of a mapped range elsewhere without copying them (`mremap`); returns the new
        /// address. With an address, what was mapped there is replaced. Where memory for page tables is lacking,
        /// the pages stay at the old place, and what was mapped at the new one is gone, as with `mremap`.
        6 "remap" => Remap {
            /// The first address of the old place.
            address: u64,
            /// How many bytes.
            bytes: u64,
            /// Where to, or anywhere. Must not overlap the old place.
            to: Option<u64>,
        },
        /// Replaces 512 private anonymous base pages by one 2 MB page (`MADV_COLLAPSE`). The range is
        /// the 2 MB around the address. Returns 1 if it was done, 0 if the range is not eligible.
        7 "collapse" => Collapse {
            /// An address in the range.
            address: u64,
        },
        /// Makes a process without any mapping and returns its [`ProcessId`].
        8 "spawn" => Spawn,
        /// Makes a copy of this process, copied on write, and returns its [`ProcessId`]. The copy runs
        /// nowhere until a CPU enters it.
        9 "fork" => Fork,
        /// This CPU goes on in that process: the same program, the same registers.
        10 "enter" => Enter {
            /// The process.
            process: ProcessId,
        },
        /// Ends a process that no CPU runs: everything it mapped goes.
        11 "exit" => Exit {
            /// The process.
            process: ProcessId,
        },
        /// Makes a file of `bytes` zeros, not yet in memory, and returns its [`FileId`].
        12 "create" => Create {
            /// How many bytes.
            bytes: u64,
        },
        /// Writes eight bytes into a file, through the page cache. Extends the file if need be.
        13 "write" => Write {
            /// The file.
            file: FileId,
            /// Where, a multiple of 8.
            offset: u64,
            /// What.
            value: u64,
        },
        /// Reads eight bytes of a file, through the page cache, and returns them.
        14 "read" => Read {
            /// The file.
            file: FileId,
            /// Where, a multiple of 8.
            offset: u64,
        },
        /// Cuts or extends a file to `bytes` bytes.
        15 "truncate" => Truncate {
            /// The file.
            file: FileId,
            /// The new length.
            bytes: u64,
        },
        /// Writes every dirty page of a file to its device (`fdatasync`); returns how many there were.
        16 "sync" => Sync {
            /// The file.
            file: FileId,
        },
        /// Moves the pages of a range to a memory node; returns how many moved.
        17 "migrate" => Migrate {
            /// The first address.
            address: u64,
            /// How many bytes.
            bytes: u64,
            /// An index into the machine's memory nodes.
            node: u32,
        },
        /// Moves up to `pages` pages that were not used lately from fast nodes to a slow one; returns
        /// how many moved.
        18 "demote" => Demote {
            /// How many base pages.
            pages: u64,
        },
        /// Reclaims up to `pages` base pages that were not used lately; returns how many.
        19 "reclaim" => Reclaim {
            /// How many base pages.
            pages: u64,
        },
        /// Halts the CPU until an interrupt came or the clock reached `until`. Meanwhile the address
        /// space stays loaded lazily.
        20 "idle" => Idle {
            /// A time as [`User::now`](crate::User::now) counts it, in nanoseconds.
            until: u64,
        },
        /// Does nothing but enter and leave the kernel.
        0 "nothing" => Nothing,
    }
}

/// Why a call was refused. A refused call changed nothing, unless its description says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[repr(u8)]
pub enum Error {
    /// An address is not a multiple of the page size, or an offset not of what it must be.
    #[error("an address or offset is not aligned")]
    Unaligned = 1,
    /// A length is zero, or a range leaves the part of the address space that programs may map.
    #[error("a range is empty or outside the user address space")]
    BadRange,
    /// Part of a range that must be mapped is not.
    #[error("part of the range is not mapped")]
    NotMapped,
    /// The old and the new place of a remap overlap.
    #[error("the ranges overlap")]
    Overlap,
    /// No memory is left, and none could be reclaimed. Part of the call may have been done.
    #[error("out of memory")]
    OutOfMemory,
    /// No free range of addresses is large enough, or there are as many files as there can be.
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
    /// The words do not encode a call.
    #[error("not a system call")]
    BadCall,
}

impl Error {
    const ALL: [Error; 12] = [
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
    /// The error as a register value, 1 to 255.
    pub const fn to_word(self) -> u64 {
        self as u64
    }
    /// The error of a register value; [`Error::BadCall`] for values that are none.
    pub fn from_word(word: u64) -> Self {
        Self::ALL
            .into_iter()
            .find(|error| error.to_word() == word)
            .unwrap_or(Error::BadCall)
    }
}
