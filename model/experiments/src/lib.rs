//! Experiments on the machine in software.
//!
//! A [`trial`] is one run of a workload on a machine under a policy, [`run`] makes data of it; [`jobs`] runs many of
//! them on all cores of the host, each different one once. On those stand the published [`headlines`] beside their
//! predictions ([`reproduce`]), published tables that nothing was calibrated for ([`held_out`]), what each guard costs
//! ([`guards`]), one workload on a growing number of CPUs ([`scale`]), grids of runs ([`sweep`]), the longest of which
//! begin first, whose parts come together in one file ([`results`]), and the [`report`] that shows it all on a page.
//!
//! Nothing here reads a command line or prints: progress goes to standard error where that is a terminal,
//! results are values. The same trial gives the same figures on every host, provided that the program's
//! allocator is [`quell_vm::sim::LineAllocator`]: the engine's words lie in the host's memory, and which of them
//! share a cache line is part of the model.

pub mod charts;
pub mod cpu_time;
pub mod guards;
pub mod headlines;
pub mod held_out;
pub mod jobs;
pub mod machines;
pub mod numbers;
pub mod progress;
mod queue;
pub mod report;
pub mod reproduce;
pub mod results;
pub mod run;
pub mod scale;
pub mod sweep;
pub mod trial;
pub mod workloads;

/// The same run gives the same figures on every thread.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: quell_vm::sim::LineAllocator = quell_vm::sim::LineAllocator;
