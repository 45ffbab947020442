#![no_std]
//! Is a kernel's [`Hardware`](quell::Hardware) what the engine takes it for, and does the engine keep the
//! contract on it?
//!
//! A kernel that embeds the engine has a `Hardware` already, and a [`Clear`](quell_zero::Clear) for
//! memory. For this suite it adds a [`Bench`]:
//! the few things that the engine never does, writing a table entry and touching memory. It makes an
//! engine, and a [`Suite`] from it, and lets every CPU call [`Suite::run`]. No allocator of pages, no
//! processes and no user mode are needed; accesses may be made by the kernel itself, through the
//! user half of the loaded root.
//!
//! ```text
//! let engine = Engine::new(&hardware, cpus, epochs, Policy::ALL)?;
//! // Shootdown interrupts call engine.on_interrupt() from here on.
//! let suite = Suite::new(&engine);
//! // On every CPU, at once, online in the engine, with the space that it has loaded:
//! suite.run(current, |check| println!("{} failed on {} CPUs: {}", check.name, check.failures, check.saw));
//! ```
//!
//! Each check makes one change as a kernel would, every CPU in turn being the one that makes it, and
//! looks through every CPU's translations before, while and after. Targets read with interrupts
//! masked for a while, because that is where an initiator that does not wait is caught.
//!
//! # What it cannot see
//!
//! Only translations that are stale *on this machine*. [`Check::kept`] of the first check says on how
//! many CPUs a translation outlived its entry at all: where it is 0 the rest proves little. Entries
//! kept under tags that are not loaded, fills by speculation and walker caches show on few
//! emulators; the adversary's machine (`quell-adversary`) is for those. A flush that never ends (C7)
//! shows as a hang: the kernel's own watchdog must end it.

extern crate alloc;

mod bench;
mod checks;
mod part;
mod suite;
pub mod verdict;

pub use bench::{Bench, Rights};
pub use suite::{Check, Suite};
