//! The interface of kernel and user program: addresses and call numbers.
//!
//! We map the program in the kernel's half of every address space, accessible to user mode. So it continues when its
//! CPU enters another address space, and it isn't in the memory whose translations we test.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The address at which the program's file is linked.
pub const PROGRAM: u64 = 0xffff_c000_0000_0000;
/// The number of threads that can run the program at a time.
pub const SLOTS: usize = 128;
/// The address of the stacks. The stack of slot `n` ends at `STACKS + (n + 1) * STACK_STRIDE`.
pub const STACKS: u64 = PROGRAM + (1 << 30);
/// The distance between stacks.
pub const STACK_STRIDE: u64 = 1 << 20;
/// The bytes of a stack. We map nothing below it.
pub const STACK_BYTES: u64 = 64 << 10;
/// The address of the workload's file, if it isn't built in.
pub const FILE: u64 = PROGRAM + (3 << 29);
/// The address of [`Control`].
pub const CONTROL: u64 = PROGRAM + (2 << 30);

/// The program ends: `EXIT, 0, ..`.
pub const EXIT: u64 = 1000;
/// Writes text: `WRITE, address, bytes`.
pub const WRITE: u64 = 1001;
/// The program panicked with a text: `PANIC, address, bytes`.
pub const PANIC: u64 = 1002;
/// The puppet requests its next command and passes the result of the last: `NEXT, value, error`.
pub const NEXT: u64 = 1003;

/// The measurement begins (0) or ends (1): `MARK, which`.
pub const MARK: u64 = 1004;
/// A workload has failed on this CPU: `FAILED, address, bytes` of the reason.
pub const FAILED: u64 = 1005;

/// A check of the conformance suite has run: `CHECK, name, bytes, failures, detail, bytes`.
pub const CHECK: u64 = 1006;
/// A round of the stress has ended: `ROUND, rounds, operations, digest, nanoseconds`.
pub const ROUND: u64 = 1007;
/// Interrupts another CPU with a non-maskable interrupt: `DISTURB, cpu`.
pub const DISTURB: u64 = 1008;
/// Lets an emulator's other CPU run, on architectures without a user instruction for it: `RELAX`. It has no result.
pub const RELAX: u64 = 1009;
/// The control word with the number of the process that the program began in.
pub const PROCESS_WORD: usize = 60;
/// The control word with a stress's length. It counts rounds, or nanoseconds if the top bit is set.
pub const LENGTH_WORD: usize = 61;

/// The program's entry points.
pub mod entry {
    /// Executes commands from the kernel, one by one.
    pub const PUPPET: u64 = 0;
    /// Runs the workload that [`Control::workload`](super::Control) names.
    pub const WORKLOAD: u64 = 1;
    /// Runs the conformance suite.
    pub const CONFORMANCE: u64 = 2;
    /// Runs the stress.
    pub const STRESS: u64 = 3;
}

/// The commands of a puppet.
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

/// The most bytes of [`Control::workload`].
pub const TEXT: usize = 512;

impl Control {
    /// Sets the workload's text. We cut off what doesn't fit.
    pub fn set_workload(&self, text: &str) {
        self.workload_bytes.store(text.len().min(TEXT) as u64, Ordering::Relaxed);
        for (place, byte) in self.workload.iter().zip(text.bytes()) {
            place.store(byte, Ordering::Relaxed);
        }
    }

    /// Returns the workload's text.
    pub fn workload<'a>(&self, room: &'a mut [u8; TEXT]) -> &'a str {
        for (byte, place) in room.iter_mut().zip(&self.workload) {
            *byte = place.load(Ordering::Relaxed);
        }
        let bytes = self.workload_bytes.load(Ordering::Relaxed) as usize;
        core::str::from_utf8(&room[..bytes]).unwrap_or_default()
    }
}

/// Returns the nanoseconds of a number of clock ticks.
pub fn nanoseconds(ticks: u64, ticks_per_ms: u64) -> u64 {
    // We divide in two steps, because this is called in waiting loops and a function divides 128 bits.
    let (milliseconds, rest) = (ticks / ticks_per_ms, ticks % ticks_per_ms);
    milliseconds * 1_000_000 + rest * 1_000_000 / ticks_per_ms
}

/// The memory that the program and the kernel share. It fits in a few pages.
#[repr(C, align(4096))]
pub struct Control {
    /// The control words of a workload, and those of puppets.
    pub words: [AtomicU64; 64],
    /// A command for each slot.
    pub commands: [Command; SLOTS],
    /// The number of ticks of the user-readable clock in a millisecond.
    pub ticks_per_ms: AtomicU64,
    /// The clock's value when the run began.
    pub ticks_at_start: AtomicU64,
    /// The seed of the workload's random choices.
    pub seed: AtomicU64,
    /// The workload and its parameters, `name parameter=value ...`.
    pub workload: [AtomicU8; TEXT],
    /// The number of its bytes.
    pub workload_bytes: AtomicU64,
    /// The length of the text at [`FILE`], or 0 for a built-in workload.
    pub file_bytes: AtomicU64,
}
