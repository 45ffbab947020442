//! The reasons for entering the kernel, the same on every architecture.

/// A page fault, the same on every architecture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The address.
    pub address: u64,
    /// A store (or an atomic operation that stores).
    pub write: bool,
    /// From user mode.
    pub user: bool,
    /// There was a translation, and it did not allow the access.
    pub present: bool,
    /// An instruction fetch.
    pub fetch: bool,
}

/// The purpose of an interrupt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interrupt {
    /// Serve the engine's requests.
    Shootdown,
    /// Look at the threads again.
    Wake,
    /// A timer tick.
    Timer,
}

/// Why user mode was left.
#[derive(Clone, Copy, Debug)]
pub enum Exit {
    /// A system call: number and six operands.
    Call([u64; 7]),
    /// A page fault.
    Fault(Fault),
    /// An interrupt, which has been handled.
    Interrupt,
}
