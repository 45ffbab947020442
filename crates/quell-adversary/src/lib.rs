//! The adversary: a machine that does whatever the architecture allows at the worst moment, and a
//! search through what it can do.
//!
//! The same engine and the same memory manager that run on real machines run here on CPUs that are
//! coroutines, on words whose every operation is a point of choice. A run is a pure function of
//! scenario, machine, policy and a list of choices, so it repeats exactly.
//!
//! | module | what happens there |
//! | --- | --- |
//! | [`kind`] | the machines: tags, memory ordering, walkers |
//! | [`machine`] | the state of a machine; store buffers, interrupts, waiting |
//! | [`tables`] | page-table pages and the format of their entries |
//! | [`mmu`] | TLBs and walker caches, as sets of everything they may hold |
//! | [`oracle`] | the contract, as a judge of accesses |
//! | [`scenarios`] | small programs that race |
//! | [`schedule`] | who does what next: random, PCT, exhaustive, replay |
//! | [`search`] | every schedule, each state once |
//! | [`session`] | runs |
//! | [`mod@explore`] | many runs, failures shrunk, replay codes |
//! | [`hunt`] | mutants |
//! | [`promise`] | mutants that break no clause |
//! | [`managed`] | the memory manager, for scenarios over it |
//! | [`tiny`] | the smallest kernel on the engine, for scenarios that need no manager |
//! | [`timeline`] | what happened, for people |
//! | [`coverage`] | which transitions fired |
//!
//! # What is not covered
//!
//! Loads are not reordered: of the weak memory models only the reordering and delay of stores is
//! modelled. A TLB that returns garbage, walks that tear words and machine checks are not either.
//! Nobody comes between two operations on the reference count of an `Arc`, or on counters from which
//! names alone are taken.

pub mod context;
pub mod coverage;
pub mod explore;
pub mod hardware;
pub mod hunt;
pub mod kind;
pub mod machine;
pub mod managed;
pub mod mmu;
pub mod oracle;
pub mod promise;
pub mod scenarios;
pub mod schedule;
pub mod search;
pub mod session;
pub mod tables;
pub mod timeline;
pub mod tiny;
pub mod word;

pub use coverage::{Coverage, Happening, Reach};
pub use explore::{Budget, Failure, Plan, Report, explore};
pub use kind::MachineKind;
pub use session::{Case, Session};

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: quell_sim::LineAllocator = quell_sim::LineAllocator;
