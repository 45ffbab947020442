#![no_std]
#![warn(clippy::missing_panics_doc)]
//! Implements page-table formats and TLB instructions of x86-64, AArch64 and RISC-V.
//!
//! A kernel uses this crate to implement [`quell::Hardware`], the trait through which the engine (the crate [`quell`])
//! invalidates translations. Each architecture has a module with three parts:
//!
//! * [`entry`](x86_64::entry) converts between an [`Entry`](quell::Entry) and a word of a page table. It also states
//!   the rules of the architecture's TLBs.
//! * [`features`](x86_64::features) detects the processor's features.
//! * [`tlb`](x86_64::tlb) has the instructions that invalidate, load a root and wait.
//!
//! x86-64 has a fourth part, [`isolation`](x86_64::isolation), for kernels with page-table isolation. The module
//! [`zero`] has the instructions that zero memory.
//!
//! Formats, operands and feature decoding are pure functions: they compile and are tested on every host. Functions that
//! execute a privileged instruction exist only on their own architecture. They're `unsafe` because they change which
//! memory an address means. The crate sends no interrupts between CPUs: that's the task of the kernel's
//! interrupt-controller driver.
//!
//! The engine decides *whether* to flush; this crate doesn't.
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
//! // Removing a right needs a flush on the other CPUs.
//! let new = Entry { writable: false, ..old };
//! assert!(matches!(flush_needed(RULES, &old, &new), Need::Flush(_)));
//! // Restoring it needs none: a CPU that still refuses the access takes a fault and walks the table again.
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

/// Re-exports the module of the architecture that this crate was compiled for.
#[cfg(target_arch = "aarch64")]
pub use aarch64 as native;
/// Re-exports the module of the architecture that this crate was compiled for.
#[cfg(target_arch = "riscv64")]
pub use riscv64 as native;
/// Re-exports the module of the architecture that this crate was compiled for.
#[cfg(target_arch = "x86_64")]
pub use x86_64 as native;

/// Yields the processor for one turn of a waiting loop.
///
/// It's `pause` on x86-64 and RISC-V, and `yield` on AArch64.
///
/// On AArch64, [`core::hint::spin_loop`] is an `isb`. QEMU's round-robin scheduler doesn't switch to another CPU on an
/// `isb`, so a waiter would burn its whole time slice. It does switch on `yield`, which costs hardware nothing. QEMU
/// doesn't switch on RISC-V's `pause` either, but user mode has no instruction on which it would.
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
