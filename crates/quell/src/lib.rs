//! Keeps translation caches coherent on many CPUs, fast and checked.
//!
//! An operating-system kernel, a hypervisor or a unikernel embeds this crate: `no_std`, no
//! allocation, no assumptions about the architecture or the kernel around it. It implements
//! [`Hardware`] for its machine, makes one [`Engine`], and reports each change of a page-table
//! entry to a [`Batch`].
//!
//! # The contract
//!
//! * **C1 Reuse.** No CPU completes an access through a translation to a frame after that frame has
//!   a new owner.
//! * **C2 No lost write.** No CPU writes a frame through a stale writable translation once its
//!   content has been captured.
//! * **C3 Synchronous change.** When an unmap or a protection downgrade that the program asked for
//!   has returned, no access that happens after it uses the old translation.
//! * **C4 Fresh reads.** A read through a translation left behind on purpose returns what a read
//!   through the current mapping would.
//! * **C5 Isolation.** A CPU running one address space never uses another's translations.
//! * **C6 Tables.** No hardware walker reads a page-table page after it was freed.
//! * **C7 Progress.** Every flush completes while its target CPUs take interrupts.
//! * **C8 Zero.** Memory handed out as zeroed contains only zeros.
//!
//! # The rooms
//!
//! | module | what happens there |
//! | --- | --- |
//! | [`hardware`] | what a machine must provide |
//! | [`features`] | what it can do, and which combinations are refused |
//! | [`change`] | does this change of an entry need a flush? |
//! | [`batch`] | gathers, which own frames and yield them against proof of the flush (S0) |
//! | [`request`] | what to invalidate |
//! | [`space`] | address spaces: generation, who has them loaded, what they owe |
//! | [`shootdown`] | remote flush (S4) |
//! | [`tags`] | PCIDs and ASIDs (S2) |
//! | [`lazy`] | flushes owed until reuse (S3) |
//! | [`engine`] | the context switch, and everything tied together |
//! | [`rules`] | what must never be forgotten |
//! | [`policy`], [`stats`] | which mechanisms are on; why and how often |
//!
//! # What the engine does not do
//!
//! It writes no page tables, frees no memory and zeroes none (`quell-zero` does); it does not know which entries a frame is mapped
//! by. Global kernel entries are outside its spaces. It does not recover from a CPU that never
//! takes its interrupts.
#![cfg_attr(not(test), no_std)]

pub mod addr;
pub mod batch;
pub mod change;
pub mod cpu_set;
pub mod engine;
pub mod features;
pub mod hardware;
pub mod lazy;
#[doc(hidden)]
pub mod mutant;
pub mod per_cpu;
pub mod policy;
pub mod request;
pub mod rules;
pub mod shootdown;
pub mod space;
mod stack;
pub mod stats;
pub mod tags;

pub use addr::{Extent, Frame, Page, PageRange, PageSize};
pub use batch::{Batch, Flushed, Outcome, Owed, Purpose};
pub use change::{EntryView, Need, flush_needed};
pub use cpu_set::CpuSet;
pub use engine::Engine;
pub use features::{Features, Tagging, Unsupported};
pub use hardware::{CpuId, Hardware, Invalidate, Scope, Tag, Word};
pub use lazy::{Claimed, Epoch, Residue, Stamp};
pub use per_cpu::PerCpu;
pub use policy::{Mechanism, Policy, TagPolicy};
pub use request::Request;
pub use rules::{AllRules, Rule, Rules};
pub use space::{AddressSpace, SpaceId};
pub use stats::{Counter, Stats};
pub use tags::Slot;
