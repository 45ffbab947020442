//! The interface of the kernel that runs on the machine.

use quell_vm::{Access, Call, Error, Fault, Mark};

/// Serves interrupts, faults and calls on the machine.
///
/// `quell_vm`'s manager is one; tests bring smaller ones. Every method but [`Kernel::peek`] runs on the CPU concerned
/// and may take any time.
pub trait Kernel {
    /// The shootdown interrupt came. Interrupts are off.
    fn interrupt(&self);

    /// A non-maskable interrupt came.
    fn nmi(&self) {}

    /// A program's access could not be translated.
    ///
    /// # Errors
    /// If it never will be.
    fn fault(&self, address: u64, access: Access) -> Result<(), Fault>;

    /// A program's system call.
    ///
    /// # Errors
    /// As the call describes.
    fn call(&self, call: Call) -> Result<u64, Error>;

    /// Returns what the program on this CPU should read at an address: the oracle's truth for C4.
    ///
    /// `None` if nothing is mapped there or the kernel doesn't know the content. Must not change anything; called
    /// between any two steps of other CPUs.
    fn peek(&self, address: u64) -> Option<u64>;

    /// This CPU comes up, before its program begins.
    fn online(&self) {}

    /// This CPU's program has ended: from here on the CPU is idle and takes interrupts.
    fn idle(&self) {}

    /// The program's measurement begins or ends. Costs nothing: for statistics.
    fn mark(&self, _mark: Mark) {}
}
