#![no_std]
#![warn(clippy::missing_panics_doc)]
//! Instructions for x86-64, AArch64 and RISC-V that a machine below the engine needs, and their formats of page-table
//! entries.
//!
//! Each architecture has a module with the same three parts: [`entry`](x86_64::entry) encodes an
//! [`Entry`](quell::Entry) as a word of a table and decodes it, and has the rules of the TLBs;
//! [`features`](x86_64::features) detects the processor's features; [`tlb`](x86_64::tlb) has the instructions that
//! invalidate, switch roots and wait. x86-64 has a fourth part, [`isolation`](x86_64::isolation), for kernels with
//! page-table isolation. [`zero`] has the instructions that zero memory. Formats, operand encodings and the decoding of
//! features are pure functions: they compile on every host, and we test them there. Functions that execute a privileged
//! instruction exist only on their own architecture, and are `unsafe` because they change the meaning of addresses. We
//! have no interrupt between CPUs here: it belongs to the kernel's driver of its interrupt controller.
//!
//! This crate doesn't decide *whether* to flush: the engine does.
//!
//! ```
//! use quell::{Entry, Frame, Level, Need, flush_needed};
//! use quell_arch::x86_64::entry::{DIRTY, PRESENT, RULES, USER, WRITABLE, decode, encode};
//!
//! let word = 42 << 12 | PRESENT | USER | WRITABLE | DIRTY;
//! let old = decode(word, Level::LEAF);
//! assert_eq!((old.frame, old.writable, old.dirty), (Frame(42), true, true));
//! assert_eq!(encode(old, Level::LEAF), word);
//!
//! // A right is taken away: other CPUs have to hear of it.
//! let new = Entry { writable: false, ..old };
//! assert!(matches!(flush_needed(RULES, &old, &new), Need::Flush(_)));
//! // And given back: a CPU that still refuses the access takes a fault, and that is all.
//! assert!(!matches!(flush_needed(RULES, &new, &old), Need::Flush(_)));
//! ```

#[cfg(test)]
extern crate std;

#[macro_use]
mod block;

pub mod aarch64;
#[cfg(test)]
mod entries;
pub mod riscv64;
pub mod x86_64;
pub mod zero;

/// The architecture this crate was compiled for.
#[cfg(target_arch = "aarch64")]
pub use aarch64 as native;
/// The architecture this crate was compiled for.
#[cfg(target_arch = "riscv64")]
pub use riscv64 as native;
/// The architecture this crate was compiled for.
#[cfg(target_arch = "x86_64")]
pub use x86_64 as native;

/// Yields the processor for one turn of a waiting loop.
///
/// It's `pause` on x86-64 and RISC-V, and `yield` on AArch64. We don't use [`core::hint::spin_loop`] on AArch64: it's
/// an `isb`, on which QEMU's round-robin scheduler doesn't switch to another CPU, so a waiter would burn its whole time
/// slice. `yield` switches at once and costs hardware nothing. In QEMU, RISC-V's `pause` doesn't switch either, and its
/// user mode has no instruction that does.
#[inline(always)]
pub fn relax() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: `yield` is a hint.
    unsafe {
        hints::yield_cpu()
    };
    #[cfg(not(target_arch = "aarch64"))]
    core::hint::spin_loop();
}

#[cfg(target_arch = "aarch64")]
pub(crate) mod hints {
    //! Instructions without an effect on a program's results.

    blocks! {
        BLOCKS;

        pub(crate) unsafe fn yield_cpu() {
            user: "yield";
            options(nomem, nostack, preserves_flags)
        }
    }
}
