//! Runs generated programs over the engine, as an embedder that keeps every rule.
//!
//! This kernel is larger than the [bare kernel](crate::bare_kernel) and just as literal. It has three levels of tables,
//! base, large and huge pages, private memory, files that several spaces map, frames with owners, and batches that any
//! CPU may continue. It keeps each of the engine's rules for embedders in a single place, so a run that fails is a
//! failure of the engine:
//!
//! * It changes an entry under the lock of its space, and reports the change before it drops the lock.
//! * It maps a page at an emptied place only after [`Engine::flush_pending_batches`]. If there is a marker, it also
//!   calls [`Engine::flush_before_refill`] first.
//! * A CPU that relies on an entry that another CPU has cleared or protected makes the pending flushes first.
//! * It reclaims a file's page lazily only if the page is mapped read-only everywhere and every earlier change has been
//!   flushed. The deferred flush begins before the first entry is cleared. It's recorded after the locks of the spaces
//!   are dropped, but before the file's lock is. The page returns when the frame is reinstated, or in another frame
//!   after the deferred flush was made.
//! * A frame is free when its batch returns it. The kernel owns it from that moment, so any use of an old translation
//!   reaches a frame with a new owner (C1).
//! * It splits a block of contiguous entries before it changes one of them, unless it removes all of them.
//! * Later observers can't see a coalesced flush. So if a CPU takes the space's lock while one is outstanding, it
//!   flushes first.
//! * It calls [`Cpu::quiesce`] before it reuses a frame that speculative loads must not reach.
//! * It captures content after the flush, under the lock, while the entry is still protected.
//! * It ends a space when no CPU runs it. Idle CPUs don't count.
//! * On every path, a CPU reports its return to an undisturbed program as its last action in the kernel, and its entry
//!   into the kernel as its first.
//!
//! Data that a lock protects is in words that are read and written without a point of choice, because no other CPU uses
//! them while the lock is held.
//!
//! [`Cpu::quiesce`]: quell::Cpu::quiesce
//! [`Engine::flush_pending_batches`]: quell::Engine::flush_pending_batches
//! [`Engine::flush_before_refill`]: quell::Engine::flush_before_refill

mod batches;
mod contiguous;
mod files;
mod mapping;
mod operations;
mod own_half;
mod run;
mod spaces;
mod state;

pub(super) use run::perform;
pub(super) use state::Layout;
