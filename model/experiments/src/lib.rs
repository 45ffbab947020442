//! Runs experiments on the machine in software that predicts costs ([`quell_clock`]).
//!
//! * [`trial`]: one run of a workload on a machine under a policy; [`run`] turns it into data.
//! * [`jobs`]: many trials on all cores of the host, longest first.
//! * [`headlines`] and [`reproduce`]: published figures beside predictions.
//! * [`held_out`]: published tables that were not used for calibration.
//! * [`guards`]: the cost of each guard, that is, of each check or flush that makes a mechanism safe.
//! * [`lines`]: the cache lines that moved between cores, and the code that moved them.
//! * [`scale`] and [`sweep`]: growing numbers of CPUs, and grids of runs; [`results`] merges their parts.
//! * [`report`]: all of it on one page.
//!
//! S0 to S4 number the engine's mechanisms: batching, extents, tags, lazy unmap and remote flush.
//!
//! This crate reads no command line and prints no results. It writes progress to standard error. The same trial returns
//! the same figures on every host if the program's allocator is [`quell_vm::sim::LineAllocator`]. That's necessary
//! because the engine's words are in the host's memory, and the model depends on which of them share a cache line.

pub mod charts;
pub mod cpu_time;
pub mod guards;
pub mod headlines;
pub mod held_out;
pub mod jobs;
pub mod kernels;
pub mod lines;
pub mod machines;
pub mod numbers;
pub mod policies;
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

/// Makes the same run return the same figures on every thread.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: quell_vm::sim::LineAllocator = quell_vm::sim::LineAllocator;
