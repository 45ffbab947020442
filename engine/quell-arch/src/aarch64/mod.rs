//! AArch64: entries, features, and the instructions TLBI, DSB and the load of TTBR0.

pub mod entry;
pub mod features;
pub mod tlb;
