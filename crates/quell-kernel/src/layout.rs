//! What the kernel and the user program agree on: where things lie and what calls are numbered.
//!
//! The program is mapped in the kernel's half of every address space, where user mode may use it.
//! So it goes on when its CPU enters another address space, and nothing of it lies in the memory
//! whose translations are under test.

use core::sync::atomic::AtomicU64;

/// Where the program's file is linked.
pub const PROGRAM: u64 = 0xffff_c000_0000_0000;
/// How many threads can run the program at a time.
pub const SLOTS: usize = 128;
/// Where the stacks lie: that of slot `n` ends at `STACKS + (n + 1) * STACK_STRIDE`.
pub const STACKS: u64 = PROGRAM + (1 << 30);
/// The distance between stacks.
pub const STACK_STRIDE: u64 = 1 << 20;
/// The bytes of a stack; below it nothing is mapped.
pub const STACK_BYTES: u64 = 64 << 10;
/// Where [`Control`] lies.
pub const CONTROL: u64 = PROGRAM + (2 << 30);

/// The program ends: `EXIT, 0, ..`.
pub const EXIT: u64 = 1000;
/// Writes text: `WRITE, address, bytes`.
pub const WRITE: u64 = 1001;
/// The program panicked with a text: `PANIC, address, bytes`.
pub const PANIC: u64 = 1002;
/// The puppet asks for its next command, giving the result of the last: `NEXT, value, error`.
pub const NEXT: u64 = 1003;

/// What the program that a CPU runs in user mode is to do.
pub mod entry {
    /// Commands from the kernel, one by one.
    pub const PUPPET: u64 = 0;
}

/// What a puppet does next.
pub mod command {
    /// Loads a word.
    pub const LOAD: u64 = 0;
    /// Stores a word.
    pub const STORE: u64 = 1;
    /// Stays in user mode until control word `address` holds `value`.
    pub const SPIN: u64 = 2;
    /// Ends.
    pub const END: u64 = 3;
}

/// One puppet's command.
#[repr(C, align(64))]
pub struct Command {
    /// See [`command`].
    pub what: AtomicU64,
    /// The address.
    pub address: AtomicU64,
    /// The value.
    pub value: AtomicU64,
}

/// Memory that the program and the kernel share. Fits a few pages.
#[repr(C, align(4096))]
pub struct Control {
    /// The control words of a workload, and those of puppets.
    pub words: [AtomicU64; 64],
    /// A command for each slot.
    pub commands: [Command; SLOTS],
    /// Ticks of the user-readable clock in a millisecond.
    pub ticks_per_ms: AtomicU64,
    /// The clock's value when the run began.
    pub ticks_at_start: AtomicU64,
}
