#![cfg_attr(not(test), no_std)]
//! Tests a kernel's [`Hardware`](quell::Hardware), and the engine on it, inside the running kernel.
//!
//! The tests detect a `Hardware` that breaks a promise of its trait, and an engine that breaks its contract on this
//! machine. The contract consists of the clauses C1 to C8, which `docs/contract.md` explains.
//!
//! A kernel that uses the engine already implements `Hardware`, and [`PhysicalMemory`](quell_zero::PhysicalMemory) for
//! zeroing memory. For this suite it also implements [`Bench`]: operations that the engine never performs, such as
//! writing table entries and accessing memory. It creates an engine and a [`Suite`] from it, and every CPU calls
//! [`Suite::run`].
//!
//! The suite needs no page allocator, no processes and no user mode. The kernel itself may make the accesses, for
//! example, through the user half of the loaded root.
//!
//! [`Suite`] shows the calls. The crate's test `tests/toy` is a complete example: a machine of threads that implements
//! `Hardware` and `Bench`, and runs the suite.
//!
//! Each check makes one change as a kernel would, on every CPU in turn. All CPUs read through their translations
//! before, during and after the change. While the targets read, the suite masks their interrupts for a moment: this
//! catches an initiator that doesn't wait.
//!
//! # Limits
//!
//! The suite detects a broken promise only if a stale translation is visible *on this machine*. [`Check::kept`] is the
//! number of CPUs that still used a translation after its entry was changed and before the flush, as they may. If it's
//! 0, the machine kept nothing stale, so that check proves little. Few emulators, for example, model speculative fills,
//! walker caches, or entries under tags that aren't loaded. The machine of `quell-adversary` does.
//!
//! The suite can't end a flush that never ends (C7). So the kernel's own watchdog must end such a hang.

#[cfg(feature = "suite")]
extern crate alloc;

#[cfg(feature = "suite")]
mod bench;
#[cfg(feature = "suite")]
mod checks;
#[cfg(feature = "suite")]
mod part;
pub mod policy_text;
#[cfg(feature = "suite")]
mod promises;
#[cfg(feature = "suite")]
mod suite;
#[cfg(feature = "suite")]
pub mod verdict;

#[cfg(feature = "suite")]
pub use bench::{Bench, Rights};
pub use policy_text::{PolicyError, PolicyText, parse_policy};
#[cfg(feature = "suite")]
pub use suite::{Check, Suite};
