//! The kernel under generated programs over the engine: an embedder that keeps every rule.
//!
//! It is larger than the [bare kernel](crate::bare_kernel) and just as literal: three levels of tables, base,
//! large and huge pages, private memory, files that several spaces map, frames with owners, batches
//! that any CPU may go on with. This kernel does what the rules of the engine demand of an embedder, each in one
//! place, so a run that goes wrong goes wrong in the engine:
//!
//! * an entry is changed under the lock of its space, and reported before that is dropped;
//! * a page goes to a place that was emptied only after [`Engine::flush_pending_batches`], and after
//!   [`Engine::flush_before_refill`] where a marker stands;
//! * a CPU that relies on an entry that another has cleared or protected flushes what is pending first;
//! * a file's page goes out lazily only if it is mapped read-only everywhere and every earlier change has been flushed;
//!   its deferred flush begins before the first entry is cleared, and is recorded before the file's lock is dropped
//!   (those of the spaces are dropped earlier); the page comes back by reinstating the frame, or with another frame
//!   after the deferred flush was made;
//! * a frame is free when the batch that holds it gives it out; the kernel owns it from that moment, so
//!   that any use of an old translation is one of a frame with a new owner (C1);
//! * a block of contiguous entries is taken apart before one of its entries changes, unless all of them go;
//! * later observers can't see a coalesced flush, so a CPU that takes the space's lock while one is outstanding flushes
//!   first;
//! * a frame that bears no speculation goes after [`Cpu::quiesce`];
//! * content is captured after the flush, under the lock, while the entry is still protected;
//! * a space ends when no CPU runs it; an idle CPU does not count;
//! * a CPU that returns to an undisturbed program says so last, and enters the kernel first, on every way back.
//!
//! Data that a lock protects lies in words that are read and written without a point: between taking
//! the lock and giving it back no other CPU looks at them.
//!
//! | module | what happens there |
//! | --- | --- |
//! | [`layout`] | where tables and frames lie |
//! | [`state`] | what the kernel keeps: locks, frames with owners, entries |
//! | [`spaces`] | running, idling, accesses; spaces that end and begin anew |
//! | [`mapping`] | mapping, and moving what is mapped |
//! | [`contiguous`] | blocks of contiguous entries |
//! | [`coalesced`] | pages that go with a flush that tasks share |
//! | [`withdrawn`] | frames that bear no speculation |
//! | [`postconditions`] | what calls promise when they return |
//! | [`own_half`] | the kernel's own mappings: taken away, used again, and its text |
//! | [`own_state`] | what the kernel knows of them |
//! | [`files`] | files of one page, reclaimed at once or lazily |
//! | [`batches`] | batches, and what their end means |
//! | [`operations`] | what each operation of a program does; interrupts, NMIs, preemption |
//! | [`undisturbed`] | CPUs that run a program and are not to be disturbed |
//! | [`run`] | a run, from the machine to the timeline |
//!
//! [`Cpu::quiesce`]: quell::Cpu::quiesce
//! [`Engine::flush_pending_batches`]: quell::Engine::flush_pending_batches
//! [`Engine::flush_before_refill`]: quell::Engine::flush_before_refill

mod batches;
mod coalesced;
mod contiguous;
mod files;
mod layout;
mod mapping;
mod operations;
mod own_half;
mod own_state;
mod postconditions;
mod run;
mod spaces;
mod state;
mod undisturbed;
mod withdrawn;

pub(super) use layout::Layout;
pub(super) use run::perform;
