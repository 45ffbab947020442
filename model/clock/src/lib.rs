//! Predicts the costs of the quell engine on a multi-core machine in software.
//!
//! The engine and the memory manager are compiled for [`Model`] and run here unchanged, on up to 1024 CPUs. Each CPU is
//! a coroutine with its own clock in virtual time. The machine has TLBs and walker caches that may hold whatever the
//! architecture allows. Walkers read page tables in memory and set bits there. Interrupts take time, and cache lines
//! move between cores. A [machine file](mod@file) contains the cost of each operation and the cost's source. The
//! oracle checks every access of every run against the contract, at no virtual cost.
//!
//! ```text
//! program ── User ──▶ mmu ──▶ tlb, walker ──▶ tables, memory ◀── oracle
//!    │                                             ▲
//!    └─ call, fault ──▶ kernel: vm + engine ── Hardware, Machine, Word
//!                                                  │
//!                       run ◀── scheduler ◀── context: whose turn is it?
//! ```
//!
//! # What is modelled
//!
//! * two levels of TLB and the walker's caches, with real geometry and tags;
//! * walks as accesses to memory; accessed and dirty bits;
//! * shared cache lines, whose cost depends on the distance;
//! * interrupts: sending, delivery, masking and waking;
//! * broadcast invalidation: issue, completion and its cost for other CPUs;
//! * memory nodes with latency and bandwidth; zeroing by strategy and length.
//!
//! # Not modelled
//!
//! * Instructions: programs are closures, and the kernel's own computation takes only the time in the machine file's
//!   `[kernel]` section.
//! * Data caches of programs, instruction fetches and speculation.
//! * Weak memory ordering: operations are sequentially consistent under the clock.

mod architecture;
mod clock;
mod context;
mod core;
mod costs;
mod counts;
mod cpu;
pub mod file;
mod flushes;
mod kernel;
mod latency;
mod lines;
mod machine;
mod memory;
mod mmu;
mod moves;
mod oracle;
mod poll;
mod program;
mod run;
mod tlb;
pub mod trace;
mod vm;
mod word;

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: quell_vm::sim::LineAllocator = quell_vm::sim::LineAllocator;

pub use architecture::Architecture;
pub use costs::KernelLock;
pub use counts::Counts;
pub use file::{KernelFile, MachineFile, Parameter, PolicyFile, built_in};
pub use kernel::Kernel;
pub use latency::Latency;
pub use machine::Model;
pub use moves::{LineMove, MovedLine, Role};
pub use program::{ModelUser, Progress};
pub use run::{BuiltMachine, RunError, RunResult, Setup};
pub use trace::Trace;
pub use vm::{Outcome, Run};
pub use word::ModelWord;
