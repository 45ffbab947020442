//! AArch64: page-table entries, features, and the instructions for TLBs and TTBR0.

pub mod entry;
pub mod features;
pub mod tlb;
