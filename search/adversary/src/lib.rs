//! The adversary: a machine that does whatever the architecture allows at the worst moment, and a
//! search through what it can do.
//!
//! The same engine and the same memory manager that run on real machines run here on CPUs that are
//! coroutines, on words whose every operation is a point of choice. A run is a pure function of
//! scenario, machine, policy and a list of choices, so it repeats exactly.
//!
//! From the ground up; a module uses those above it in this table:
//!
//! | module | what is there |
//! | --- | --- |
//! | [`cell`], [`op`], [`action`] | a word of memory; what a CPU can be about to do; what may happen next |
//! | [`kind`] | the machines: tags, memory ordering, walkers |
//! | [`coverage`] | which transitions fired |
//! | [`broken`], [`mistake`] | mistakes that are made on purpose |
//! | [`oracle`] | the contract, as a judge of accesses |
//! | [`footprint`] | what CPUs do to each other's words |
//! | [`tables`] | page-table pages and the format of their entries |
//! | [`mmu`] | TLBs and walker caches, as sets of everything they may hold |
//! | [`search`], [`schedule`] | what is chosen: every schedule, each state once; at random; by priorities; from a list |
//! | [`timeline`] | what happened, step by step |
//! | [`machine`], [`isolation`] | the state of a machine; store buffers, interrupts, waiting; page-table isolation |
//! | [`context`], [`word`], [`hardware`] | the machine, as the code that runs on it sees it |
//! | [`stage`] | the CPUs, set in motion |
//! | `names` | what a word is called in a timeline |
//! | [`bare_kernel`] | the smallest kernel on the engine, for scenarios that need no manager |
//! | [`vm_kernel`] | the memory manager, for scenarios over it |
//! | [`workload`] | workload files over it |
//! | [`generated`] | programs that are data, and the kernels under them |
//! | [`mod@scenario`], [`scenarios`] | small programs that race |
//! | [`session`] | runs |
//! | [`rehearsal`] | a workload's first run |
//! | [`mod@explore`] | many runs, failures shrunk |
//! | [`mod@replay`] | replay codes |
//! | [`generate`] | programs that the adversary writes itself |
//! | [`mutants`], [`clearing`] | each mistake must be found |
//! | [`cases`] | what a person asks to be searched, and what came of it as data |
//!
//! # What is not covered
//!
//! Machines whose names say so ([`kind`]) have weak memory ordering: loads that overtake each other, and stores that
//! wait. No machine has stores that overtake loads, dependencies that order, or early loads of frames ([`machine`]). No
//! TLB returns garbage, no walk tears a word, and there are no machine checks. No other CPU steps in between two
//! operations on the reference count of an `Arc`, or on counters that only give out names.

pub mod action;
pub mod bare_kernel;
pub mod broken;
pub mod cases;
pub mod cell;
pub mod clearing;
pub mod context;
pub mod coverage;
mod digest;
pub mod explore;
pub mod footprint;
pub mod generate;
pub mod generated;
pub mod hardware;
pub mod isolation;
pub mod kind;
pub mod machine;
pub mod mistake;
pub mod mmu;
pub mod mutants;
mod names;
pub mod op;
pub mod oracle;
pub mod rehearsal;
pub mod replay;
pub mod scenario;
pub mod scenarios;
pub mod schedule;
pub mod search;
pub mod session;
pub mod stage;
pub mod tables;
pub mod timeline;
pub mod vm_kernel;
pub mod word;
pub mod workload;

pub use coverage::{Coverage, Happening, Reach};
pub use explore::{Budget, Exploration, Failure, Report, explore};
pub use kind::MachineKind;
pub use mistake::Mistake;
pub use scenario::Scenario;
pub use session::{Case, Session};

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: quell_vm::sim::LineAllocator = quell_vm::sim::LineAllocator;
