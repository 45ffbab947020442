#![no_std]
//! Checks, for any kernel, that translation coherence keeps its contract on the machine below.
//!
//! * [`hardware`]: the suite for every kernel that has a [`quell::Hardware`]: it needs the engine, and
//!   from the kernel no more than table entries and accesses.
//! * [`programs`]: the suite for kernels that run programs on `quell-vm`. Each check performs one
//!   operation of the manager and looks at what every CPU reads and writes around it.
//! * [`stress`]: every operation of the manager on every CPU at random, contents verified.
//!
//! What no program can see is not checked here: entries that a processor keeps under tags that are
//! not loaded, speculative fills, walker caches. The machine in software is for those.

extern crate alloc;

pub mod hardware;
pub mod programs;
pub mod stress;
mod verdict;
