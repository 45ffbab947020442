//! What a program may do: loads, stores and system calls.
//!
//! Workloads are written against [`User`] alone, so that the same source runs as coroutines on the
//! machine in software and in user mode on a real MMU. [`Call`] is the whole system-call
//! interface; [`Call::to_words`] and [`Call::from_words`] are its register format.

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

    const fn to_word(self) -> u64 {
        self.read as u64 | (self.write as u64) << 1 | (self.execute as u64) << 2
    }
    const fn from_word(word: u64) -> Self {
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

/// A system call. Addresses and lengths are in bytes; addresses must be multiples of 4096, lengths
/// are rounded up to one. What `call` returns on success is said at each; 0 where nothing is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Call {
    /// Maps memory and returns its address. With an address, what was mapped there before is
    /// replaced (`MAP_FIXED`); without, the manager chooses a free place, aligned to the page size.
    Map {
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
    Unmap {
        /// The first address.
        address: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// Changes what the program may do with a range, all of which must be mapped.
    Protect {
        /// The first address.
        address: u64,
        /// How many bytes.
        bytes: u64,
        /// What the program may do from now on.
        protection: Protection,
    },
    /// Drops the pages of a range (`MADV_DONTNEED`): anonymous memory and private copies read as
    /// zero or as the file again; shared pages stay in the file.
    Discard {
        /// The first address.
        address: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// Reclaims the pages of a range (`MADV_PAGEOUT`): anonymous pages go to compressed swap, file
    /// pages are written and dropped. Returns how many pages went.
    PageOut {
        /// The first address.
        address: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// Moves the pages of a mapped range elsewhere without copying them (`mremap`); returns the new
    /// address. With an address, what was mapped there is replaced.
    Remap {
        /// The first address of the old place.
        address: u64,
        /// How many bytes.
        bytes: u64,
        /// Where to, or anywhere. Must not overlap the old place.
        to: Option<u64>,
    },
    /// Replaces 512 private anonymous base pages by one 2 MB page (`MADV_COLLAPSE`). The range is
    /// the 2 MB around the address. Returns 1 if it was done, 0 if the range is not eligible.
    Collapse {
        /// An address in the range.
        address: u64,
    },
    /// Makes a process without any mapping and returns its [`ProcessId`].
    Spawn,
    /// Makes a copy of this process, copied on write, and returns its [`ProcessId`]. The copy runs
    /// nowhere until a CPU enters it.
    Fork,
    /// This CPU goes on in that process: the same program, the same registers.
    Enter {
        /// The process.
        process: ProcessId,
    },
    /// Ends a process that no CPU runs: everything it mapped goes.
    Exit {
        /// The process.
        process: ProcessId,
    },
    /// Makes a file of `bytes` zeros, not yet in memory, and returns its [`FileId`].
    Create {
        /// How many bytes.
        bytes: u64,
    },
    /// Writes eight bytes into a file, through the page cache. Extends the file if need be.
    Write {
        /// The file.
        file: FileId,
        /// Where, a multiple of 8.
        offset: u64,
        /// What.
        value: u64,
    },
    /// Reads eight bytes of a file, through the page cache, and returns them.
    Read {
        /// The file.
        file: FileId,
        /// Where, a multiple of 8.
        offset: u64,
    },
    /// Cuts or extends a file to `bytes` bytes.
    Truncate {
        /// The file.
        file: FileId,
        /// The new length.
        bytes: u64,
    },
    /// Writes every dirty page of a file to its device (`fdatasync`); returns how many there were.
    Sync {
        /// The file.
        file: FileId,
    },
    /// Moves the pages of a range to a memory node; returns how many moved.
    Migrate {
        /// The first address.
        address: u64,
        /// How many bytes.
        bytes: u64,
        /// An index into the machine's memory nodes.
        node: u32,
    },
    /// Moves up to `pages` pages that were not used lately from fast nodes to a slow one; returns
    /// how many moved.
    Demote {
        /// How many base pages.
        pages: u64,
    },
    /// Reclaims up to `pages` base pages that were not used lately; returns how many.
    Reclaim {
        /// How many base pages.
        pages: u64,
    },
    /// Halts the CPU until an interrupt came or the clock reached `until`. Meanwhile the address
    /// space stays loaded lazily.
    Idle {
        /// A time as [`User::now`] counts it, in nanoseconds.
        until: u64,
    },
    /// Does nothing but enter and leave the kernel.
    Nothing,
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
    /// No free range of addresses is large enough.
    #[error("no free range of addresses is large enough")]
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

/// Why an access of a program cannot be completed: what a Unix kernel sends a signal for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Fault {
    /// Nothing is mapped at the address.
    #[error("nothing is mapped there")]
    NotMapped,
    /// The mapping does not allow the access.
    #[error("the mapping does not allow the access")]
    Forbidden,
    /// The address lies in a page after the end of the mapped file.
    #[error("beyond the end of the mapped file")]
    BeyondEnd,
    /// No memory is left, and none could be reclaimed.
    #[error("out of memory")]
    OutOfMemory,
}

/// An access that faulted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Execute,
}

/// One register format for all calls: the number of the call and up to six operands.
pub type Words = [u64; 7];

/// The largest address word, standing for "anywhere".
const ANYWHERE: u64 = u64::MAX;

impl Call {
    /// The call as register values.
    pub fn to_words(self) -> Words {
        let size = |page: PageSize| page as u64;
        match self {
            Call::Nothing => [0, 0, 0, 0, 0, 0, 0],
            Call::Map {
                address,
                bytes,
                protection,
                backing,
            } => {
                let (kind, file, offset) = match backing {
                    Backing::Anonymous { page } => (0, size(page), 0),
                    Backing::Shared { file, offset } => (1, file as u64, offset),
                    Backing::Private { file, offset } => (2, file as u64, offset),
                };
                let address = address.unwrap_or(ANYWHERE);
                [1, address, bytes, protection.to_word(), kind, file, offset]
            }
            Call::Unmap { address, bytes } => [2, address, bytes, 0, 0, 0, 0],
            Call::Protect {
                address,
                bytes,
                protection,
            } => [3, address, bytes, protection.to_word(), 0, 0, 0],
            Call::Discard { address, bytes } => [4, address, bytes, 0, 0, 0, 0],
            Call::PageOut { address, bytes } => [5, address, bytes, 0, 0, 0, 0],
            Call::Remap { address, bytes, to } => {
                [6, address, bytes, to.unwrap_or(ANYWHERE), 0, 0, 0]
            }
            Call::Collapse { address } => [7, address, 0, 0, 0, 0, 0],
            Call::Spawn => [8, 0, 0, 0, 0, 0, 0],
            Call::Fork => [9, 0, 0, 0, 0, 0, 0],
            Call::Enter { process } => [10, process as u64, 0, 0, 0, 0, 0],
            Call::Exit { process } => [11, process as u64, 0, 0, 0, 0, 0],
            Call::Create { bytes } => [12, bytes, 0, 0, 0, 0, 0],
            Call::Write {
                file,
                offset,
                value,
            } => [13, file as u64, offset, value, 0, 0, 0],
            Call::Read { file, offset } => [14, file as u64, offset, 0, 0, 0, 0],
            Call::Truncate { file, bytes } => [15, file as u64, bytes, 0, 0, 0, 0],
            Call::Sync { file } => [16, file as u64, 0, 0, 0, 0, 0],
            Call::Migrate {
                address,
                bytes,
                node,
            } => [17, address, bytes, node as u64, 0, 0, 0],
            Call::Demote { pages } => [18, pages, 0, 0, 0, 0, 0],
            Call::Reclaim { pages } => [19, pages, 0, 0, 0, 0, 0],
            Call::Idle { until } => [20, until, 0, 0, 0, 0, 0],
        }
    }

    /// The call of register values.
    ///
    /// # Errors
    /// [`Error::BadCall`] if they encode none.
    pub fn from_words(words: Words) -> Result<Self, Error> {
        let [number, a, b, c, d, e, f] = words;
        let id = |word: u64| u32::try_from(word).map_err(|_| Error::BadCall);
        let place = |word: u64| (word != ANYWHERE).then_some(word);
        Ok(match number {
            0 => Call::Nothing,
            1 => Call::Map {
                address: place(a),
                bytes: b,
                protection: Protection::from_word(c),
                backing: match d {
                    0 => Backing::Anonymous {
                        page: match e {
                            0 => PageSize::Base,
                            1 => PageSize::Large,
                            2 => PageSize::Huge,
                            _ => return Err(Error::BadCall),
                        },
                    },
                    1 => Backing::Shared {
                        file: id(e)?,
                        offset: f,
                    },
                    2 => Backing::Private {
                        file: id(e)?,
                        offset: f,
                    },
                    _ => return Err(Error::BadCall),
                },
            },
            2 => Call::Unmap {
                address: a,
                bytes: b,
            },
            3 => Call::Protect {
                address: a,
                bytes: b,
                protection: Protection::from_word(c),
            },
            4 => Call::Discard {
                address: a,
                bytes: b,
            },
            5 => Call::PageOut {
                address: a,
                bytes: b,
            },
            6 => Call::Remap {
                address: a,
                bytes: b,
                to: place(c),
            },
            7 => Call::Collapse { address: a },
            8 => Call::Spawn,
            9 => Call::Fork,
            10 => Call::Enter { process: id(a)? },
            11 => Call::Exit { process: id(a)? },
            12 => Call::Create { bytes: a },
            13 => Call::Write {
                file: id(a)?,
                offset: b,
                value: c,
            },
            14 => Call::Read {
                file: id(a)?,
                offset: b,
            },
            15 => Call::Truncate {
                file: id(a)?,
                bytes: b,
            },
            16 => Call::Sync { file: id(a)? },
            17 => Call::Migrate {
                address: a,
                bytes: b,
                node: id(c)?,
            },
            18 => Call::Demote { pages: a },
            19 => Call::Reclaim { pages: a },
            20 => Call::Idle { until: a },
            _ => return Err(Error::BadCall),
        })
    }
}

/// What a program says about where its measurement begins and ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mark {
    /// What follows is measured.
    Begin,
    /// What follows is not measured any more.
    End,
}

/// A program's view of the machine, on one CPU.
///
/// Each CPU of a workload has its own `User`. An access to an address that is not mapped, or that
/// the mapping does not allow, ends the run with a message: workloads that want to see such a
/// fault use [`User::try_read`] and [`User::try_write`].
pub trait User {
    /// This CPU, from 0.
    fn cpu(&self) -> usize;
    /// How many CPUs run the workload.
    fn cpus(&self) -> usize;

    /// One load of eight bytes through the MMU; faults are served. `address` is a multiple of 8.
    fn try_read(&self, address: u64) -> Result<u64, Fault>;
    /// One store of eight bytes through the MMU; faults are served. `address` is a multiple of 8.
    fn try_write(&self, address: u64, value: u64) -> Result<(), Fault>;

    /// [`User::try_read`] of an address that the program knows to be readable.
    ///
    /// # Panics
    /// If it is not.
    fn read(&self, address: u64) -> u64 {
        match self.try_read(address) {
            Ok(value) => value,
            Err(fault) => panic!("load from {address:#x}: {fault}"),
        }
    }
    /// [`User::try_write`] to an address that the program knows to be writable.
    ///
    /// # Panics
    /// If it is not.
    fn write(&self, address: u64, value: u64) {
        if let Err(fault) = self.try_write(address, value) {
            panic!("store to {address:#x}: {fault}");
        }
    }
    /// Loads every cache line of a range in ascending order, as a streaming read does.
    fn read_span(&self, address: u64, bytes: u64) {
        for line in (address..address + bytes).step_by(64) {
            self.read(line);
        }
    }
    /// Stores to every cache line of a range in ascending order.
    fn write_span(&self, address: u64, bytes: u64, value: u64) {
        for line in (address..address + bytes).step_by(64) {
            self.write(line, value);
        }
    }

    /// A system call.
    ///
    /// # Errors
    /// Those that [`Call`] and [`Error`] describe.
    fn call(&self, call: Call) -> Result<u64, Error>;

    /// Computes for that long without touching memory. Interrupts are taken meanwhile.
    fn compute(&self, nanoseconds: u64);
    /// Nanoseconds since the run began.
    fn now(&self) -> u64;

    /// Tells whoever counts events where the measurement begins and ends. Takes no time.
    fn mark(&self, _mark: Mark) {}

    /// Reads one of the 64 control words that the CPUs of a workload share. They are not part of
    /// the memory under measurement; all operations on them are sequentially consistent.
    fn shared(&self, index: usize) -> u64;
    /// Writes a control word.
    fn set_shared(&self, index: usize, value: u64);
    /// Adds to a control word, wrapping around; returns what it held.
    fn add_shared(&self, index: usize, value: u64) -> u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_survive_the_registers() {
        let calls = [
            Call::Nothing,
            Call::Map {
                address: None,
                bytes: 1,
                protection: Protection::READ_EXECUTE,
                backing: Backing::Anonymous {
                    page: PageSize::Huge,
                },
            },
            Call::Map {
                address: Some(4096),
                bytes: 9,
                protection: Protection::READ_WRITE,
                backing: Backing::Shared {
                    file: 3,
                    offset: 8192,
                },
            },
            Call::Map {
                address: Some(0),
                bytes: 9,
                protection: Protection::NONE,
                backing: Backing::Private {
                    file: 3,
                    offset: 8192,
                },
            },
            Call::Unmap {
                address: 1,
                bytes: 2,
            },
            Call::Protect {
                address: 1,
                bytes: 2,
                protection: Protection::READ,
            },
            Call::Discard {
                address: 1,
                bytes: 2,
            },
            Call::PageOut {
                address: 1,
                bytes: 2,
            },
            Call::Remap {
                address: 1,
                bytes: 2,
                to: None,
            },
            Call::Remap {
                address: 1,
                bytes: 2,
                to: Some(3),
            },
            Call::Collapse { address: 1 },
            Call::Spawn,
            Call::Fork,
            Call::Enter { process: 1 },
            Call::Exit { process: 1 },
            Call::Create { bytes: 1 },
            Call::Write {
                file: 1,
                offset: 2,
                value: 3,
            },
            Call::Read { file: 1, offset: 2 },
            Call::Truncate { file: 1, bytes: 2 },
            Call::Sync { file: 1 },
            Call::Migrate {
                address: 1,
                bytes: 2,
                node: 3,
            },
            Call::Demote { pages: 1 },
            Call::Reclaim { pages: 1 },
            Call::Idle { until: 1 },
        ];
        for (number, call) in calls.into_iter().enumerate() {
            assert_eq!(Call::from_words(call.to_words()), Ok(call), "call {number}");
        }
        assert_eq!(
            Call::from_words([99, 0, 0, 0, 0, 0, 0]),
            Err(Error::BadCall)
        );
        assert_eq!(
            Call::from_words([10, 1 << 40, 0, 0, 0, 0, 0]),
            Err(Error::BadCall)
        );
    }

    #[test]
    fn errors_survive_the_registers() {
        for error in Error::ALL {
            assert_eq!(Error::from_word(error.to_word()), error);
        }
    }
}
