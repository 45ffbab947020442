//! Searches for a run that breaks the contract, on a machine that does anything the architecture allows.
//!
//! The same engine and memory manager that run on real machines run here. Their CPUs are coroutines. Before each
//! operation on one of their words, the machine may switch to another CPU, deliver an interrupt, or let a buffered
//! store become visible. A run is a pure function of scenario, machine, policy and a list of such choices, so it
//! repeats exactly.
//!
//! # What is not covered
//!
//! Loads overtake each other and stores wait only on machines with weak memory ordering ([`kind`]). No machine has
//! stores that overtake loads, dependencies that order, or early loads of frames ([`machine`]). TLBs never return
//! garbage, walks never tear a word, and there are no machine checks. No other CPU acts between two operations on the
//! reference count of an `Arc`, or on counters that only generate names.

mod action;
pub mod bare_kernel;
mod broken;
pub mod cases;
mod clearing;
mod context;
pub mod coverage;
mod digest;
pub mod explore;
mod footprint;
pub mod generate;
pub mod generated;
mod hardware;
mod kind;
mod machine;
mod mistake;
mod mmu;
pub mod mutants;
mod oracle;
pub mod replay;
pub mod scenario;
mod scenarios;
pub mod schedule;
mod search;
pub mod session;
mod stage;
mod tables;
mod timeline;
mod vm_kernel;
mod word;
pub mod workload;

pub use coverage::{Coverage, MachineEvent, ReachGoal};
pub use explore::{Budget, Exploration, Failure, Report, explore};
pub use kind::MachineKind;
pub use machine::End;
pub use mistake::Mistake;
pub use scenario::Scenario;
pub use session::{Case, Session};

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: quell_vm::sim::LineAllocator = quell_vm::sim::LineAllocator;
