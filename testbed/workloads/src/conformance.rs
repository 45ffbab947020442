//! Checks a kernel that runs programs on [`quell_vm`], through the programs' accesses.
//!
//! * [`programs`]: each check performs one operation of the memory manager, and checks the accesses of every CPU before
//!   and after.
//! * [`stress`]: every CPU performs random operations of the memory manager, and checks all contents.
//!
//! Kernels with their own memory manager use `quell-conformance` instead.
//!
//! The checks observe only a program's accesses. They can't see entries under unloaded tags, speculative fills, and
//! walker caches; the machines in software check those.

pub mod programs;
pub mod stress;
