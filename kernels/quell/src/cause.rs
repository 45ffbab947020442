//! The reasons for entering the kernel, the same on every architecture.

/// A page fault, the same on every architecture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The address.
    pub address: u64,
    /// The access was a store, or an atomic operation that stores.
    pub write: bool,
    /// The fault came from user mode.
    pub user: bool,
    /// There was a translation, but it didn't allow the access.
    pub present: bool,
    /// The access was an instruction fetch.
    pub fetch: bool,
}

/// The purpose of an interrupt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interrupt {
    /// Serve the engine's requests.
    Shootdown,
    /// Check the threads again.
    Wake,
    /// A timer tick.
    Timer,
}

/// The reason for leaving user mode.
#[derive(Clone, Copy, Debug)]
pub enum Exit {
    /// A system call, with its number and six operands.
    Call([u64; 7]),
    /// A page fault.
    Fault(Fault),
    /// An interrupt, which we've already handled.
    Interrupt,
}
