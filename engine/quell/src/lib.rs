//! Keeps TLBs coherent on many CPUs, fast and checked.
//!
//! An operating-system kernel, a hypervisor or a unikernel embeds this crate. The crate is `no_std`, allocates nothing,
//! and assumes nothing about the architecture or the kernel around it. The embedder implements [`Hardware`] for its
//! machine, makes one [`Engine`], and reports each change of a page-table entry to a [`Batch`].
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
//! | caller | type |
//! | --- | --- |
//! | the kernel's start, its memory manager | [`Engine`]: CPUs on and offline, spaces, deferred flushes |
//! | the scheduler, the interrupt's handler, the entry code | [`Cpu`], and [`Masked`] with interrupts masked |
//! | code that changes page tables | [`Batch`], or [`Cpu::flush`] for a lone change |
//! | the frame table, for lazy unmap | [`DeferredFlush`] |
//! | the machine's description | [`Hardware`], implemented by the kernel |
//!
//! `examples/embed.rs` shows two CPUs, and a program that goes on using the page.
//!
//! # The contract
//!
//! * **C1 Reuse.** No CPU completes an access through a translation to a frame after that frame has
//!   a new owner.
//! * **C2 No lost write.** No CPU writes a frame through a stale writable translation once its
//!   content has been captured.
//! * **C3 Synchronous change.** After an unmap or a protection downgrade that the program asked for has returned, no
//!   later access uses the old translation.
//! * **C4 Fresh reads.** A read through a translation left behind on purpose returns what a read
//!   through the current mapping would.
//! * **C5 Isolation.** A CPU running one address space never uses another's translations.
//! * **C6 Tables.** No hardware walker reads a page-table page after it was freed.
//! * **C7 Progress.** Every flush completes while its target CPUs take interrupts.
//! * **C8 Zero.** Memory handed out as zeroed contains only zeros.
//!
//! # Panics
//!
//! Each call documents when it panics. Besides, every call of the engine may panic
//!
//! * on a CPU that the engine has no state for;
//! * in debug builds, if it waits although [`Hardware::may_wait`] returns `false`;
//! * in debug builds, if its thread moves to another CPU meanwhile;
//! * if a method of [`Hardware`] or an NMI handler makes the call and [the module of the machine](hardware) does not
//!   allow that: it may interrupt the engine in the middle of a step.
//!
//! A [`Stamp`], a [`DeferredFlush`] or a space belongs to the engine that it came from. With another engine its effect
//! is not defined, but it reaches no memory. `tests/arguments.rs` calls every function with every combination of
//! arguments.
//!
//! # What the engine does not do
//!
//! It writes no page tables and frees no memory. It zeroes no memory either (`quell-zero` does). It does not know which
//! entries map a frame, and it does not recover from a CPU that never takes its interrupts.
#![cfg_attr(not(test), no_std)]
#![deny(unsafe_code)]
#![warn(clippy::missing_panics_doc)]

// Only its own module writes a word. One exception: `in_flight` writes the engine's count of flushes in flight.
//
// Imports go one way, downwards in this order: `in_flight`; `at_once`, `batch`, `lazy`, `switch`, `user_mode`,
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
mod pending;
mod per_cpu;
mod policy;
mod request;
mod secondary;
mod shared_inbox;
mod space;
// `stack`: lists that leave their unused room uninitialised. Other `unsafe` code: `space` loads a root, `per_cpu`
// follows a machine's pointer to a CPU's state.
mod overflow;
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
pub use coalesced::CoalescedFlushes;
pub use cpu_set::{CpuId, CpuSet, MAX_CPUS};
pub use engine::Engine;
pub use entry::{Entry, Level, MemoryType, TABLE_WORDS};
pub use features::{Features, Tagging, Unsupported};
pub use flushed::{Deferred, Flushed, Outcome};
pub use frames::{FrameList, InPlace};
pub use hardware::{Broadcast, Hardware, Invalidate, NoBroadcasts, PlaceOf, Scope, Tag};
pub use in_flight::InFlight;
pub use lazy::{DeferredFlush, Reusable};
pub use ledger::{LedgerEntry, Stamp};
pub use per_cpu::PerCpu;
pub use policy::{Mechanism, Policy, TagPolicy};
pub use request::Request;
pub use space::{AddressSpace, KernelEntries, SpaceId};
pub use stats::{Counter, Stats};
pub use tags::Slot;
pub use this_cpu::{Cpu, Masked};
pub use word::Word;
