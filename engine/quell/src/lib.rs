//! Keeps TLBs coherent on many CPUs, fast and checked.
//!
//! Embed this crate in an operating-system kernel, a hypervisor or a unikernel. It's `no_std`, allocates nothing, and
//! assumes nothing about the architecture or the kernel around it. You implement [`Hardware`] for your machine, make
//! one [`Engine`], and report each change of a page-table entry to a [`Batch`].
//!
//! # In short
//!
//! ```
//! # quell::one_cpu!(machine, engine, space);
//! use quell::{Frame, Page, PageRange, Purpose};
//! machine.access(Page(5)); // a program has used the page
//!
//! // Unmap page 5, whose frame is 42: clear its entry, report it, finish the batch.
//! let mut batch = engine.batch(Purpose::Call);
//! batch.unmapped(&space, PageRange::base(Page(5), 1), Frame(42));
//! let free: Vec<Frame> = batch.finish().collect();
//!
//! assert_eq!(free, [Frame(42)]); // it may have a new owner now
//! assert!(!machine.caches(Page(5)));
//! ```
//!
//! | used in | type |
//! | --- | --- |
//! | boot code, the memory manager | [`Engine`]: brings CPUs online, makes address spaces, makes deferred flushes |
//! | the scheduler, the interrupt handler, the entry code | [`Cpu`], and [`MaskedCpu`] with interrupts masked |
//! | code that changes page tables | [`Batch`], or [`Cpu::flush`] for a single change |
//! | the frame table, for [lazy unmap](lazy) | [`DeferredFlush`], one word per frame |
//! | the port to a machine | [`Hardware`], which the kernel implements and the engine calls |
//!
//! `examples/embed.rs` runs two CPUs: one unmaps a page while a program on the other keeps using it.
//!
//! # The contract
//!
//! * **C1 Reuse.** Once a frame has a new owner, no CPU accesses it through a stale translation.
//! * **C2 No lost write.** No CPU writes a frame through a stale writable translation once its
//!   content has been captured: for example, written to swap or copied to another frame.
//! * **C3 Synchronous change.** After an unmap or a protection downgrade that the program requested has returned, no
//!   later access uses the old translation.
//! * **C4 Fresh reads.** [Lazy unmap](lazy) leaves translations behind on purpose. A read through one of them returns
//!   the value that it would return after a new walk of the tables, or after a page fault.
//! * **C5 Isolation.** A CPU running one address space never uses another's translations.
//! * **C6 Tables.** No hardware walker reads a page-table page after it was freed.
//! * **C7 Progress.** Every flush completes, provided that each target takes its interrupts or waits inside the engine.
//! * **C8 Zero.** Memory handed out as zeroed contains only zeros.
//!
//! # Panics
//!
//! Each call documents its own panics. In addition, any call of the engine may panic
//!
//! * on a CPU that the engine has no state for;
//! * in debug builds, if the call may wait for other CPUs although [`Hardware::may_wait`] returns `false`;
//! * in debug builds, if the calling thread moves to another CPU during the call;
//! * if a method of [`Hardware`] or an NMI handler makes the call: it could interrupt the engine in the middle of a
//!   step. Exceptions are [`Cpu::user_access_allowed`] in NMI handlers, and the calls that [`Hardware`] allows.
//!
//! Use each [`Stamp`], [`DeferredFlush`] and [`AddressSpace`] with one engine only. With a second engine the result is
//! unspecified, but memory-safe. `tests/arguments.rs` makes calls with arbitrary arguments.
//!
//! # What the engine doesn't do
//!
//! It writes no page tables and frees no memory. It doesn't zero memory either: `quell-zero` does, and keeps C8. It
//! doesn't know which entries map a frame. If a CPU never takes its interrupts, flushes wait for it for ever.
#![cfg_attr(not(test), no_std)]
#![deny(unsafe_code)]
#![warn(clippy::missing_panics_doc)]

// A word that CPUs share is written only by the module that defines it. One exception: `in_flight` writes the engine's
// count of started flushes.
//
// At each memory ordering, a comment names its partner: the function on the other side. It also names the race of
// `search/threads/tests/orderings` that loom loses if the ordering is one step weaker. A note like `[mutant SkipWait]`
// names a deliberate mistake from `search/mutants` at that place, which our searches must find. Bug numbers in such
// notes are rows of `docs/how-far.md`.
//
// Modules import only downwards in this order: `in_flight`; `at_once`, `batch`, `lazy`, `switch`, `user_mode`,
// `hotplug`; `overflow`; `secondary`, `flush`, `broadcast`, `kernel`, `target`; `engine`, `per_cpu`; `inbox`, `cpu`,
// `asid`, `tags`, `ledger`, `space`, `coalesced`; `request`, `hardware`, `features` and the modules below those.

mod addr;
mod asid;
mod at_once;
mod batch;
mod broadcast;
mod change;
mod coalesced;
mod cpu;
mod cpu_set;
mod engine;
mod entry;
#[doc(hidden)]
pub mod example;
mod features;
mod flush;
mod flush_info;
mod flushed;
mod frames;
mod hardware;
mod hotplug;
mod in_flight;
mod inbox;
pub mod kernel;
pub mod lazy;
mod ledger;
mod overflow;
mod pending;
mod per_cpu;
mod policy;
mod request;
mod secondary;
mod shared_inbox;
mod space;
// Three modules have `unsafe` code: `stack` holds lists whose unused room is uninitialised, `space` loads a root, and
// `per_cpu` follows a machine's pointer to a CPU's state.
#[allow(unsafe_code)]
mod stack;
mod stats;
mod switch;
mod tags;
mod target;
mod this_cpu;
pub mod user_mode;
mod word;

pub use addr::{Extent, Frame, PAGE_BYTES, Page, PageRange, PageSize};
pub use batch::{Batch, Purpose, SpaceRef};
pub use change::{Break, Flush, Need, TlbRules, flush_needed};
pub use cpu_set::{CpuId, CpuSet, MAX_CPUS};
pub use engine::Engine;
pub use entry::{Entry, Level, MemoryType, TABLE_WORDS};
pub use features::{EngineError, Features, Tagging};
pub use flushed::{DeferredFrames, FlushedFrames, Outcome};
pub use frames::{FrameArray, FrameList};
pub use hardware::{Broadcast, Hardware, Invalidation, NoBroadcasts, PerCpuAddress, Scope, Tag};
pub use in_flight::FlushInFlight;
pub use lazy::{DeferredFlush, ReuseProof};
pub use ledger::{LedgerEntry, Stamp};
pub use per_cpu::PerCpuData;
pub use policy::{Mechanism, Policy, TagPolicy};
pub use request::Request;
pub use space::{AddressSpace, KernelEntries, SpaceId};
pub use stats::{Counter, Stats};
pub use tags::Slot;
pub use this_cpu::{Cpu, MaskedCpu};
pub use word::Word;
