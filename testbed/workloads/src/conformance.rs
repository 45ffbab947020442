//! Checks, for any kernel that runs programs on `quell-vm`, that they see the contract kept.
//!
//! * [`programs`]: each check performs one operation of the manager and looks at what every CPU reads and
//!   writes around it.
//! * [`stress`]: every operation of the manager on every CPU at random, contents verified.
//!
//! `quell-conformance` is the suite for kernels with a manager of their own.
//!
//! These checks see no more than a program does: not entries that a processor keeps under tags that are
//! not loaded, speculative fills or walker caches. The machines in software are for those.

pub mod programs;
pub mod stress;
