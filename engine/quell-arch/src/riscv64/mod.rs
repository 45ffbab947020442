//! RISC-V, 64 bits: page-table entries, features, and the instructions for TLBs and satp.

pub mod entry;
pub mod features;
pub mod tlb;
