//! Keeps TLBs coherent on many CPUs, fast and checked.
//!
//! An operating-system kernel, a hypervisor or a unikernel embeds this crate. The crate is `no_std`, allocates nothing,
//! and assumes nothing about the architecture or the kernel around it. The embedder implements [`Hardware`] for its
//! machine, makes one [`Engine`], and reports each change of a page-table entry to a [`Batch`].
//!
//! # In short
//!
//! A machine with one CPU, nothing to interrupt and no tags:
//!
//! ```
//! use quell::{
//!     CpuId, CpuSet, Engine, Features, Frame, Hardware, Invalidate, NoBroadcasts, Page, PageRange, PerCpu,
//!     Policy, Purpose, Tag, Tagging,
//! };
//! use std::sync::atomic::{AtomicU64, Ordering, fence};
//! use std::sync::Mutex;
//!
//! /// Its TLB: the pages that it has a translation of.
//! struct Machine(Mutex<Vec<Page>>);
//!
//! // SAFETY: `invalidate` drops the pages in its range, and the features match the machine.
//! unsafe impl Hardware for Machine {
//!     type Word = AtomicU64;
//!     type Broadcasts = NoBroadcasts;
//!
//!     fn this_cpu(&self) -> CpuId {
//!         CpuId(0)
//!     }
//!     fn features(&self) -> Features {
//!         Features { tagging: Tagging::None, broadcast: false, full_above: 33 }
//!     }
//!     fn fence(&self) {
//!         fence(Ordering::SeqCst);
//!     }
//!     fn invalidate(&self, what: Invalidate) {
//!         self.0.lock().unwrap().retain(|&page| match what {
//!             Invalidate::Range { range, .. } => !range.contains(page),
//!             _ => false,
//!         });
//!     }
//!     unsafe fn load_root(&self, _root: Frame, _tag: Tag, _keep: bool) {
//!         self.invalidate(Invalidate::All);
//!     }
//!     fn unload_root(&self) {
//!         self.invalidate(Invalidate::All);
//!     }
//!     fn interrupt(&self, targets: &CpuSet) {
//!         assert!(targets.is_empty(), "there is one CPU");
//!     }
//!     fn mask_interrupts(&self) -> bool {
//!         false
//!     }
//!     fn restore_interrupts(&self, _were_on: bool) {}
//!     fn relax(&self) {}
//! }
//!
//! let machine = Machine(Mutex::new(Vec::new()));
//! let cpus = [PerCpu::new()];
//! let engine = Engine::new(&machine, &cpus, &[], Policy::ALL)?;
//! // SAFETY: this machine walks no tables, so a root is nothing but a name.
//! let space = unsafe { engine.new_space(Frame(1)) };
//! engine.cpu_online();
//! engine.this_cpu().mask_interrupts().switch(None, &space);
//! machine.0.lock().unwrap().extend([Page(5), Page(6)]); // the program has used two pages
//!
//! // Unmap page 5, behind which is frame 42: clear its entry, report it, finish the batch.
//! let mut batch = engine.batch(Purpose::Call);
//! batch.unmapped(&space, PageRange::base(Page(5), 1), Frame(42));
//! let free: Vec<Frame> = batch.finish().collect();
//!
//! assert_eq!(free, [Frame(42)]); // it may have a new owner now
//! assert_eq!(*machine.0.lock().unwrap(), [Page(6)]);
//! # Ok::<(), quell::Unsupported>(())
//! ```
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
//! # Modules
//!
//! Only its own module writes a word. One exception: `in_flight` writes the engine's count of flushes in flight.
//!
//! | module | contents |
//! | --- | --- |
//! | [`hardware`], [`word`], [`features`] | the machine's interface, and which machines the engine refuses |
//! | [`entry`] | a page-table entry, on any architecture |
//! | [`change`] | does this change of an entry need a flush? |
//! | [`request`] | what to invalidate |
//! | [`pending`] | the changes of one space in a batch |
//! | [`batch`] | batches, which own frames and yield them against proof of the flush (S0) |
//! | [`overflow`] | changes that a batch has no place for |
//! | [`flushed`] | the frames that batches return: with that proof, or with a deferred flush |
//! | [`target`] | the handler of a request on its target |
//! | [`in_flight`] | flushes that are started but not waited for |
//! | [`flush`] | the shootdown: generation, post, interrupt, local flush, wait (S4) |
//! | [`at_once`] | the same for one change, without a batch |
//! | [`coalesced`] | flushes of a whole space that several tasks share |
//! | [`inbox`], [`flush_info`] | how a request reaches a CPU and is acknowledged |
//! | [`cpu`] | what a CPU is doing, and whether it must be interrupted |
//! | [`broadcast`] | flushes on machines whose invalidations reach every CPU |
//! | [`secondary`] | devices and hypervisors that walk the same tables |
//! | [`space`] | address spaces: generation, outstanding batches, the CPUs that have them loaded |
//! | [`switch`] | the context switch, lazy CPUs, the end of a space |
//! | [`kernel`] | spaces of the kernel's mappings, which every CPU has loaded |
//! | [`user_mode`] | CPUs that run programs and are not interrupted for kernel mappings |
//! | [`hotplug`] | CPUs that come online and go offline |
//! | [`tags`], [`asid`] | per-CPU tags and system-wide tags (S2) |
//! | [`lazy`], [`ledger`] | flushes deferred until reuse (S3) |
//! | [`engine`], [`per_cpu`] | the engine of one machine, its state of one CPU |
//! | [`policy`], [`stats`] | which mechanisms are on; counters |
//! | [`language`] | the text form of policies, on every command line and in every file |
//!
//! Imports go one way, downwards in this order: `in_flight`; `at_once`, `batch`, `lazy`, `switch`, `user_mode`,
//! `hotplug`; `overflow`; `secondary`, `flush`, `broadcast`, `kernel`, `target`; `engine`, `per_cpu`; `inbox`, `cpu`,
//! `asid`, `tags`, `ledger`, `space`, `coalesced`; `request`, `hardware`, `features` and the modules below those.
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
pub mod language;
pub mod lazy;
mod ledger;
mod pending;
mod per_cpu;
mod policy;
mod request;
mod secondary;
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
pub use batch::{Batch, Purpose};
pub use change::{Break, Flush, Need, TlbRules, flush_needed};
pub use coalesced::CoalescedFlushes;
pub use cpu_set::{AtomicCpuSet, CpuId, CpuSet, MAX_CPUS};
pub use engine::Engine;
pub use entry::{Entry, Level, MemoryType, TABLE_WORDS};
pub use features::{Features, Tagging, Unsupported};
pub use flushed::{Deferred, Flushed, Outcome};
pub use frames::{FrameList, InPlace};
pub use hardware::{Broadcast, Hardware, Invalidate, NoBroadcasts, PlaceOf, Scope, Tag};
pub use in_flight::InFlight;
pub use language::PolicyError;
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
