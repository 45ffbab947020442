//! Conformance checks for any kernel that runs programs on `quell-vm`.
//!
//! * [`programs`]: each check performs one operation of the manager and verifies the accesses of every CPU around it.
//! * [`stress`]: every operation of the manager on every CPU at random, contents verified.
//!
//! Kernels with a manager of their own use `quell-conformance`.
//!
//! These checks see only what a program sees: no entries under tags that are not loaded, no speculative fills, no
//! walker caches. The machines in software check those.

pub mod programs;
pub mod stress;
