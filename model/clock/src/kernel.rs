//! Defines the interface of the kernel that runs on the machine.

use quell_vm::{Access, Call, Error, Fault, Mark};

/// A kernel: it serves interrupts, faults and calls on the machine.
///
/// The manager of `quell_vm` is one; tests use smaller ones. Every method except [`Kernel::peek`] runs on its CPU and
/// may take any virtual time.
pub trait Kernel {
    /// Handles the shootdown interrupt. Interrupts are off.
    fn interrupt(&self);

    /// Handles a non-maskable interrupt.
    fn nmi(&self) {}

    /// Handles an access of a program that could not be translated.
    ///
    /// # Errors
    /// If the access can never succeed.
    fn fault(&self, address: u64, access: Access) -> Result<(), Fault>;

    /// Performs a program's system call.
    ///
    /// # Errors
    /// As the call describes.
    fn call(&self, call: Call) -> Result<u64, Error>;

    /// Returns the word that the program on this CPU should read at an address.
    ///
    /// The oracle needs it to check clause C4, fresh reads. Returns `None` if nothing is mapped there or the kernel
    /// doesn't know the content. It must not change anything, and may be called between any two steps of other CPUs.
    fn peek(&self, address: u64) -> Option<u64>;

    /// Starts this CPU, before its program begins.
    fn online(&self) {}

    /// Ends this CPU's program: from now on the CPU is idle and takes interrupts.
    fn idle(&self) {}

    /// Begins or ends the program's measurement, for statistics. Takes no virtual time.
    fn mark(&self, _mark: Mark) {}
}
