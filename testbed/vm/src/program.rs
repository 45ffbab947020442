//! Defines a program's interface: loads, stores, system calls, and the faults of accesses.
//!
//! A workload file uses only [`User`]. So the same file runs as coroutines on a machine in software, and in user mode
//! on an MMU.

use crate::syscall::{Call, Error};

/// The reason why a program's access failed. A Unix kernel would send a signal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Fault {
    /// Nothing is mapped at the address.
    #[error("nothing is mapped there")]
    NotMapped,
    /// The mapping doesn't allow the access.
    #[error("the mapping does not allow the access")]
    Forbidden,
    /// The address is in a page beyond the end of the mapped file.
    #[error("beyond the end of the mapped file")]
    BeyondEnd,
    /// No memory is left, and none could be reclaimed.
    #[error("out of memory")]
    OutOfMemory,
}

/// The kind of an access that faulted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Execute,
}

/// The beginning or the end of a measurement in a program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mark {
    /// The measured window begins.
    Begin,
    /// The measured window ends.
    End,
}

/// A program's interface to the machine, on one CPU.
///
/// Each CPU of a workload has its own `User`. If a program accesses an address that isn't mapped, or whose mapping
/// forbids the access, the run ends with a message. Workloads that expect such a fault use [`User::try_read`] and
/// [`User::try_write`].
pub trait User {
    /// Returns the number of this CPU, from 0.
    fn cpu(&self) -> usize;
    /// Returns the number of CPUs that run the workload.
    fn cpus(&self) -> usize;

    /// Loads eight bytes through the MMU, handling faults. `address` is a multiple of 8.
    fn try_read(&self, address: u64) -> Result<u64, Fault>;
    /// Stores eight bytes through the MMU, handling faults. `address` is a multiple of 8.
    fn try_write(&self, address: u64, value: u64) -> Result<(), Fault>;

    /// Loads from an address that the program knows to be readable (otherwise use [`User::try_read`]).
    ///
    /// # Panics
    /// If the address isn't readable.
    fn read(&self, address: u64) -> u64 {
        match self.try_read(address) {
            Ok(value) => value,
            Err(fault) => panic!("load from {address:#x}: {fault}"),
        }
    }
    /// Stores to an address that the program knows to be writable (otherwise use [`User::try_write`]).
    ///
    /// # Panics
    /// If the address isn't writable.
    fn write(&self, address: u64, value: u64) {
        if let Err(fault) = self.try_write(address, value) {
            panic!("store to {address:#x}: {fault}");
        }
    }
    /// Loads every cache line of a range in ascending order, like a streaming read.
    ///
    /// # Errors
    /// The fault of the first load that failed. The loads before it were done.
    fn try_read_span(&self, address: u64, bytes: u64) -> Result<(), Fault> {
        (address..address + bytes).step_by(64).try_for_each(|line| self.try_read(line).map(|_| ()))
    }
    /// Stores to every cache line of a range in ascending order.
    ///
    /// # Errors
    /// The fault of the first store that failed. The stores before it were done.
    fn try_write_span(&self, address: u64, bytes: u64, value: u64) -> Result<(), Fault> {
        (address..address + bytes).step_by(64).try_for_each(|line| self.try_write(line, value))
    }

    /// Makes a system call.
    ///
    /// # Errors
    /// Those that [`Call`] and [`Error`] describe.
    fn call(&self, call: Call) -> Result<u64, Error>;

    /// Computes for this time without touching memory. The CPU still takes interrupts.
    fn compute(&self, nanoseconds: u64);
    /// Spends this time in one iteration of a loop that waits for a change of a control word.
    ///
    /// The loop has read the word in this iteration. A machine may let more time pass, until such a word changes.
    fn wait(&self, nanoseconds: u64) {
        self.compute(nanoseconds);
    }
    /// Returns nanoseconds since the run began.
    fn now(&self) -> u64;

    /// Reports that `done` of `all` steps of the program are complete. Takes no time.
    ///
    /// A machine may show this to its user, and detects progress by it. Only one CPU of a run calls this.
    fn step(&self, _done: u64, _all: u64) {}

    /// Reports the line of the program's next statement, for reports about endless runs. Takes no time.
    ///
    /// Returns `false` if the machine has given up the run. Then the program must end.
    fn at(&self, _line: u32) -> bool {
        true
    }

    /// Adds to a count that all CPUs of a run share, wrapping around, and returns its new value.
    ///
    /// With it, workloads detect that none of their CPUs makes progress. It takes no time, because it isn't part of the
    /// machine, and has the ordering of control words. A machine without such a count returns 0; its workloads then
    /// detect nothing.
    fn tally(&self, _add: u64) -> u64 {
        0
    }

    /// Reports the beginning or the end of the measurement to event counters. Takes no time.
    fn mark(&self, _mark: Mark) {}

    /// Reads one of the 64 control words that the CPUs of a workload share.
    ///
    /// They aren't part of the memory under measurement. All operations on them are sequentially consistent.
    fn shared(&self, index: usize) -> u64;
    /// Writes a control word.
    fn set_shared(&self, index: usize, value: u64);
    /// Adds to a control word, wrapping around, and returns its old value.
    fn add_shared(&self, index: usize, value: u64) -> u64;
}
