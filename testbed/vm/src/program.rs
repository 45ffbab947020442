//! A program's interface: loads, stores and system calls, and failures of accesses.
//!
//! Workload files use [`User`] alone, so that the same file runs as coroutines on the machine in software and in user
//! mode on an MMU.

use crate::syscall::{Call, Error};

/// The reason why a program's access fails. A Unix kernel would send a signal.
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

/// The beginning or the end of a program's measurement.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mark {
    /// The measured window begins.
    Begin,
    /// The measured window ends.
    End,
}

/// A program's interface to the machine, on one CPU.
///
/// Each CPU of a workload has its own `User`. An access to an address that isn't mapped, or that the mapping does not
/// allow, ends the run with a message. Workloads that expect such a fault use [`User::try_read`] and
/// [`User::try_write`].
pub trait User {
    /// Returns this CPU, counted from 0.
    fn cpu(&self) -> usize;
    /// Returns the number of CPUs that run the workload.
    fn cpus(&self) -> usize;

    /// Loads eight bytes through the MMU, handling faults. `address` is a multiple of 8.
    fn try_read(&self, address: u64) -> Result<u64, Fault>;
    /// Stores eight bytes through the MMU, handling faults. `address` is a multiple of 8.
    fn try_write(&self, address: u64, value: u64) -> Result<(), Fault>;

    /// Loads from an address that the program knows to be readable ([`User::try_read`]).
    ///
    /// # Panics
    /// If it is not.
    fn read(&self, address: u64) -> u64 {
        match self.try_read(address) {
            Ok(value) => value,
            Err(fault) => panic!("load from {address:#x}: {fault}"),
        }
    }
    /// Stores to an address that the program knows to be writable ([`User::try_write`]).
    ///
    /// # Panics
    /// If it is not.
    fn write(&self, address: u64, value: u64) {
        if let Err(fault) = self.try_write(address, value) {
            panic!("store to {address:#x}: {fault}");
        }
    }
    /// Loads every cache line of a range in ascending order, as a streaming read does.
    ///
    /// # Errors
    /// The fault of the first load that failed; the loads before it were done.
    fn try_read_span(&self, address: u64, bytes: u64) -> Result<(), Fault> {
        (address..address + bytes)
            .step_by(64)
            .try_for_each(|line| self.try_read(line).map(|_| ()))
    }
    /// Stores to every cache line of a range in ascending order.
    ///
    /// # Errors
    /// The fault of the first store that failed; the stores before it were done.
    fn try_write_span(&self, address: u64, bytes: u64, value: u64) -> Result<(), Fault> {
        (address..address + bytes)
            .step_by(64)
            .try_for_each(|line| self.try_write(line, value))
    }

    /// Makes a system call.
    ///
    /// # Errors
    /// Those that [`Call`] and [`Error`] describe.
    fn call(&self, call: Call) -> Result<u64, Error>;

    /// Computes for this time without touching memory. The CPU still takes interrupts.
    fn compute(&self, nanoseconds: u64);
    /// Spends this time in a loop that waits until other CPUs change a control word which it has read in this
    /// iteration. A machine may let more time pass, until one of these words changes.
    fn wait(&self, nanoseconds: u64) {
        self.compute(nanoseconds);
    }
    /// Returns nanoseconds since the run began.
    fn now(&self) -> u64;

    /// Reports that `done` of `all` steps of the program are complete. A machine may show this to its user, and detects
    /// progress by it. Takes no time. Only one CPU of a run calls this.
    fn step(&self, _done: u64, _all: u64) {}

    /// Reports the line of the program's next statement, for reports about endless runs. Returns `false` if the machine
    /// has given up the run, and the program must end. Takes no time.
    fn at(&self, _line: u32) -> bool {
        true
    }

    /// Adds to a count that all CPUs of a run share, wrapping around, and returns its new value. Workloads use it to
    /// detect that none of their CPUs makes progress. It takes no time, because it isn't part of the machine, and has
    /// the ordering of control words. A machine without such a count returns 0, and its workloads detect nothing.
    fn tally(&self, _add: u64) -> u64 {
        0
    }

    /// Reports the beginning and the end of the measurement to event counters. Takes no time.
    fn mark(&self, _mark: Mark) {}

    /// Reads one of the 64 control words that the CPUs of a workload share. They aren't part of the memory under
    /// measurement; all operations on them are sequentially consistent.
    fn shared(&self, index: usize) -> u64;
    /// Writes a control word.
    fn set_shared(&self, index: usize, value: u64);
    /// Adds to a control word, wrapping around, and returns its old value.
    fn add_shared(&self, index: usize, value: u64) -> u64;
}
