//! Searches for a run that breaks the contract, on a machine that does anything the architecture allows.
//!
//! The same engine and memory manager that run on real machines run here. Their CPUs are coroutines. Before each
//! operation on one of their words, the machine may switch to another CPU, deliver an interrupt, or let a buffered
//! store become visible. A run is a pure function of scenario, machine, policy and a list of such choices, so it
//! repeats exactly.
//!
//! In this table, a module mostly uses those above it:
//!
//! | module | contents |
//! | --- | --- |
//! | [`cell`], [`op`], [`action`] | a word of memory; the next operation of a CPU; the possible next actions |
//! | [`kind`] | the machines: tags, memory ordering, walkers |
//! | [`coverage`] | counts of the protocol's transitions in runs |
//! | [`broken`], [`mistake`] | deliberate mistakes |
//! | [`oracle`] | the contract, as a judge of accesses |
//! | [`footprint`] | the effects of CPUs on each other's words |
//! | [`tables`] | page-table pages and the format of their entries |
//! | [`mmu`] | TLBs and walker caches, as sets of everything they may hold |
//! | [`search`], [`schedule`] | the choices: every schedule, each state once; at random; by priorities; from a list |
//! | [`timeline`] | the record of a run, step by step |
//! | [`machine`], [`isolation`] | the state of a machine; store buffers, interrupts, waiting; page-table isolation |
//! | [`context`], [`word`], [`hardware`] | the machine, as the code that runs on it sees it |
//! | [`stage`] | the coroutines that are the CPUs |
//! | `names` | names of words in a timeline |
//! | [`bare_kernel`] | the smallest kernel on the engine, for scenarios that need no manager |
//! | [`vm_kernel`] | the memory manager, for scenarios over it |
//! | [`workload`] | workload files, run by the memory manager |
//! | [`generated`] | programs that are data, and the kernels under them |
//! | [`mod@scenario`], [`scenarios`] | small programs that race |
//! | [`session`] | runs |
//! | [`rehearsal`] | a workload's first run |
//! | [`mod@explore`] | many runs, with failures shrunk |
//! | [`mod@replay`] | replay codes |
//! | [`generate`] | random programs |
//! | [`mutants`], [`clearing`] | the check that each mistake is found |
//! | [`cases`] | requests for searches and their results, as data |
//!
//! # What is not covered
//!
//! Loads overtake each other and stores wait only on machines with weak memory ordering ([`kind`]). No machine has
//! stores that overtake loads, dependencies that order, or early loads of frames ([`machine`]). TLBs never return
//! garbage, walks never tear a word, and there are no machine checks. No other CPU acts between two operations on the
//! reference count of an `Arc`, or on counters that only generate names.

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

pub use coverage::{Coverage, MachineEvent, ReachGoal};
pub use explore::{Budget, Exploration, Failure, Report, explore};
pub use kind::MachineKind;
pub use mistake::Mistake;
pub use scenario::Scenario;
pub use session::{Case, Session};

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: quell_vm::sim::LineAllocator = quell_vm::sim::LineAllocator;
