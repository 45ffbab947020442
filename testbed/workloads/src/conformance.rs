//! Conformance checks for any kernel that runs programs on `quell-vm`.
//!
//! * [`programs`]: each check performs one operation of the manager and verifies the accesses of every CPU around it.
//! * [`stress`]: every operation of the manager on every CPU at random, contents verified.
//!
//! Kernels with their own manager use `quell-conformance`.
//!
//! These checks observe only a program's accesses. They can't see entries under unloaded tags, speculative fills, and
//! walker caches; the machines in software check those.

pub mod programs;
pub mod stress;
